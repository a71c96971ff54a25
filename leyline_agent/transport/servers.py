"""The handshake: what a server says of itself, asked once before it is sent anything of ours."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass, field
from typing import Any

logger = logging.getLogger("leyline_agent")

INFO = "/leyline/v1/info"
NO_LEYLINE = "no leyline server"
OWN_STOPS = "the server's chat template has stop strings of its own"
UNKNOWN = "the server did not say whether it is a leyline server"
_HOLDS_S = 3600.0
_PAUSE_S = 60.0
_RETRY_S = 10.0


@dataclass(frozen=True, slots=True)
class _Said:
    """why: no request is to be lowered, or "". until: when it is asked again (monotonic s)."""

    why: str
    until: float


@dataclass(slots=True)
class Servers:
    """Answers of servers, by origin, and until when they hold.

    A good answer holds for an hour and outlives a failed handshake. A server without Leyline
    is asked again after a minute, one that did not answer after ten seconds.
    """

    _said: dict[str, _Said] = field(default_factory=dict)
    _warned: set[tuple[str, str]] = field(default_factory=set)

    def is_due(self, origin: str) -> bool:
        """Whether the server is to be asked."""
        said = self._said.get(origin)
        return said is None or said.until <= time.monotonic()

    def objection(self, origin: str) -> str:
        """Why this server gets plain requests only, or ""; UNKNOWN when it was never asked."""
        said = self._said.get(origin)
        return UNKNOWN if said is None else said.why

    def learn(self, origin: str, status: int, content: bytes = b"") -> None:
        """Take an answer in; status 0: there was none. Warns once of each server and reason."""
        why = _reading(status, content)
        known = self._said.get(origin)
        if why == UNKNOWN and known is not None:
            why = known.why
        pause = {UNKNOWN: _RETRY_S, "": _HOLDS_S}.get(why, _PAUSE_S)
        if status not in (200, 404, 405):
            pause = _RETRY_S
        self._said[origin] = _Said(why, time.monotonic() + pause)
        if why not in ("", UNKNOWN) and (origin, why) not in self._warned:
            self._warned.add((origin, why))
            logger.warning("leyline: %s gets plain requests: %s", origin, why)


def _reading(status: int, content: bytes) -> str:
    if status in (404, 405):
        return NO_LEYLINE
    if status != 200:
        return UNKNOWN
    try:
        info: Any = json.loads(content)
    except (ValueError, RecursionError):
        info = None
    if not isinstance(info, dict) or "leyline" not in info or info.get("active") is False:
        return NO_LEYLINE
    return OWN_STOPS if info.get("lowering") is False else ""
