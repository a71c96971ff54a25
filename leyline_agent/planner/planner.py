"""Which base a new prompt continues, and the plan that leads there."""

from __future__ import annotations

import time
from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from leyline_agent.core import EditPlan, Mode, WirePlan, digest
from leyline_agent.planner.diff import common_prefix, difference
from leyline_agent.planner.ledger import Entry, Ledger

_TRIED = 3
_SHARED = 16


@dataclass(frozen=True, slots=True)
class Planned:
    """The decision about one prompt.

    wire: the plan to send, or None for a plain request, with `why` it is plain.
    new_tokens, replacement_tokens, edits: of the prompt against the base it continues.
    reusable: tokens that a perfect cache would not compute again. ms: time spent.
    """

    wire: WirePlan | None
    why: str
    base: Entry | None
    new_tokens: int
    replacement_tokens: int
    edits: int
    reusable: int
    amortized: bool
    ms: float


@dataclass(slots=True)
class Planner:
    """Turns prompts into plans against a ledger.

    threshold: kept segments behind an edit shorter than this are prefilled again: moving
    them would cost a stage of its own. Pure apart from the ledger it reads.
    """

    ledger: Ledger = field(default_factory=Ledger)
    threshold: int = 16

    def plan(
        self,
        ids: Sequence[int],
        namespace: Hashable,
        conversation: str | None = None,
        mode: Mode = Mode.AMORTIZE,
    ) -> Planned:
        """Find the best base for these prompt ids and the plan from it.

        A plan is sent when it moves KV, when it must forget, or when its base already
        carries moved KV. It was proven: applied to the base it gives the prompt's start.
        """
        began = time.perf_counter()
        new = array("q", ids)
        best: tuple[int, Entry, EditPlan] | None = None
        for entry in self._bases(new, namespace, conversation):
            plan = self._against(entry, new, mode)
            if plan is None:
                continue
            cost = len(new) - plan.edited_len + plan.cost().prefill
            if best is None or cost < best[0]:
                best = (cost, entry, plan)
        ms = (time.perf_counter() - began) * 1e3
        if best is None:
            return Planned(
                None, "no earlier prompt to continue", None, len(new), 0, 0, 0, False, ms
            )
        return _decided(best[1], best[2], new, mode, ms)

    def _bases(self, new: array[int], namespace: Hashable, conversation: str | None) -> list[Entry]:
        """The most promising entries: longest shared start first, then the newest."""
        scored = []
        for entry in self.ledger.candidates(namespace, conversation):
            shared = common_prefix(entry.ids, 0, len(entry.ids), new, 0, len(new))
            if shared >= min(_SHARED, len(new)):
                scored.append((shared, entry))
        scored.sort(key=lambda pair: -pair[0])
        return [entry for _, entry in scored[:_TRIED]]

    def _against(self, entry: Entry, new: array[int], mode: Mode) -> EditPlan | None:
        """The proven plan from one base, or None when the proof fails."""
        found = difference(entry.ids, entry.prompt_len, new, mode, self.threshold)
        plan = EditPlan.of(entry.ids, found.directives)
        if array("q", plan.apply(entry.ids)) != new[: found.edited_len]:
            return None
        return plan


def _decided(entry: Entry, plan: EditPlan, new: array[int], mode: Mode, ms: float) -> Planned:
    """Send the plan or not."""
    cost = plan.cost()
    # The deletion of the base's end is no edit of the history: generated text is rendered
    # anew by the chat template in every turn.
    edits = [d for d in plan.directives if d.end < plan.base_len or d.replacement]
    replaced = sum(len(d.replacement) for d in edits)
    reusable = plan.edited_len - replaced
    amortizes = cost.move > 0
    wire: WirePlan | None = None
    why = ""
    if amortizes or entry.amortized or (edits and mode is Mode.FORGET):
        wire = WirePlan(entry.completion, plan, digest(new[: plan.edited_len]))
    else:
        why = "nothing behind an edit is worth moving" if edits else "nothing was edited"
    return Planned(
        wire,
        why,
        entry,
        len(new) - plan.edited_len,
        replaced,
        len(edits),
        reusable,
        amortizes or entry.amortized,
        ms,
    )
