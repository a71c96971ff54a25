"""From two token sequences to directives: what was edited, and where the new tokens begin."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from leyline_agent.core import Directive, Mode
from leyline_agent.planner.align import align


@dataclass(frozen=True, slots=True)
class Difference:
    """Directives that turn the base into new[:edited_len]; the rest of `new` is new."""

    directives: tuple[Directive, ...]
    edited_len: int


def difference(
    base: array[int],
    prompt_len: int,
    new: array[int],
    mode: Mode,
    threshold: int = 1,
    most: int | None = None,
) -> Difference:
    """Align `new` with a base whose first `prompt_len` tokens were its prompt.

    Args:
        base, new: token ids ('q' arrays). threshold: kept segments behind the first edit
            that are shorter than this many tokens are prefilled again. most: of the
            segments behind the first edit only so many are kept, the longest.

    Returns:
        Directives in base coordinates, in order; applied to the base they give
        new[:edited_len].
    """
    found = align(base, prompt_len, new, threshold)
    blocks = [b for b in found if b.size >= threshold or b.base_start == b.new_start == 0]
    if most is not None and len(blocks) > most + 1:
        longest = sorted(blocks[1:], key=lambda block: block.size)[-most:]
        blocks = [blocks[0], *sorted(longest, key=lambda block: block.base_start)]
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
