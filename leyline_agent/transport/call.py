"""One chat request on its way, and what its answer tells of itself."""

from __future__ import annotations

import json
from array import array
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from leyline_agent.core import Mode
from leyline_agent.planner import Planned
from leyline_agent.transport.history import Chain

ASK = {"input_ids": "return_input_ids_in_sglext", "output_ids": "return_output_ids_in_sglext"}
"""Name of token ids in an answer's sglext -> field of the request that asks for them."""

ASK_HEADERS = {"input_ids": "x-sglext-return-input-ids", "output_ids": "x-sglext-return-output-ids"}
"""The same -> header that asks for them when it is "1"."""

_NAMESPACE = ("model", "cache_salt", "extra_key", "lora_path")


@dataclass(slots=True)
class Call:
    """One request on its way: what came in, what is known so far.

    wanted: names of the token ids that the caller asked for himself, by header.
    completion: the answer's id. links: its conversation. ids: its prompt, empty until
    known. output: what was generated.
    """

    body: dict[str, Any]
    mode: Mode
    conversation: str | None
    began: float
    origin: str = ""
    content: int = 0
    wanted: Collection[str] = ()
    completion: str = ""
    links: Chain = ()
    ids: array[int] = field(default_factory=lambda: array("q"))
    output: list[int] | None = None
    planned: Planned | None = None
    tokenize_ms: float = 0.0
    ttft_ms: float = 0.0
    cached: int | None = None

    @property
    def namespace(self) -> str:
        """What the server separates caches by, as one text."""
        names = [self.origin, *(self.body.get(k) for k in _NAMESPACE)]
        return json.dumps(names, sort_keys=True, default=str)


def note(call: Call, answer: dict[str, Any]) -> bool:
    """Keep what an answer or a stream's chunk tells about itself.

    Returns:
        Whether it carries token ids.
    """
    if (cached := cached_tokens(answer)) is not None:
        call.cached = cached
    ext = answer.get("sglext")
    if not isinstance(ext, dict):
        return False
    prompt, outputs = ext.get("input_ids"), ext.get("output_ids")
    if told := isinstance(outputs, list) and len(outputs) == 1 and are_ids(outputs[0]):
        call.output = outputs[0]
    if are_ids(prompt) and prompt:
        told, call.ids = True, call.ids or array("q", prompt)
    return told


def are_ids(value: Any) -> bool:
    """Whether this is a list of token ids."""
    return isinstance(value, list) and all(type(i) is int and 0 <= i < 1 << 62 for i in value)


def cached_tokens(answer: dict[str, Any]) -> int | None:
    """Prompt tokens found in the server's cache, if the answer says so."""
    usage = answer.get("usage")
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return cached if isinstance(cached, int) else None


def without_ids(call: Call, answer: dict[str, Any]) -> dict[str, Any]:
    """An answer as it would be, had we not asked for token ids."""
    ours = [n for n, ask in ASK.items() if not call.body.get(ask) and n not in call.wanted]
    ext = {k: v for k, v in (answer.get("sglext") or {}).items() if k not in ours}
    rest = {k: v for k, v in answer.items() if k != "sglext"}
    return {**rest, "sglext": ext} if any(v is not None for v in ext.values()) else rest
