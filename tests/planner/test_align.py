"""Alignment and directives: always true, near the best possible, and fast."""

from __future__ import annotations

import time
from array import array
from itertools import chain, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leyline_agent.core import EditPlan, Mode
from leyline_agent.planner import align, difference
from leyline_agent.planner.blocks import common_prefix, common_suffix

START, USER, ASSISTANT, TOOL, END, LINE = range(6)
OPEN = [START, ASSISTANT, LINE]


def message(role: int, body: list[int]) -> list[int]:
    """A message as a chat template renders it."""
    return [START, role, LINE, *body, END, LINE]


def prompt(*messages: list[int]) -> array[int]:
    return array("q", [*chain(*messages), *OPEN])


def body(seed: int, size: int) -> list[int]:
    """Text without accidental repeats: different seeds share no token."""
    return [10 + seed * 10_000 + i for i in range(size)]


def edited(base: array[int], new: array[int], prompt_len: int | None = None, threshold: int = 1):
    """Directives as (start, end, replacement length), and what is kept of the new prompt."""
    found = difference(base, prompt_len or len(base), new, Mode.AMORTIZE, threshold)
    plan = EditPlan.of(base, found.directives)
    assert array("q", plan.apply(base)) == new[: found.edited_len]
    replaced = sum(len(d.replacement) for d in found.directives)
    return found.directives, found.edited_len - replaced


tokens = st.lists(st.integers(0, 4), max_size=60).map(lambda ids: array("q", ids))


@given(tokens, tokens, tokens)
def test_the_ends_are_found_exactly(a: array[int], b: array[int], shared: array[int]) -> None:
    left, right = shared + a, shared + b
    n = common_prefix(left, 0, len(left), right, 0, len(right))
    assert left[:n] == right[:n]
    assert n == min(len(left), len(right)) or left[n] != right[n]
    left, right = a + shared, b + shared
    n = common_suffix(left, 0, len(left), right, 0, len(right))
    assert left[len(left) - n :] == right[len(right) - n :]
    assert n == min(len(left), len(right)) or left[-n - 1] != right[-n - 1]


