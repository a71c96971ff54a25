"""The pure part of the middleware: LangChain messages through a policy and back."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    ToolMessage,
    convert_to_messages,
)
from langchain_core.messages.utils import convert_to_openai_messages

from leyline_agent.core import PolicyError
from leyline_agent.policies import Message, Policy, apply

_ID = "id"
_ROLES = {"human": "user", "ai": "assistant"}

Known = dict[str, tuple[Message, Message | None]]
"""Message id -> the message as it came, and as it was sent: None when it was dropped."""


@dataclass(slots=True)
class Memory:
    """What a policy did to each message of each thread, so that edits are sticky.

    LangGraph hands the unedited state to every call. A message that was edited is given to
    the policy as it was sent last time; one that was dropped stays dropped. The threads used
    longest ago, and the oldest messages of one thread, are forgotten first.
    """

    max_threads: int = 256
    max_messages: int = 4096
    _threads: OrderedDict[str, Known] = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)

    def of(self, thread: str) -> Known:
        """The thread's messages; to be mutated by edited()."""
        with self._lock:
            known = self._threads.setdefault(thread, {})
            self._threads.move_to_end(thread)
            while len(self._threads) > self.max_threads:
                self._threads.popitem(last=False)
            for name in list(known)[: max(0, len(known) - self.max_messages)]:
                del known[name]
            return known


def edited(messages: Sequence[AnyMessage], policy: Policy, known: Known) -> list[AnyMessage]:
    """The messages to send; those that the policy left alone are the same objects.

    Mutates `known`. What is known of a message counts only while it comes as it came then:
    one that others have edited since, or that has no id, starts anew.

    Raises:
        PolicyError: the policy raised, or returned something other than messages; nothing
            was noted.
    """
    originals = _named(messages)
    came = {name: _as_dict(name, message) for name, message in originals.items()}
    before = []
    for name, message in came.items():
        first, sent = known.get(name, (message, message))
        if first != message:
            sent = message
        if sent is not None:
            before.append(dict(sent))
    after = apply(policy, before, sum(isinstance(m, AIMessage) for m in messages))
    try:
        after = _with_ids(after, list(came.values()), before)
        sent = [_as_message(m, originals, came) for m in after]
    except Exception as error:
        raise PolicyError(f"{type(policy).__name__} made no chat message: {error}") from error
    _remember(known, {m.id for m in messages if m.id}, came, before, after)
    return sent


class AsItStands:
    """The policy that changes nothing: what was edited before stays edited."""

    def transform(self, messages: Sequence[Message], turn: int) -> list[Message]:
        """The same messages."""
        return list(messages)


def _named(messages: Sequence[AnyMessage]) -> dict[str, AnyMessage]:
    """Every message under its id; under its place where it has none, or another's."""
    named: dict[str, AnyMessage] = {}
    for place, message in enumerate(messages):
        own = message.id if message.id and message.id not in named else None
        named[own or f"message-{place}"] = message
    return named


def _with_ids(
    after: list[Message], came: Sequence[Message], before: Sequence[Message]
) -> list[Message]:
    """Messages that a policy wrote anew get the ids of those that they stand for.

    By place when the roles are the same throughout, else by tool_call_id.
    """
    if all(m.get(_ID) for m in after):
        return after
    if [m["role"] for m in after] == [m["role"] for m in before]:
        return [{**m, _ID: m.get(_ID) or b[_ID]} for m, b in zip(after, before, strict=True)]
    results = {m["tool_call_id"]: m[_ID] for m in came if m.get("tool_call_id")}
    return [
        {**m, _ID: results[m["tool_call_id"]]}
        if not m.get(_ID) and m.get("tool_call_id") in results
        else m
        for m in after
    ]


def _remember(
    known: Known,
    durable: set[str],
    came: dict[str, Message],
    before: Sequence[Message],
    after: Sequence[Message],
) -> None:
    """Note edits; and drops, unless a message of the policy's own may stand for them."""
    kept = {m[_ID]: m for m in after if m.get(_ID) in came}
    inserts = any(m.get(_ID) not in came for m in after)
    for name in (m[_ID] for m in before if m[_ID] in durable):
        known.pop(name, None)
        if name not in kept:
            if not inserts:
                known[name] = (came[name], None)
        elif kept[name] != came[name]:
            known[name] = (came[name], dict(kept[name]))


def _as_dict(name: str, message: AnyMessage) -> Message:
    """A message as OpenAI spells it; role and content alone when that is not one message."""
    try:
        [converted] = convert_to_openai_messages([message])
        return {**converted, _ID: name}
    except (ValueError, TypeError, KeyError):
        role = _ROLES.get(message.type, message.type)
        return {"role": role, "content": message.content, _ID: name}


def _as_message(
    message: Message, originals: dict[str, AnyMessage], came: dict[str, Message]
) -> AnyMessage:
    """Back to LangChain: the original, the original with the policy's changes, or a new one."""
    name = message.get(_ID, "")
    if name in originals and message == came[name]:
        return originals[name]
    plain = {k: v for k, v in message.items() if k != _ID}
    made: AnyMessage = convert_to_messages([plain])[0]  # type: ignore[assignment]
    if name not in originals:
        return made
    original = originals[name]
    if message["role"] != came[name]["role"]:
        return made.model_copy(update={"id": original.id})
    return original.model_copy(update=_changes(original, made))


def _changes(original: AnyMessage, made: AnyMessage) -> dict[str, Any]:
    """The fields of a message that a policy can have changed.

    Tool calls live in several places of LangChain's message, raw and parsed: what a policy
    took away must be left in none of them.
    """
    changes: dict[str, Any] = {"content": made.content, "name": made.name}
    if isinstance(original, AIMessage) and isinstance(made, AIMessage):
        changes["tool_calls"] = made.tool_calls
        changes["invalid_tool_calls"] = made.invalid_tool_calls
        raw = ("tool_calls", "function_call")
        kept = {k: v for k, v in original.additional_kwargs.items() if k not in raw}
        changes["additional_kwargs"] = {
            **kept,
            **{k: v for k, v in made.additional_kwargs.items() if k in raw},
        }
        if isinstance(original, AIMessageChunk):
            changes["tool_call_chunks"] = []
    if isinstance(original, ToolMessage) and isinstance(made, ToolMessage):
        changes["tool_call_id"] = made.tool_call_id
    return changes
