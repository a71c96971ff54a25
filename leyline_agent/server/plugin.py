"""The entry point that SGLang loads by itself, in every process.

SGLang only logs what a plugin raises. So when something does not fit, the backend is
registered all the same, and choosing it stops the server with the reason.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from leyline_agent.server import cpu
from leyline_agent.server.checks import faults

logger = logging.getLogger(__name__)

BACKEND = "leyline"
_TOKENIZER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_STATE = "sglang.srt.managers.scheduler_components.internal_state.SchedulerInternalStateController"


def activate() -> None:
    """Register the backend and the hooks; on a CPU engine also the CPU recipe.

    With LEYLINE_DISABLE=1 only the CPU recipe is applied: stock SGLang, for comparison.
    """
    cpu.activate()
    if os.environ.get("LEYLINE_DISABLE") == "1":
        return
    from sglang.srt.mem_cache.registry import register_radix_cache_backend

    wrong = faults()
    if wrong:
        text = "leyline cannot run on this SGLang: " + "; ".join(wrong)
        logger.error(text)
        register_radix_cache_backend(BACKEND, lambda ctx: _refuse(text))
        return
    register_radix_cache_backend(BACKEND, build)
    _hook()


def _hook() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from leyline_agent.server.orchestrate import abort_request, generate_request
    from leyline_agent.server.routes import add_routes
    from leyline_agent.server.state import add_state
    from leyline_agent.server.streamer import streamer_class

    HookRegistry.register(f"{_TOKENIZER}.generate_request", generate_request, HookType.AROUND)
    HookRegistry.register(f"{_TOKENIZER}.abort_request", abort_request, HookType.AROUND)
    HookRegistry.register(f"{_TOKENIZER}.__init__", add_routes, HookType.AFTER)
    HookRegistry.register(f"{_STATE}.get_internal_state", add_state, HookType.AFTER)
    HookRegistry.register(
        f"{_SCHEDULER}.get_output_streamer_class", streamer_class, HookType.AROUND
    )


def _refuse(text: str) -> Any:
    raise RuntimeError(text)


def build(ctx: Any) -> Any:
    """The radix cache factory: SGLang's unified cache of our class, and its KV layout.

    Raises:
        RuntimeError: SGLang builds a cache of another kind for this configuration.
    """
    import torch
    from sglang.srt.mem_cache.registry import create_unified_radix_cache

    from leyline_agent.core import Fallback
    from leyline_agent.server.cache import LeylineRadixCache
    from leyline_agent.server.layout import Unsupported, layout_of
    from leyline_agent.server.selfcheck import TOKENS, check

    cache = create_unified_radix_cache(ctx, cache_class=LeylineRadixCache)
    if not isinstance(cache, LeylineRadixCache):
        _refuse(f"SGLang built a {type(cache).__name__} where a LeylineRadixCache was asked for")
    try:
        if ctx.is_hybrid_swa or ctx.is_hybrid_ssm or ctx.is_dsa or cache.tree_core.is_eagle:
            raise Unsupported(
                Fallback.UNSUPPORTED_LAYOUT,
                "sliding-window, Mamba, DSA and draft-model caches are not built yet",
            )
        runner = ctx.tp_worker.model_runner
        allocator = ctx.params.token_to_kv_pool_allocator
        pool = allocator.get_kvcache()
        stream = runner.forward_stream if str(pool.device).startswith("cuda") else None
        layout = layout_of(pool, runner.model, ctx.model_config.hf_text_config, stream)
        # Slot 0 is SGLang's padding; the others are free: no request has come yet.
        slots = torch.arange(1, 1 + 2 * TOKENS, device=pool.device)
        cache.kv_error = check(layout, slots)
        cache.layout = layout
    except Unsupported as error:
        logger.warning("leyline: plans will be answered plainly: %s", error.detail)
        cache.unsupported = error
    except Exception as error:
        logger.exception("leyline: the KV layout could not be read")
        cache.unsupported = Unsupported(
            Fallback.UNSUPPORTED_LAYOUT, f"{type(error).__name__}: {error}"
        )
    return cache
