"""The arithmetic of a splice: torch against float64, Triton against torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from leyline_agent.cli import app

pytestmark = pytest.mark.server

SETUP = """
import json, os, sys, torch
from leyline_agent.kernels import Rows, arithmetic, fused, reference, rotation

SHAPES = {
    "mla": ((1, 576), (512, 576), False, 0),
    "mla, odd width": ((1, 42), (34, 42), True, 0),
    "gqa": ((2, 128), (0, 128), True, 128),
    "partial rotary": ((2, 96), (0, 64), True, 48),
}
TYPES = (torch.float32, torch.bfloat16, torch.float16)

def rows(shape, dtype, device="cpu"):
    (heads, dim), span, neox, width = SHAPES[shape]
    draw = torch.Generator().manual_seed(0)
    many = lambda d: tuple(torch.randn(150, heads, d, generator=draw).to(device, dtype)
                           for _ in range(3))
    return Rows(many(dim), many(width) if width else (), span, neox)

def phase(rotary, start, shift, n, device="cpu"):
    draw = torch.Generator().manual_seed(1)
    angles = torch.outer(torch.arange(5000.0), torch.rand(rotary // 2, generator=draw))
    table = 1.3 * torch.cat((angles.cos(), angles.sin()), -1)
    at = torch.arange(start, start + n)
    return tuple(part.to(device) for part in rotation(table, at, at + shift))

def slots(n, device="cpu"):
    order = torch.randperm(150, generator=torch.Generator().manual_seed(2)).to(device)
    return order[:n], order[n : 2 * n]

def exact(r, old, cos, sin):
    begin, end = r.span
    x = old.double()
    keys = x[..., begin:end]
    a, b = keys.chunk(2, -1) if r.neox else (keys[..., 0::2], keys[..., 1::2])
    turned = torch.complex(a, b) * torch.complex(cos, sin).unsqueeze(1)
    parts = (turned.real, turned.imag)
    x[..., begin:end] = torch.cat(parts, -1) if r.neox else torch.stack(parts, -1).flatten(-2)
    return x

def spacings(got, want):
    size = want.abs().clamp_min(torch.finfo(got.dtype).tiny)
    # An element far smaller than its pair carries the rounding of the arithmetic, too.
    wide = 4 * torch.finfo(arithmetic(got.dtype)).eps * want.abs().amax(-1, keepdim=True)
    off = ((got.double() - want).abs() - wide).clamp_min(0)
    return (off / (torch.finfo(got.dtype).eps * size)).max().item()
"""

TORCH = """
found = {}
for shape in SHAPES:
    for dtype in TYPES:
        for n in (70, 1, 0):
            r = rows(shape, dtype)
            rotary = r.span[1] - r.span[0]
            old, new = slots(n)
            before = [b.clone() for b in (*r.keys, *r.values)]
            cos, sin = phase(rotary, 7, 4000, n)
            r.move(old, new, cos, sin)
            worst = 0.0
            for was, now in zip(before, (*r.keys, *r.values)):
                others = torch.ones(150, dtype=bool); others[new] = False
                assert torch.equal(was[others], now[others]), "only the target is written"
            for was, now in zip(before, r.keys):
                if n: worst = max(worst, spacings(now[new], exact(r, was[old], cos, sin)))
            for was, now in zip(before[3:], r.values):
                assert torch.equal(was[old], now[new])
            where = rows(shape, dtype)
            where.turn(old, cos, sin)
            for moved, turned in zip(r.keys, where.keys):
                assert torch.equal(moved[new], turned[old]), "in place it is the same"
            for was, now in zip(before[3:], where.values):
                assert torch.equal(was, now)
            found[f"{shape} {dtype} {n}"] = worst
print(json.dumps(found))
"""

TRITON = """
device = "cuda" if torch.cuda.is_available() and "TRITON_INTERPRET" not in os.environ else "cpu"
found = {}
for shape in SHAPES:
    for dtype in TYPES:
        for n in (70, 1, 0):
            for target in (True, False):
                ours, theirs = rows(shape, dtype, device), rows(shape, dtype, device)
                cos, sin = phase(ours.span[1] - ours.span[0], 7, 4000, n, device)
                old, new = slots(n, device)
                fused.move(ours, old, new if target else None, cos, sin)
                reference.move(theirs, old, new if target else None, cos, sin)
                pairs = zip((*ours.keys, *ours.values), (*theirs.keys, *theirs.values))
                worst = max(spacings(a, b.double()) for a, b in pairs)
                found[f"{shape} {dtype} {n} {target}"] = worst
print(json.dumps(found))
"""

CUDA = "import json, torch; print(json.dumps(torch.cuda.is_available()))"


def test_torch_rounds_once(in_server_env: Callable[[str], Any]) -> None:
    found = in_server_env(SETUP + TORCH)
    assert len(found) == 36
    assert 0.4 < max(found.values()) <= 0.5, found


def test_triton_is_the_reference_by_its_interpreter(in_server_env: Callable[[str], Any]) -> None:
    found = in_server_env('import os; os.environ["TRITON_INTERPRET"] = "1"' + SETUP + TRITON)
    assert len(found) == 72
    wide = {name: off for name, off in found.items() if "bfloat16" not in name}
    assert max(wide.values()) == 0, wide
    # The interpreter cuts off where hardware rounds: at most one spacing of bfloat16.
    assert max(found.values()) <= 1, found


@pytest.mark.gpu
def test_triton_is_the_reference_on_a_gpu(in_server_env: Callable[[str], Any]) -> None:
    if not in_server_env(CUDA):
        pytest.skip("no GPU here")
    found = in_server_env(SETUP + TRITON)
    # Contracted multiply-adds may round the other way.
    assert max(found.values()) <= 1, found


def test_bench_kernel_tells_both_rates(tmp_path: Path) -> None:
    out = tmp_path / "kernel.json"
    arguments = ["bench", "kernel", "--tokens", "2000", "--layers", "3", "--repeats", "3"]
    done = CliRunner().invoke(app, [*arguments, "--json", str(out)])
    assert done.exit_code == 0, done.output
    told = json.loads(out.read_text())
    assert told["cpu"]["rows"] == {"tokens": 2000, "layers": 3, "bytes": 2000 * 3 * 576 * 2}
    assert told["cpu"]["ratio"] > 0
    assert "gpu" in told
    assert CliRunner().invoke(app, ["bench", "kernel", "--rotary", "3"]).exit_code == 2
