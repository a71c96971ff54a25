"""Rotary embeddings on CPU: every kind that `get_rope_cpu` refuses goes to `get_rope`."""

from leyline_agent.server.cpu.targets import ROPE_CPU, ROPE_PLAIN

_OURS = "deepseek_yarn"


def register() -> None:
    """Hook `get_rope_cpu`; only DeepSeek YaRN still reaches it."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(ROPE_CPU.path, _route, HookType.AROUND)


def _route(
    original,
    head_size,
    rotary_dim,
    max_position,
    base,
    is_neox_style=True,
    rope_scaling=None,
    dtype=None,
    partial_rotary_factor=1.0,
    device=None,
):
    args = (head_size, rotary_dim, max_position, base, is_neox_style, rope_scaling, dtype)
    if rope_scaling is not None and rope_scaling.get("rope_type") == _OURS:
        return original(*args, partial_rotary_factor, device)
    return ROPE_PLAIN.resolve()(*args, partial_rotary_factor)
