"""The phase between two positions, read off the model's own rotary table.

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
        cos, sin: [n, rotary_dim / 2], float64.
    """
    cos_a, sin_a = table[source].double().chunk(2, dim=-1)
    cos_b, sin_b = table[target].double().chunk(2, dim=-1)
    norm = cos_a.square() + sin_a.square()
    cos = (cos_b * cos_a + sin_b * sin_a) / norm
    sin = (sin_b * cos_a - cos_b * sin_a) / norm
    return cos, sin


def arithmetic(storage: torch.dtype) -> torch.dtype:
    """The type to rotate in: wider than the storage type, so that only storing rounds."""
    return torch.float64 if storage == torch.float32 else torch.float32
