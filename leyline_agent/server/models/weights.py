"""Random weights whose next token depends on the whole context.

Projections keep unit variance; the query gain sharpens attention, so that a softmax over
thousands of keys does not average the context away; the head spreads logits over a few units.
"""

import math
from typing import Any

import torch

from leyline_agent.server.models.shapes import weight_shapes

SEED = 20250
_GAIN = {"q_proj": 2.0, "q_b_proj": 2.0, "o_proj": 2.0, "lm_head": 2.5, "gate": 2.0}


def draw(config: dict[str, Any], seed: int = SEED) -> dict[str, torch.Tensor]:
    """Checkpoint name -> float32 weight; the same on every machine for one torch version."""
    generator = torch.Generator().manual_seed(seed)
    return {name: _one(name, shape, generator) for name, shape in weight_shapes(config).items()}


def _one(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    noise = torch.randn(shape, generator=generator)
    if name.endswith("e_score_correction_bias"):
        return 0.1 * noise
    if len(shape) == 1:
        return 1.0 + 0.1 * noise
    module = name.split(".")[-2]
    if module == "embed_tokens":
        return 0.5 * noise
    return noise * (_GAIN.get(module, 1.0) / math.sqrt(shape[1]))