@given(tokens, tokens, st.integers(1, 20), st.data())
@settings(max_examples=500)
def test_any_difference_is_a_plan_that_leads_there(
    base: array[int], new: array[int], threshold: int, data: st.DataObject
) -> None:
    prompt_len = data.draw(st.integers(0, len(base)))
    edited(base, new, prompt_len or None, threshold)
    blocks = align(base, prompt_len, new, threshold)
    for block in blocks:
        assert base[block.base_start : block.base_end] == new[block.new_start : block.new_end]
    for first, second in pairwise(blocks):
        assert first.base_end <= second.base_start
        assert first.new_end <= second.new_start


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(60, 200)), min_size=3, max_size=12),
    st.data(),
)
def test_of_truncated_messages_only_the_middle_is_replaced(
    sizes: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Whatever subset is cut, and even where messages repeat one another word for word."""
    messages = []
    for turn, (seed, size) in enumerate(sizes):
        messages += [message(ASSISTANT, body(20 + turn, 9)), message(TOOL, body(seed, size))]
    cut = data.draw(st.sets(st.integers(0, len(sizes) - 2)))
    after = list(messages)
    removed = 0
    for turn in cut:
        whole = body(*sizes[turn])
        after[2 * turn + 1] = message(TOOL, [*whole[:20], 7, 8, 9, *whole[-20:]])
        removed += len(whole) - 40
    more = [message(ASSISTANT, body(50, 9)), message(TOOL, body(51, 40))]
    base, new = prompt(*messages), prompt(*after, *more)
    directives, kept = edited(base, new, threshold=16)
    assert kept == len(base) - removed
    assert sum(len(d.replacement) for d in directives) == 3 * len(cut)
    assert len(directives) == len(cut)


def test_generated_tokens_that_come_back_are_kept() -> None:
    messages = [message(USER, body(0, 50)), message(TOOL, body(1, 200))]
    answer = [*body(2, 30), END]
    base = prompt(*messages) + array("q", answer)
    cut = message(TOOL, [*body(1, 200)[:20], 7, *body(1, 200)[-20:]])
    new = array("q", [*messages[0], *cut, *OPEN, *answer, LINE, *message(TOOL, body(3, 9)), *OPEN])
    directives, kept = edited(base, new, len(prompt(*messages)))
    assert [(d.end - d.start, d.replacement) for d in directives] == [(160, (7,))]
    assert kept == len(base) - 160


def test_generated_tokens_rendered_otherwise_are_a_deletion_at_the_end() -> None:
    messages = [message(USER, body(0, 50))]
    base = prompt(*messages) + array("q", body(2, 30))
    new = prompt(*messages, message(ASSISTANT, body(3, 30)))
    directives, kept = edited(base, new, len(prompt(*messages)))
    [directive] = directives
    assert (directive.end, directive.replacement) == (len(base), ())
    assert kept == len(prompt(*messages))


def test_what_is_read_a_second_time_is_new() -> None:
    """The old reading is cut, the same text stands in the newest message: it is not moved."""
    text = body(1, 300)
    early = [message(USER, body(0, 50)), message(TOOL, text), message(ASSISTANT, body(2, 20))]
    base = prompt(*early, message(TOOL, body(3, 100)))
    stub = [*text[:20], 7, *text[-20:]]
    new = prompt(
        early[0], message(TOOL, stub), early[2], message(TOOL, body(3, 100)),
        message(ASSISTANT, body(4, 20)), message(TOOL, text),
    )  # fmt: skip
    _, kept = edited(base, new)
    assert kept == len(base) - 260


@pytest.mark.parametrize("first", [2, 11, 39])
def test_dropped_turns_are_one_deletion(first: int) -> None:
    """A window over a conversation whose every answer is the same."""
    head = message(USER, body(0, 50))
    turns = [message(ASSISTANT, body(1, 20)) + message(TOOL, body(10 + i, 50)) for i in range(40)]
    base = prompt(head, *turns)
    new = prompt(head, *turns[first:], message(ASSISTANT, body(1, 20)), message(TOOL, body(3, 9)))
    directives, kept = edited(base, new, threshold=16)
    assert [len(d.replacement) for d in directives] == [0]
    assert kept == len(base) - first * len(turns[0])


def test_a_summary_keeps_the_last_turns() -> None:
    head = message(USER, body(0, 50))
    turns = [
        message(ASSISTANT, body(30 + i, 20)) + message(TOOL, body(80 + i, 50)) for i in range(9)
    ]
    base = prompt(head, *turns)
    new = prompt(head, message(USER, body(1, 70)), *turns[5:], message(ASSISTANT, body(2, 9)))
    directives, kept = edited(base, new, threshold=16)
    assert len(directives) == 1
    assert kept >= len(head) + 4 * len(turns[0])


def test_a_middle_of_a_message_that_stays_is_kept() -> None:
    """Two cuts in one message; the stretch between them is found without turns."""
    text = body(1, 900)
    base = prompt(message(USER, body(0, 50)), message(TOOL, text))
    new = prompt(
        message(USER, body(0, 50)), message(TOOL, [*text[:100], 7, *text[300:600], 8, *text[800:]])
    )
    directives, kept = edited(base, new, threshold=16)
    assert [len(d.replacement) for d in directives] == [1, 1]
    assert kept == len(base) - 400


@pytest.mark.parametrize("kind", ["text", "periodic", "one token"])
@pytest.mark.parametrize("cuts", [1, 4, 98])
def test_thirty_thousand_tokens_take_milliseconds(kind: str, cuts: int) -> None:
    """CPU time; the aim is 10 ms, the limit leaves room for a slow or busy machine."""
    period = {"text": 1 << 20, "periodic": 7, "one token": 1}[kind]
    text = [10 + (i * 7919) % 30_000 % period for i in range(30_000)]
    messages = [
        message(TOOL if i % 2 else ASSISTANT, text[i * 145 : (i + 1) * 145]) for i in range(200)
    ]
    after = list(messages)
    for i in range(1, 2 * cuts, 2):
        after[i] = message(TOOL, [*after[i][3:33], *body(2, 12), *after[i][-32:-2]])
    base = prompt(*messages)
    new = prompt(*after, message(ASSISTANT, body(3, 20)))
    times = []
    for _ in range(5):
        began = time.thread_time()
        difference(base, len(base), new, Mode.AMORTIZE, 16)
        times.append(time.thread_time() - began)
    _, kept = edited(base, new, threshold=16)
    assert kept >= 0.99 * (len(base) - cuts * 85)
    assert min(times) < 0.03
