"""From two token sequences to directives: what was edited, and where the new tokens begin.

    base   |--- prompt of the base --------------------|= generated =|
    new    |--- the same, edited ----------------|T|--- new tokens ---|

T is the end of the base's prompt. Its place in the new sequence parts edits from new
tokens, so that text which is read a second time counts as new and is never taken from its
old place. Between the start and T, segments are aligned by chunks cut at content-defined
places (a token that a fixed rule selects ends a chunk), then grown token by token.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise

from leyline_agent.core import Directive, Mode

_ANCHOR = 32
_MODULUS = 16
_FINE = 250_000
_WORD = 8


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
class Difference:
    """Directives that turn the base into new[:edited_len]; the rest of `new` is new."""

    directives: tuple[Directive, ...]
    edited_len: int


def difference(
    base: array[int], prompt_len: int, new: array[int], mode: Mode, threshold: int = 1
) -> Difference:
    """Align `new` with a base whose first `prompt_len` tokens were its prompt.

    Args:
        base, new: token ids ('q' arrays). threshold: kept segments behind the first edit
            that are shorter than this many tokens are prefilled again.

    Returns:
        Directives in base coordinates, in order; applied to the base they give
        new[:edited_len].
    """
    blocks = [b for b in align(base, prompt_len, new) if b.size >= threshold or b.base_start == 0]
    directives = []
    at_base = at_new = 0
    for block in blocks:
        if (block.base_start, block.new_start) != (at_base, at_new):
            inserted = tuple(new[at_new : block.new_start])
            directives.append(Directive(at_base, block.base_start, inserted, mode))
        at_base, at_new = block.base_end, block.new_end
    if at_base < len(base):
        directives.append(Directive(at_base, len(base), (), mode))
    return Difference(tuple(directives), at_new)


def align(base: array[int], prompt_len: int, new: array[int]) -> list[Block]:
    """Matching blocks in order, maximal on both sides, ending before the new tokens."""
    prefix = common_prefix(base, 0, len(base), new, 0, len(new))
    if prefix >= prompt_len:
        return [Block(0, 0, prefix)] if prefix else []
    blocks = [Block(0, 0, prefix)] if prefix else []
    end = _anchor(base, prompt_len, new, prefix)
    if end is None:
        blocks += _inside(base, prefix, len(base), new, prefix, len(new))
    else:
        suffix = common_suffix(base, prefix, prompt_len, new, prefix, end)
        blocks += _inside(base, prefix, prompt_len - suffix, new, prefix, end - suffix)
        behind = common_prefix(base, prompt_len, len(base), new, end, len(new))
        blocks.append(Block(prompt_len - suffix, end - suffix, suffix + behind))
    return _joined(blocks)


def common_prefix(a: array[int], i: int, i_end: int, b: array[int], j: int, j_end: int) -> int:
    """Length of the longest common prefix of a[i:i_end] and b[j:j_end]."""
    limit = min(i_end - i, j_end - j)
    low, step = 0, 64
    while low < limit:
        high = min(low + step, limit)
        if a[i + low : i + high] == b[j + low : j + high]:
            low, step = high, step * 2
        elif high - low == 1:
            break
        else:
            step = max(1, (high - low) // 2)
    return low


def common_suffix(a: array[int], i: int, i_end: int, b: array[int], j: int, j_end: int) -> int:
    """Length of the longest common suffix of a[i:i_end] and b[j:j_end]."""
    limit = min(i_end - i, j_end - j)
    low, step = 0, 64
    while low < limit:
        high = min(low + step, limit)
        if a[i_end - high : i_end - low] == b[j_end - high : j_end - low]:
            low, step = high, step * 2
        elif high - low == 1:
            break
        else:
            step = max(1, (high - low) // 2)
    return low


def _anchor(base: array[int], prompt_len: int, new: array[int], prefix: int) -> int | None:
    """Where the end of the base's prompt stands in `new`, or None.

    The same text may stand there several times: the occurrence with the same number from
    the edited stretch's start is taken, the last one when there are fewer.
    """
    start = max(prefix, prompt_len - _ANCHOR)
    anchor = base[start:prompt_len].tobytes()
    if not anchor:
        return None
    wanted = len(_places(base[prefix:prompt_len].tobytes(), anchor))
    found = _places(new[prefix:].tobytes(), anchor)
    if not found:
        return None
    return prefix + found[min(wanted, len(found)) - 1] + (prompt_len - start)


def _places(text: bytes, part: bytes) -> list[int]:
    """Word offsets at which `part` occurs in `text`, overlaps included."""
    places = []
    at = text.find(part)
    while at >= 0:
        if at % _WORD == 0:
            places.append(at // _WORD)
        at = text.find(part, at + 1)
    return places


def _chunks(tokens: array[int], start: int, end: int) -> dict[bytes, int | None]:
    """Content-defined chunks of tokens[start:end]: bytes -> position, None when repeated."""
    cuts = [i for i in range(start, end) if tokens[i] % _MODULUS == 0]
    chunks: dict[bytes, int | None] = {}
    for left, right in pairwise([*cuts, end]):
        key = tokens[left:right].tobytes()
        chunks[key] = None if key in chunks else left
    return chunks


def _inside(
    base: array[int], i: int, i_end: int, new: array[int], j: int, j_end: int
) -> list[Block]:
    """Blocks of base[i:i_end] against new[j:j_end], by unique chunks in increasing order."""
    if i >= i_end or j >= j_end:
        return []
    known = _chunks(base, i, i_end)
    pairs = []
    for key, place in _chunks(new, j, j_end).items():
        origin = known.get(key)
        if place is not None and origin is not None:
            pairs.append((place, origin))
    pairs.sort()
    blocks: list[Block] = []
    at_base, at_new = i, j
    for place, origin in _increasing(pairs):
        if origin < at_base or place < at_new:
            continue
        ahead = common_prefix(base, origin, i_end, new, place, j_end)
        back = common_suffix(base, at_base, origin, new, at_new, place)
        blocks += _fine(base, at_base, origin - back, new, at_new, place - back)
        blocks.append(Block(origin - back, place - back, back + ahead))
        at_base, at_new = origin + ahead, place + ahead
    return blocks + _fine(base, at_base, i_end, new, at_new, j_end)


def _increasing(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest subsequence whose origins increase (patience sorting, O(n log n))."""
    tops: list[int] = []
    index: list[int] = []
    previous: list[int] = []
    for number, (_, origin) in enumerate(pairs):
        pile = bisect_left(tops, origin)
        previous.append(index[pile - 1] if pile else -1)
        if pile == len(tops):
            tops.append(origin)
            index.append(number)
        else:
            tops[pile], index[pile] = origin, number
    chain = []
    at = index[-1] if index else -1
    while at >= 0:
        chain.append(pairs[at])
        at = previous[at]
    return chain[::-1]


def _fine(base: array[int], i: int, i_end: int, new: array[int], j: int, j_end: int) -> list[Block]:
    """Blocks of a small gap, token by token; none when the gap is large or one-sided."""
    ahead = common_prefix(base, i, i_end, new, j, j_end)
    blocks = [Block(i, j, ahead)] if ahead else []
    i, j = i + ahead, j + ahead
    if 0 < (i_end - i) * (j_end - j) <= _FINE:
        matcher = SequenceMatcher(None, base[i:i_end], new[j:j_end], autojunk=False)
        blocks += [Block(i + a, j + b, n) for a, b, n in matcher.get_matching_blocks() if n]
    return blocks


def _joined(blocks: list[Block]) -> list[Block]:
    """Neighbours that touch on both sides become one block."""
    joined: list[Block] = []
    for block in blocks:
        if not block.size:
            continue
        if joined and (joined[-1].base_end, joined[-1].new_end) == (
            block.base_start,
            block.new_start,
        ):
            last = joined.pop()
            block = Block(last.base_start, last.new_start, last.size + block.size)
        joined.append(block)
    return joined
