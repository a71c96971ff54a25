"""What the server's KV pool looks like, and whether it can be spliced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from leyline_agent.core import Fallback
from leyline_agent.kernels import Rows, rotation

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_MLA_POOLS = ("MLATokenToKVPool",)
_MHA_POOLS = ("MHATokenToKVPool",)


class Unsupported(Exception):
    """A pool or model that cannot be spliced: the typed reason and a sentence."""

    def __init__(self, reason: Fallback, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class KVLayout:
    """A pool's rows and the rotary table of the model that wrote them.

    kind: "mla" or "mha". table: [positions, rotary_dim], cosines then sines. stream: on which
    rows may be written; None on a CPU.
    """

    kind: str
    rows: Rows
    table: torch.Tensor
    stream: Any = None

    def move(
        self, source: torch.Tensor, target: torch.Tensor, at: torch.Tensor, to: torch.Tensor
    ) -> None:
        """Copy the KV of some tokens to other slots and other positions.

        Args:
            source, target: [n] slot ids, disjoint. at, to: [n] positions the rows have there
                and get here.
        Mutates the pool's rows `target`.
        """
        device = self.table.device
        self.rows.move(source, target, *rotation(self.table, at.to(device), to.to(device)))

    @property
    def dtype(self) -> str:
        """What keys are stored as: float32, bfloat16 or float16."""
        return str(self.rows.keys[0].dtype).removeprefix("torch.")

    def describe(self) -> dict[str, Any]:
        """Plain values for the handshake."""
        begin, end = self.rows.span
        return {
            "kind": self.kind,
            "layers": len(self.rows.keys),
            "dtype": self.dtype,
            "rotary_dim": end - begin,
            "pairing": "half-split" if self.rows.neox else "interleaved",
            "positions": self.table.shape[0],
        }


def layout_of(pool: Any, model: torch.nn.Module, config: Any, stream: Any = None) -> KVLayout:
    """Read the layout off a KV pool and a model.

    Args:
        pool: the allocator's KV cache. model: the loaded module. config: its HF text config.
        stream: the model runner's forward stream, or None on a CPU.

    Raises:
        Unsupported: with the typed fallback that every plan will get.
    """
    name = type(pool).__name__
    table, neox = _rope(model, config)
    if name in _MLA_POOLS and not getattr(pool, "use_dsa", False):
        keys, values = tuple(pool.kv_buffer), ()
        span = (pool.kv_lora_rank, pool.kv_lora_rank + pool.qk_rope_head_dim)
        kind = "mla"
    elif name in _MHA_POOLS:
        keys, values = tuple(pool.k_buffer), tuple(pool.v_buffer)
        span, kind = (0, table.shape[1]), "mha"
    else:
        raise Unsupported(Fallback.UNSUPPORTED_LAYOUT, f"KV pool {name} is not built yet")
    if keys[0].dtype not in _DTYPES or pool.dtype not in _DTYPES:
        raise Unsupported(Fallback.UNSUPPORTED_DTYPE, f"KV is stored as {pool.dtype}")
    if not all(buffer.is_contiguous() for buffer in (*keys, *values)):
        raise Unsupported(Fallback.UNSUPPORTED_LAYOUT, "KV rows are not contiguous")
    if keys[0].dim() != 3 or span[1] - span[0] != table.shape[1] or span[1] > keys[0].shape[-1]:
        raise Unsupported(
            Fallback.UNSUPPORTED_LAYOUT,
            f"rotary columns {span} and table width {table.shape[1]} do not fit rows of shape "
            f"{tuple(keys[0].shape[1:])}",
        )
    return KVLayout(kind, Rows(keys, values, span, neox), table, stream)


def _rope(model: torch.nn.Module, config: Any) -> tuple[torch.Tensor, bool]:
    """The one rotary table of a model, and its pairing.

    Raises:
        Unsupported: none, several different ones, or a kind that is not a fixed table.
    """
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        raise Unsupported(Fallback.UNSUPPORTED_LAYOUT, "sliding-window attention")
    if getattr(config, "no_rope_layers", None) or getattr(config, "position_embedding_type", None):
        raise Unsupported(Fallback.UNSUPPORTED_ROPE, "layers without rotary positions")
    found: dict[int, torch.nn.Module] = {}
    for module in model.modules():
        if isinstance(getattr(module, "cos_sin_cache", None), torch.Tensor):
            found.setdefault(id(module), module)
    modules = list(found.values())
    if not modules:
        raise Unsupported(Fallback.UNSUPPORTED_ROPE, "the model has no rotary table")
    first = modules[0]
    for module in modules:
        name = type(module).__name__
        if "MRotary" in name or "Dual" in name or "Dynamic" in name:
            raise Unsupported(Fallback.UNSUPPORTED_ROPE, f"{name} depends on more than position")
        if not torch.equal(module.cos_sin_cache, first.cos_sin_cache):
            raise Unsupported(Fallback.UNSUPPORTED_ROPE, "layers use different rotary tables")
    table = first.cos_sin_cache
    if table.dim() != 2:
        raise Unsupported(Fallback.UNSUPPORTED_ROPE, f"rotary table of shape {tuple(table.shape)}")
    return table, bool(first.is_neox_style)
