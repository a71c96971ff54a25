"""The client's memory: which token ids the server holds under which completion id."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from threading import Lock

from leyline_agent.core import digest


@dataclass(frozen=True, slots=True)
class Entry:
    """One answered request.

    completion: its id, which names it to the server. ids: prompt and generated token ids.
    prompt_len: where the generated ones begin. namespace: model, salt and whatever else
    the server separates caches by. conversation: the caller's name for it, or None.
    amortized: its path on the server may carry moved KV. opening: names the conversation's
    first words, up to the first user message. sha: digest of ids, worked out here.
    """

    completion: str
    ids: array[int]
    prompt_len: int
    namespace: Hashable
    conversation: str | None
    amortized: bool
    opening: str = ""
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sha", digest(self.ids))


@dataclass(slots=True)
class Ledger:
    """Entries, newest last, never changed once written; safe between threads.

    A branch or a retry finds any completion that is still remembered, not only the last.
    Bounded in entries and in tokens (8 bytes each); the newest entry always stays.
    """

    max_entries: int = 512
    max_tokens: int = 1 << 23
    _tokens: int = 0
    _entries: OrderedDict[str, Entry] = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, entry: Entry) -> None:
        """Remember an entry; the oldest go when there are too many, or too many tokens."""
        with self._lock:
            before = self._entries.pop(entry.completion, None)
            self._tokens += len(entry.ids) - (len(before.ids) if before else 0)
            self._entries[entry.completion] = entry
            while len(self._entries) > 1 and self._full():
                _, oldest = self._entries.popitem(last=False)
                self._tokens -= len(oldest.ids)

    def _full(self) -> bool:
        return len(self._entries) > self.max_entries or self._tokens > self.max_tokens

    def candidates(
        self, namespace: Hashable, conversation: str | None, opening: str | None = None
    ) -> list[Entry]:
        """Possible bases, newest first.

        With a conversation's name only its own entries; without one those that have none,
        and of them, where an opening is given, those that open alike.
        """
        with self._lock:
            return [
                e
                for e in reversed(self._entries.values())
                if e.namespace == namespace
                and e.conversation == conversation
                and (conversation is not None or opening in (None, e.opening))
            ]
