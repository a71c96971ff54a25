"""Recorded conversations: OpenAI chat messages in a JSON file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leyline_agent.core import SetupError

_ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded conversation.

    messages: OpenAI chat messages. tools: OpenAI tool definitions, possibly none.
    """

    name: str
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()

    def turns(self) -> list[int]:
        """For each call of the model, how many messages it saw.

        One before every assistant message, and one at the end when the record stops with
        something the model would have answered.
        """
        ends = [i for i, m in enumerate(self.messages) if m["role"] == "assistant" and i > 0]
        if self.messages[-1]["role"] != "assistant":
            ends.append(len(self.messages))
        return ends


def load(path: Path) -> Trace:
    """Read a trace: a list of messages, or an object with `messages` (and `tools`).

    Raises:
        SetupError: no such file, not JSON, or not a conversation; says which message.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SetupError(f"cannot read the trace {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise SetupError(f"{path} is not JSON: {error}") from error
    messages = data.get("messages") if isinstance(data, dict) else data
    tools = data.get("tools") if isinstance(data, dict) else None
    if not isinstance(messages, list) or not messages:
        raise SetupError(
            f"{path} holds no conversation: a list of messages, or {{'messages': [...]}}"
        )
    checked = tuple(_message(path, i, m) for i, m in enumerate(messages))
    trace = Trace(path.stem, checked, tuple(tools) if isinstance(tools, list) else ())
    if not trace.turns():
        raise SetupError(f"{path} holds no turn: nothing that a model would answer")
    return trace


def _message(path: Path, index: int, raw: object) -> dict[str, Any]:
    """One message, with what chat templates need in place.

    Tool-call arguments are parsed by chat templates: text that is no JSON object is kept
    as the one argument `raw`. Keys that the chat API does not know are left out.
    """
    if not isinstance(raw, dict) or raw.get("role") not in _ROLES:
        raise SetupError(f"message {index} of {path} has no role out of {', '.join(_ROLES)}")
    said = ("content", "tool_calls", "reasoning_content")
    if not any(key in raw for key in said):
        raise SetupError(f"message {index} of {path} has neither content nor tool_calls")
    content = raw.get("content")
    if content is not None and not isinstance(content, str | list):
        raise SetupError(f"message {index} of {path}: content is text, a list of parts, or null")
    message: dict[str, Any] = {"role": raw["role"], "content": content}
    for key in ("name", "tool_call_id", "reasoning_content"):
        if raw.get(key) is not None:
            message[key] = raw[key]
    if raw["role"] != "assistant" and content is None:
        message["content"] = ""
    if raw.get("tool_calls"):
        message["tool_calls"] = [_tool_call(path, index, call) for call in raw["tool_calls"]]
    return message


def _tool_call(path: Path, index: int, raw: object) -> dict[str, Any]:
    function = raw.get("function") if isinstance(raw, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise SetupError(f"message {index} of {path}: a tool call needs function.name")
    assert isinstance(raw, dict)
    arguments = function.get("arguments") or "{}"
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments)
    try:
        parsed = json.loads(arguments)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        arguments = json.dumps({"raw": arguments})
    return {
        "id": str(raw.get("id") or f"call_{index}"),
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }
