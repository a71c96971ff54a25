"""Triton: gather, rotate and scatter the rows of all layers in one launch.

    grid = (blocks of tokens, buffers)

One program moves BLOCK tokens of one buffer, whose address it reads from a table of
pointers. Both columns of a rotary pair are loaded before either is stored, so the same
program turns rows in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from leyline_agent.kernels.rotate import arithmetic

if TYPE_CHECKING:
    from leyline_agent.kernels.rows import Rows

BLOCK = 16
COLUMNS = 64
_TYPES: dict[torch.dtype, Any] = {
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}


def move(
    rows: Rows,
    source: torch.Tensor,
    target: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> None:
    """`Rows.move`, and `Rows.turn` where there is no target, on the current stream."""
    if not len(source):
        return
    in_place = target is None
    wide = arithmetic(rows.keys[0].dtype)
    key = rows.keys[0]
    value = rows.values[0] if rows.values else key
    begin, end = rows.span
    buffers = len(rows.keys) + (0 if in_place else len(rows.values))
    _move[(triton.cdiv(len(source), BLOCK), buffers)](
        rows.pointers,
        source,
        source if target is None else target,
        cos.to(wide).contiguous(),
        sin.to(wide).contiguous(),
        len(source),
        KEYS=len(rows.keys),
        KEY_ROW=key.stride(0),
        HEADS=key.shape[1],
        DIM=key.shape[2],
        BEGIN=begin,
        HALF=(end - begin) // 2,
        NEOX=rows.neox,
        VALUE_ROW=value.stride(0),
        VALUE_WIDTH=value[0].numel(),
        IN_PLACE=in_place,
        STORED=_TYPES[key.dtype],
        BLOCK=BLOCK,
        COLUMNS=COLUMNS,
    )


@triton.jit
def _copy(base, old, new, alive, row, columns, here):  # type: ignore[no-untyped-def]
    where = alive[:, None] & here[None, :]
    values = tl.load(base + old[:, None] * row + columns[None, :], mask=where)
    tl.store(base + new[:, None] * row + columns[None, :], values, mask=where)


@triton.jit
def _move(  # type: ignore[no-untyped-def]
    pointers,
    source,
    target,
    cos,
    sin,
    count,
    KEYS: tl.constexpr,
    KEY_ROW: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BEGIN: tl.constexpr,
    HALF: tl.constexpr,
    NEOX: tl.constexpr,
    VALUE_ROW: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    IN_PLACE: tl.constexpr,
    STORED: tl.constexpr,
    BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    buffer = tl.program_id(1)
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    alive = token < count
    old = tl.load(source + token, mask=alive, other=0).to(tl.int64)
    new = tl.load(target + token, mask=alive, other=0).to(tl.int64)
    base = tl.load(pointers + buffer).to(tl.pointer_type(STORED))
    if buffer < KEYS:
        for first in range(0, HEADS * HALF, COLUMNS):
            pair = first + tl.arange(0, COLUMNS)
            here = alive[:, None] & (pair < HEADS * HALF)[None, :]
            angle = pair % HALF
            if NEOX:
                column = pair // HALF * DIM + BEGIN + angle
                other = column + HALF
            else:
                column = pair // HALF * DIM + BEGIN + 2 * angle
                other = column + 1
            phase = token[:, None] * HALF + angle[None, :]
            c = tl.load(cos + phase, mask=here, other=0.0)
            s = tl.load(sin + phase, mask=here, other=0.0)
            read = base + old[:, None] * KEY_ROW
            x = tl.load(read + column[None, :], mask=here, other=0.0).to(c.dtype)
            y = tl.load(read + other[None, :], mask=here, other=0.0).to(c.dtype)
            write = base + new[:, None] * KEY_ROW
            tl.store(write + column[None, :], (x * c - y * s).to(STORED), mask=here)
            tl.store(write + other[None, :], (y * c + x * s).to(STORED), mask=here)
        if not IN_PLACE and DIM > 2 * HALF:
            FIXED: tl.constexpr = DIM - 2 * HALF
            for first in range(0, HEADS * FIXED, COLUMNS):
                fixed = first + tl.arange(0, COLUMNS)
                inside = fixed % FIXED
                column = fixed // FIXED * DIM + tl.where(inside < BEGIN, inside, inside + 2 * HALF)
                _copy(base, old, new, alive, KEY_ROW, column, fixed < HEADS * FIXED)
    elif not IN_PLACE:
        for first in range(0, VALUE_WIDTH, COLUMNS):
            column = first + tl.arange(0, COLUMNS)
            _copy(base, old, new, alive, VALUE_ROW, column, column < VALUE_WIDTH)
