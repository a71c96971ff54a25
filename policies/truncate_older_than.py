"""Cut old observations to their head and tail.

    n=2      assistant  tool A  assistant  tool B  assistant  tool C   (next call)
    age                 2                  1                  0
             A is cut: [head … [4,211 characters cut] … tail]; B and C stay whole.

Rationale: an agent acts on what it has just seen; of older outputs it needs that they
happened, how they began (a path, a command) and how they ended (an exit status).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from leyline_agent.core import PolicyError
from leyline_agent.policies.policy import Message

_KINDS = ("auto", "tool", "user")


@dataclass(frozen=True, slots=True)
class TruncateOlderThan:
    """Observations older than the last `n` turns are cut to `max_chars` characters.

    A turn is one assistant message. An observation's age is the number of assistant
    messages behind it; it is cut from age `n` on. The stub keeps head and tail, and tells
    how much is gone; role, tool_call_id and order stay, so every call keeps its result.

    Args:
        n: turns whose observations stay whole. max_chars: length of a stub, marker included.
        observations: "tool" (tool messages), "user" (user messages behind the first
            assistant message: text-only agents carry their observations so), or "auto":
            "user" until the first tool message comes, "tool" from then on; what "user" has
            cut by then stays cut.

    Raises:
        PolicyError: n is negative, max_chars under 40, one of them no whole number, or
            observations unknown.
    """

    n: int = 2
    max_chars: int = 200
    observations: str = "auto"

    def __post_init__(self) -> None:
        for name, value, least in (("n", self.n, 0), ("max_chars", self.max_chars, 40)):
            if type(value) is not int or value < least:
                raise PolicyError(
                    f"truncate_older_than: {name} is {value!r}; "
                    f"it must be a whole number, {least} or more"
                )
        if self.observations not in _KINDS:
            raise PolicyError(
                f"truncate_older_than: observations is {self.observations!r}; "
                f"it must be one of {', '.join(_KINDS)}"
            )

    def transform(self, messages: Sequence[Message], turn: int) -> list[Message]:
        """See Policy.transform; `turn` is not used, ages are counted in the messages."""
        roles = [m["role"] for m in messages]
        total = roles.count("assistant")
        users = total
        if self.observations == "auto" and "tool" in roles:
            # "user" held for the last time in the call that answered with the first tool call.
            users = roles[: roles.index("tool")].count("assistant") - 1
        before = 0
        result = []
        for message in messages:
            role = message["role"]
            before += role == "assistant"
            old = (role == "tool" and self.observations != "user" and total - before >= self.n) or (
                role == "user" and self.observations != "tool" and 0 < before <= users - self.n
            )
            result.append(self._cut(message) if old else message)
        return result

    def _cut(self, message: Message) -> Message:
        content = message.get("content")
        text = _text(content)
        if text is None or len(text) <= self.max_chars:
            return message
        stub = cut(text, self.max_chars)
        return {**message, "content": stub if isinstance(content, str) else [_part(stub)]}


def cut(text: str, max_chars: int) -> str:
    """Head and tail of a text around a marker, `max_chars` characters in all or fewer."""
    marker = ""
    keep = max_chars
    for _ in range(3):  # the marker's length depends on the number inside it
        marker = f" … [{len(text) - keep:,} characters cut] … "
        keep = max_chars - len(marker)
    head = keep - keep // 2
    tail = keep // 2
    return text[:head] + marker + (text[-tail:] if tail else "")


def _text(content: Any) -> str | None:
    """The text of a message's content; None when it holds anything else."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(
        isinstance(p, dict) and p.get("type") == "text" and isinstance(p.get("text"), str)
        for p in content
    ):
        return "".join(p["text"] for p in content)
    return None


def _part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}
