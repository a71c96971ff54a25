"""Half-open token intervals."""

from __future__ import annotations

from dataclasses import dataclass

from leyline_agent.core.errors import PlanError


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Tokens [start, end) of a sequence; empty when start == end.

    Raises:
        PlanError: start is negative or past end.
    """

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise PlanError(f"a span needs 0 <= start <= end, got [{self.start}, {self.end})")

    def __len__(self) -> int:
        return self.end - self.start

    def shifted(self, by: int) -> Span:
        """The same span, `by` tokens further on.

        Raises:
            PlanError: the shift would move it before token 0.
        """
        return Span(self.start + by, self.end + by)
