"""The independent reference: transformers, same weights, a cache that is edited by hand.

A script for the server environment; shares no code with the package, so that neither can
hide the other's faults. Started with a model folder and the
type that its weights are rounded to, it answers one JSON line for each JSON line on stdin:

    {"page": p, "steps": [{"directives": [[start, end, [ids], mode], ...],
                           "new": [ids], "outputs": [ids]}, ...]}
    -> {"logprobs": [[float] * vocabulary, ...]}            one row a step

A step edits what the steps before it left, appends `new`, reports the log-probabilities of
the token after it, then appends the server's own `outputs`. Without directives a step goes on
from a plain prefix. An edited step keeps

    base    |---K0---|==B1==|----K1----|==B2==|--K2--|x        x: last token, never cached
    edited  |---K0---|R1|r|--K1 moved--|c|R2|r|-K2--|x|--N--|

with r and c the tokens that do not fill a page of p (K0 ends in some, too), and everything but
K0's pages and the moved parts computed by a forward pass over the cache of what stands before it.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache

Rows = list[tuple[torch.Tensor, torch.Tensor]]


def inverse_frequencies(config: Any) -> torch.Tensor:
    """Float64 RoPE frequencies from the config alone; YaRN as in its paper, section 3.2."""
    rope = config.rope_parameters
    dim = getattr(config, "qk_rope_head_dim", None) or config.head_dim
    plain = rope["rope_theta"] ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    if rope["rope_type"] == "default":
        return plain
    if rope["rope_type"] == "llama3":
        return _llama3(plain, rope)
    if rope["rope_type"] != "yarn":
        raise NotImplementedError(f"the reference has no {rope['rope_type']} rope")

    def column(turns: float) -> float:
        length = rope["original_max_position_embeddings"] / (turns * 2 * math.pi)
        return dim * math.log(length) / (2 * math.log(rope["rope_theta"]))

    low = max(math.floor(column(rope["beta_fast"])), 0)
    high = min(math.ceil(column(rope["beta_slow"])), dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
    return plain * (1 - ramp) + plain / rope["factor"] * ramp


def _llama3(plain: torch.Tensor, rope: dict[str, Any]) -> torch.Tensor:
    """Llama 3.1's scaling: long waves slowed by `factor`, short ones kept, a blend between."""
    turns = rope["original_max_position_embeddings"] * plain / (2 * math.pi)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return plain * kept + plain / rope["factor"] * (1 - kept)


def turned(keys: torch.Tensor, angles: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """Keys [..., tokens, dim] rotated by one angle a pair, in float64."""
    wide, cos, sin = keys.double(), angles.cos(), angles.sin()
    if interleaved:
        x, y = wide[..., 0::2], wide[..., 1::2]
        out = torch.stack((x * cos - y * sin, x * sin + y * cos), dim=-1).flatten(-2)
    else:
        x, y = wide.chunk(2, dim=-1)
        out = torch.cat((x * cos - y * sin, x * sin + y * cos), dim=-1)
    return out.to(keys.dtype)


class Reference:
    """One model and one growing conversation."""

    def __init__(self, path: str, dtype: str) -> None:
        rounded = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, attn_implementation="eager", experts_implementation="eager"
        )
        self.model = rounded.double().eval()
        self.latent = getattr(self.model.config, "kv_lora_rank", None) is not None
        # DeepSeek-V2's rotated keys are cached as neighbouring pairs; later models' as halves.
        self.neighbours = self.model.config.model_type == "deepseek_v2"
        self.frequencies = inverse_frequencies(self.model.config)
        self.forget()

    def forget(self) -> None:
        """Start a new conversation."""
        self.cache, self.ids = DynamicCache(), []

    def compute(self, ids: list[int]) -> torch.Tensor | None:
        """Append tokens by a forward pass; the logits of the last one."""
        if not ids:
            return None
        begin = len(self.ids)
        positions = torch.arange(begin, begin + len(ids))[None]
        with torch.inference_mode():
            out = self.model(
                torch.tensor([ids]), past_key_values=self.cache, position_ids=positions
            )
        self.ids += ids
        assert self.cache.get_seq_length() == len(self.ids)
        return out.logits[0, -1]

    def rows(self) -> Rows:
        """What the cache holds, layer by layer: keys and values, or c_KV and K_pe."""
        return [(layer.keys, layer.values) for layer in self.cache.layers]

    def cut(self, length: int) -> None:
        """Keep the first `length` tokens."""
        rows, ids = self.rows(), self.ids[:length]
        self.forget()
        if length:
            for index, row in enumerate(rows):
                self.cache.update(*(part[..., :length, :] for part in row), index)
        self.ids = ids

    def take(self, source: Rows, tokens: list[int], start: int, shift: int) -> None:
        """Append base rows [start, start + n), their keys turned by `shift` positions."""
        assert len(self.ids) == start + shift, (len(self.ids), start, shift)
        stop = start + len(tokens)
        for index, (first, second) in enumerate(source):
            first, second = first[..., start:stop, :], second[..., start:stop, :]
            if self.latent:
                second = turned(second, shift * self.frequencies, self.neighbours)
            else:
                first = turned(first, shift * self.frequencies, self.neighbours)
            self.cache.update(first, second, index)
        self.ids += tokens

    def edit(self, directives: list[list[Any]], page: int) -> list[int]:
        """Carry out directives; returns the tail that nothing is cached for."""
        base, source = list(self.ids), self.rows()
        cached = (len(base) - 1) // page * page
        whole = directives[0][0] // page * page
        self.cut(whole)
        pending = base[whole : directives[0][0]]
        shift, forgotten = 0, False
        for index, (start, end, ids, mode) in enumerate(directives):
            last = index + 1 == len(directives)
            stop = len(base) if last else directives[index + 1][0]
            pending += ids
            shift += len(ids) - (end - start)
            forgotten = forgotten or mode == "forget"
            first = -(-(end + shift) // page) * page - shift
            behind = (min(stop, cached) + shift) // page * page - shift
            if forgotten or first >= behind:
                pending += base[end:stop]
                continue
            self.compute(pending + base[end:first])
            self.take(source, base[first:behind], first, shift)
            pending = base[behind:stop]
        return pending

    def run(self, case: dict[str, Any]) -> list[list[float]]:
        """The log-probabilities after each step."""
        self.forget()
        found = []
        for step in case["steps"]:
            pending = self.edit(step["directives"], case["page"]) if step.get("directives") else []
            logits = self.compute(pending + step["new"])
            assert logits is not None
            found.append(logits.double().log_softmax(-1).tolist())
            self.compute(step.get("outputs") or [])
        return found


def main() -> None:
    torch.set_num_threads(1)
    reference = Reference(*sys.argv[1:3])
    for line in sys.stdin:
        print(json.dumps({"logprobs": reference.run(json.loads(line))}), flush=True)


if __name__ == "__main__":
    main()
