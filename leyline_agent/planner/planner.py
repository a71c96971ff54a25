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
_ANSWER = 16
_WORD = 8
_AFRESH = "forget: the earlier prompt carries moved KV, so the whole prompt is computed anew"
_UNSURE = "nothing proves that an earlier prompt is of this conversation: name conversations"


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

    Moved KV still reflects what it was computed behind, so a base must be of the same
    conversation. Callers that serve several users with one planner should name their
    conversations: a name is believed. Without one a plan needs two proofs, and goes without
    when either is missing: both prompts open with the same words, through the first message
    that is not the system's (the caller tells, as `opening`), and _ANSWER tokens or more of
    the base's own answer stand in the new prompt where the base's prompt ends.

    threshold: kept segments behind an edit shorter than this are prefilled again: moving
    them would cost a stage of its own. most_moves: how many are moved, the longest; a
    server takes 64 stages. Pure apart from the ledger, which it reads and where it marks
    what is to be forgotten.

    FORGET holds until it is done: whatever the conversation had when it was asked for is a
    base for FORGET alone from then on, also when the request that asked is never answered.
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
        opening: str = "",
    ) -> Planned:
        """Find the best base for these prompt ids and the plan from it.

        opening: a digest of the messages through the first that is not the system's; of use
        where there is no conversation's name. A plan is sent when it moves KV, when it must
        forget, or when its base already carries moved KV. It was proven: applied to the base
        it gives the prompt's start.
        """
        began = time.perf_counter()
        new = array("q", ids)
        plans = []
        if mode is Mode.FORGET:
            self.ledger.forget(conversation, opening)
        known = self.ledger.candidates(namespace, conversation, opening)
        for entry in self._bases(new, known, conversation is not None):
            forget = self.ledger.forgotten(entry)
            plan = self._against(entry, new, Mode.FORGET if forget else Mode.AMORTIZE)
            fresh = len(new) - plan.edited_len
            work = fresh + plan.cost().prefill
            plans.append((work, entry, plan, forget))
            if fresh < len(new) // 8 and work < len(new) // 2:
                break
        plans.sort(key=lambda candidate: candidate[0])
        why = "no earlier prompt to continue"
        for _, entry, plan, forget in plans:
            if array("q", plan.apply(entry.ids)) != new[: plan.edited_len]:
                continue
            planned = _decided(entry, plan, new, forget, (time.perf_counter() - began) * 1e3)
            if planned.wire is None or conversation is not None or _continues(entry, plan, new):
                return planned
            why = _UNSURE
        ms = (time.perf_counter() - began) * 1e3
        return Planned(None, why, None, len(new), 0, 0, 0, False, ms)

    def _bases(self, new: array[int], known: Sequence[Entry], named: bool) -> list[Entry]:
        """The newest of the entries that share the longest start with the prompt.

        Where nobody names conversations, a start shorter than _SHARED tokens is chance.
        """
        longest = 0 if named else min(_SHARED, len(new))
        found: list[Entry] = []
        for entry in known:
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


def _continues(entry: Entry, plan: EditPlan, new: array[int]) -> bool:
    """Whether a prompt goes on with the base's own answer.

        base   |--- prompt --- T|== answer ==|
        new    |--- edited --- T|== run ==|---

    The run must be in the answer, not at its start: templates drop the reasoning before it.
    """
    for kept in plan.kept():
        if kept.span.start < entry.prompt_len <= kept.span.end:
            at = entry.prompt_len + kept.shift
            run = new[at : at + _ANSWER]
            return len(run) == _ANSWER and _within(run, entry.ids[entry.prompt_len :])
    return False


def _within(run: array[int], tokens: array[int]) -> bool:
    text, sought = tokens.tobytes(), run.tobytes()
    at = text.find(sought)
    while at > 0 and at % _WORD:
        at = text.find(sought, at + 1)
    return at >= 0


def _decided(entry: Entry, plan: EditPlan, new: array[int], forget: bool, ms: float) -> Planned:
    """Send the plan or not.

    What stands before a FORGET is kept as it is: where the base carries moved KV, which
    still reflects what was removed earlier, only a plain request forgets.
    """
    cost = plan.cost()
    # The deletion of the base's end is no edit of the history: generated text is rendered
    # anew by the chat template in every turn.
    edits = [d for d in plan.directives if d.end < plan.base_len or d.replacement]
    replaced = sum(len(d.replacement) for d in edits)
    reusable = plan.edited_len - replaced
    amortized = not forget and (cost.move > 0 or entry.amortized)
    wire: WirePlan | None = None
    why = ""
    if replaced > _MOST_REPLACED:
        why = "the replacements are too long for a plan"
    elif forget and entry.amortized:
        why = _AFRESH
    elif amortized or (edits and forget):
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
        amortized and wire is not None,
        ms,
    )
