"""What a replay measured, turn by turn and in sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from statistics import median
from typing import Any

# Five of five slower is 1 in 32 where both arms are equally fast.
_ENOUGH = 5


class Arm(StrEnum):
    """How a conversation is fed to the server.

    append: as recorded, no policy. reprefill: edited by the policy, stock behaviour.
    amortize, forget: edited, with directives of that mode.
    """

    APPEND = "append"
    REPREFILL = "reprefill"
    AMORTIZE = "amortize"
    FORGET = "forget"


@dataclass(frozen=True, slots=True)
class Turn:
    """One call of the model; counts in tokens, times in milliseconds.

    cached_tokens: found or put in the cache before the answering forward pass and not
    computed for this turn = reused + spliced. spliced_tokens: those moved for this turn.
    replacement_tokens: new text inside the old conversation, first sent now. new_tokens:
    what follows the old conversation. unpaged_tokens: what cannot fill a cache page.
    prefilled_tokens: prompt - cached, replacements included. edits: places where the old
    conversation changed. ttft_ms_runs: one time to first token for each repeat.
    """

    index: int
    prompt_tokens: int
    cached_tokens: int
    spliced_tokens: int
    prefilled_tokens: int
    replacement_tokens: int
    new_tokens: int
    unpaged_tokens: int
    edits: int
    fallback: str | None
    ttft_ms_runs: tuple[float, ...]
    output: str

    @classmethod
    def of(cls, same: Sequence[Turn]) -> Turn:
        """One turn out of its repeats: all times, and the counts of one that fell back, if any."""
        shown = next((turn for turn in same if turn.fallback), same[0])
        return replace(shown, ttft_ms_runs=tuple(t for turn in same for t in turn.ttft_ms_runs))

    @property
    def ttft_ms(self) -> float:
        """The median over repeats."""
        return median(self.ttft_ms_runs)

    @property
    def bound(self) -> int:
        """Tokens that a perfect cache could have reused."""
        return max(
            0,
            self.prompt_tokens - self.new_tokens - self.replacement_tokens - self.unpaged_tokens,
        )

    @property
    def reuse_of_bound(self) -> float:
        """cached ÷ bound, at most 1: a shared system prompt may be cached before turn one."""
        return min(1.0, self.cached_tokens / self.bound) if self.bound else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the derived ones."""
        derived = ("ttft_ms", "bound", "reuse_of_bound")
        return {**asdict(self), **{name: getattr(self, name) for name in derived}}


def summary(turns: Sequence[Turn]) -> dict[str, Any]:
    """Sums and medians over turns.

    reuse_of_bound: sum of min(cached, bound) ÷ sum of bounds. hit_rate: sum cached ÷ sum
    prompt. ttft_ms_p50: median; ..._edited: over the turns in which something was edited.
    """
    bound = sum(t.bound for t in turns)
    edited = [t for t in turns if t.edits]
    fallbacks: dict[str, int] = {}
    for turn in turns:
        if turn.fallback:
            fallbacks[turn.fallback] = fallbacks.get(turn.fallback, 0) + 1
    return {
        "turns": len(turns),
        "edited_turns": len(edited),
        "reuse_of_bound": sum(min(t.cached_tokens, t.bound) for t in turns) / bound
        if bound
        else 1.0,
        "reuse_of_bound_min_edited": min((t.reuse_of_bound for t in edited), default=1.0),
        "hit_rate": sum(t.cached_tokens for t in turns)
        / max(1, sum(t.prompt_tokens for t in turns)),
        "prompt_tokens": sum(t.prompt_tokens for t in turns),
        "prefilled_tokens": sum(t.prefilled_tokens for t in turns),
        "spliced_tokens": sum(t.spliced_tokens for t in turns),
        "fallbacks": fallbacks,
        "ttft_ms_p50": median([t.ttft_ms for t in turns]) if turns else None,
        "ttft_ms_p50_edited": median([t.ttft_ms for t in edited]) if edited else None,
        "ttft_ms_sum": sum(t.ttft_ms for t in turns),
    }


def ratios(turns: Sequence[Turn], against: Sequence[Turn]) -> dict[str, Any]:
    """Time to first token ÷ the same turn's under another arm, repeat by repeat.

    Returns:
        per_turn: median over repeats; per_turn_range: its extremes. p50 and max of the
        medians over turns; p50_edited over edited ones. slower: turns (from 1) that were
        slower in every one of at least five repeats.
    """
    runs = [
        [a / b for a, b in zip(turn.ttft_ms_runs, other.ttft_ms_runs, strict=True)]
        for turn, other in zip(turns, against, strict=True)
    ]
    medians = [median(r) for r in runs]
    edited = [m for m, turn in zip(medians, turns, strict=True) if turn.edits]
    return {
        "repeats": len(runs[0]) if runs else 0,
        "per_turn": [round(m, 3) for m in medians],
        "per_turn_range": [[round(min(r), 3), round(max(r), 3)] for r in runs],
        "p50": median(medians),
        "max": max(medians),
        "p50_edited": median(edited) if edited else None,
        "slower": [t + 1 for t, r in enumerate(runs) if len(r) >= _ENOUGH and min(r) > 1],
    }


def document(
    trace: str, policy: str, server: dict[str, Any], arms: dict[Arm, Sequence[Turn]]
) -> dict[str, Any]:
    """The JSON document of a replay."""
    result: dict[str, Any] = {"trace": trace, "policy": policy, "server": server, "arms": {}}
    for arm, turns in arms.items():
        result["arms"][arm.value] = {
            "turns": [t.to_dict() for t in turns],
            "summary": summary(turns),
        }
    base = arms.get(Arm.REPREFILL)
    if base is not None:
        result["ttft_ratio_to_reprefill"] = {
            arm.value: ratios(turns, base)
            for arm, turns in arms.items()
            if arm in (Arm.AMORTIZE, Arm.FORGET)
        }
        if Arm.FORGET in arms:
            result["forget_equals_reprefill"] = all(
                a.output == b.output for a, b in zip(arms[Arm.FORGET], base, strict=True)
            )
    return result
