"""Which base a new prompt continues, and the plan that leads there."""

from __future__ import annotations

import time
from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from leyline_agent.core import EditPlan, Mode, WirePlan, digest
from leyline_agent.planner.blocks import common_prefix
from leyline_agent.planner.diff import difference
from leyline_agent.planner.ledger import Entry, Ledger

_TRIED = 3
_SHARED = 16
_MOST_REPLACED = 100_000


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
    them would cost a stage of its own. most_moves: how many are moved, the longest; a
    server takes 64 stages. Pure apart from the ledger it reads.
    """

    ledger: Ledger = field(default_factory=Ledger)
    threshold: int = 16
    most_moves: int = 60

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
        plans = []
        for entry in self._bases(new, namespace, conversation):
            plan = self._against(entry, new, mode)
            fresh = len(new) - plan.edited_len
            work = fresh + plan.cost().prefill
            plans.append((work, entry, plan))
            if fresh < len(new) // 8 and work < len(new) // 2:
                break
        plans.sort(key=lambda candidate: candidate[0])
        for _, entry, plan in plans:
            if conversation is None and _stranger(plan, len(new)):
                continue
            if array("q", plan.apply(entry.ids)) == new[: plan.edited_len]:
                return _decided(entry, plan, new, mode, (time.perf_counter() - began) * 1e3)
        ms = (time.perf_counter() - began) * 1e3
        return Planned(None, "no earlier prompt to continue", None, len(new), 0, 0, 0, False, ms)

    def _bases(self, new: array[int], namespace: Hashable, conversation: str | None) -> list[Entry]:
        """The newest of the entries that share the longest start with the prompt.

        Where nobody names conversations, a start shorter than _SHARED tokens is chance.
        """
        longest = 0 if conversation is not None else min(_SHARED, len(new))
        found: list[Entry] = []
        for entry in self.ledger.candidates(namespace, conversation):
            near = slice(max(0, longest - _SHARED), longest)
            if entry.ids[near] != new[near]:
                continue
            if (
                len(found) == _TRIED
                and entry.ids[longest : longest + 1] != new[longest : longest + 1]
            ):
                continue
            shared = common_prefix(entry.ids, 0, len(entry.ids), new, 0, len(new))
            if shared > longest:
                longest, found = shared, [entry]
            elif shared == longest and len(found) < _TRIED:
                found.append(entry)
        return found

    def _against(self, entry: Entry, new: array[int], mode: Mode) -> EditPlan:
        """The plan from one base, not proven yet."""
        found = difference(entry.ids, entry.prompt_len, new, mode, self.threshold, self.most_moves)
        return EditPlan(len(entry.ids), entry.sha, found.directives)


def _stranger(plan: EditPlan, prompt_len: int) -> bool:
    """Whether a plan would move KV into a prompt that goes no further than its base.

    Such a prompt may be another conversation about the same task.
    """
    return plan.cost().move > 0 and plan.edited_len == prompt_len


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
    if replaced > _MOST_REPLACED:
        why = "the replacements are too long for a plan"
    elif amortizes or entry.amortized or (edits and mode is Mode.FORGET):
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
