"""The HTTP process's memory of receipts, and how one is added up."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Any

from leyline_agent.core import Fallback, Receipt


@dataclass(slots=True)
class Work:
    """What the prefill-only stages ahead of one request did, in tokens and milliseconds.

    honest: prefilled tokens on an unmarked path, where the request finds them after a fallback.
    """

    spliced: int = 0
    prefilled: int = 0
    honest: int = 0
    ms: float = 0.0

    def add(self, report: dict[str, Any]) -> None:
        """Add one stage's report."""
        computed = report["prompt"] - report["cached"]
        self.spliced += report["spliced"]
        self.prefilled += computed
        self.honest += computed if report["honest"] else 0
        self.ms += report["ms"]


def receipt_of(completion: str, report: dict[str, Any], work: Work, directives: int) -> Receipt:
    """The receipt of a request from its own report and its stages' work."""
    fallback = None if report["fallback"] is None else Fallback(report["fallback"])
    cached = report["cached"]
    spliced = 0 if fallback else min(cached, work.spliced + report["spliced"])
    replaced = min(cached - spliced, work.honest if fallback else work.prefilled)
    return Receipt(
        id=completion,
        applied=fallback is None,
        fallback=fallback,
        prompt_tokens=report["prompt"],
        reused=cached - spliced - replaced,
        spliced=spliced,
        replaced=replaced,
        prefilled=report["prompt"] - cached,
        directives=directives,
        ms=round(work.ms + report["ms"], 3),
        mark=report["mark"],
        detail=report["detail"],
    )


def _outcome(receipt: Receipt) -> str:
    return str(receipt.fallback) if receipt.fallback else "applied"


@dataclass(slots=True)
class Receipts:
    """Completion id -> receipt, the newest `max_entries`; and counts by outcome."""

    max_entries: int = 8192
    counts: Counter[str] = field(default_factory=Counter)
    _kept: OrderedDict[str, Receipt] = field(default_factory=OrderedDict)

    def put(self, receipt: Receipt) -> None:
        """Keep a receipt and count its outcome; a later one of the same completion replaces it."""
        old = self._kept.get(receipt.id)
        if old is not None:
            self.counts[_outcome(old)] -= 1
        self._kept[receipt.id] = receipt
        self.counts[_outcome(receipt)] += 1
        while len(self._kept) > self.max_entries:
            self._kept.popitem(last=False)

    def get(self, completion: str) -> Receipt | None:
        """The receipt of a completion, if it carried a plan and is still kept."""
        return self._kept.get(completion)
