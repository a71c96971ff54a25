"""The scheduler's memory of finished requests: which tokens and marks a completion has."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from dataclasses import dataclass, field

from leyline_agent.core import digest
from leyline_agent.server.mark import Marks, marked
from leyline_agent.server.origin import Origin


@dataclass(frozen=True, slots=True)
class Base:
    """Prompt and output of one finished request.

    ids: token ids, 64-bit. marks: where its radix path carries marks. namespace:
    (extra_key, cache_salt) under which it was cached; a base is never used in another.
    origins: of its moved tokens, ascending and disjoint.
    """

    ids: array[int]
    marks: Marks
    namespace: tuple[str | None, str | None]
    origins: tuple[Origin, ...] = ()

    @property
    def sha(self) -> str:
        """Digest of the ids."""
        return digest(self.ids)

    @property
    def key(self) -> array[int]:
        """Its radix key."""
        return marked(self.ids, self.marks)


@dataclass(slots=True)
class Ledger:
    """Completion id -> Base; the oldest go when `max_entries` or `max_tokens` is passed."""

    max_entries: int = 4096
    max_tokens: int = 16_000_000
    _bases: OrderedDict[str, Base] = field(default_factory=OrderedDict)
    _tokens: int = 0

    def __len__(self) -> int:
        return len(self._bases)

    def put(self, completion: str, base: Base) -> None:
        """Remember a base under its completion id, replacing an older one."""
        old = self._bases.pop(completion, None)
        self._tokens += len(base.ids) - (len(old.ids) if old else 0)
        self._bases[completion] = base
        while len(self._bases) > self.max_entries or self._tokens > self.max_tokens:
            _, gone = self._bases.popitem(last=False)
            self._tokens -= len(gone.ids)

    def get(self, completion: str) -> Base | None:
        """The base of a completion, if it is still remembered."""
        return self._bases.get(completion)

    def clear(self) -> None:
        """Forget everything (the cache was flushed)."""
        self._bases.clear()
        self._tokens = 0
