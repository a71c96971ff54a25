"""The pure part of the transport: a chat request becomes one with exact ids and a plan.

    request --> body --tokenize--> ids --plan--> body' --> answer --> ledger

Shared by the synchronous and asynchronous shells of both HTTP libraries. Whatever cannot
be understood goes through as it came: `Lowering.open` answers None.
"""

from __future__ import annotations

import json
import logging
import time
from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from leyline_agent.core import PARAM, Mode
from leyline_agent.planner import Entry, Planned, Planner
from leyline_agent.transport.record import COLLECTING, TurnRecord

logger = logging.getLogger("leyline_agent")

CONVERSATION = "x-leyline-conversation"
MODE = "x-leyline-mode"
_NAMESPACE = ("model", "cache_salt", "extra_key", "lora_path")
_IDS = "return_output_ids_in_sglext"
_REMEMBERED = 64
_PAUSE_S = 60.0


@dataclass(slots=True)
class Call:
    """One request on its way: what came in, what is known so far."""

    body: dict[str, Any]
    mode: Mode
    conversation: str | None
    wants_ids: bool
    began: float
    origin: str = ""
    content: int = 0
    ids: array[int] = field(default_factory=lambda: array("q"))
    planned: Planned | None = None
    tokenize_ms: float = 0.0
    ttft_ms: float = 0.0
    cached: int | None = None

    @property
    def namespace(self) -> str:
        """What the server separates caches by, as one text."""
        names = [self.origin, *(self.body.get(k) for k in _NAMESPACE)]
        return json.dumps(names, sort_keys=True, default=str)


@dataclass(slots=True)
class Lowering:
    """State that all requests of one client share: planner, counters, the caller's hook.

    mode: of edits that name none. counts: "planned", "plain", or why a request went
    through untouched. on_turn: called once for each finished request; what it raises is
    logged and dropped. last: the record of the request that finished last.
    """

    planner: Planner = field(default_factory=Planner)
    mode: Mode = Mode.AMORTIZE
    on_turn: Callable[[TurnRecord], None] | None = None
    counts: Counter[str] = field(default_factory=Counter)
    last: TurnRecord | None = None
    _failed: set[int] = field(default_factory=set)
    _deaf: dict[str, float] = field(default_factory=dict)

    def open(
        self, path: str, headers: Mapping[str, str], content: bytes, origin: str = ""
    ) -> Call | None:
        """Read a request; None when it is none of ours, with the reason counted."""
        if not path.endswith("/chat/completions"):
            return None
        try:
            body = json.loads(content)
            reason = _unfit(body) or self._distrust(content, origin)
            mode = Mode(headers.get(MODE) or self.mode)
        except (ValueError, TypeError, RecursionError):
            reason, body, mode = "unreadable", {}, self.mode
        if reason:
            self.skip(reason)
            return None
        conversation = headers.get(CONVERSATION)
        wants = bool(body.get(_IDS))
        return Call(body, mode, conversation, wants, time.perf_counter(), origin, hash(content))

    def _distrust(self, content: bytes, origin: str) -> str:
        if hash(content) in self._failed:
            return "failed before"
        return "no tokens from the server" if self._deaf.get(origin, 0) > time.monotonic() else ""

    def failed(self, call: Call) -> None:
        """The server failed on the lowered form: a caller's own retry goes through untouched."""
        if len(self._failed) >= _REMEMBERED:
            self._failed.clear()
        self._failed.add(call.content)

    def deaf(self, origin: str) -> None:
        """The server has no /tokenize: don't ask it again for a while."""
        self._deaf[origin] = time.monotonic() + _PAUSE_S

    def skip(self, reason: str, error: Exception | None = None) -> None:
        """Count a request that goes through untouched, and say why in one line."""
        self.counts[reason] += 1
        logger.info("leyline: plain request (%s)%s", reason, f": {error}" if error else "")

    def tokenize_body(self, call: Call) -> dict[str, Any]:
        """What to post to /v1/tokenize: the chat request itself, so that the ids are its own."""
        return {k: v for k, v in call.body.items() if k not in ("stream", "stream_options")}

    def lower(self, call: Call, tokens: list[int], tokenize_ms: float) -> dict[str, Any]:
        """The body to send: exact ids, the plan if there is one, and a wish for output ids."""
        call.ids, call.tokenize_ms = array("q", tokens), tokenize_ms
        planned = self.planner.plan(call.ids, call.namespace, call.conversation, call.mode)
        call.planned = planned
        body = {**call.body, "input_ids": tokens, _IDS: True}
        if planned.wire is not None:
            body["custom_params"] = {
                **(call.body.get("custom_params") or {}),
                PARAM: planned.wire.dumps(),
            }
        self.counts["planned" if planned.wire else "plain"] += 1
        return body

    def first_bytes(self, call: Call) -> None:
        """Note the time to the first bytes of the answer, once."""
        if not call.ttft_ms:
            call.ttft_ms = (time.perf_counter() - call.began) * 1e3

    def close(self, call: Call, completion: str, output: list[int] | None) -> None:
        """Enter a finished answer into the ledger and tell the caller."""
        planned = call.planned
        if planned is None or not completion:
            return
        if output is not None:
            ids = call.ids[:]
            ids.extend(output)
            self.planner.ledger.put(
                Entry(
                    completion,
                    ids,
                    len(call.ids),
                    call.namespace,
                    call.conversation,
                    planned.amortized,
                )
            )
        record = self.last = _record(call, planned, completion)
        for records in COLLECTING.get():
            records.append(record)
        if self.on_turn is None:
            return
        try:
            self.on_turn(record)
        except Exception:
            logger.exception("leyline: on_turn failed")


