"""The directive: which tokens go, what stands in their place, and how."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from leyline_agent.core.errors import PlanError
from leyline_agent.core.span import Span


class Mode(StrEnum):
    """What happens to the cached tokens behind an edit (paper, section on directives).

    Mode("...") raises ValueError for any other name, and says which there are.

    AMORTIZE keeps their KV and corrects only positions: they still reflect the removed
    text. FORGET computes them again: nothing of the removed text is left.
    """

    AMORTIZE = "amortize"
    FORGET = "forget"

    @classmethod
    def _missing_(cls, value: object) -> Mode:
        raise ValueError(f"there is no mode {value!r:.40}; the modes are {', '.join(cls)}")


@dataclass(frozen=True, slots=True)
class Directive:
    """Replace base tokens [start, end) by `replacement`.

    Args:
        start, end: token span in the coordinates of the base sequence; start == end inserts.
        replacement: token ids, possibly none.
        mode: what happens to the KV behind the span.

    Raises:
        PlanError: the span is impossible, or nothing is replaced by nothing.
    """

    start: int
    end: int
    replacement: tuple[int, ...] = ()
    mode: Mode = Mode.AMORTIZE

    def __post_init__(self) -> None:
        Span(self.start, self.end)
        if self.start == self.end and not self.replacement:
            raise PlanError(f"an empty directive at token {self.start} changes nothing")
        if any(token < 0 for token in self.replacement):
            raise PlanError("replacement token ids must not be negative")

    @property
    def span(self) -> Span:
        """The replaced span."""
        return Span(self.start, self.end)

    @property
    def shift(self) -> int:
        """How many tokens everything behind the span moves."""
        return len(self.replacement) - (self.end - self.start)


def checked(directives: Iterable[Directive], base_len: int) -> tuple[Directive, ...]:
    """The directives as a tuple, after proving that they can be applied left to right.

    Raises:
        PlanError: they are not sorted, they overlap, or one ends past the base.
    """
    ordered = tuple(directives)
    previous: Directive | None = None
    for directive in ordered:
        if directive.end > base_len:
            raise PlanError(
                f"[{directive.start}, {directive.end}) ends past the base of {base_len} tokens"
            )
        if previous is not None and (
            directive.start < previous.end
            or (directive.start, directive.end) == (previous.start, previous.end)
        ):
            raise PlanError(
                f"[{directive.start}, {directive.end}) overlaps or precedes "
                f"[{previous.start}, {previous.end})"
            )
        previous = directive
    return ordered
