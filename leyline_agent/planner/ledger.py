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
    What forget() marked stays marked: such an entry may hold what was to be forgotten.
    Bounded in entries and in tokens (8 bytes each); the newest entry always stays.
    """

    max_entries: int = 512
    max_tokens: int = 1 << 23
    _tokens: int = 0
    _entries: OrderedDict[str, Entry] = field(default_factory=OrderedDict)
    _forgotten: set[str] = field(default_factory=set)
    _lock: Lock = field(default_factory=Lock)

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, entry: Entry, base: Entry | None = None) -> None:
        """Remember an entry; the oldest go when there are too many, or too many tokens.

        base: where its moved KV comes from; marked when that was marked in the meantime.
        """
        with self._lock:
            if entry.amortized and base is not None and base.completion in self._forgotten:
                self._forgotten.add(entry.completion)
            before = self._entries.pop(entry.completion, None)
            self._tokens += len(entry.ids) - (len(before.ids) if before else 0)
            self._entries[entry.completion] = entry
            while len(self._entries) > 1 and self._full():
                name, oldest = self._entries.popitem(last=False)
                self._forgotten.discard(name)
                self._tokens -= len(oldest.ids)

    def _full(self) -> bool:
        return len(self._entries) > self.max_entries or self._tokens > self.max_tokens

    def forget(self, conversation: str | None, opening: str) -> None:
        """Mark all that there is of a conversation, under whichever model or salt.

        Where it has no name: all without a name that open alike.
        """
        with self._lock:
            self._forgotten.update(
                e.completion
                for e in self._entries.values()
                if e.conversation == conversation
                and (conversation is not None or opening == e.opening)
            )

    def forgotten(self, entry: Entry) -> bool:
        """Whether something of this entry was to be forgotten after it was written."""
        return entry.completion in self._forgotten

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
