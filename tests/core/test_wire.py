"""The wire format: there and back, and nothing but WireError for whatever else arrives."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from leyline_agent.core import (
    Directive,
    EditPlan,
    Fallback,
    Mode,
    Receipt,
    WireError,
    WirePlan,
    digest,
    loads,
)
from leyline_agent.core.wire import MAX_BYTES, MAX_DIRECTIVES

BASE = list(range(20))


def wire(*directives: Directive) -> WirePlan:
    plan = EditPlan.of(BASE, directives)
    return WirePlan("chatcmpl-1", plan, digest(plan.apply(BASE)))


def document(**changes: Any) -> str:
    """A valid text with some of its keys changed."""
    data = json.loads(wire(Directive(2, 5, (7, 8)), Directive(9, 9, (1,), Mode.FORGET)).dumps())
    return json.dumps({**data, **changes})


@given(
    st.lists(st.integers(0, 20), min_size=2, max_size=2).map(sorted),
    st.lists(st.integers(0, (1 << 31) - 1), min_size=1, max_size=9),
    st.sampled_from(Mode),
)
def test_a_plan_comes_back_as_it_went(span: list[int], new: list[int], mode: Mode) -> None:
    sent = wire(Directive(span[0], span[1], tuple(new), mode))
    assert loads(sent.dumps()) == sent


def test_the_text_is_as_documented() -> None:
    data = json.loads(wire(Directive(2, 5, (7, 8))).dumps())
    assert data["v"] == 1
    assert data["base"] == {"id": "chatcmpl-1", "len": 20, "sha": digest(BASE)}
    assert data["directives"] == [[2, 5, [7, 8], "amortize"]]
    assert data["edited"] == {"len": 19, "sha": digest([0, 1, 7, 8, *BASE[5:]])}


BAD_DIRECTIVES: list[Any] = [
    None,
    {},
    "x",
    7,
    [1],
    [None],
    [{}],
    [[]],
    [[1, 2, []]],
    [[1, 2, [], "amortize", 1]],
    [[1, 2, [], "soften"]],
    [[1, 2, [], None]],
    [[1, 2, [], ["amortize"]]],
    [[1, 2, [], {}]],
    [[1, 2, None, "amortize"]],
    [[1, 2, [1.0], "amortize"]],
    [[1, 2, [True], "amortize"]],
    [[1, 2, ["1"], "amortize"]],
    [[1, 2, [-1], "amortize"]],
    [[1, 2, [1 << 31], "amortize"]],
    [[-1, 2, [], "amortize"]],
    [[2, 1, [], "amortize"]],
    [[1, 1, [], "amortize"]],
    [[1, 99, [], "amortize"]],
    [[True, 2, [], "amortize"]],
    [["1", 2, [], "amortize"]],
    [[1, 1e3, [], "amortize"]],
    [[1, 2, [], "amortize"], [1, 2, [], "amortize"]],
    [[5, 6, [], "amortize"], [1, 2, [], "amortize"]],
    [[1, 4, [], "amortize"], [3, 6, [], "amortize"]],
    [[0, 1, [1], "amortize"]] * (MAX_DIRECTIVES + 1),
]


@pytest.mark.parametrize("directives", BAD_DIRECTIVES, ids=lambda d: str(d)[:40])
def test_malformed_directives(directives: Any) -> None:
    with pytest.raises(WireError):
        loads(document(directives=directives))


@pytest.mark.parametrize(
    "changes",
    [
        {"v": 2},
        {"v": True},
        {"v": "1"},
        {"v": None},
        {"base": None},
        {"base": []},
        {"base": {"id": "x", "len": 20}},
        {"base": {"id": "", "len": 20, "sha": "x"}},
        {"base": {"id": 7, "len": 20, "sha": "x"}},
        {"base": {"id": "x" * 257, "len": 20, "sha": "x"}},
        {"base": {"id": "x", "len": -1, "sha": "x"}},
        {"base": {"id": "x", "len": 1 << 40, "sha": "x"}},
        {"base": {"id": "x", "len": "20", "sha": "x"}},
        {"base": {"id": "x", "len": 20.0, "sha": "x"}},
        {"edited": None},
        {"edited": {"len": 3, "sha": "x"}},
        {"edited": {"len": 20}},
    ],
    ids=str,
)
def test_malformed_frames(changes: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        loads(document(**changes))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        "7",
        '"x"',
        "NaN",
        "[" * 100_000,
        '{"a":' * 50_000,
        "9" * 5000,
        '{"v": ' + "9" * 5000 + "}",
        " " * (MAX_BYTES + 1),
        "\ud800",
        "\x00",
        None,
        7,
        b"{}",
        ["x"],
        {"v": 1},
    ],
    ids=lambda t: repr(t)[:30],
)
def test_what_is_no_plan_at_all(text: Any) -> None:
    with pytest.raises(WireError):
        loads(text)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=400)
@given(st.sampled_from(["v", "base", "directives", "edited"]), values)
@example("directives", [[0, 1, [float("inf")], "amortize"]])
def test_any_value_anywhere_is_a_plan_or_a_wire_error(key: str, value: Any) -> None:
    with suppress(WireError):
        loads(document(**{key: value}))


@settings(max_examples=400)
@given(st.integers(0, 400), st.text(max_size=4))
def test_any_damage_is_a_plan_or_a_wire_error(at: int, noise: str) -> None:
    text = document()
    with suppress(WireError):
        loads(text[:at] + noise + text[at + 2 :])


RECEIPT = Receipt("c1", False, Fallback.NO_MEMORY, 10, 4, 3, 2, 1, 1, 0.5, "8000", "no room")


def test_a_receipt_comes_back_as_it_went() -> None:
    data = json.loads(json.dumps(RECEIPT.to_dict()))
    assert data["fallback"] == "no_memory"
    assert Receipt.from_dict({**data, "later": "addition"}) == RECEIPT


@pytest.mark.parametrize("data", [{}, {"id": "x"}, {"id": "x", "applied": True, "fallback": "bad"}])
def test_what_is_no_receipt(data: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        Receipt.from_dict(data)
