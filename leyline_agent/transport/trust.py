"""What failed lately, and is not tried again for a while."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

PAUSE_S = 60.0
_STRIKES = 3
_REMEMBERED = 64


@dataclass(slots=True)
class Trust:
    """Failures of requests, the last few, and of servers, each for PAUSE_S.

    A strike is a lowered request that failed while its plain form was answered: after
    _STRIKES in a row its server gets plain requests only, for a while.
    """

    _failed: set[int] = field(default_factory=set)
    _deaf: dict[str, float] = field(default_factory=dict)
    _paused: dict[str, float] = field(default_factory=dict)
    _strikes: Counter[str] = field(default_factory=Counter)

    def failed(self, content: int) -> None:
        """This request failed in its lowered form: a caller's own retry goes through untouched."""
        if len(self._failed) >= _REMEMBERED:
            self._failed.clear()
        self._failed.add(content)

    def deaf(self, origin: str) -> None:
        """The server has no /tokenize."""
        self._deaf[origin] = time.monotonic() + PAUSE_S

    def is_deaf(self, origin: str) -> bool:
        """Whether the server would not tell us tokens."""
        return self._deaf.get(origin, 0.0) > time.monotonic()

    def strike(self, origin: str) -> None:
        """A lowered request failed, and the plain one did not."""
        self._strikes[origin] += 1
        if self._strikes[origin] >= _STRIKES:
            del self._strikes[origin]
            self._paused[origin] = time.monotonic() + PAUSE_S

    def works(self, origin: str) -> None:
        """A lowered request was answered."""
        self._strikes.pop(origin, None)

    def objection(self, content: int, origin: str) -> str:
        """Why this request had better go through untouched, or ""."""
        if content in self._failed:
            return "failed before"
        if self._paused.get(origin, 0.0) > time.monotonic():
            return "lowered requests failed repeatedly"
        return ""
