"""The radix cache backend `leyline`: SGLang's unified cache, with splice on match.

A request without a plan takes SGLang's own path untouched. A planned one gets radix keys
that carry its marks, and before it is matched its kept segments are moved into place.
"""

from __future__ import annotations

import logging
from array import array
from typing import Any

from sglang.srt.mem_cache.base_prefix_cache import (
    EvictParams,
    EvictResult,
    InsertParams,
    InsertResult,
    MatchPrefixParams,
    MatchResult,
)
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from leyline_agent.core import Fallback, LeylineError
from leyline_agent.server.garbage import Superseded
from leyline_agent.server.layout import KVLayout, Unsupported
from leyline_agent.server.ledger import Base, Ledger
from leyline_agent.server.route import Route, route
from leyline_agent.server.settings import Settings
from leyline_agent.server.splice import Splicer
from leyline_agent.server.ticket import INTERNAL, Ticket, unseal

logger = logging.getLogger(__name__)


class LeylineRadixCache(UnifiedRadixCache):
    """UnifiedRadixCache whose planned requests find their edited prefix in place.

    Nothing that a plan causes is raised out of a method that the scheduler calls.
    """

    layout: KVLayout | None = None
    unsupported: Unsupported | None = None
    kv_error: float | None = None

    def __init__(self, params: Any) -> None:
        self.ledger = Ledger()
        self.superseded = Superseded()
        self.settings = Settings.read()
        self.splicer = Splicer(self)
        self._inserting: Ticket | None = None
        super().__init__(params)

    def reset(self) -> None:
        super().reset()
        self.ledger.clear()
        self.superseded.clear()
        self.splicer.clear()

    # ---- a request's way through the cache

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        ticket = self.ticket_of(params.req)
        if ticket is None or self.disable:
            return super().match_prefix(params)
        if ticket.fallback is None:
            try:
                self._prepare(ticket, params)
            except LeylineError as error:
                ticket.fall_back(Fallback.RESULT_MISMATCH, str(error))
            except Exception as error:
                logger.exception("leyline: a splice failed; the request goes on without it")
                ticket.fall_back(Fallback.INTERNAL_ERROR, f"{type(error).__name__}: {error}")
        params.key = _marked(ticket, params.key)
        return super().match_prefix(params)

    def checkpoint_into_tree(self, req: Any, *, up_to: int, **kwargs: Any) -> None:
        ticket = self.ticket_of(req)
        self._inserting = ticket
        try:
            super().checkpoint_into_tree(req, up_to=up_to, **kwargs)
        finally:
            self._inserting = None
        if req.finished():
            self._remember(req, ticket)

    def insert(self, params: InsertParams) -> InsertResult:
        if self._inserting is not None and params.key is not None:
            params.key = _marked(self._inserting, params.key)
        return super().insert(params)

    def _evict(self, params: EvictParams, *args: Any, **kwargs: Any) -> EvictResult:
        """Superseded donor tails go before anybody's live prefix does."""
        freed = 0
        if params.num_tokens > 0 and self.superseded and not self.disable:
            freed = self.superseded.drop(self, params.num_tokens)
            params = EvictParams(
                max(0, params.num_tokens - freed), params.swa_num_tokens, params.mamba_num
            )
        result = super()._evict(params, *args, **kwargs)
        result.num_tokens_evicted += freed
        return result

    # ---- plans

    def ticket_of(self, req: Any) -> Ticket | None:
        """The request's ticket, unsealed on first sight; None for a plain request."""
        if req is None:
            return None
        ticket = getattr(req, "leyline_ticket", None)
        if ticket is not None or getattr(req, "leyline_plain", False):
            return ticket
        custom = getattr(req.sampling_params, "custom_params", None)
        text = custom.get(INTERNAL) if isinstance(custom, dict) else None
        if text is None:
            req.leyline_plain = True
            return None
        try:
            req.leyline_ticket = Ticket(*unseal(text))
        except LeylineError:
            logger.warning("leyline: a ticket that this server did not write was ignored")
            req.leyline_plain = True
            return None
        return req.leyline_ticket

    def _prepare(self, ticket: Ticket, params: MatchPrefixParams) -> None:
        """Put the edited prefix into the tree, as far as the request's tokens reach."""
        req = params.req
        if self.unsupported is not None:
            ticket.fall_back(self.unsupported.reason, self.unsupported.detail)
            return
        if ticket.route is None:
            found = self._resolve(ticket, req, array("q", req.origin_input_ids))
            if found is None:
                return
            ticket.route = found
            ticket.marks = found.marks
        self.splicer.put_in_place(ticket, params.key.extra_key, params.key.cache_salt)
        if ticket.fallback is None and ticket.stage is None and ticket.route.superseded is not None:
            key = params.key
            base_id = ticket.wire.base_id
            self.superseded.add(base_id, ticket.route, key.extra_key, key.cache_salt)

    def _resolve(self, ticket: Ticket, req: Any, ids: array[int]) -> Route | None:
        """The route of a ticket whose base is known here and fits; else a fallback."""
        wire = ticket.wire
        base = self.ledger.get(wire.base_id)
        if base is None or base.namespace != (req.extra_key, req.cache_salt or None):
            ticket.fall_back(
                Fallback.UNKNOWN_BASE, f"no completion {wire.base_id!r} is known in this namespace"
            )
            return None
        if len(base.ids) != wire.plan.base_len or base.sha != wire.plan.base_digest:
            ticket.fall_back(
                Fallback.BASE_MISMATCH,
                f"completion {wire.base_id!r} has {len(base.ids)} tokens and another digest",
            )
            return None
        found = route(base, wire.plan, self.page_size, self.settings.boundary)
        reach = ticket.reach(found.edited)
        if ids[:reach] != found.edited[:reach]:
            ticket.fall_back(
                Fallback.RESULT_MISMATCH, "the request's tokens are not the edited base's"
            )
            return None
        return found

    def _remember(self, req: Any, ticket: Ticket | None) -> None:
        """Enter a finished request into the ledger; stages are not completions."""
        if ticket is not None and ticket.stage is not None:
            return
        ids = array("q", req.origin_input_ids)
        ids.extend(req.output_ids_through_stop)
        marks = {} if ticket is None else dict(ticket.marks)
        origins = () if ticket is None else self.splicer.origins(ticket)
        self.ledger.put(req.rid, Base(ids, marks, (req.extra_key, req.cache_salt or None), origins))


def _marked(ticket: Ticket, key: RadixKey) -> RadixKey:
    """The same radix key with the request's marks in it."""
    return RadixKey(
        ticket.key(key.token_ids), key.extra_key, key.is_bigram, key.limit, key.cache_salt
    )
