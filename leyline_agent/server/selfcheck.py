"""At start, before any request: one move on the real pool against float64.

    error = max |moved - exact| / (eps * |pair|)      eps: spacing of the storage type at 1

Moved once and rounded once, an error is half a spacing. A pool that does worse would corrupt
answers without a word, so it is not spliced at all.
"""

from __future__ import annotations

import torch

from leyline_agent.core import Fallback
from leyline_agent.server.layout import KVLayout, Unsupported

TOKENS = 48
LIMIT = 0.51  # half a spacing, and what the wider arithmetic itself rounds


def kv_error(layout: KVLayout, slots: torch.Tensor) -> float:
    """The largest error of moving random KV, forwards and backwards, near and far.

    Args:
        slots: 2 * TOKENS free slots; mutated, and zero afterwards.

    Returns:
        In spacings of the storage type, relative to the length of the rotated pair; inf when
        values or the columns without position are not copied bit by bit.
    """
    source, target = slots[:TOKENS], slots[TOKENS : 2 * TOKENS]
    last = layout.table.shape[0] - TOKENS
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    try:
        for start, shift in ((0, 1), (last // 3, -(last // 4)), (5, last - 5), (last, -last)):
            for buffer in (*layout.rows.keys, *layout.rows.values):
                rows = torch.randn(TOKENS, *buffer.shape[1:], generator=generator)
                buffer[source] = rows.to(buffer.device, buffer.dtype)
            at = torch.arange(start, start + TOKENS)
            layout.move(source, target, at, at + shift)
            worst = max(worst, _error(layout, source, target, at, at + shift))
    finally:
        for buffer in (*layout.rows.keys, *layout.rows.values):
            buffer[slots] = 0
    return worst


def check(layout: KVLayout, slots: torch.Tensor) -> float:
    """kv_error(), when it is small enough.

    Raises:
        Unsupported: it is not.
    """
    error = kv_error(layout, slots)
    if not error <= LIMIT:
        raise Unsupported(
            Fallback.UNSUPPORTED_LAYOUT,
            f"moved keys are off by {error:.3g} spacings of {layout.rows.keys[0].dtype}",
        )
    return error


def _error(
    layout: KVLayout,
    source: torch.Tensor,
    target: torch.Tensor,
    at: torch.Tensor,
    to: torch.Tensor,
) -> float:
    begin, end = layout.rows.span
    table = torch.view_as_complex(
        torch.stack(layout.table.double().chunk(2, dim=-1), dim=-1).contiguous()
    )
    turn = (table[to] / table[at]).unsqueeze(-2)
    worst = 0.0
    for buffer in layout.rows.keys:
        old, new = buffer[source], buffer[target]
        if not torch.equal(_fixed(old, begin, end), _fixed(new, begin, end)):
            return float("inf")
        exact = _pairs(old[..., begin:end], layout.rows.neox) * turn
        gap = _pairs(new[..., begin:end], layout.rows.neox) - exact
        off = torch.maximum(gap.real.abs(), gap.imag.abs()) / exact.abs()
        worst = max(worst, off.max().item() / torch.finfo(buffer.dtype).eps)
    if any(not torch.equal(buffer[source], buffer[target]) for buffer in layout.rows.values):
        return float("inf")
    return worst


def _fixed(rows: torch.Tensor, begin: int, end: int) -> torch.Tensor:
    """The columns that carry no position."""
    return torch.cat((rows[..., :begin], rows[..., end:]), dim=-1)


def _pairs(rows: torch.Tensor, neox: bool) -> torch.Tensor:
    """[n, heads, rotary_dim] as complex [n, heads, rotary_dim / 2], in float64."""
    wide = rows.double()
    parts = wide.chunk(2, dim=-1) if neox else (wide[..., 0::2], wide[..., 1::2])
    return torch.view_as_complex(torch.stack(parts, dim=-1).contiguous())
