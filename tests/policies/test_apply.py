"""What a policy may return, and what is no conversation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from leyline_agent.core import PolicyError
from leyline_agent.policies import Message, apply

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
MESSAGES: list[Message] = [
    {"role": "user", "content": "go"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "seen", "tool_call_id": "c"},
]


class Rule:
    """A policy from a function of the messages."""

    def __init__(self, rule: Callable[[list[Message]], Any]) -> None:
        self.rule = rule

    def transform(self, messages: Sequence[Message], turn: int) -> Any:
        return self.rule(list(messages))


def content(value: Any) -> Callable[[list[Message]], Any]:
    return lambda messages: [{**m, "content": value} for m in messages]


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (lambda ms: [], "left no message"),
        (lambda ms: iter(ms), "must return a list"),
        (content(5), "not int"),
        (content({"a": 1}), "not dict"),
        (content(b"x"), "not bytes"),
        (content([1]), "object with a type, not 1"),
        (content(["text"]), "object with a type, not 'text'"),
        (content([{"type": "text", "text": float("nan")}]), "not nan"),
        (content([{"type": "image_url", "image_url": float("nan")}]), "JSON"),
        (content("\ud800"), "JSON.*surrogates"),
        (content(None), "message 0 on turn 7: only an assistant message"),
        (lambda ms: [*ms, {"role": "assistant"}], "message 3.*without content"),
        (lambda ms: [*ms, {"role": "alien", "content": "x"}], "'alien' is no role"),
        (lambda ms: [{**ms[0], "role": ["user"]}], "is no role"),
        (lambda ms: [{**ms[0], "id": ["a"]}], r"id is text, not \['a'\]"),
        (lambda ms: [{**ms[0], "name": 1}], "name is text"),
        (lambda ms: [{**ms[2], "tool_call_id": ["c"]}], "tool_call_id is text"),
        (lambda ms: [{"role": "tool", "content": "x"}], "needs its tool_call_id"),
        (lambda ms: [{**ms[1], "tool_calls": "f"}], "tool_calls is a list"),
        (lambda ms: [{**ms[1], "tool_calls": [{"id": "c"}]}], "a tool call has an id"),
        (
            lambda ms: [{**ms[1], "tool_calls": [{**CALL, "function": {"name": "f"}}]}],
            "arguments of a called function",
        ),
        (lambda ms: [m.update(content=5) or m for m in ms], "not int"),
    ],
)
def test_garbage_is_named(rule: Any, says: str) -> None:
    with pytest.raises(PolicyError, match=f"Rule.*{says}"):
        apply(Rule(rule), MESSAGES, 7)


def test_messages_are_never_changed_in_place() -> None:
    def rule(messages: list[Message]) -> list[Message]:
        messages[1]["tool_calls"][0]["function"]["arguments"] = "-"
        return messages

    after = apply(Rule(rule), MESSAGES, 0)
    assert after[1]["tool_calls"][0]["function"]["arguments"] == "-"
    assert MESSAGES[1]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_what_came_odd_and_was_left_alone_is_not_the_policys_fault() -> None:
    odd = [{"role": "remove", "content": None, "id": "x"}, {"role": "user", "content": "\ud800"}]
    assert apply(Rule(list), odd, 0) == odd
    assert apply(Rule(lambda ms: ms[1:]), odd, 0) == odd[1:]
    assert apply(Rule(lambda ms: [{**ms[0], "content": ""}]), odd, 0)[0]["content"] == ""
    assert apply(Rule(list), [], 0) == []
