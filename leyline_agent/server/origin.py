"""Where moved KV was computed, so that it is rotated from there and not link by link.

    computed for completion A   ....|======|....        positions a
    moved for B                 ..|======|....          1 link, from A
    moved for C                 |======|....            1 link, from A: rotated once
      when A's KV is gone       |======|....            2 links, from B

Each link rounds the keys once more. While the origin lives every link starts there; when it
is gone the chain goes on from the donor, and past the operator's limit of links the tokens
are computed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Origin:
    """Tokens [start, end) have the KV of completion `base_id` at [start - shift, end - shift).

    links: how many roundings their keys carry; at the origin they carry one less.
    """

    start: int
    end: int
    base_id: str
    shift: int
    links: int

    def cut(self, start: int, end: int) -> Origin | None:
        """What of it lies in [start, end); None for nothing."""
        start, end = max(start, self.start), min(end, self.end)
        return replace(self, start=start, end=end) if start < end else None

    def moved(self, shift: int) -> Origin:
        """The same KV once more rotated from its origin, `shift` positions further."""
        return replace(
            self, start=self.start + shift, end=self.end + shift, shift=self.shift + shift
        )


def cut(origins: Sequence[Origin], start: int, end: int) -> tuple[Origin, ...]:
    """The parts of some origins in [start, end), in order."""
    return tuple(filter(None, (origin.cut(start, end) for origin in origins)))


def pieces(
    origins: Sequence[Origin], base_id: str, start: int, end: int, shift: int
) -> Iterator[Origin]:
    """The origins that base tokens [start, end) have once they are moved by `shift`.

    Args:
        origins: the base's own, ascending and disjoint; other tokens of it were computed there.

    Yields:
        Origins in edited positions, ascending, without gaps.
    """
    at = start
    for origin in cut(origins, start, end):
        if at < origin.start:
            yield Origin(at + shift, origin.start + shift, base_id, shift, 1)
        yield origin.moved(shift)
        at = origin.end
    if at < end:
        yield Origin(at + shift, end + shift, base_id, shift, 1)
