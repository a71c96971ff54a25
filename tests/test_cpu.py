"""The CPU recipe: attention of the new rows only, the stand-ins, and a hit that saves time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from leyline_agent.launch import ServerProcess

pytestmark = pytest.mark.server

ATTENTION = """
import json, torch
from leyline_agent.server.cpu.attention import _run

def reference(query, keys, values, scale):
    # query [n, heads, d]; keys [p + n, key heads, d]; values [p + n, key heads, v]
    shared = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(shared, 1), values.repeat_interleave(shared, 1)
    scores = torch.einsum("nhd,mhd->hnm", query, keys) * scale
    new, total = query.shape[0], keys.shape[0]
    mask = torch.arange(total)[None] > torch.arange(total - new, total)[:, None]
    return torch.einsum("hnm,mhv->nhv", scores.masked_fill(mask, -torch.inf).softmax(-1), values)

def worst(heads, key_heads, dim, value_dim, batch, mla, dtype):
    torch.manual_seed(0)
    rows = sum(total for total, _ in batch)
    pool = torch.randn(2 * rows, key_heads, dim, dtype=dtype)
    k, v = (pool, pool[..., :value_dim]) if mla else (
        pool, torch.randn(2 * rows, key_heads, value_dim, dtype=dtype))
    slots = torch.randperm(2 * rows)[:rows].split([total for total, _ in batch])
    table = torch.zeros(len(batch), max(len(s) for s in slots), dtype=torch.int32)
    for row, mine in enumerate(slots):
        table[row, : len(mine)] = mine.int()
    news = [new for _, new in batch]
    query = torch.randn(sum(news), heads, dim, dtype=dtype)
    output = torch.empty(sum(news), heads, value_dim, dtype=dtype)
    totals = torch.tensor([total for total, _ in batch])
    _run(query, output, k, v, table, torch.arange(len(batch)), totals, news, 0.17)
    want = torch.cat([reference(q.float(), k[s].float(), v[s].float(), 0.17)
                      for q, s in zip(query.split(news), slots, strict=True)])
    return (output.float() - want).abs().max().item()

batch = [(9, 9), (200, 7), (64, 1), (33, 32), (5, 5)]
print(json.dumps({
    "mha": worst(4, 4, 32, 32, batch, False, torch.float32),
    "gqa": worst(6, 2, 64, 64, batch, False, torch.float32),
    "mla": worst(4, 1, 96, 64, batch, True, torch.float32),
    "narrow values": worst(4, 4, 96, 64, batch, False, torch.float32),
    "bf16": worst(6, 2, 64, 64, batch, False, torch.bfloat16),
}))
"""


def test_attention_equals_a_plain_softmax(in_server_env: Callable[[str], Any]) -> None:
    found = in_server_env(ATTENTION)
    assert len(found) == 5
    for name, error in found.items():
        assert error < (0.05 if name == "bf16" else 1e-5), (name, error)


def test_stand_ins_serve_what_is_needed_and_refuse_the_rest(
    in_server_env: Callable[[str], Any],
) -> None:
    found = in_server_env("""
import json, torch, sgl_kernel
if not getattr(sgl_kernel, "LEYLINE_STAND_IN", False):
    print(json.dumps(["real", None, None])); raise SystemExit
table = torch.zeros(3, 8, dtype=torch.int32)
sgl_kernel.assign_req_to_token_pool_cpu(
    torch.tensor([2, 0]), table, torch.tensor([1, 0]), torch.tensor([4, 2]),
    torch.arange(10, 15), 8)
try:
    sgl_kernel.rmsnorm(1)
except NotImplementedError as error:
    refused = str(error)
from torchvision.transforms import InterpolationMode
print(json.dumps([table.tolist(), refused, InterpolationMode.BICUBIC.value]))
""")
    table, refused, mode = found
    if table == "real":
        pytest.skip("the real sgl_kernel loads here")
    assert table == [[13, 14, 0, 0, 0, 0, 0, 0], [0] * 8, [0, 10, 11, 12, 0, 0, 0, 0]]
    assert "rmsnorm" in refused
    assert mode == "bicubic"


def test_rope_goes_to_the_kind_that_knows_it(in_server_env: Callable[[str], Any]) -> None:
    found = in_server_env("""
import json
from leyline_agent.server.cpu import rope, targets
targets.Target.resolve = lambda self: lambda *args: ["plain", len(args)]
original = lambda *args: ["cpu", len(args)]
kinds = [None, {"rope_type": "llama3"}, {"rope_type": "deepseek_yarn"}]
print(json.dumps([rope._route(original, 64, 64, 4096, 1e4, rope_scaling=kind) for kind in kinds]))
""")
    assert found == [["plain", 8], ["plain", 8], ["cpu", 9]]


def test_the_recipe_stays_away_from_other_engines(in_server_env: Callable[[str], Any]) -> None:
    code = "import json, os; os.environ.pop('SGLANG_USE_CPU_ENGINE', None)\n"
    code += "from leyline_agent.server import cpu; print(json.dumps(cpu.activate()))"
    assert in_server_env(code) is False


def test_a_cached_prefix_saves_most_of_the_prefill(
    server: ServerProcess, post: Callable[..., dict[str, Any]]
) -> None:
    ids = [300 + (7 * i) % 7000 for i in range(6000)]

    def seconds() -> tuple[float, int]:
        body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
        began = time.monotonic()
        answer = post(f"{server.base_url}/generate", body)
        return time.monotonic() - began, answer["meta_info"]["cached_tokens"]

    cold, cached = seconds()
    assert cached < 10
    warm, cached = seconds()
    assert cached >= 5990
    assert warm < cold / 3, (warm, cold)
