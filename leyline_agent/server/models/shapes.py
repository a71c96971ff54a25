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
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 4096,
}
_GQA: dict[str, Any] = _COMMON | {
    "intermediate_size": 1024,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 64,
}

_MLA: dict[str, Any] = _COMMON | {
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
}
# DeepSeek-V3's routing: sigmoid scores, a correction bias that only chooses, renormalized.
_V3_ROUTING = {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True}


def _rope(parameters: dict[str, Any]) -> dict[str, Any]:
    return {"rope_theta": parameters["rope_theta"], "rope_parameters": parameters}


CONFIGS: dict[str, dict[str, Any]] = {
    # DeepSeek-V2-Lite: YaRN, softmax routing, queries without a latent.
    "tiny": _MLA
    | _rope(_YARN)
    | {
        "model_type": "deepseek_v2",
        "architectures": ["DeepseekV2ForCausalLM"],
        "topk_method": "greedy",
        "scoring_func": "softmax",
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
    },
    # Moonlight-16B-A3B: plain RoPE, two shared experts, queries without a latent.
    "tiny-moonlight": _MLA
    | _V3_ROUTING
    | _rope({"rope_type": "default", "rope_theta": 50000.0})
    | {
        "model_type": "deepseek_v3",
        "architectures": ["DeepseekV3ForCausalLM"],
        "n_shared_experts": 2,
        "moe_intermediate_size": 128,
        "routed_scaling_factor": 2.446,
        "num_nextn_predict_layers": 0,
    },
    # JoyAI-LLM Flash: plain RoPE, many small experts, queries through a latent.
    "tiny-joyai": _MLA
    | _V3_ROUTING
    | _rope({"rope_type": "default", "rope_theta": 32000000.0})
    | {
        "model_type": "deepseek_v3",
        "architectures": ["DeepseekV3ForCausalLM"],
        "q_lora_rank": 192,
        "n_routed_experts": 16,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 96,
        "routed_scaling_factor": 2.5,
        "num_nextn_predict_layers": 0,
    },
    # GLM-4.7-Flash: key, value and query heads of different widths, queries through a latent.
    "tiny-glm": _MLA
    | _V3_ROUTING
    | _rope(_PLAIN)
    | {
        "model_type": "glm4_moe_lite",
        "architectures": ["Glm4MoeLiteForCausalLM"],
        "q_lora_rank": 96,
        "qk_nope_head_dim": 48,
        "qk_rope_head_dim": 16,
        "v_head_dim": 64,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 192,
        "routed_scaling_factor": 1.8,
        "mlp_layer_types": ["dense"] + ["sparse"] * 5,
        "num_nextn_predict_layers": 0,
    },
    # Qwen3: norms on queries and keys, plain RoPE.
    "tiny-qwen3": _GQA
    | _rope(_PLAIN)
    | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]},
    # Llama 3: its rope scaling.
    "tiny-llama": _GQA
    | _rope(_LLAMA3)
    | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
}

Shapes = dict[str, tuple[int, ...]]


def weight_shapes(config: dict[str, Any]) -> Shapes:
    """Checkpoint name -> shape, in the order in which weights are drawn."""
    hidden = config["hidden_size"]
    shapes: Shapes = {"model.embed_tokens.weight": (VOCAB_SIZE, hidden)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        mla = "kv_lora_rank" in config
        attention = _mla(config) if mla else _gqa(config)
        parts = {f"self_attn.{name}": shape for name, shape in attention.items()}
        parts |= (
            _moe(config)
            if mla and layer >= config["first_k_dense_replace"]
            else _mlp("mlp", hidden, config["intermediate_size"])
        )
        parts |= {"input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
        shapes |= {f"{prefix}{name}.weight": shape for name, shape in parts.items()}
        if f"{prefix}mlp.gate.weight" in shapes and config["topk_method"] == "noaux_tc":
            shapes[f"{prefix}mlp.gate.e_score_correction_bias"] = (config["n_routed_experts"],)
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
    latent, width = config["q_lora_rank"], heads * (nope + rope)
    queries: Shapes = (
        {"q_proj": (width, hidden)}
        if latent is None
        else {"q_a_proj": (latent, hidden), "q_a_layernorm": (latent,), "q_b_proj": (width, latent)}
    )
    return queries | {
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
