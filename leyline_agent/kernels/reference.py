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
    for at in range(0, len(source), BLOCK):
        old, new = source[at : at + BLOCK], target[at : at + BLOCK]
        turn = phase[at : at + BLOCK].unsqueeze(1)
        for buffer in rows.keys:
            block = buffer.index_select(0, old)
            _turn(block[..., slice(*rows.span)], turn, rows.neox)
            buffer.index_copy_(0, new, block)
        if not in_place:
            for buffer in rows.values:
                buffer.index_copy_(0, new, buffer.index_select(0, old))


def _turn(keys: torch.Tensor, turn: torch.Tensor, neox: bool) -> None:
    """Multiply the pairs of [n, heads, rotary_dim] by [n, 1, rotary_dim / 2], in place."""
    wide = keys.to(arithmetic(keys.dtype))
    if neox:
        pairs = torch.complex(*wide.chunk(2, dim=-1))
        pairs.mul_(turn)
        half = pairs.shape[-1]
        keys[..., :half], keys[..., half:] = pairs.real, pairs.imag
    else:
        pairs = torch.view_as_complex(wide.contiguous().unflatten(-1, (-1, 2)))
        keys.copy_(torch.view_as_real(pairs.mul_(turn)).flatten(-2))
