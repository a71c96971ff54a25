"""The splice: look the donor up, find room, move the KV, insert it under its marks."""

from __future__ import annotations

import time
from collections import OrderedDict
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import InsertParams
from sglang.srt.mem_cache.common import evict_from_tree_cache
from sglang.srt.mem_cache.radix_cache import RadixKey

from leyline_agent.core import Fallback
from leyline_agent.server.origin import Origin, cut, pieces
from leyline_agent.server.route import Move
from leyline_agent.server.settings import LINKS
from leyline_agent.server.ticket import Ticket

MAX_PLACED = 16_384


@dataclass(slots=True)
class _Sources:
    """Where the KV of a move lies, from its start on, as far as it is cached at all.

    slots: [n] slot ids; at: [n] positions they were computed or moved to; origins: what the
    moved tokens will have; end: of the contiguous stretch; worn: it ends at tokens whose
    origin is gone and that were moved too often.
    """

    slots: list[torch.Tensor] = field(default_factory=list)
    at: list[torch.Tensor] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    end: int = 0
    worn: bool = False


class Splicer:
    """Puts the moved segments of a route into the tree of `cache`."""

    def __init__(self, cache: Any) -> None:
        self.cache = cache
        # (base id, digest of the edited tokens, start of the move) -> what was put there.
        self._placed: OrderedDict[tuple[str, str, int], tuple[Origin, ...]] = OrderedDict()

    @property
    def max_links(self) -> int:
        """How many roundings moved keys may carry."""
        chosen, dtype = self.cache.settings.max_links, self.cache.layout.dtype
        return chosen if chosen is not None else LINKS[dtype]

    def clear(self) -> None:
        """Forget where placed KV came from (the cache was flushed)."""
        self._placed.clear()

    def origins(self, ticket: Ticket) -> tuple[Origin, ...]:
        """The origins of a finished request's tokens, for the ledger.

        A segment that another plan had put in place has the same origins, by its lineage; how
        many links lie between is not known, so the most are assumed.
        """
        route, wire = ticket.route, ticket.wire
        if route is None or ticket.fallback is not None:
            return ()
        found = list(route.before)
        for move in route.moves:
            placed = self._placed.get((wire.base_id, wire.edited_digest, move.start))
            if placed is None:
                start, end = move.start - move.shift, move.end - move.shift
                ideal = pieces(route.base.origins, wire.base_id, start, end, move.shift)
                placed = tuple(replace(origin, links=self.max_links) for origin in ideal)
            found += placed
        return tuple(found)

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
        for move in route.moves:
            if move.start >= reach or ticket.fallback is not None:
                break
            ticket.spliced += self._place(ticket, move, path)
        ticket.ms += (time.perf_counter() - began) * 1e3

    def _place(self, ticket: Ticket, move: Move, path: RadixKey) -> int:
        """Bring one segment into the tree.

        Returns:
            Tokens moved; 0 when the segment was there, or after a fallback.
        """
        core, page, route = self.cache.tree_core, self.cache.page_size, ticket.route
        assert route is not None
        # A completion's last token was never computed, and is cached in whole pages only.
        cached = (len(route.donor) - 1) // page * page
        end = min(move.end, cached + move.shift) // page * page
        held, node, _ = core.match_full_device_prefix(path[: move.end])
        if held >= end:
            return 0
        if held < move.start:
            ticket.fall_back(
                Fallback.DONOR_EVICTED,
                f"the prefix before token {move.start} is cached up to {held} only",
            )
            return 0
        found = self._sources(ticket, Move(held, move.end, move.shift), path)
        wanted, moved = Move(held, min(end, found.end // page * page), move.shift), 0
        if wanted.end > held:
            moved, found = self._copy(ticket, wanted, path, node)
        elif held == move.start and not found.worn:
            ticket.fall_back(
                Fallback.DONOR_EVICTED,
                f"nothing of the segment at token {move.start - move.shift} is cached",
            )
        if ticket.fallback is None:
            self._tell_short(ticket, move, end - held - moved, found.worn)
        return moved

    def _tell_short(self, ticket: Ticket, move: Move, missing: int, worn: bool) -> None:
        """Say in the receipt why `missing` tokens of a segment were not moved, if any."""
        if missing <= 0:
            return
        if worn:
            ticket.detail = (
                f"{missing} tokens of the segment at {move.start} were moved {self.max_links} "
                "times and their origin is gone: they are prefilled again"
            )
        else:
            ticket.detail = (
                f"{missing} tokens of the segment at {move.start} are not cached any more: they "
                "are prefilled instead of moved"
            )

    def _sources(self, ticket: Ticket, move: Move, path: RadixKey) -> _Sources:
        """Find the KV of a segment: piece by piece at its origin, else at the donor."""
        route, base_id = ticket.route, ticket.wire.base_id
        assert route is not None
        looked_up: dict[str, tuple[torch.Tensor, int]] = {}
        found = _Sources(end=move.start)
        first, last = move.start - move.shift, move.end - move.shift
        for piece in pieces(route.base.origins, base_id, first, last, move.shift):
            worn = False
            for choice in _choices(piece, base_id, move.shift):
                source = choice.cut(found.end, piece.end)
                if source is None:
                    break
                if source.links > self.max_links:
                    worn = True
                    continue
                slots, _ = self._lookup(source.base_id, ticket, path, looked_up)
                begin = source.start - source.shift
                lying = slots[begin : source.end - source.shift]
                if len(lying):
                    found.slots.append(lying)
                    found.at.append(torch.arange(begin, begin + len(lying)))
                    found.end += len(lying)
                    found.origins.append(replace(source, end=found.end))
            if found.end < piece.end:
                found.worn = worn
                break
        return found

    def _lookup(
        self,
        base_id: str,
        ticket: Ticket,
        path: RadixKey,
        known: dict[str, tuple[torch.Tensor, int]],
    ) -> tuple[torch.Tensor, int]:
        """The slots of a completion's cached prefix, and its node. Fills `known`."""
        if base_id in known:
            return known[base_id]
        cache, route = self.cache, ticket.route
        assert route is not None
        core = cache.tree_core
        key = route.donor
        if base_id != ticket.wire.base_id:
            base = cache.ledger.get(base_id)
            same = base is not None and base.namespace == route.base.namespace
            key = base.key if same else key[:0]
        whole = RadixKey(key, path.extra_key, cache_salt=path.cache_salt)
        held, node, _ = core.match_full_device_prefix(whole[: len(key)])
        slots = torch.empty(0, dtype=torch.int64)
        if held:
            root = cache.root_node_handle(path.extra_key)
            slots = core.collect_full_device_indices(node, root)[:held]
        known[base_id] = slots, node
        return known[base_id]

    def _copy(self, ticket: Ticket, move: Move, path: RadixKey, node: int) -> tuple[int, _Sources]:
        """Move [start, end) of `path` from where it lies to fresh slots and insert it.

        While room is made the prefix and the donor are locked, origins are not: the pieces of
        a long chain have many, and each would pin a whole path. One that goes is replaced by
        the donor.

        Returns:
            Tokens moved, 0 after a fallback; and from where.
        """
        cache, found = self.cache, _Sources()
        donor = self._lookup(ticket.wire.base_id, ticket, path, {})[1]
        locks = [cache.lock(n) for n in {node, donor} if not cache.is_root(n)]
        try:
            fresh = self._allocate(move.end - move.start)
            if fresh is None:
                count = move.end - move.start
                ticket.fall_back(Fallback.NO_MEMORY, f"no room for {count} moved tokens")
                return 0, found
            try:
                found = self._sources(ticket, move, path)
                count = (found.end - move.start) // cache.page_size * cache.page_size
                fresh, spare = fresh[:count], fresh[count:]
                if len(spare):
                    cache.token_to_kv_pool_allocator.free(spare)
                if not count:  # the donor is locked: its KV is there, but worn
                    return 0, found
                self._move(move.start, fresh, found)
                root = cache.root_node_handle(path.extra_key)
                prefix = cache.tree_core.collect_full_device_indices(node, root)[: move.start]
                value = torch.cat([prefix.to(fresh.dtype), fresh]).to(torch.int64)
            except BaseException:
                cache.token_to_kv_pool_allocator.free(fresh)
                raise
            cache.insert(
                InsertParams(
                    key=path[: move.start + count],
                    value=value,
                    prev_prefix_len=move.start,
                    inserted_len=move.start,
                )
            )
            self._note(ticket, Move(move.start, move.start + count, move.shift), found)
            return count, found
        finally:
            for lock in locks:
                cache.unlock(lock)

    def _move(self, start: int, fresh: torch.Tensor, found: _Sources) -> None:
        """Bring the KV of the first len(fresh) found tokens to `fresh`, positions `start`
        and on."""
        layout, count = self.cache.layout, len(fresh)
        source, at = torch.cat(found.slots)[:count], torch.cat(found.at)[:count]
        with _on(layout.stream):
            layout.move(source, fresh, at, torch.arange(start, start + count))

    def _note(self, ticket: Ticket, move: Move, found: _Sources) -> None:
        """Remember where a segment's KV came from, for `origins`."""
        route, wire = ticket.route, ticket.wire
        assert route is not None
        start = next(m.start for m in route.moves if m.start <= move.start < m.end)
        name = (wire.base_id, wire.edited_digest, start)
        before = cut(self._placed.pop(name, ()), start, move.start)
        self._placed[name] = before + cut(found.origins, move.start, move.end)
        while len(self._placed) > MAX_PLACED:
            self._placed.popitem(last=False)

    def _allocate(self, tokens: int) -> torch.Tensor | None:
        """`tokens` slots (whole pages), evicting as SGLang does; None when there are none."""
        allocator = self.cache.token_to_kv_pool_allocator
        evict_from_tree_cache(self.cache, tokens)
        return allocator.alloc(tokens)


def _choices(piece: Origin, base_id: str, shift: int) -> tuple[Origin, ...]:
    """Where to take a piece from: its origin, or else the donor, one link more."""
    if piece.base_id == base_id:
        return (piece,)
    donor = Origin(piece.start, piece.end, base_id, shift, piece.links + 1)
    return piece, donor


def _on(stream: Any) -> Any:
    """The context in which KV rows may be written: the forward stream on a GPU."""
    if stream is None:
        return nullcontext()
    stream.wait_stream(torch.cuda.current_stream())
    return torch.cuda.stream(stream)
