"""Donor tails that an edit has superseded: the first to go when room is needed.

    donor   |---shared---|~~~~ superseded ~~~~|
    edited  |---shared---|R|---moved---|--N--|

Looking a donor up makes it recently used, so LRU would keep it and drop somebody's live
prefix. While there is room it stays (a branch may still want it); under pressure its
unlocked, childless nodes are freed before anything else.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components import BASE_COMPONENT_TYPE

from leyline_agent.server.route import Route


@dataclass(slots=True)
class Superseded:
    """(completion, first superseded token) -> radix key, oldest first; bounded."""

    max_entries: int = 4096
    max_tokens: int = 16_000_000
    _tails: OrderedDict[tuple[str, int], tuple[RadixKey, int]] = field(default_factory=OrderedDict)
    _tokens: int = 0

    def __bool__(self) -> bool:
        return bool(self._tails)

    def clear(self) -> None:
        """Forget all tails; nothing is freed."""
        self._tails.clear()
        self._tokens = 0

    def add(self, base_id: str, route: Route, extra_key: str | None, salt: str | None) -> None:
        """Note that route.donor[route.superseded:] is no longer its conversation's state."""
        assert route.superseded is not None
        name = (base_id, route.superseded)
        self._forget(name)
        self._tails[name] = (RadixKey(route.donor, extra_key, cache_salt=salt), route.superseded)
        self._tokens += len(route.donor)
        while len(self._tails) > self.max_entries or self._tokens > self.max_tokens:
            self._forget(next(iter(self._tails)))

    def _forget(self, name: tuple[str, int]) -> None:
        if name in self._tails:
            self._tokens -= len(self._tails.pop(name)[0])

    def drop(self, cache: Any, tokens: int) -> int:
        """Free tails, oldest first, until `tokens` slots are free or none is left.

        Mutates the cache's tree. A tail that a request holds stays noted.

        Returns:
            Slots freed.
        """
        freed = 0
        for name in list(self._tails):
            if freed >= tokens:
                break
            key, start = self._tails[name]
            gone, left = _drop_tail(cache, key, start)
            freed += gone
            if not left:
                self._forget(name)
        return freed


def _drop_tail(cache: Any, key: RadixKey, start: int) -> tuple[int, bool]:
    """Free the nodes of `key`'s path that begin at or behind `start`, leaf first.

    Returns:
        Slots freed, and whether a locked node was left behind.
    """
    core = cache.tree_core
    _, node, _ = core.match_full_device_prefix(key)
    if core.is_root(node) or cache.is_write_back:
        return 0, False
    tracker = {kind: 0 for kind in cache.tree_components}
    first = start // cache.page_size * cache.page_size
    for info in reversed(core.collect_path_info([node])[0]):
        if info.path_start < first or info.num_children or info.path_end > len(key):
            break
        if _held(cache, info.node_id):
            return tracker[BASE_COMPONENT_TYPE], True
        cache._evict_device_leaf(info.node_id, tracker)
    return tracker[BASE_COMPONENT_TYPE], False


def _held(cache: Any, node: int) -> bool:
    """Whether a request locks the node.

    A lock reaches from its node to the root: taking one more changes the evictable size
    exactly when the node itself was free.
    """
    before = cache.full_evictable_size()
    lock = cache.lock(node)
    held = cache.full_evictable_size() == before
    cache.unlock(lock)
    return held
