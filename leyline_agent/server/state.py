"""What the scheduler tells the handshake about itself."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

from leyline_agent.server.cache import LeylineRadixCache


def add_state(result: Any, controller: Any, *args: Any, **kwargs: Any) -> None:
    """AFTER hook on SchedulerInternalStateController.get_internal_state. Mutates `result`."""
    result.internal_state["leyline"] = scheduler_state(controller.scheduler)


def scheduler_state(scheduler: Any) -> dict[str, Any]:
    """Backend, layout and sizes of one scheduler; JSON-ready."""
    cache = scheduler.tree_cache
    if not isinstance(cache, LeylineRadixCache):
        return {"backend": type(cache).__name__, "reason": None}
    allocator = cache.token_to_kv_pool_allocator
    unsupported = cache.unsupported
    return {
        "backend": "leyline",
        "pid": os.getpid(),
        "tree_core": type(cache.tree_core).__name__,
        "page_size": cache.page_size,
        "layout": cache.layout.describe() if cache.layout else None,
        "kv_error": None if cache.kv_error is None else round(cache.kv_error, 4),
        "reason": f"{unsupported.reason.value}: {unsupported.detail}" if unsupported else None,
        "settings": asdict(cache.settings),
        "completions": len(cache.ledger),
        "pool_tokens": scheduler.max_total_num_tokens,
        "available_tokens": int(allocator.available_size()),
        "evictable_tokens": int(cache.full_evictable_size()),
        "protected_tokens": int(cache.full_protected_size()),
    }