def _record(call: Call, planned: Planned, completion: str) -> TurnRecord:
    return TurnRecord(
        completion=completion,
        planned=planned.wire is not None,
        why=planned.why,
        prompt_tokens=len(call.ids),
        new_tokens=planned.new_tokens,
        replacement_tokens=planned.replacement_tokens,
        reusable_tokens=planned.reusable,
        cached_tokens=call.cached,
        edits=planned.edits,
        tokenize_ms=call.tokenize_ms,
        plan_ms=planned.ms,
        ttft_ms=call.ttft_ms,
    )


def _unfit(body: Any) -> str:
    """Why a body goes through untouched, or ""."""
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
        return "unreadable"
    if body.get("input_ids") is not None:
        return "caller sends ids"
    custom = body.get("custom_params") or {}
    if not isinstance(custom, dict):
        return "unreadable"
    if PARAM in custom:
        return "caller sends a plan"
    if (body.get("n") or 1) != 1:
        return "several answers"
    if body.get("continue_final_message"):
        return "continued message"
    for message in body["messages"]:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list) and any(_kind(p) not in ("text", "refusal") for p in content):
            return "content other than text"
    return ""


def _kind(part: Any) -> Any:
    return part.get("type") if isinstance(part, dict) else "text"


def output_ids(answer: dict[str, Any]) -> list[int] | None:
    """The generated ids in an answer or stream chunk, if it carries them."""
    ext = answer.get("sglext")
    ids = ext.get("output_ids") if isinstance(ext, dict) else None
    if isinstance(ids, list) and len(ids) == 1 and isinstance(ids[0], list):
        return ids[0]
    return None


def cached_tokens(answer: dict[str, Any]) -> int | None:
    """Prompt tokens found in the server's cache, if the answer says so."""
    usage = answer.get("usage")
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return cached if isinstance(cached, int) else None


def without_ids(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer as it would be, had the output ids not been asked for."""
    ext = {k: v for k, v in (answer.get("sglext") or {}).items() if k != "output_ids"}
    rest = {k: v for k, v in answer.items() if k != "sglext"}
    return {**rest, "sglext": ext} if any(v is not None for v in ext.values()) else rest
