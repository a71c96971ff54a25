"""LangChain messages through a policy and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)

from leyline_agent.core import PolicyError
from leyline_agent.langchain.edit import Memory, edited
from leyline_agent.policies import Message, TruncateOlderThan

LONG = "head " + "x" * 2000 + " tail"


class Rule:
    """A policy from a function of the messages."""

    def __init__(self, rule: Callable[[list[Message]], Any]) -> None:
        self.rule = rule
        self.turns: list[int] = []

    def transform(self, messages: Sequence[Message], turn: int) -> Any:
        self.turns.append(turn)
        return self.rule(list(messages))


def shorten(message: Message) -> Message:
    """Not sticky by itself: each time it cuts further."""
    if message["role"] != "tool":
        return message
    return {**message, "content": message["content"][: len(message["content"]) // 2]}


def turn(i: int, text: Any = LONG) -> list[AnyMessage]:
    calls = [{"name": "read", "args": {"path": f"{i}"}, "id": f"c{i}"}]
    return [
        AIMessage("", tool_calls=calls, id=f"a{i}"),
        ToolMessage(text, tool_call_id=f"c{i}", name="read", id=f"t{i}"),
    ]


def conversation(turns: int) -> list[AnyMessage]:
    return [HumanMessage("go", id="h"), *(m for i in range(turns) for m in turn(i))]


def test_only_changed_messages_are_new_objects() -> None:
    messages = conversation(4)
    sent = edited(messages, TruncateOlderThan(), {})
    assert [a is b for a, b in zip(sent, messages, strict=True)] == [
        *(True, True, False, True, False),
        *(True, True, True, True),
    ]
    assert messages[2].content == LONG
    assert sent[2] == messages[2].model_copy(update={"content": sent[2].content})
    assert (sent[2].id, sent[2].tool_call_id, sent[2].name) == ("t0", "c0", "read")
    assert len(sent[2].content) == 200


def test_turn_is_the_number_of_ai_messages() -> None:
    rule = Rule(list)
    edited(conversation(3), rule, {})
    assert rule.turns == [3]


def test_a_policy_sees_openai_messages() -> None:
    seen: list[Message] = []
    edited([SystemMessage("s", id="s"), *conversation(1)], Rule(lambda m: seen.extend(m) or m), {})
    assert [m["role"] for m in seen] == ["system", "user", "assistant", "tool"]
    assert seen[2]["tool_calls"][0]["id"] == seen[3]["tool_call_id"] == "c0"


def redacted(messages: list[Message]) -> list[Message]:
    """Without the arguments of tool calls."""
    for message in messages:
        for call in message.get("tool_calls") or ():
            call["function"]["arguments"] = '{"path": "-"}'
    return messages


def test_rewritten_tool_calls_are_sent_and_sticky() -> None:
    """The content of such a message is often empty, before and after."""
    known: Any = {}
    raw = {"name": "read", "arguments": "hunter2"}
    secret = AIMessage(
        "",
        id="a0",
        tool_calls=[{"name": "read", "args": {"path": "hunter2"}, "id": "c0"}],
        additional_kwargs={"tool_calls": [{"id": "c0", "function": raw, "type": "function"}]},
    )
    messages = [HumanMessage("go", id="h"), secret, ToolMessage("x", tool_call_id="c0", id="t0")]
    for rule in (redacted, list):
        sent = edited(messages, Rule(rule), known)
        assert sent[1].tool_calls[0]["args"] == {"path": "-"}  # type: ignore[union-attr]
        assert sent[1].id == "a0"
        assert "hunter2" not in repr(sent)
        assert sent[2] is messages[2]
    assert secret.tool_calls[0]["args"] == {"path": "hunter2"}
    stripped = Rule(lambda ms: [{k: v for k, v in m.items() if k != "tool_calls"} for m in ms])
    assert edited(messages, stripped, {})[1] == AIMessage("", id="a0")


def test_a_policy_that_works_in_place_does_not_reach_the_state() -> None:
    picture = {"type": "image_url", "image_url": {"url": "http://mine"}}
    state = [HumanMessage([picture], id="h")]

    def rule(messages: list[Message]) -> list[Message]:
        messages[0]["content"][0]["image_url"]["url"] = "changed"
        return messages

    assert "changed" in repr(edited(state, Rule(rule), {})[0].content)
    assert picture["image_url"] == {"url": "http://mine"}


def test_edits_are_sticky_though_the_state_is_not_edited() -> None:
    known: Any = {}
    once = Rule(lambda ms: [shorten(m) if len(m["content"] or "") > 1500 else m for m in ms])
    first = edited(conversation(1), once, known)
    second = edited(conversation(2), once, known)
    assert second[:3] == first
    assert len(first[2].content) == len(LONG) // 2


def test_dropped_stays_dropped() -> None:
    known: Any = {}
    assert [m.id for m in edited(conversation(2), Rule(lambda ms: ms[:1] + ms[3:]), known)] == [
        *("h", "a1", "t1")
    ]
    assert [m.id for m in edited(conversation(2), Rule(list), known)] == ["h", "a1", "t1"]


def test_a_policy_may_write_messages_anew() -> None:
    def anew(messages: list[Message]) -> list[Message]:
        short = [{**m, "content": "short"} if m["role"] == "tool" else m for m in messages]
        return [{k: v for k, v in m.items() if k != "id"} for m in short]

    known: Any = {}
    for turns in (1, 2, 3):
        sent = edited(conversation(turns), Rule(anew), known)
        assert [m.id for m in sent] == [m.id for m in conversation(turns)]
        assert all(m.content == "short" for m in sent if isinstance(m, ToolMessage))


def test_a_result_written_anew_among_drops_keeps_its_id() -> None:
    def last_turn(messages: list[Message]) -> list[Message]:
        return [*messages[-2:-1], {"role": "tool", "tool_call_id": "c1", "content": "short"}]

    sent = edited(conversation(2), Rule(last_turn), {})
    assert [(m.id, m.content) for m in sent] == [("a1", ""), ("t1", "short")]


def test_a_summary_stays_while_the_policy_writes_it() -> None:
    summary = {"role": "user", "content": "so far: read"}
    policy = Rule(lambda ms: [summary, *ms[3:]])
    known: Any = {}
    for turns in (2, 3):
        sent = edited(conversation(turns), policy, known)
        assert sent[0] == HumanMessage("so far: read")
        assert [m.id for m in sent[1:]] == [m.id for m in conversation(turns)[3:]]


def test_what_others_edit_later_wins_over_what_was_sent() -> None:
    known: Any = {}
    policy = TruncateOlderThan(n=0)
    edited(conversation(1), policy, known)
    cleared = [*conversation(1)[:2], ToolMessage("[cleared]", tool_call_id="c0", id="t0")]
    assert edited(cleared, policy, known)[2].content == "[cleared]"


def test_messages_without_ids_are_not_mixed_up() -> None:
    known: Any = {}
    for text in ("p" * 900, "q" * 900):
        nameless = [m.model_copy(update={"id": None}) for m in [HumanMessage("h"), *turn(0, text)]]
        sent = edited(nameless, TruncateOlderThan(n=0), known)
        assert sent[2].content.startswith(text[:50])
        assert sent[2].id is None
    assert known == {}


def test_two_messages_with_one_id_are_both_sent() -> None:
    twins: list[AnyMessage] = [HumanMessage("a", id="1"), HumanMessage("b", id="1")]
    assert edited(twins, Rule(list), {}) == twins


def test_content_that_is_not_one_openai_message_goes_through() -> None:
    blocks: list[Any] = [
        {"type": "tool_result", "tool_use_id": "c", "content": "x"},
        {"type": "text", "text": "y"},
    ]
    odd: list[AnyMessage] = [
        HumanMessage(blocks, id="1"),
        AIMessage([{"type": "reasoning", "reasoning": "r"}, "text"], id="2"),
        ToolMessage([{"type": "text", "text": LONG}], tool_call_id="c", id="3"),
    ]
    sent = edited(odd, TruncateOlderThan(n=0), {})
    assert sent[:2] == odd[:2]
    assert len(sent[2].text) == 200


@pytest.mark.parametrize("wrong", [None, "text", [1], [{"content": "no role"}]])
def test_no_conversation(wrong: Any) -> None:
    with pytest.raises(PolicyError, match=r"Rule\.transform must return a list of messages"):
        edited(conversation(1), Rule(lambda _: wrong), {})


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (lambda ms: ms[99], r"Rule failed on turn 1: IndexError"),
        (
            lambda _: [{"role": "nobody", "content": "x"}],
            "message 0 on turn 1: 'nobody' is no role",
        ),
    ],
)
def test_a_failing_policy_leaves_what_was_noted(rule: Any, told: str) -> None:
    known: Any = {}
    edited(conversation(3), TruncateOlderThan(), known)
    noted = dict(known)
    with pytest.raises(PolicyError, match=told):
        edited(conversation(1), Rule(rule), known)
    assert known == noted != {}


def test_other_kinds_of_messages_pass() -> None:
    assert edited([RemoveMessage(id="x")], Rule(list), {}) == [RemoveMessage(id="x")]


def test_memory_forgets_old_threads_and_messages() -> None:
    memory = Memory(max_threads=2, max_messages=3)
    known = memory.of("a")
    known.update({str(i): ({"role": "user"}, None) for i in range(5)})
    assert list(memory.of("a")) == ["2", "3", "4"]
    memory.of("b")
    assert memory.of("a") is known
    memory.of("c")
    assert memory.of("a") is known
    memory.of("d")
    assert memory.of("c") == {}
