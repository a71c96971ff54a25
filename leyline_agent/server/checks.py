"""Every place where SGLang is touched, by name: one list, checked before anything is hooked."""

from __future__ import annotations

import inspect
import pkgutil
from importlib.metadata import PackageNotFoundError, version
from typing import Any

SGLANG = "0.5.23"

HOOKED = {
    "sglang.srt.managers.tokenizer_manager.TokenizerManager.generate_request": ("obj", "request"),
    "sglang.srt.managers.tokenizer_manager.TokenizerManager.abort_request": ("rid", "abort_all"),
    "sglang.srt.managers.tokenizer_manager.TokenizerManager.__init__": (),
    "sglang.srt.managers.tokenizer_manager.TokenizerManager.get_internal_state": (),
    "sglang.srt.managers.scheduler.Scheduler.get_output_streamer_class": (),
    "sglang.srt.managers.scheduler_components.internal_state."
    "SchedulerInternalStateController.get_internal_state": ("recv_req",),
}
USED = {
    "sglang.srt.mem_cache.registry.register_radix_cache_backend": ("name", "factory"),
    "sglang.srt.mem_cache.registry.create_unified_radix_cache": ("ctx", "cache_class"),
    "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache.match_prefix": ("params",),
    "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache.checkpoint_into_tree": (
        "req",
        "up_to",
    ),
    "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache.insert": ("params",),
    "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache.lock": ("node_id",),
    "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache.unlock": ("lock",),
    "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache._evict": ("params",),
    "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache._evict_device_leaf": (
        "node_id",
        "tracker",
    ),
    "sglang.srt.mem_cache.unified_cache.unified_tree_core_interface."
    "UnifiedTreeCoreInterface.match_full_device_prefix": ("key",),
    "sglang.srt.mem_cache.unified_cache.unified_tree_core_interface."
    "UnifiedTreeCoreInterface.collect_path_info": ("end_node_ids",),
    "sglang.srt.mem_cache.unified_cache.unified_tree_core_interface."
    "UnifiedTreeCoreInterface.collect_full_device_indices": ("from_node_id", "until_node_id"),
    "sglang.srt.entrypoints.http_server.get_global_state": (),
    "sglang.srt.arg_groups.overrides.resolving_view": (),
    "sglang.srt.mem_cache.common.evict_from_tree_cache": ("tree_cache", "num_tokens"),
    "sglang.srt.mem_cache.radix_cache.RadixKey": ("token_ids", "extra_key", "limit", "cache_salt"),
    "sglang.srt.managers.scheduler_components.output_streamer."
    "SchedulerOutputStreamer.stream_output": ("reqs", "return_logprob", "skip_req"),
    "sglang.srt.managers.scheduler_components.output_streamer."
    "SchedulerOutputStreamer.is_request_level_customized_info_key": ("key",),
    "sglang.srt.managers.schedule_batch.Req.output_ids_through_stop": (),
}


def faults() -> list[str]:
    """Sentences about what this SGLang lacks; empty when everything fits."""
    try:
        found = version("sglang")
    except PackageNotFoundError:
        return [f"sglang is not installed; this plugin is written for {SGLANG}"]
    if found != SGLANG:
        return [f"sglang {found} is installed; this plugin is written for {SGLANG}"]
    return [
        fault for target, names in {**HOOKED, **USED}.items() if (fault := _fault(target, names))
    ]


def _fault(target: str, names: tuple[str, ...]) -> str | None:
    """What is wrong with one target: missing, or without one of the parameters."""
    try:
        value: Any = pkgutil.resolve_name(target)
    except (ImportError, AttributeError) as error:
        return f"{target} cannot be found ({error})"
    if not names:
        return None
    missing = set(names) - set(inspect.signature(value).parameters)
    return f"{target} has no parameter {sorted(missing)}" if missing else None
