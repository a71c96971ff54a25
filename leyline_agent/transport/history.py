"""Which request continues which, judged by their messages alone.

    R1   s u             one link for each message: link = hash(link before, message)
    R2   s u a t         appends to R1
    R3   s u a t' a t    longest known start is R1's, which R2 has extended: an edit, perhaps

A request that appends to the end of an unedited conversation needs no plan, so nobody has
to ask for its tokens before it is sent.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

_SYSTEM = ("system", "developer")

Chain = tuple[bytes, ...]
"""One digest for each start of a conversation: after message 1, after message 2, ..."""


def chain(seed: str, messages: Sequence[Any]) -> Chain:
    """The links of a conversation; `seed` is all else that decides what its prompt is."""
    link = hashlib.blake2b(seed.encode(), digest_size=16).digest()
    links = []
    for message in messages:
        text = json.dumps(message, sort_keys=True, default=str)
        link = hashlib.blake2b(link + text.encode(), digest_size=16).digest()
        links.append(link)
    return tuple(links)


def opening(messages: Sequence[Any]) -> str:
    """A digest of a conversation's first words: through the first message not the system's."""
    end = next((i for i, m in enumerate(messages, 1) if _role(m) not in _SYSTEM), len(messages))
    return b"".join(chain("", messages[:end])[-1:]).hex()


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None


@dataclass(slots=True)
class _Past:
    """An answered request. extended: another one goes on where it ends."""

    honest: bool
    extended: bool = False


@dataclass(slots=True)
class History:
    """Ends of answered requests; the oldest of more than `max_entries` go. Thread-safe."""

    max_entries: int = 4096
    _ends: OrderedDict[bytes, _Past] = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)

    def put(self, links: Chain, honest: bool) -> None:
        """Note an answered request; honest: nothing on its path in the cache was moved."""
        with self._lock:
            for link in links[:-1]:
                if link in self._ends:
                    self._ends[link].extended = True
            self._ends[links[-1]] = _Past(honest)
            self._ends.move_to_end(links[-1])
            while len(self._ends) > self.max_entries:
                self._ends.popitem(last=False)

    def appends(self, links: Chain) -> bool:
        """Whether a request only appends to an honest one that nothing else has extended."""
        with self._lock:
            for link in reversed(links):
                if (past := self._ends.get(link)) is not None:
                    return past.honest and not past.extended
        return False
