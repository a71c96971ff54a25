"""What a policy is."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from leyline_agent.core import Mode, PolicyError
from leyline_agent.policies.wellformed import ROLES, fault

Message = dict[str, Any]
"""One OpenAI chat message: role, content, and for tools tool_calls or tool_call_id."""


@runtime_checkable
class Policy(Protocol):
    """Decides what an agent's history should look like before the next model call.

    An optional attribute `mode` ("amortize" or "forget") says how its edits reach the cache.
    """

    def transform(self, messages: Sequence[Message], turn: int) -> list[Message]:
        """The messages to send.

        Args:
            messages: the conversation as it was last sent, and what has come since. Never
                to be changed; unchanged messages may be passed on as they are.
            turn: how many calls of the model came before.

        A policy should be idempotent and sticky: what it has cut stays as it is.
        """
        ...


def checked(policy: Any) -> Policy:
    """The same object, as a policy.

    Raises:
        PolicyError: it is a class, it has no method transform, or its mode is unknown.
    """
    if isinstance(policy, type):
        raise PolicyError(f"{policy.__name__} is a class; a policy is an instance of one")
    if not callable(getattr(policy, "transform", None)):
        raise PolicyError(f"{type(policy).__name__} has no method transform(messages, turn)")
    mode_of(policy)
    return policy  # type: ignore[no-any-return]


def mode_of(policy: Policy | None) -> Mode:
    """How a policy's edits reach the cache: its own `mode`, or AMORTIZE where it names none.

    Raises:
        PolicyError: its mode is unknown; says which there are.
    """
    mode = getattr(policy, "mode", None)
    try:
        return Mode.AMORTIZE if mode is None else Mode(mode)
    except ValueError as error:
        raise PolicyError(f"{type(policy).__name__}: {error}") from error


def apply(policy: Policy, messages: Sequence[Message], turn: int) -> list[Message]:
    """What policy.transform makes of the messages; it is given a copy, `messages` stay.

    Messages that the policy left as they came are not judged.

    Raises:
        PolicyError: it raised, or what it returned is no conversation: not a list, empty,
            or with a message that could not be sent. Says which.
    """
    name = type(policy).__name__
    try:
        after: Any = policy.transform(copy.deepcopy(list(messages)), turn)
        came = {repr(m) for m in messages}
    except Exception as error:
        raise PolicyError(
            f"{name} failed on turn {turn}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(after, list) or not all(isinstance(m, dict) and "role" in m for m in after):
        raise PolicyError(f"{name}.transform must return a list of messages, each with a role")
    if messages and not after:
        raise PolicyError(f"{name}.transform left no message")
    roles = ROLES | {m["role"] for m in messages}
    for place, message in enumerate(after):
        if repr(message) not in came and (wrong := fault(message, roles)):
            raise PolicyError(f"{name} spoiled message {place} on turn {turn}: {wrong}")
    return after
