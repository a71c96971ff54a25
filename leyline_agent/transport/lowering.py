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

from leyline_agent.core import PARAM, Mode, Receipt
from leyline_agent.planner import Entry, Planned, Planner
from leyline_agent.transport.call import ASK, ASK_HEADERS, Call
from leyline_agent.transport.history import History, chain, opening
from leyline_agent.transport.record import COLLECTING, TurnRecord
from leyline_agent.transport.servers import Servers
from leyline_agent.transport.trust import Trust

logger = logging.getLogger("leyline_agent")

CONVERSATION = "x-leyline-conversation"
MODE = "x-leyline-mode"
# What changes nothing about which tokens a prompt has.
_BESIDE = (
    *("messages", "stream", "stream_options", "temperature", "top_p", "max_tokens"),
    *("max_completion_tokens", "seed", "stop", "user", "rid", *ASK.values()),
)
# All that SGLang's chat endpoint renders a prompt from. /v1/tokenize obeys others besides.
_RENDERED = (
    *("model", "messages", "tools", "tool_choice", "parallel_tool_calls", "response_format"),
    *("reasoning_effort", "reasoning", "thinking", "task", "chat_template_kwargs"),
)
_REMEMBERED = 64
_NO_RECEIPT = "the server gave no receipt for the plan"


@dataclass(slots=True)
class Lowering:
    """State that all requests of one client share: planner, counters, the caller's hook.

    Where one client serves several users, name conversations in the header CONVERSATION:
    see Planner for what is asked of a conversation that has no name.

    mode: of edits that name none. counts: "planned", "plain", "appended" (sent without a
    look at its tokens), or why a request went through untouched. on_turn: called once for
    each finished request; what it raises is logged and dropped. last: the record of the
    request that finished last. trust: which requests and servers had better be left alone.
    servers: what they said of themselves.
    """

    planner: Planner = field(default_factory=Planner)
    mode: Mode = Mode.AMORTIZE
    on_turn: Callable[[TurnRecord], None] | None = None
    counts: Counter[str] = field(default_factory=Counter)
    last: TurnRecord | None = None
    trust: Trust = field(default_factory=Trust)
    servers: Servers = field(default_factory=Servers)
    _history: History = field(default_factory=History)
    _rewritten: set[str] = field(default_factory=set)
    _silent: set[str] = field(default_factory=set)

    def open(
        self, path: str, headers: Mapping[str, str], content: bytes, origin: str = ""
    ) -> Call | None:
        """Read a request; None when it is none of ours, with the reason counted."""
        if not path.endswith("/chat/completions"):
            return None
        try:
            body = json.loads(content)
            reason = _unfit(body) or self.trust.objection(hash(content), origin)
            mode = Mode(headers.get(MODE) or self.mode)
            self._forget(body, mode, headers.get(CONVERSATION))
        except (ValueError, TypeError, RecursionError):
            reason, body, mode = "unreadable", {}, self.mode
        if reason:
            self.skip(reason)
            return None
        conversation = headers.get(CONVERSATION)
        began = time.perf_counter()
        wanted = [name for name, asks in ASK_HEADERS.items() if headers.get(asks) == "1"]
        call = Call(body, mode, conversation, began, origin, hash(content), wanted)
        rest = {k: v for k, v in body.items() if k not in _BESIDE}
        seed = json.dumps([call.namespace, conversation, rest], sort_keys=True, default=str)
        call.links = chain(seed, body["messages"])
        return call

    def _forget(self, body: Any, mode: Mode, conversation: str | None) -> None:
        """What is to be forgotten is marked even where the request goes through untouched."""
        messages = body.get("messages") if isinstance(body, dict) else None
        if mode is Mode.FORGET and isinstance(messages, list):
            self.planner.ledger.forget(conversation, opening(messages))

    def skip(self, reason: str, error: Exception | None = None) -> None:
        """Count a request that goes through untouched, and say why in one line."""
        self.counts[reason] += 1
        logger.info("leyline: plain request (%s)%s", reason, f": {error}" if error else "")
        for records in COLLECTING.get():
            records.append(TurnRecord.untouched(reason))

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
        return {**call.body, **dict.fromkeys(ASK.values(), True)}

    def tokenize_body(self, call: Call) -> dict[str, Any]:
        """What to post to /v1/tokenize: what the chat endpoint renders, so the ids are its own."""
        return {k: v for k, v in call.body.items() if k in _RENDERED}

    def lower(self, call: Call, tokens: list[int], tokenize_ms: float) -> dict[str, Any]:
        """The body to send: exact ids, the plan if there is one, and a wish for output ids."""
        call.ids, call.tokenize_ms = array("q", tokens), tokenize_ms
        planned = call.planned = self._plan(call)
        body = {**call.body, "input_ids": tokens, ASK["output_ids"]: True}
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
        call.completion = completion
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

    def wants_receipt(self, call: Call) -> bool:
        """Whether somebody collects what became of a plan that was sent and answered."""
        planned = call.planned is not None and call.planned.wire is not None
        return planned and bool(call.completion) and bool(COLLECTING.get())

    def receipted(self, call: Call, receipt: Receipt | None) -> None:
        """Complete the collected record of a call; None: the server has no receipt for it."""
        if receipt is None:
            known: dict[str, Any] = {"why": _NO_RECEIPT}
            if call.origin not in self._silent:
                self._silent.add(call.origin)
                logger.warning("leyline: %s: %s", call.origin, _NO_RECEIPT)
        else:
            fallback = receipt.fallback.value if receipt.fallback else None
            known = {"applied": receipt.applied, "spliced": receipt.spliced, "fallback": fallback}
        for records in COLLECTING.get():
            records[:] = [
                replace(r, **known) if r.completion == call.completion else r for r in records
            ]

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
