"""Configurations and weight tables of the tiny models.

Every config carries the keys of both loaders: SGLang's and transformers'.
"""

from typing import Any

VOCAB_SIZE = 8192
CONTEXT = 32768

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": CONTEXT,
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "mlp_bias": False,
    "torch_dtype": "float32",
    "use_cache": True,
}
_YARN = {
    "rope_type": "yarn",
    "type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
}
_PLAIN = {"rope_type": "default", "rope_theta": 1000000.0}
_GQA: dict[str, Any] = _COMMON | {
    "intermediate_size": 1024,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rope_theta": _PLAIN["rope_theta"],
    "rope_parameters": _PLAIN,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "tiny": _COMMON
    | {
        "model_type": "deepseek_v2",
        "architectures": ["DeepseekV2ForCausalLM"],
        "intermediate_size": 1024,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "q_lora_rank": None,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32,
        "v_head_dim": 64,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "moe_intermediate_size": 256,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "greedy",
        "scoring_func": "softmax",
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
        "rope_theta": _YARN["rope_theta"],
        "rope_parameters": _YARN,
    },
    "tiny-qwen3": _GQA | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]},
    "tiny-llama": _GQA | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
}

Shapes = dict[str, tuple[int, ...]]


def weight_shapes(config: dict[str, Any]) -> Shapes:
    """Checkpoint name -> shape, in the order in which weights are drawn."""
    hidden = config["hidden_size"]
    shapes: Shapes = {"model.embed_tokens.weight": (VOCAB_SIZE, hidden)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        mla = config["model_type"] == "deepseek_v2"
        attention = _mla(config) if mla else _gqa(config)
        parts = {f"self_attn.{name}": shape for name, shape in attention.items()}
        parts |= (
            _moe(config)
            if mla and layer >= config["first_k_dense_replace"]
            else _mlp("mlp", hidden, config["intermediate_size"])
        )
        parts |= {"input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
        shapes |= {f"{prefix}{name}.weight": shape for name, shape in parts.items()}
    return shapes | {"model.norm.weight": (hidden,), "lm_head.weight": (VOCAB_SIZE, hidden)}


def _mlp(name: str, hidden: int, inner: int) -> Shapes:
    return {
        f"{name}.gate_proj": (inner, hidden),
        f"{name}.up_proj": (inner, hidden),
        f"{name}.down_proj": (hidden, inner),
    }


def _moe(config: dict[str, Any]) -> Shapes:
    hidden, inner = config["hidden_size"], config["moe_intermediate_size"]
    shapes: Shapes = {"mlp.gate": (config["n_routed_experts"], hidden)}
    for expert in range(config["n_routed_experts"]):
        shapes |= _mlp(f"mlp.experts.{expert}", hidden, inner)
    return shapes | _mlp("mlp.shared_experts", hidden, inner * config["n_shared_experts"])


def _mla(config: dict[str, Any]) -> Shapes:
    hidden, heads, rank = (
        config[key] for key in ("hidden_size", "num_attention_heads", "kv_lora_rank")
    )
    nope, rope, value = (
        config[key] for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    )
    return {
        "q_proj": (heads * (nope + rope), hidden),
        "kv_a_proj_with_mqa": (rank + rope, hidden),
        "kv_a_layernorm": (rank,),
        "kv_b_proj": (heads * (nope + value), rank),
        "o_proj": (hidden, heads * value),
    }


def _gqa(config: dict[str, Any]) -> Shapes:
    hidden, dim = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    shapes: Shapes = {
        "q_proj": (queries, hidden),
        "k_proj": (keys, hidden),
        "v_proj": (keys, hidden),
        "o_proj": (hidden, queries),
    }
    if config["model_type"] == "qwen3":
        shapes |= {"q_norm": (dim,), "k_norm": (dim,)}
    return shapes
