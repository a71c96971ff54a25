"""The edit algebra: apply, kept segments, cost, composition, coalescing."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leyline_agent.core import Directive, EditPlan, Mode, PlanError, Span, digest

ids = st.lists(st.integers(0, 9), max_size=30)


@st.composite
def directives_for(draw: st.DrawFn, length: int) -> list[Directive]:
    """Sorted, disjoint directives inside a base of that length."""
    cuts = sorted(draw(st.lists(st.integers(0, length), max_size=8)))
    found: list[Directive] = []
    for start, end in zip(cuts[::2], cuts[1::2], strict=False):
        replacement = tuple(draw(st.lists(st.integers(0, 9), max_size=6)))
        if start == end and (not replacement or any(d.end >= start for d in found)):
            continue
        found.append(Directive(start, end, replacement, draw(st.sampled_from(Mode))))
    return found


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[int], EditPlan]:
    base = draw(ids)
    return base, EditPlan.of(base, draw(directives_for(len(base))))


@st.composite
def chains(draw: st.DrawFn) -> tuple[list[int], EditPlan, EditPlan]:
    """A base, a plan for it, and a plan for that one's result."""
    base, first = draw(plans())
    middle = first.apply(base)
    return base, first, EditPlan.of(middle, draw(directives_for(len(middle))))


@given(plans())
def test_apply_replaces_every_span(case: tuple[list[int], EditPlan]) -> None:
    base, plan = case
    expected = list(base)
    for d in reversed(plan.directives):
        expected[d.start : d.end] = d.replacement
    assert plan.apply(base) == tuple(expected)
    assert plan.edited_len == len(expected)


@given(plans())
def test_kept_segments_stand_where_their_shift_says(case: tuple[list[int], EditPlan]) -> None:
    base, plan = case
    edited = plan.apply(base)
    kept = plan.kept()
    assert len(kept) == len(plan.directives) + 1
    for segment in kept:
        old, new = segment.span, segment.edited
        assert tuple(base[old.start : old.end]) == edited[new.start : new.end]
    for before, after in pairwise(kept):
        assert before.edited.end <= after.edited.start
    reusable = [segment.reusable for segment in kept]
    assert reusable == sorted(reusable, reverse=True)
    assert reusable.count(True) == 1 + next(
        (i for i, d in enumerate(plan.directives) if d.mode is Mode.FORGET), len(plan.directives)
    )


@given(plans())
def test_cost_counts_every_edited_token_once(case: tuple[list[int], EditPlan]) -> None:
    _, plan = case
    cost = plan.cost()
    assert cost.keep + cost.move + cost.prefill == plan.edited_len
    assert cost.prefill >= sum(len(d.replacement) for d in plan.directives)


@given(plans(), st.integers(0, 12))
def test_coalescing_changes_the_work_and_never_the_result(
    case: tuple[list[int], EditPlan], threshold: int
) -> None:
    base, plan = case
    merged = plan.coalesce(base, threshold)
    assert merged.apply(base) == plan.apply(base)
    for before, after in pairwise(merged.directives):
        assert after.start - before.end >= threshold
    assert merged.coalesce(base, threshold) == merged
    assert merged.cost().prefill >= plan.cost().prefill
    forgets = {d.mode for d in plan.directives}
    assert {d.mode for d in merged.directives} <= forgets


@settings(max_examples=400)
@given(chains())
def test_composition_is_one_plan_after_the_other(
    case: tuple[list[int], EditPlan, EditPlan],
) -> None:
    base, first, later = case
    both = first.then(base, later)
    assert both.apply(base) == later.apply(first.apply(base))
    assert both.base_digest == first.base_digest
    if all(d.mode is Mode.AMORTIZE for d in (*first.directives, *later.directives)):
        assert all(d.mode is Mode.AMORTIZE for d in both.directives)


@settings(max_examples=400)
@given(chains())
def test_composition_reuses_nothing_behind_a_base_token_that_was_forgotten(
    case: tuple[list[int], EditPlan, EditPlan],
) -> None:
    """What was put in and taken out again leaves no trace: base KV never reflected it."""
    base, first, later = case
    places = {
        segment.edited.start + i: segment.span.start + i
        for segment in first.kept()
        for i in range(len(segment.span))
    }
    forgotten = [
        i for d in first.directives if d.mode is Mode.FORGET for i in range(d.start, d.end)
    ]
    for d in later.directives:
        if d.mode is Mode.FORGET:
            forgotten += [places[i] for i in range(d.start, d.end) if i in places]
    for segment in first.then(base, later).kept():
        if segment.reusable and forgotten and len(segment.span):
            assert segment.span.end <= min(forgotten)


def test_a_plan_is_good_for_its_own_base_only() -> None:
    plan = EditPlan.of([1, 2, 3], [Directive(1, 2, (9,))])
    assert plan.apply([1, 2, 3]) == (1, 9, 3)
    for other in ([1, 2, 4], [1, 2], []):
        with pytest.raises(PlanError, match="another base"):
            plan.apply(other)
    with pytest.raises(PlanError, match="another base"):
        plan.then([1, 2, 3], EditPlan.of([7]))


@pytest.mark.parametrize(
    "directives",
    [
        [Directive(2, 4), Directive(0, 1)],
        [Directive(0, 3), Directive(2, 4)],
        [Directive(0, 6)],
        [Directive(1, 1, (7,)), Directive(1, 1, (8,))],
        [Directive(6, 6, (7,))],
    ],
)
def test_directives_that_cannot_be_applied_are_refused(directives: list[Directive]) -> None:
    with pytest.raises(PlanError):
        EditPlan.of([1, 2, 3, 4, 5], directives)


@pytest.mark.parametrize(("start", "end"), [(-1, 2), (3, 2), (-3, -1)])
def test_spans_go_forward_from_zero(start: int, end: int) -> None:
    with pytest.raises(PlanError):
        Span(start, end)
    with pytest.raises(PlanError):
        Directive(start, end, (1,))
    with pytest.raises(PlanError):
        Span(1, 2).shifted(-2)


def test_a_directive_changes_something_and_holds_token_ids() -> None:
    with pytest.raises(PlanError, match="changes nothing"):
        Directive(3, 3)
    with pytest.raises(PlanError, match="negative"):
        Directive(0, 1, (5, -1))
    assert Directive(2, 5, (7,)).shift == -2
    assert len(Directive(2, 5).span) == 3


def test_an_insertion_may_stand_right_behind_a_deletion() -> None:
    plan = EditPlan.of([1, 2, 3], [Directive(0, 1), Directive(1, 1, (9,))])
    assert plan.apply([1, 2, 3]) == (9, 2, 3)


def test_digests_tell_sequences_apart() -> None:
    assert digest([]) != digest([0]) != digest([0, 0])
    assert digest([1, 2]) != digest([2, 1])
    assert len(digest(range(1000))) == 32
