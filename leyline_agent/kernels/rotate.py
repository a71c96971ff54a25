"""Torch reference: gather cached rows, correct their RoPE phase, scatter them.

A key cached at position a carries the phase of row a of the model's cos/sin table, scaled
by the table's magnitude m (YaRN's factor is inside the table). Because rotations compose
(paper, section on delta-rotation), the same key at position b is

    key_b = key_a * T[b] / T[a],    T[p] = m * exp(i * p * theta)

a complex quotient: m cancels, so it is not applied a second time, and whatever scaling
made the table (linear, Llama-3, YaRN) is respected without knowing it.
"""

from __future__ import annotations

import torch


def rotation(
    table: torch.Tensor, source: torch.Tensor, target: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of the phase between two positions, token by token.

    Args:
        table: [positions, rotary_dim], cosines in the first half, sines in the second.
        source: [n] positions the rows were cached at.
        target: [n] positions they move to.

    Returns:
        cos, sin: [n, rotary_dim / 2], float32.
    """
    cos_a, sin_a = table[source].double().chunk(2, dim=-1)
    cos_b, sin_b = table[target].double().chunk(2, dim=-1)
    norm = cos_a.square() + sin_a.square()
    cos = (cos_b * cos_a + sin_b * sin_a) / norm
    sin = (sin_b * cos_a - cos_b * sin_a) / norm
    return cos.float(), sin.float()


def _rotated(rows: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, neox: bool) -> torch.Tensor:
    """Rotate [n, heads, rotary_dim]; pairs are halves (neox) or neighbours. fp32 inside."""
    values = rows.float()
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    if neox:
        x, y = values.chunk(2, dim=-1)
        out = torch.cat((x * cos - y * sin, y * cos + x * sin), dim=-1)
    else:
        x, y = values[..., 0::2], values[..., 1::2]
        out = torch.stack((x * cos - y * sin, y * cos + x * sin), dim=-1).flatten(-2)
    return out.to(rows.dtype)


def rotate_copy_rows(
    buffer: torch.Tensor,
    source: torch.Tensor,
    target: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    span: tuple[int, int],
    neox: bool,
) -> None:
    """Copy rows of one key buffer and rotate the columns [span) of every head.

    Mutates `buffer` rows `target`; the rows are gathered first, so source and target may
    overlap.

    Args:
        buffer: [slots, heads, dim], any floating type; arithmetic is fp32.
        source, target: [n] slot ids.
        cos, sin: [n, (span end - span start) / 2] from `rotation`.
        span: first and past-the-last rotary column.
        neox: True pairs column j with j + half, False pairs neighbours.
    """
    rows = buffer[source]
    start, end = span
    rows[..., start:end] = _rotated(rows[..., start:end], cos, sin, neox)
    buffer[target] = rows


def copy_rows(buffer: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> None:
    """Copy rows of one buffer that carries no position: [slots, ...]. Mutates `buffer`."""
    buffer[target] = buffer[source]
