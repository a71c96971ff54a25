"""Stretches that two token sequences share, and the gaps between them.

    base   |--- block ---|== gap ==|--- block ---|
    new    |--- block ---|= gap =|--- block ---|

Tokens are arrays of typecode "q": slices of them are compared in C.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Block:
    """base[base_start : base_start + size] == new[new_start : new_start + size]."""

    base_start: int
    new_start: int
    size: int

    @property
    def base_end(self) -> int:
        """One past the last base token."""
        return self.base_start + self.size

    @property
    def new_end(self) -> int:
        """One past the last new token."""
        return self.new_start + self.size


@dataclass(frozen=True, slots=True)
class Gap:
    """base[i:i_end] against new[j:j_end]."""

    base: array[int]
    i: int
    i_end: int
    new: array[int]
    j: int
    j_end: int

    def part(self, i: int, i_end: int, j: int, j_end: int) -> Gap:
        """Another gap between the same sequences."""
        return Gap(self.base, i, i_end, self.new, j, j_end)

    def prefix(self) -> int:
        """How many tokens both sides begin with."""
        return common_prefix(self.base, self.i, self.i_end, self.new, self.j, self.j_end)

    def suffix(self) -> int:
        """How many tokens both sides end with."""
        return common_suffix(self.base, self.i, self.i_end, self.new, self.j, self.j_end)

    def holds(self, shortest: int) -> bool:
        """Whether a block of that size could be in there."""
        return min(self.i_end - self.i, self.j_end - self.j) >= max(1, shortest)


def common_prefix(a: array[int], i: int, i_end: int, b: array[int], j: int, j_end: int) -> int:
    """Length of the longest common prefix of a[i:i_end] and b[j:j_end]."""
    return _common(min(i_end - i, j_end - j), lambda x, y: a[i + x : i + y] == b[j + x : j + y])


def common_suffix(a: array[int], i: int, i_end: int, b: array[int], j: int, j_end: int) -> int:
    """Length of the longest common suffix of a[i:i_end] and b[j:j_end]."""
    return _common(
        min(i_end - i, j_end - j),
        lambda x, y: a[i_end - y : i_end - x] == b[j_end - y : j_end - x],
    )


def _common(limit: int, equal: Callable[[int, int], bool]) -> int:
    """The largest n <= limit for which everything in [0, n) is equal; steps double, then halve."""
    low, step = 0, 16
    while low < limit:
        high = min(low + step, limit)
        if equal(low, high):
            low, step = high, step * 2
        elif high - low == 1:
            break
        else:
            step = max(1, (high - low) // 2)
    return low


def joined(blocks: Iterable[Block]) -> list[Block]:
    """Neighbours that touch on both sides become one block; empty ones go."""
    joined: list[Block] = []
    for block in blocks:
        if not block.size:
            continue
        last = joined[-1] if joined else None
        if last and (last.base_end, last.new_end) == (block.base_start, block.new_start):
            joined[-1] = Block(last.base_start, last.new_start, last.size + block.size)
        else:
            joined.append(block)
    return joined
