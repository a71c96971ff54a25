"""The pure part of the transport: a chat request becomes one with exact ids and a plan.

    request --> body --tokenize--> ids --plan--> body' --> answer --> ledger
              '--> body, when it only appends to an unedited conversation: the answer
                   tells its ids

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
from dataclasses import dataclass, field, replace
from typing import Any

from leyline_agent.core import PARAM, Mode
from leyline_agent.planner import Entry, Planned, Planner
from leyline_agent.transport.history import Chain, History, chain, opening
from leyline_agent.transport.record import COLLECTING, TurnRecord

logger = logging.getLogger("leyline_agent")

CONVERSATION = "x-leyline-conversation"
MODE = "x-leyline-mode"
_NAMESPACE = ("model", "cache_salt", "extra_key", "lora_path")
_ASK = {"input_ids": "return_input_ids_in_sglext", "output_ids": "return_output_ids_in_sglext"}
# What changes nothing about which tokens a prompt has.
_BESIDE = (
    *("messages", "stream", "stream_options", "temperature", "top_p", "max_tokens"),
    *("max_completion_tokens", "seed", "stop", "user", "rid", *_ASK.values()),
)
_REMEMBERED = 64
_PAUSE_S = 60.0


@dataclass(slots=True)
class Call:
    """One request on its way: what came in, what is known so far.

    links: its conversation. ids: its prompt, empty until known. output: what was generated.
    """

    body: dict[str, Any]
    mode: Mode
    conversation: str | None
    began: float
    origin: str = ""
    content: int = 0
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


@dataclass(slots=True)
class Lowering:
    """State that all requests of one client share: planner, counters, the caller's hook.

    Where one client serves several users, name conversations in the header CONVERSATION:
    see Planner for what is asked of a conversation that has no name.

    mode: of edits that name none. counts: "planned", "plain", "appended" (sent without a
    look at its tokens), or why a request went through untouched. on_turn: called once for
    each finished request; what it raises is logged and dropped. last: the record of the
    request that finished last.
    """

    planner: Planner = field(default_factory=Planner)
    mode: Mode = Mode.AMORTIZE
    on_turn: Callable[[TurnRecord], None] | None = None
    counts: Counter[str] = field(default_factory=Counter)
    last: TurnRecord | None = None
    _history: History = field(default_factory=History)
    _rewritten: set[str] = field(default_factory=set)
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
            reason = _unfit(body) or self._distrust(content)
            mode = Mode(headers.get(MODE) or self.mode)
        except (ValueError, TypeError, RecursionError):
            reason, body, mode = "unreadable", {}, self.mode
        if reason:
            self.skip(reason)
            return None
        conversation = headers.get(CONVERSATION)
        began = time.perf_counter()
        call = Call(body, mode, conversation, began, origin, hash(content))
        rest = {k: v for k, v in body.items() if k not in _BESIDE}
        seed = json.dumps([call.namespace, conversation, rest], sort_keys=True, default=str)
        call.links = chain(seed, body["messages"])
        return call

    def _distrust(self, content: bytes) -> str:
        return "failed before" if hash(content) in self._failed else ""

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

    def append(self, call: Call) -> dict[str, Any] | None:
        """The body to send when no plan can be of use, whatever the tokens are; else None.

        So it is at the start of a conversation, and as long as it is only appended to. Where
        the chat template rewrites old messages the tokens have to be looked at every time.
        """
        if call.namespace in self._rewritten:
            return None
        known = self.planner.ledger.candidates(call.namespace, call.conversation)
        if known and not self._history.appends(call.links):
            return None
        self.counts["appended"] += 1
        return {**call.body, **dict.fromkeys(_ASK.values(), True)}

    def is_deaf(self, call: Call) -> bool:
        """Whether its server would not tell us tokens; counted when so."""
        deaf = self._deaf.get(call.origin, 0) > time.monotonic()
        if deaf:
            self.skip("no tokens from the server")
        return deaf

    def tokenize_body(self, call: Call) -> dict[str, Any]:
        """What to post to /v1/tokenize: the chat request itself, so that the ids are its own."""
        return {k: v for k, v in call.body.items() if k not in ("stream", "stream_options")}

    def lower(self, call: Call, tokens: list[int], tokenize_ms: float) -> dict[str, Any]:
        """The body to send: exact ids, the plan if there is one, and a wish for output ids."""
        call.ids, call.tokenize_ms = array("q", tokens), tokenize_ms
        planned = call.planned = self._plan(call)
        body = {**call.body, "input_ids": tokens, _ASK["output_ids"]: True}
        if planned.wire is not None:
            body["custom_params"] = {
                **(call.body.get("custom_params") or {}),
                PARAM: planned.wire.dumps(),
            }
        self.counts["planned" if planned.wire else "plain"] += 1
        return body

    def _plan(self, call: Call) -> Planned:
        first = opening(call.body["messages"])
        return self.planner.plan(call.ids, call.namespace, call.conversation, call.mode, first)

    def first_bytes(self, call: Call) -> None:
        """Note the time to the first bytes of the answer, once."""
        if not call.ttft_ms:
            call.ttft_ms = (time.perf_counter() - call.began) * 1e3

    def close(self, call: Call, completion: str) -> None:
        """Enter a finished answer into the ledger and tell the caller."""
        if call.planned is None and call.ids:
            call.planned = self._hindsight(call)
        planned = call.planned
        if planned is None or not completion:
            return
        if call.output is not None:
            ids = call.ids[:]
            ids.extend(call.output)
            self.planner.ledger.put(
                Entry(
                    completion,
                    ids,
                    len(call.ids),
                    call.namespace,
                    call.conversation,
                    planned.amortized,
                    opening(call.body["messages"]),
                ),
                planned.base,
            )
            self._history.put(call.links, honest=not planned.amortized)
        record = self.last = _record(call, planned, completion)
        for records in COLLECTING.get():
            records.append(record)
        if self.on_turn is None:
            return
        try:
            self.on_turn(record)
        except Exception:
            logger.exception("leyline: on_turn failed")

    def _hindsight(self, call: Call) -> Planned:
        """What would have been planned for a request that was sent as it came."""
        planned = self._plan(call)
        if planned.wire is None:
            return planned
        if len(self._rewritten) >= _REMEMBERED:
            self._rewritten.clear()
        self._rewritten.add(call.namespace)
        why = "the chat template rewrote earlier messages"
        return replace(planned, wire=None, why=why, amortized=False)


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
    if told := isinstance(outputs, list) and len(outputs) == 1 and _are_ids(outputs[0]):
        call.output = outputs[0]
    if _are_ids(prompt) and prompt:
        told, call.ids = True, call.ids or array("q", prompt)
    return told


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(i) is int and 0 <= i < 1 << 62 for i in value)


def cached_tokens(answer: dict[str, Any]) -> int | None:
    """Prompt tokens found in the server's cache, if the answer says so."""
    usage = answer.get("usage")
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return cached if isinstance(cached, int) else None


def without_ids(call: Call, answer: dict[str, Any]) -> dict[str, Any]:
    """An answer as it would be, had we not asked for token ids."""
    ours = [name for name, ask in _ASK.items() if not call.body.get(ask)]
    ext = {k: v for k, v in (answer.get("sglext") or {}).items() if k not in ours}
    rest = {k: v for k, v in answer.items() if k != "sglext"}
    return {**rest, "sglext": ext} if any(v is not None for v in ext.values()) else rest
