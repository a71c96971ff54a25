"""A simple model of what a request without a plan may find in the cache, and random sessions."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from leyline_agent.core import Directive, EditPlan, Fallback, Mode
from leyline_agent.verify.client import Answer, Client, tokens

ALLOWED = {None, Fallback.DONOR_EVICTED, Fallback.NO_MEMORY, Fallback.UNKNOWN_BASE}
"""What may become of a right plan in a small pool; unknown only after a flush."""


@dataclass(slots=True)
class Honest:
    """All prefixes that were ever prefilled without a mark, by namespace."""

    _known: set[int] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, space: str, ids: Sequence[int]) -> None:
        """Every prefix of `ids` may be found from now on."""
        chain, name = [], hash(space)
        for token in ids:
            name = hash((name, token))
            chain.append(name)
        with self._lock:
            self._known.update(chain)

    def longest(self, space: str, ids: Sequence[int]) -> int:
        """How many leading tokens of `ids` may be found at most."""
        name = hash(space)
        with self._lock:
            for length, token in enumerate(ids):
                name = hash((name, token))
                if name not in self._known:
                    return length
        return len(ids)


class WrongMatchError(AssertionError):
    """A request matched KV that it must not."""


@dataclass
class Session:
    """One conversation that appends, edits, forks and asks honestly, all at random.

    unmarked: leading tokens of the last answer that lie on an unmarked path.
    """

    client: Client
    honest: Honest
    name: str
    space: str
    counts: Counter[str] = field(default_factory=Counter)
    last: Answer | None = None
    unmarked: int = 0

    def __post_init__(self) -> None:
        self.draw = random.Random(self.name)

    def step(self) -> None:
        """One operation."""
        if self.last is None or len(self.last.ids) > 400:
            return self.start()
        act = self.draw.choices(
            (self.append, self.edit, self.ask_honestly, self.start), (3, 5, 3, 0.3)
        )[0]
        return act()

    def start(self) -> None:
        """A new conversation; all in one namespace share 40 tokens."""
        shared = tokens(40, "shared")
        self._plain([*shared, *tokens(self.draw.randrange(60, 200), self.draw.random())])
        self.counts["start"] += 1

    def append(self) -> None:
        """The next turn, without an edit."""
        assert self.last is not None
        self._plain([*self.last.ids, *tokens(self.draw.randrange(1, 40), self.draw.random())])
        self.counts["append"] += 1

    def ask_honestly(self) -> None:
        """The same tokens again, without a plan; the conversation does not move on."""
        assert self.last is not None
        before = self.last, self.unmarked
        self._plain(list(self.last.ids[: -self.draw.randrange(1, 5)]))
        self.last, self.unmarked = before
        self.counts["honest"] += 1

    def edit(self) -> None:
        """One to three edits of either mode."""
        assert self.last is not None
        self.plan(self._directives(len(self.last.ids)))

    def plan(self, changes: list[Directive]) -> None:
        """The next turn with these edits; checks the receipt against the answer."""
        base = self.last
        assert base is not None
        new = tokens(self.draw.randrange(1, 30), self.draw.random())
        edited = [*EditPlan.of(base.ids, changes).apply(base.ids), *new]
        first = changes[0]
        stage = first.start + len(first.replacement)
        if self.unmarked >= first.start:  # page size 1: what the stage prefills
            self.honest.add(self.space, edited[:stage])
        answer = self.client.edit(base, changes, new, new=3, cache_salt=self.space)
        told = answer.receipt
        assert told is not None
        assert told.fallback in ALLOWED, told
        assert told.reused + told.spliced + told.replaced + told.prefilled == len(edited), told
        self.counts[str(told.fallback or first.mode.value)] += 1
        if told.mark:
            self.unmarked = min(self.unmarked, stage)
        else:
            self.unmarked = len(answer.ids)
            self.honest.add(self.space, answer.ids)
        self.last = answer

    def _directives(self, length: int) -> list[Directive]:
        """Disjoint, ascending, any place and size."""
        count = self.draw.randrange(1, 4)
        cuts = sorted(self.draw.sample(range(1, length), 2 * count))
        made = []
        for start, end in zip(cuts[::2], cuts[1::2], strict=True):
            end = min(end, start + 60)
            put = tuple(tokens(self.draw.choice((0, 0, 3, 12, 40)), self.draw.random()))
            mode = self.draw.choices((Mode.AMORTIZE, Mode.FORGET), (4, 1))[0]
            made.append(Directive(start, end, put, mode))
        return made

    def _plain(self, ids: list[int]) -> None:
        may = self.honest.longest(self.space, ids)
        self.honest.add(self.space, ids)
        answer = self.client.generate(ids, new=3, cache_salt=self.space)
        if answer.cached > may:
            raise WrongMatchError(f"{self.name}: {answer.cached} tokens cached, {may} honest")
        self.honest.add(self.space, answer.ids)
        self.last, self.unmarked = answer, len(answer.ids)
