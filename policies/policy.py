"""What a policy is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from leyline_agent.core import PolicyError

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


def apply(policy: Policy, messages: Sequence[Message], turn: int) -> list[Message]:
    """What policy.transform makes of the messages.

    Raises:
        PolicyError: it raised, or what it returned is no list of messages with roles.
    """
    name = type(policy).__name__
    try:
        after: Any = policy.transform(messages, turn)
    except Exception as error:
        raise PolicyError(
            f"{name} failed on turn {turn}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(after, list) or not all(isinstance(m, dict) and "role" in m for m in after):
        raise PolicyError(f"{name}.transform must return a list of messages, each with a role")
    return after
