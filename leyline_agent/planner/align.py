"""Which stretches of an earlier prompt stand, moved or not, in a new one.

    base   |--prefix--|  turn  |  turn  |--suffix--|T|= generated =|
    new    |--prefix--| turn' |  turn  |--suffix--|T|--- new tokens ---|

T is the end of the base's prompt. Its place in the new sequence parts edits from new
tokens, so that text which is read a second time counts as new and is never taken from its
old place. Between prefix and suffix, turns are paired in order and compared from both
ends; what is left inside is searched for runs that both have exactly once.

Turns are cut where assistant messages open: the chat template ends every prompt with that,
and no template needs to be known. Nothing here is quadratic in tokens: long comparisons are
slices of arrays, compared in C.
"""

from __future__ import annotations

from array import array
from difflib import SequenceMatcher
from itertools import pairwise

from leyline_agent.planner.blocks import Block, Gap, common_prefix, common_suffix, joined
from leyline_agent.planner.inside import inside

_TAIL = 8
_RECENT = 4096
_RARE = 32
_SURE = 16
_PLACES = 1024
_PAIRS = 1 << 18
_WORD = 8


def align(base: array[int], prompt_len: int, new: array[int], shortest: int = 1) -> list[Block]:
    """Matching blocks in order, maximal on both sides, ending before the new tokens.

    Args:
        base, new: token ids ('q' arrays); the first `prompt_len` of base were its prompt.
        shortest: blocks inside an edit that are shorter need not be found.
    """
    prefix = common_prefix(base, 0, len(base), new, 0, len(new))
    blocks = [Block(0, 0, prefix)]
    if prefix < prompt_len:
        opening = _opening(base, prompt_len)
        opener = opening[0]
        end = _end_of_prompt(base, prompt_len, new, prefix, opening)
        if end is None:
            blocks += _turns(Gap(base, prefix, len(base), new, prefix, len(new)), opener, shortest)
        else:
            gap = Gap(base, prefix, prompt_len, new, prefix, end)
            behind = common_prefix(base, prompt_len, len(base), new, end, len(new))
            size = gap.suffix()
            inner = gap.part(prefix, prompt_len - size, prefix, end - size)
            blocks += _turns(inner, opener, shortest)
            blocks.append(Block(prompt_len - size, end - size, size + behind))
    return joined(blocks)


def _opening(base: array[int], prompt_len: int) -> array[int]:
    """The end of a prompt that opens an assistant message: a few tokens, the rarest first.

    The shortest ending that is rare, or that one more token before it makes no rarer:
    that one belongs to it as well, while text before it would differ from turn to turn.
    """
    recent = base[max(0, prompt_len - _RECENT) : prompt_len]
    text = recent.tobytes()
    counts = [text.count(recent[-n:].tobytes()) for n in range(1, _TAIL + 2)]
    size = next(
        (
            n
            for n, (count, longer) in enumerate(pairwise(counts), 1)
            if count == longer or count * _RARE <= len(recent)
        ),
        1,
    )
    tail = recent[-size:]
    return tail[_rarest(tail, text) :]


def _rarest(tail: array[int], text: bytes) -> int:
    return min(range(len(tail)), key=lambda place: text.count(tail[place : place + 1].tobytes()))


def _places(tokens: array[int], start: int, end: int, token: int) -> list[int]:
    """Positions of a token in tokens[start:end]."""
    text, word = tokens[start:end].tobytes(), array("q", [token]).tobytes()
    places = []
    at = text.find(word)
    while at >= 0:
        if at % _WORD == 0:
            places.append(start + at // _WORD)
        at = text.find(word, at + 1)
    return places


def _end_of_prompt(
    base: array[int], prompt_len: int, new: array[int], prefix: int, opening: array[int]
) -> int | None:
    """T in the new sequence, or None when the end of the base's prompt is not in there.

    Of all places where an assistant message opens the one wins around which most tokens
    are as around T; among equals the one with T's number, then the last.
    """
    origins = len(_places(base, 0, prompt_len, opening[0]))
    best: tuple[int, bool, int] | None = None
    places = _places(new, 0, len(new), opening[0])
    if len(places) > _PLACES:
        return None
    for number, place in enumerate(places, 1):
        end = place + len(opening)
        if end <= prefix or new[place:end] != opening:
            continue
        before = common_suffix(base, prefix, prompt_len, new, prefix, end)
        behind = common_prefix(base, prompt_len, len(base), new, end, len(new))
        score = (before + behind, number == origins and end < len(new), end)
        if score[0] < _SURE and not score[1]:
            continue
        best = score if best is None else max(best, score)
    return best[2] if best else None


def _turns(gap: Gap, opener: int, shortest: int) -> list[Block]:
    """Blocks turn by turn: equal turns match; runs of as many others are paired in order."""
    if not gap.holds(shortest):
        return []
    cuts_i = [gap.i, *_places(gap.base, gap.i + 1, gap.i_end, opener), gap.i_end]
    cuts_j = [gap.j, *_places(gap.new, gap.j + 1, gap.j_end, opener), gap.j_end]
    if len(cuts_i) == len(cuts_j):
        matches = [(k, k, 1) for k in range(len(cuts_i) - 1)]
        return _paired(gap, cuts_i, cuts_j, matches, shortest)
    if len(cuts_i) * len(cuts_j) > _PAIRS:
        return inside(gap, shortest)
    keys_i = [gap.base[a:b].tobytes() for a, b in pairwise(cuts_i)]
    keys_j = [gap.new[a:b].tobytes() for a, b in pairwise(cuts_j)]
    matcher = SequenceMatcher(None, keys_i, keys_j, autojunk=False)
    return _paired(gap, cuts_i, cuts_j, [(*m,) for m in matcher.get_matching_blocks()], shortest)


def _paired(
    gap: Gap,
    cuts_i: list[int],
    cuts_j: list[int],
    matches: list[tuple[int, int, int]],
    shortest: int,
) -> list[Block]:
    """Compare matched turns one by one, and every run between matches as a whole."""
    blocks: list[Block] = []
    at_i = at_j = 0
    for a, b, count in [*matches, (len(cuts_i) - 1, len(cuts_j) - 1, 0)]:
        run = gap.part(cuts_i[at_i], cuts_i[a], cuts_j[at_j], cuts_j[b])
        blocks += inside(run, shortest)
        for k in range(count):
            turn = gap.part(cuts_i[a + k], cuts_i[a + k + 1], cuts_j[b + k], cuts_j[b + k + 1])
            blocks += inside(turn, shortest)
        at_i, at_j = a + count, b + count
    return blocks
