"""How fast rows move: `python -m leyline_agent.kernels.bench '{"tokens": 17000, ...}'`.

Splice and plain indexed copy move the same rows of the same pool, in turn; the rows lie in
shuffled runs of 64 slots, as after some hours of serving. One JSON line on stdout.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from leyline_agent.kernels.rotate import rotation
from leyline_agent.kernels.rows import Rows

RUN = 64


def measure(
    device: str,
    *,
    tokens: int,
    layers: int,
    latent: int,
    rotary: int,
    dtype: str,
    repeats: int,
    threads: int | None,
) -> dict[str, Any]:
    """Medians over `repeats` rounds of moving MLA rows [c_KV | K_pe].

    Returns:
        splice_gbps, copy_gbps: bytes read and written a second, in 1e9. ratio: the median of
        the rounds' copy time / splice time. splice_ms: one whole splice. rows: its size.
    """
    if threads and device == "cpu":
        torch.set_num_threads(threads)
    storage = getattr(torch, dtype)
    slots = 2 * -(-tokens // RUN) * RUN
    generator = torch.Generator().manual_seed(0)
    block = torch.randn(slots, 1, latent + rotary, generator=generator).to(device, storage)
    rows = Rows(tuple(block.clone() for _ in range(layers)), (), (latent, latent + rotary), False)
    runs = torch.randperm(slots // RUN, generator=generator) * RUN
    free = (runs.unsqueeze(1) + torch.arange(RUN)).flatten().to(device)
    source, target = free[:tokens], free[slots // 2 : slots // 2 + tokens]
    angles = torch.outer(
        torch.arange(4 * tokens), 10000.0 ** -(torch.arange(rotary // 2) / (rotary // 2))
    )
    table = torch.cat((angles.cos(), angles.sin()), dim=-1).to(device)
    positions = torch.arange(tokens, device=device)

    def splice() -> None:
        rows.move(source, target, *rotation(table, positions, positions + tokens))

    def copy() -> None:
        for buffer in rows.keys:
            buffer.index_copy_(0, target, buffer.index_select(0, source))

    times: dict[str, list[float]] = {"splice": [], "copy": []}
    for turn in range(repeats + 1):
        for name, act in (("splice", splice), ("copy", copy)):
            took = _seconds(act, device)
            if turn:  # the first round warms up
                times[name].append(took)
    moved = 2 * tokens * rows.row_bytes
    splice_s, copy_s = (statistics.median(times[name]) for name in ("splice", "copy"))
    return {
        "splice_gbps": round(moved / splice_s / 1e9, 3),
        "copy_gbps": round(moved / copy_s / 1e9, 3),
        "ratio": round(
            statistics.median(c / s for s, c in zip(times["splice"], times["copy"], strict=True)),
            3,
        ),
        "splice_ms": round(splice_s * 1e3, 3),
        "rows": {"tokens": tokens, "layers": layers, "bytes": tokens * rows.row_bytes},
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "threads": torch.get_num_threads() if device == "cpu" else None,
    }


def _seconds(act: Callable[[], None], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    act()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def main() -> None:
    """Measure on the CPU, and on the GPU where there is one."""
    shape = json.loads(sys.argv[1])
    told = {"cpu": measure("cpu", **shape), "gpu": None}
    if torch.cuda.is_available():
        told["gpu"] = measure("cuda", **shape)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
