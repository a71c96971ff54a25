"""Whether something that a policy wrote can be sent as a chat message."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})


def fault(message: Any, roles: Collection[str] = ROLES) -> str:
    """Why this is no chat message, as one clause; "" when it is one.

    Only what is wrong for every server: an odd kind of content part may be known to some.
    """
    if not isinstance(message, dict):
        return f"a {type(message).__name__} is no message"
    role = message.get("role")
    if not isinstance(role, str) or role not in roles:
        return f"{role!r:.40} is no role"
    for key in ("id", "name", "tool_call_id"):
        if not isinstance(message.get(key), str | None):
            return f"{key} is text, not {message[key]!r:.40}"
    if role == "tool" and not message.get("tool_call_id"):
        return "a tool message needs its tool_call_id"
    return _calls(message) or _content(message) or _unsendable(message)


def _content(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return ""
    if content is None:
        silent = message["role"] == "assistant" and (
            message.get("tool_calls") or message.get("function_call")
        )
        return "" if silent else "only an assistant message with tool calls goes without content"
    if not isinstance(content, list):
        return f"content is text or a list of parts, not {type(content).__name__}"
    for part in content:
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            return f"a part of the content is an object with a type, not {part!r:.40}"
        if part["type"] == "text" and not isinstance(part.get("text"), str):
            return f"a text part holds text, not {part.get('text')!r:.40}"
    return ""


def _calls(message: dict[str, Any]) -> str:
    calls = message.get("tool_calls")
    if calls is None:
        return ""
    if message["role"] != "assistant" or not isinstance(calls, list):
        return "tool_calls is a list in an assistant message"
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(call.get("id"), str):
            return f"a tool call has an id and a function, unlike {call!r:.60}"
        if not all(isinstance(function.get(key), str) for key in ("name", "arguments")):
            return "name and arguments of a called function are texts"
    return ""


def _unsendable(message: dict[str, Any]) -> str:
    try:
        json.dumps(message, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        return f"it cannot be written as JSON: {error}"
    return ""
