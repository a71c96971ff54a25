"""Torch: gather, rotate, scatter, in blocks of rows that stay in the processor's cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from leyline_agent.kernels.rotate import arithmetic

if TYPE_CHECKING:
    from leyline_agent.kernels.rows import Rows

BLOCK = 1024


def move(
    rows: Rows,
    source: torch.Tensor,
    target: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> None:
    """`Rows.move`, and `Rows.turn` where there is no target, on any device."""
    in_place = target is None
    target = source if target is None else target
    phase = torch.complex(cos, sin)
    if arithmetic(rows.keys[0].dtype) == torch.float32:
        phase = phase.to(torch.complex64)
    like, rotary = rows.keys[0], rows.span[1] - rows.span[0]
    scratch = like.new_empty((BLOCK, *like.shape[1:]))
    wide = like.new_empty((BLOCK, like.shape[1], rotary), dtype=arithmetic(like.dtype))
    for at in range(0, len(source), BLOCK):
        old, new = source[at : at + BLOCK], target[at : at + BLOCK]
        turn = phase[at : at + BLOCK].unsqueeze(1)
        block, pairs = scratch[: len(old)], wide[: len(old)]
        columns = block[..., slice(*rows.span)]
        for buffer in rows.keys:
            torch.index_select(buffer, 0, old, out=block)
            _turn(columns, turn, rows.neox, pairs)
            _put(buffer, new, block)
        if not in_place:
            for buffer in rows.values:
                _put(buffer, new, buffer.index_select(0, old))


def _turn(columns: torch.Tensor, turn: torch.Tensor, neox: bool, wide: torch.Tensor) -> None:
    """Multiply the pairs of [n, heads, rotary_dim] by [n, 1, rotary_dim / 2], in place.

    Mutates `wide`, scratch of the same shape in the type to rotate in.
    """
    pairs = wide.unflatten(-1, (-1, 2))
    if neox:
        x, y = columns.chunk(2, dim=-1)
        pairs[..., 0], pairs[..., 1] = x, y
        torch.view_as_complex(pairs).mul_(turn)
        x.copy_(pairs[..., 0])
        y.copy_(pairs[..., 1])
    else:
        wide.copy_(columns)
        torch.view_as_complex(pairs).mul_(turn)
        columns.copy_(wide)


def _put(buffer: torch.Tensor, slots: torch.Tensor, block: torch.Tensor) -> None:
    """buffer[slots] = block, in lanes of eight bytes: torch writes those three times as fast."""
    if block[:1].nbytes % 8 == 0:
        lanes = buffer.view(len(buffer), -1).view(torch.float64)
        lanes[slots] = block.flatten(1).view(torch.float64)
    else:
        buffer[slots] = block
