"""The pure part of the middleware: LangChain messages through a policy and back."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, convert_to_messages
from langchain_core.messages.utils import convert_to_openai_messages

from leyline_agent.core import PolicyError
from leyline_agent.policies import Message, Policy

_ID = "id"


@dataclass(slots=True)
class Memory:
    """What a policy did to each message of each thread, so that edits are sticky.

    LangGraph hands the unedited state to every call. A message that was edited is given to
    the policy as it was sent last time; one that was dropped stays dropped. The threads used
    longest ago are forgotten first.
    """

    max_threads: int = 256
    _threads: OrderedDict[str, dict[str, Message | None]] = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)

    def of(self, thread: str) -> dict[str, Message | None]:
        """Message id -> the edited message, or None when it was dropped."""
        with self._lock:
            known = self._threads.setdefault(thread, {})
            self._threads.move_to_end(thread)
            while len(self._threads) > self.max_threads:
                self._threads.popitem(last=False)
            return known


def edited(
    messages: Sequence[AnyMessage], policy: Policy, known: dict[str, Message | None]
) -> list[AnyMessage]:
    """The messages to send; those that the policy left alone are the same objects.

    Mutates `known`. A message without an id is known by its place.

    Raises:
        PolicyError: the policy returned something other than messages.
    """
    originals = {m.id or f"message-{i}": m for i, m in enumerate(messages)}
    before: list[Message] = []
    for name, message in originals.items():
        if name not in known:
            before.append(_as_dict(name, message))
        elif (earlier := known[name]) is not None:
            before.append(earlier)
    turn = sum(isinstance(m, AIMessage) for m in messages)
    after = policy.transform(before, turn)
    if not isinstance(after, list) or not all(isinstance(m, dict) and "role" in m for m in after):
        raise PolicyError(f"{type(policy).__name__}.transform must return a list of messages")
    kept = {m[_ID]: m for m in after if m.get(_ID) in originals}
    for message in before:
        name = message[_ID]
        if name not in kept:
            known[name] = None
        elif kept[name] != _as_dict(name, originals[name]):
            known[name] = kept[name]
    return [_as_message(m, originals, known) for m in after]


def _as_dict(name: str, message: AnyMessage) -> Message:
    converted: Any = convert_to_openai_messages([message])
    return {**converted[0], _ID: name}


def _as_message(
    message: Message, originals: dict[str, AnyMessage], known: dict[str, Message | None]
) -> AnyMessage:
    """Back to LangChain: the original, the original with other content, or a new message."""
    original = originals.get(message.get(_ID, ""))
    if original is None:
        plain = {k: v for k, v in message.items() if k != _ID}
        return convert_to_messages([plain])[0]  # type: ignore[return-value]
    if known.get(message[_ID]) is None:
        return original
    return original.model_copy(update={"content": message.get("content") or ""})
