"""The rows of a KV pool, and moving them: all layers at once, in Triton or in torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import torch

from leyline_agent.kernels import reference

Kernel: TypeAlias = Callable[
    ["Rows", torch.Tensor, "torch.Tensor | None", torch.Tensor, torch.Tensor], None
]
"""rows, source, target (None: where they lie), cos, sin."""


@dataclass(frozen=True)
class Rows:
    """Key buffers with their rotary columns, and value buffers.

    keys: per layer [slots, heads, dim]; columns [span) of every head carry position.
    values: per layer [slots, ...], position-free (none for MLA, whose rows are
    [c_KV | K_pe]). neox: column j is paired with j + half; otherwise neighbours are.
    All keys have one shape and type, all values too; a row is contiguous.
    """

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]
    span: tuple[int, int]
    neox: bool

    @cached_property
    def pointers(self) -> torch.Tensor:
        """[layers of keys, then of values] addresses of the buffers, int64, on their device."""
        where = [buffer.data_ptr() for buffer in (*self.keys, *self.values)]
        return torch.tensor(where, dtype=torch.int64, device=self.keys[0].device)

    @property
    def row_bytes(self) -> int:
        """Bytes that one token has in all buffers together."""
        return sum(b[0].numel() * b.element_size() for b in (*self.keys, *self.values))

    def move(
        self, source: torch.Tensor, target: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> None:
        """Copy rows to other slots and turn their keys, in every layer.

        Args:
            source, target: [n] slot ids, disjoint.
            cos, sin: [n, (span end - span start) / 2] float64, from `rotation`.
        Mutates the rows `target`.
        """
        _kernel(self.keys[0].is_cuda)(self, source, target, cos, sin)

    def turn(self, slots: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """Turn the keys of rows where they lie; arguments as for `move`."""
        _kernel(self.keys[0].is_cuda)(self, slots, None, cos, sin)


def _kernel(on_gpu: bool) -> Kernel:
    if on_gpu:
        from leyline_agent.kernels import fused

        return fused.move
    return reference.move
