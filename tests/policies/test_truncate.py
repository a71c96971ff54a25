"""truncate_older_than: what is cut, how, and that it stays so."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyline_agent.core import PolicyError
from leyline_agent.policies import Message, Policy, TruncateOlderThan
from leyline_agent.policies.truncate_older_than import cut

CUT = re.compile(r" … \[[\d,]+ characters cut\] … ")
LONG = "head " + "x" * 2000 + " tail"


def user(text: Any) -> Message:
    return {"role": "user", "content": text}


def call(name: str) -> Message:
    function = {"name": "read", "arguments": "{}"}
    calls = [{"id": name, "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(name: str, text: Any) -> Message:
    return {"role": "tool", "tool_call_id": name, "content": text}


def tool_conversation(turns: int, text: Any = LONG) -> list[Message]:
    pairs = [m for i in range(turns) for m in (call(str(i)), result(str(i), text))]
    return [{"role": "system", "content": LONG}, user(LONG), *pairs]


def text_conversation(turns: int) -> list[Message]:
    pairs = [m for _ in range(turns) for m in ({"role": "assistant", "content": LONG}, user(LONG))]
    return [user(LONG), *pairs]


def which_cut(messages: list[Message]) -> list[int]:
    return [i for i, m in enumerate(messages) if CUT.search(str(m["content"]))]


def test_it_is_a_policy() -> None:
    assert isinstance(TruncateOlderThan(), Policy)


@pytest.mark.parametrize(("n", "left"), [(0, 0), (1, 1), (2, 2), (5, 4)])
def test_the_last_n_turns_stay_whole(n: int, left: int) -> None:
    sent = TruncateOlderThan(n=n).transform(tool_conversation(4), 4)
    assert which_cut(sent) == [3, 5, 7, 9][: 4 - left]


def test_parallel_results_have_one_age() -> None:
    both = [call("a"), result("a", LONG), result("b", LONG)]
    later = [call("c"), result("c", LONG), call("d"), result("d", LONG)]
    assert which_cut(TruncateOlderThan(n=2).transform([*both, *later], 3)) == [1, 2]


def test_stub_keeps_head_tail_and_says_how_much_is_gone() -> None:
    stub = cut(LONG, 200)
    assert len(stub) == 200
    assert stub.startswith("head x")
    assert stub.endswith("x tail")
    told = int(re.search(r" … \[([\d,]+) characters cut\] … ", stub)[1].replace(",", ""))
    marker = len(f" … [{told:,} characters cut] … ")
    assert told == len(LONG) - (200 - marker)


def test_short_observations_are_passed_on_as_they_are() -> None:
    messages = tool_conversation(4, "y" * 200)
    sent = TruncateOlderThan().transform(messages, 4)
    assert all(a is b for a, b in zip(sent, messages, strict=True))


def test_a_cut_message_keeps_all_else() -> None:
    message = {**result("0", LONG), "name": "read", "id": "m"}
    sent = TruncateOlderThan(n=0).transform([call("0"), message], 1)[1]
    assert {**sent, "content": LONG} == message


def test_text_parts_become_one_part() -> None:
    parts = [{"type": "text", "text": LONG}, {"type": "text", "text": "end"}]
    sent = TruncateOlderThan(n=0).transform(tool_conversation(1, parts), 1)[3]
    assert sent["content"] == [{"type": "text", "text": cut(LONG + "end", 200)}]


def test_images_are_left_alone() -> None:
    parts = [{"type": "text", "text": LONG}, {"type": "image_url", "image_url": {"url": "u"}}]
    assert TruncateOlderThan(n=0).transform(tool_conversation(1, parts), 1)[3]["content"] is parts


def test_text_agents_carry_observations_as_user_messages() -> None:
    messages = text_conversation(4)
    assert which_cut(TruncateOlderThan().transform(messages, 4)) == [2, 4]
    assert which_cut(TruncateOlderThan(observations="user").transform(messages, 4)) == [2, 4]
    assert which_cut(TruncateOlderThan(observations="tool").transform(messages, 4)) == []


def test_auto_leaves_users_alone_where_there_are_tools() -> None:
    more = [*tool_conversation(3), {"role": "assistant", "content": "done"}, user(LONG)]
    longer = [*more, *tool_conversation(3)[2:]]
    assert which_cut(TruncateOlderThan().transform(longer, 7)) == [3, 5, 7, 11]


def test_what_auto_cut_before_the_first_tool_message_stays_cut() -> None:
    policy = TruncateOlderThan()
    chat = text_conversation(4)
    first = policy.transform(chat, 4)
    then = policy.transform([*chat, call("0"), result("0", LONG)], 5)
    assert which_cut(first) == which_cut(then) == [2, 4]
    assert then[: len(first)] == first


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"n": -1}, "n is -1.*0 or more"),
        ({"n": "x"}, "n is 'x'.*whole number"),
        ({"n": True}, "n is True.*whole number"),
        ({"max_chars": 39}, "max_chars is 39.*40 or more"),
        ({"observations": "all"}, "'all'.*auto, tool, user"),
    ],
)
def test_wrong_parameters(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        TruncateOlderThan(**wrong)


texts = st.builds(lambda s, k: s * k, st.text(min_size=1, max_size=12), st.integers(0, 150))
contents = st.one_of(texts, st.lists(texts.map(lambda t: {"type": "text", "text": t}), max_size=3))
policies = st.builds(
    TruncateOlderThan,
    n=st.integers(0, 4),
    max_chars=st.integers(40, 300),
    observations=st.sampled_from(["auto", "tool", "user"]),
)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """System, user, then turns that call tools or talk, in any order."""
    messages: list[Message] = [{"role": "system", "content": draw(texts)}, user(draw(contents))]
    for turn in range(draw(st.integers(0, 7))):
        if draw(st.booleans()):
            names = [f"{turn}-{k}" for k in range(draw(st.integers(1, 2)))]
            calls = [c for name in names for c in call(name)["tool_calls"]]
            messages.append({"role": "assistant", "content": None, "tool_calls": calls})
            messages.extend(result(name, draw(contents)) for name in names)
        else:
            messages.append({"role": "assistant", "content": draw(texts)})
            messages.append(user(draw(contents)))
    return messages


def calls_of(messages: list[Message]) -> list[list[Message]]:
    """The prompts of a growing conversation: one before each assistant message, and all."""
    return [
        *(messages[:i] for i, m in enumerate(messages) if m["role"] == "assistant"),
        messages,
    ]


def size(message: Message) -> int:
    content = message["content"]
    return len(content) if isinstance(content, str) else sum(len(p["text"]) for p in content)


@given(policies, conversations())
def test_idempotent_and_input_untouched(policy: TruncateOlderThan, messages: list[Message]) -> None:
    original = copy.deepcopy(messages)
    once = policy.transform(messages, 0)
    assert messages == original
    assert policy.transform(once, 0) == once


@given(policies, conversations())
def test_sticky_from_the_state_and_from_what_was_sent(
    policy: TruncateOlderThan, messages: list[Message]
) -> None:
    frozen: dict[int, Message] = {}
    sent: list[Message] = []
    for turn, prompt in enumerate(calls_of(messages)):
        fresh = policy.transform(prompt, turn)
        sent = policy.transform([*sent, *prompt[len(sent) :]], turn)
        assert fresh == sent
        assert all(fresh[i] == stub for i, stub in frozen.items())
        frozen |= {i: m for i, m in enumerate(fresh) if m != prompt[i]}


@given(policies, conversations())
def test_pairing_order_and_length(policy: TruncateOlderThan, messages: list[Message]) -> None:
    sent = policy.transform(messages, 0)
    assert len(sent) == len(messages)
    for old, new in zip(messages, sent, strict=True):
        assert {**new, "content": None} == {**old, "content": None}
        if new != old:
            assert old["role"] in ("tool", "user")
            assert size(old) > policy.max_chars >= size(new)


@given(st.integers(41, 30_000), st.integers(40, 400))
def test_the_marker_counts_right(length: int, max_chars: int) -> None:
    if length <= max_chars:
        return
    stub = cut("x" * length, max_chars)
    assert len(stub) <= max_chars
    told = int(re.search(r"\[([\d,]+) ", stub)[1].replace(",", ""))
    assert told == length - stub.split(" … [")[0].count("x") - stub.split("] … ")[1].count("x")
