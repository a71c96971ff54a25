"""Blocks inside a gap: what an edit left standing in the middle of a turn."""

from __future__ import annotations

from bisect import bisect_left
from difflib import SequenceMatcher

from leyline_agent.planner.blocks import Block, Gap

_GRAM = 8
_FINE = 4096
_WORD = 8


def inside(gap: Gap, shortest: int) -> list[Block]:
    """Blocks at both ends of a gap, and between them at runs that both sides have once."""
    ahead = gap.prefix()
    rest = gap.part(gap.i + ahead, gap.i_end, gap.j + ahead, gap.j_end)
    back = rest.suffix()
    rest = gap.part(rest.i, rest.i_end - back, rest.j, rest.j_end - back)
    blocks = [Block(gap.i, gap.j, ahead)]
    if rest.holds(max(shortest, _GRAM)):
        at_i, at_j = rest.i, rest.j
        for origin, place in _once(rest):
            if origin < at_i or place < at_j:
                continue
            behind = rest.part(origin, rest.i_end, place, rest.j_end).prefix()
            before = rest.part(at_i, origin, at_j, place)
            size = before.suffix()
            blocks += _fine(before.part(at_i, origin - size, at_j, place - size), shortest)
            blocks.append(Block(origin - size, place - size, size + behind))
            at_i, at_j = origin + behind, place + behind
        rest = rest.part(at_i, rest.i_end, at_j, rest.j_end)
    return [*blocks, *_fine(rest, shortest), Block(gap.i_end - back, gap.j_end - back, back)]


def _once(gap: Gap) -> list[tuple[int, int]]:
    """Pairs (base position, new position) of runs of _GRAM tokens, increasing in both.

    Every _GRAM-th run of the base is looked up at every position of the new side, so that a
    common stretch of 2 * _GRAM - 1 tokens cannot be missed unless it occurs twice.
    """
    width = _GRAM * _WORD
    text = gap.base[gap.i : gap.i_end].tobytes()
    known: dict[bytes, int] = {}
    twice = set()
    for at in range(0, len(text) - width + 1, width):
        key = text[at : at + width]
        if known.setdefault(key, at) != at:
            twice.add(key)
    text = gap.new[gap.j : gap.j_end].tobytes()
    found: dict[bytes, int] = {}
    for at in range(0, len(text) - width + 1, _WORD):
        key = text[at : at + width]
        if key in known and found.setdefault(key, at) != at:
            twice.add(key)
    pairs = [
        (gap.i + known[key] // _WORD, gap.j + at // _WORD)
        for key, at in found.items()
        if key not in twice
    ]
    return _increasing(sorted(pairs, key=lambda pair: pair[1]))


def _increasing(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest subsequence whose first members increase (patience sorting, O(n log n))."""
    tops: list[int] = []
    index: list[int] = []
    previous: list[int] = []
    for number, (origin, _) in enumerate(pairs):
        pile = bisect_left(tops, origin)
        previous.append(index[pile - 1] if pile else -1)
        tops[pile : pile + 1] = [origin]
        index[pile : pile + 1] = [number]
    chain = []
    at = index[-1] if index else -1
    while at >= 0:
        chain.append(pairs[at])
        at = previous[at]
    return chain[::-1]


def _fine(gap: Gap, shortest: int) -> list[Block]:
    """Blocks of a small gap, token by token; none when it is large."""
    if not gap.holds(shortest) or (gap.i_end - gap.i) * (gap.j_end - gap.j) > _FINE:
        return []
    old, new = gap.base[gap.i : gap.i_end], gap.new[gap.j : gap.j_end]
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    return [Block(gap.i + a, gap.j + b, n) for a, b, n in matcher.get_matching_blocks() if n]
