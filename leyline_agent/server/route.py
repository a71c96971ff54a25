"""From a plan to work: which tokens move where, and what must be prefilled before.

    base    |---K0---|==B1==|----K1----|==B2==|---K2---|
    edited  |---K0---|R1|----K1----|R2|---K2---|
    pages   |. . . . . . . .|. . . . . . . . . . .|          page size p
    moves             |r|---K1'---|    |r|-K2'|              r < p tokens fill a page
    stages  [0 .......+r)  [0 ................+r)            prefilled ahead, in order

A kept segment lands on a page boundary: its first r tokens are prefilled together with the
replacement before it. `boundary` makes that stretch longer on purpose.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from leyline_agent.core import EditPlan
from leyline_agent.server.ledger import Base
from leyline_agent.server.mark import Marks, mark, name_of
from leyline_agent.server.origin import Origin, cut


@dataclass(frozen=True, slots=True)
class Move:
    """KV of base tokens [start - shift, end - shift) goes to edited positions [start, end)."""

    start: int
    end: int
    shift: int


@dataclass(frozen=True, slots=True)
class Route:
    """The edited tokens, the marks of their radix path, the moves in order.

    base: what was edited; donor: its radix key. before: origins of what stands before the
    first edit. superseded: where the base's state is no longer its conversation's.
    """

    edited: array[int]
    marks: Marks
    moves: tuple[Move, ...]
    base: Base
    donor: array[int]
    before: tuple[Origin, ...]
    superseded: int | None

    @property
    def lineage(self) -> str:
        """The name of the last mark, or "" for an honest path."""
        return name_of(self.marks[max(self.marks)]) if self.marks else ""


def ceil_to(value: int, page: int) -> int:
    """The next multiple of `page`."""
    return -(-value // page) * page


def moves_of(plan: EditPlan, page: int, boundary: int = 0) -> tuple[Move, ...]:
    """The kept segments that can be moved, cut to pages, empty ones left out."""
    moves = []
    for kept in plan.kept()[1:]:
        start, end = kept.edited.start, kept.edited.end
        start = ceil_to(start + boundary, page)
        end = end if end == plan.edited_len else end // page * page
        if kept.reusable and start < end:
            moves.append(Move(start, end, kept.shift))
    return tuple(moves)


def stages_of(plan: EditPlan, page: int, boundary: int = 0) -> tuple[int, ...]:
    """Lengths of edited prefixes that must be prefilled before the moves behind them.

    One for each move that starts with tokens to compute: [0, move.start). A move that
    continues right behind reusable tokens (a deletion on a page boundary) needs none.
    """
    done = plan.directives[0].start // page * page if plan.directives else 0
    stages = []
    for move in moves_of(plan, page, boundary):
        if move.start > done:
            stages.append(move.start)
        done = move.end
    return tuple(stages)


def route(base: Base, plan: EditPlan, page: int, boundary: int = 0) -> Route:
    """Work out a plan against its base.

    Raises:
        PlanError: the plan was not made for this base.
    """
    edited = array("q", plan.apply(base.ids))
    donor = base.key
    moves = moves_of(plan, page, boundary)
    marks: dict[int, int] = {}
    first = plan.directives[0].start if plan.directives else len(edited)
    for position, value in base.marks.items():
        if position < first:
            marks[position] = value
    for move in moves:
        marks[move.start] = mark(donor, move.start - move.shift)
        for position, value in base.marks.items():
            if move.start < position + move.shift < move.end:
                marks[position + move.shift] = value
    before = cut(base.origins, 0, first)
    return Route(edited, marks, moves, base, donor, before, first if plan.directives else None)
