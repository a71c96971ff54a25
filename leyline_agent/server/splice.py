"""The splice: look the donor up, find room, move the KV, insert it under its marks."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import InsertParams
from sglang.srt.mem_cache.common import evict_from_tree_cache
from sglang.srt.mem_cache.radix_cache import RadixKey

from leyline_agent.core import Fallback
from leyline_agent.server.route import Move, ceil_to
from leyline_agent.server.ticket import Ticket


class Splicer:
    """Puts the moved segments of a route into the tree of `cache`."""

    def __init__(self, cache: Any) -> None:
        self.cache = cache

    def put_in_place(self, ticket: Ticket, extra_key: str | None, salt: str | None) -> None:
        """Splice what the tree does not hold yet, move by move, in order.

        Idempotent: a segment that is in place is left alone. Sets the ticket's fallback and
        leaves no half-inserted path when a segment cannot be placed.
        """
        route = ticket.route
        assert route is not None
        began = time.perf_counter()
        reach = ticket.reach(route.edited)
        path = RadixKey(ticket.key(route.edited), extra_key, cache_salt=salt)
        donor = RadixKey(route.donor, extra_key, cache_salt=salt)
        for move in route.moves:
            if move.start >= reach or ticket.fallback is not None:
                break
            moved = self._place(ticket, move, path, donor)
            ticket.spliced += moved
        ticket.ms += (time.perf_counter() - began) * 1e3

    def _place(self, ticket: Ticket, move: Move, path: RadixKey, donor: RadixKey) -> int:
        """Bring one segment into the tree.

        Returns:
            Tokens moved; 0 when the segment was there, or after a fallback.
        """
        core, page = self.cache.tree_core, self.cache.page_size
        end = move.end // page * page
        held, node, _ = core.match_full_device_prefix(path[: move.end])
        if held >= end:
            return 0
        if held < move.start:
            ticket.fall_back(
                Fallback.DONOR_EVICTED,
                f"the prefix before token {move.start} is cached up to {held} only",
            )
            return 0
        wanted = ceil_to(move.end - move.shift, page)  # a lookup answers in whole pages
        alive, source_node, _ = core.match_full_device_prefix(donor[:wanted])
        end = min(end, (alive + move.shift) // page * page)
        if end <= held:
            if alive + move.shift <= move.start:
                ticket.fall_back(
                    Fallback.DONOR_EVICTED,
                    f"the donor is cached up to token {alive}, "
                    f"the segment starts at {move.start - move.shift}",
                )
            return 0
        moved = self._copy(ticket, Move(held, end, move.shift), path, node, source_node)
        # A completion's last token was never computed: its KV cannot be missed.
        whole = min(move.end - move.shift, len(donor) - 1) // page * page
        if moved and alive < whole:
            ticket.detail = (
                f"the donor was cached up to token {alive}: {whole - alive} tokens of the "
                f"segment at {move.start} are prefilled instead of moved"
            )
        return moved

    def _copy(self, ticket: Ticket, move: Move, path: RadixKey, node: int, source_node: int) -> int:
        """Move [start, end) of `path` from the donor's slots to fresh ones and insert it."""
        cache = self.cache
        layout = cache.layout
        locks = [cache.lock(n) for n in (node, source_node) if not cache.is_root(n)]
        try:
            fresh = self._allocate(move.end - move.start)
            if fresh is None:
                ticket.fall_back(
                    Fallback.NO_MEMORY, f"no room for {move.end - move.start} moved tokens"
                )
                return 0
            try:
                root = cache.root_node_handle(path.extra_key)
                prefix = cache.tree_core.collect_full_device_indices(node, root)[: move.start]
                slots = cache.tree_core.collect_full_device_indices(source_node, root)
                source = slots[move.start - move.shift : move.end - move.shift]
                with _on(layout.stream):
                    layout.move(source, fresh, move.start - move.shift, move.shift)
                value = torch.cat([prefix.to(fresh.dtype), fresh]).to(torch.int64)
            except BaseException:
                cache.token_to_kv_pool_allocator.free(fresh)
                raise
            cache.insert(
                InsertParams(
                    key=path[: move.end],
                    value=value,
                    prev_prefix_len=move.start,
                    inserted_len=move.start,
                )
            )
            return move.end - move.start
        finally:
            for lock in locks:
                cache.unlock(lock)

    def _allocate(self, tokens: int) -> torch.Tensor | None:
        """`tokens` slots (whole pages), evicting as SGLang does; None when there are none."""
        allocator = self.cache.token_to_kv_pool_allocator
        evict_from_tree_cache(self.cache, tokens)
        return allocator.alloc(tokens)


def _on(stream: Any) -> Any:
    """The context in which KV rows may be written: the forward stream on a GPU."""
    if stream is None:
        return nullcontext()
    stream.wait_stream(torch.cuda.current_stream())
    return torch.cuda.stream(stream)
