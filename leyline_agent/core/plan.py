"""A group of directives against one base, and what follows from it.

base    |---K0---|==B1==|---K1---|==B2==|---K2---|
edited  |---K0---|R1|---K1---|R2|---K2---|          K_i keeps its tokens
request |---K0---|R1|---K1---|R2|---K2---|--N--|    N: new tokens of this turn

shift of K_i = sum over j <= i of (|R_j| - |B_j|)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from leyline_agent.core.digest import digest
from leyline_agent.core.directive import Directive, Mode, checked
from leyline_agent.core.errors import PlanError
from leyline_agent.core.span import Span


@dataclass(frozen=True, slots=True)
class Kept:
    """A segment of the base that survives: `span` in base coordinates, moved by `shift`.

    reusable: its KV may be taken over; false once a FORGET stands before it.
    """

    span: Span
    shift: int
    reusable: bool

    @property
    def edited(self) -> Span:
        """Where the segment stands in the edited sequence."""
        return self.span.shifted(self.shift)


@dataclass(frozen=True, slots=True)
class Cost:
    """Tokens of the edited sequence by what has to be done for them."""

    keep: int
    move: int
    prefill: int


@dataclass(frozen=True, slots=True)
class EditPlan:
    """Directives, applied whole or not at all, against a base of `base_len` tokens.

    Raises:
        PlanError: the directives are unsorted, overlap, or leave the base.
    """

    base_len: int
    base_digest: str
    directives: tuple[Directive, ...] = ()

    def __post_init__(self) -> None:
        if self.base_len < 0:
            raise PlanError(f"a base cannot have {self.base_len} tokens")
        object.__setattr__(self, "directives", checked(self.directives, self.base_len))

    @classmethod
    def of(cls, base: Sequence[int], directives: Sequence[Directive] = ()) -> EditPlan:
        """A plan against these very tokens."""
        return cls(len(base), digest(base), tuple(directives))

    @property
    def edited_len(self) -> int:
        """Length of the edited sequence, in tokens."""
        return self.base_len + sum(d.shift for d in self.directives)

    def apply(self, base: Sequence[int]) -> tuple[int, ...]:
        """The edited sequence.

        Raises:
            PlanError: `base` is not the sequence that the plan was made for.
        """
        if len(base) != self.base_len or digest(base) != self.base_digest:
            raise PlanError("the plan was made for another base")
        edited: list[int] = []
        position = 0
        for directive in self.directives:
            edited.extend(base[position : directive.start])
            edited.extend(directive.replacement)
            position = directive.end
        edited.extend(base[position:])
        return tuple(edited)

    def kept(self) -> tuple[Kept, ...]:
        """The segments K0 … Kn, the empty ones included.

        K0 is reusable as it stands; K_i (i > 0) by moving its KV, unless a FORGET comes
        before it.
        """
        starts = (0, *(d.end for d in self.directives))
        ends = (*(d.start for d in self.directives), self.base_len)
        segments = []
        shift, reusable = 0, True
        for index, (start, end) in enumerate(zip(starts, ends, strict=True)):
            if index:
                directive = self.directives[index - 1]
                shift += directive.shift
                reusable = reusable and directive.mode is Mode.AMORTIZE
            segments.append(Kept(Span(start, end), shift, reusable))
        return tuple(segments)

    def cost(self) -> Cost:
        """Work for the edited sequence when everything the base holds is still cached."""
        first, *rest = self.kept()
        move = sum(len(k.span) for k in rest if k.reusable)
        keep = len(first.span)
        return Cost(keep=keep, move=move, prefill=self.edited_len - keep - move)

    def coalesce(self, base: Sequence[int], threshold: int) -> EditPlan:
        """Merge neighbours whose kept segment is shorter than `threshold` tokens.

        Such a segment is cheaper to prefill again than to move. The edited sequence stays
        the same. A merged directive is FORGET when either part is.

        Raises:
            PlanError: `base` is not the sequence that the plan was made for.
        """
        edited = self.apply(base)
        if not self.directives:
            return self
        merged = [self.directives[0]]
        for before, after in pairwise(self.directives):
            if after.start - before.end < threshold:
                last = merged[-1]
                gap = tuple(base[last.end : after.start])
                mode = Mode.FORGET if Mode.FORGET in (last.mode, after.mode) else Mode.AMORTIZE
                merged[-1] = Directive(
                    last.start, after.end, last.replacement + gap + after.replacement, mode
                )
            else:
                merged.append(after)
        plan = replace(self, directives=tuple(merged))
        assert plan.apply(base) == edited
        return plan

    def then(self, base: Sequence[int], later: EditPlan) -> EditPlan:
        """One plan from this plan's base to `later`'s result.

        Overlapping edits of the two become one directive; FORGET wins over AMORTIZE.

        Raises:
            PlanError: `later` was not made for this plan's result.
        """
        middle = self.apply(base)
        final = later.apply(middle)
        directives = tuple(_compose(self, later, base, final))
        plan = replace(self, directives=directives)
        if plan.apply(base) != final:
            raise PlanError("composition does not reproduce the edited sequence")
        return plan


def _compose(
    first: EditPlan, later: EditPlan, base: Sequence[int], final: Sequence[int]
) -> list[Directive]:
    """Directives from base to final: what neither plan touched is kept.

    A base token survives when it lies in a kept segment of `first` and its place in the
    middle sequence lies in a kept segment of `later`.
    """
    survivors: list[tuple[Span, int]] = []
    for a in first.kept():
        for b in later.kept():
            start = max(a.edited.start, b.span.start)
            end = min(a.edited.end, b.span.end)
            if start < end:
                survivors.append((Span(start - a.shift, end - a.shift), a.shift + b.shift))
    directives = []
    at_base = at_final = 0
    for span, shift in [*survivors, (Span(len(base), len(base)), len(final) - len(base))]:
        if span.start > at_base or span.start + shift > at_final:
            removed = Span(at_base, span.start)
            inserted = tuple(final[at_final : span.start + shift])
            mode = _mode(first, later, removed, Span(at_final, span.start + shift))
            directives.append(Directive(removed.start, removed.end, inserted, mode))
        at_base, at_final = span.end, span.end + shift
    return directives


def _mode(first: EditPlan, later: EditPlan, removed: Span, inserted: Span) -> Mode:
    """FORGET when a directive of either plan that touches the place is FORGET."""
    shift = 0
    for directive in first.directives:
        if directive.mode is Mode.FORGET and _touches(directive.span, removed):
            return Mode.FORGET
    for directive in later.directives:
        place = Span(directive.start + shift, directive.start + shift + len(directive.replacement))
        shift += directive.shift
        if directive.mode is Mode.FORGET and _touches(place, inserted):
            return Mode.FORGET
    return Mode.AMORTIZE


def _touches(a: Span, b: Span) -> bool:
    return a.start <= b.end and b.start <= a.end
