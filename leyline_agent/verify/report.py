"""What the scenarios of one server add up to, and whether it holds."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from leyline_agent.verify.client import Gap
from leyline_agent.verify.scenarios import Agreement, Step

KV_LIMIT = 0.51
"""Spacings of the storage type: one rounding is half of one."""


def summary(
    dtype: str,
    kv_error: float | None,
    steps: Sequence[Step] | None,
    untouched: Sequence[bool],
    forgotten: Sequence[bool],
    leaked: int,
    agreement: Sequence[Agreement],
) -> dict[str, Any]:
    """Figures of one server, with `failures`: sentences, none when all holds.

    Returns:
        kv_error: spacings. logprob_error: nats, of the 50 likeliest tokens, None without a
        reference. noise: the same of requests without an edit. lead_noise: the most that
        the reference's best token lost of its lead, in requests without an edit.
        first_token_agreement: share of edited cases, of those whose margin is beyond
        lead_noise, that begin with the reference's likeliest token. honest_untouched,
        forget_equal: shares. leaked_slots: at the end. amortize_follows: figures, not checks.
    """
    edited = [s for s in steps or () if s.edited]
    plain = [s for s in steps or () if not s.edited]
    noise = max((s.gap.likely for s in plain), default=0.0)
    error = max((s.gap.likely for s in edited), default=None)
    everywhere = max((s.gap.all for s in edited), default=0.0)
    lead = max((s.gap.lead for s in plain), default=0.0)
    clear = [s for s in edited if s.margin > lead]
    failures = []
    if kv_error is None or not kv_error <= KV_LIMIT:
        failures.append(f"moved keys are off by {kv_error} spacings, more than one rounding")
    if dtype == "float32" and error is not None:
        if error > Gap.LIKELY or everywhere > Gap.ALL:
            worst = max(edited, key=lambda s: s.gap.likely)
            failures.append(
                f"log-probabilities differ from the reference by {worst.gap} ({worst.case})"
            )
        if noise > Gap.LIKELY:
            failures.append(f"requests without an edit differ from the reference by {noise:.1e}")
    # In 16 bits a model may be so noisy without any edit that nothing can be told: noise says so.
    if dtype == "float32" and steps is not None and not clear:
        failures.append("no case has a margin beyond the noise: nothing could be compared")
    wrong = [s.case for s in clear if not s.same]
    if wrong:
        failures.append(f"another first token than the reference: {', '.join(wrong)}")
    if not all(untouched):
        failures.append(f"{untouched.count(False)} honest requests were not served honestly")
    if not all(forgotten):
        failures.append(f"{forgotten.count(False)} FORGET answers are not an honest prefill's")
    if leaked:
        failures.append(f"{leaked} slots leaked")
    return {
        "kv_error": kv_error,
        "logprob_error": error,
        "noise": noise if steps is not None else None,
        "lead_noise": lead if steps is not None else None,
        "first_token_agreement": _share([s.same for s in clear]),
        "cases": {"edited": len(edited), "beyond_noise": len(clear)},
        "honest_untouched": _share(untouched),
        "forget_equal": _share(forgotten),
        "leaked_slots": leaked,
        "amortize_follows": {name: _follows(agreement, name) for name in ("single", "multiple")},
        "failures": failures,
    }


def _share(held: Sequence[bool]) -> float | None:
    return sum(held) / len(held) if held else None


def _follows(agreement: Sequence[Agreement], edits: str) -> dict[str, Any]:
    """Shares for all prompts of one kind, and for each half by margin."""
    mine = [a for a in agreement if a.edits == edits]
    if not mine:
        return {}
    middle = median(a.margin for a in mine)
    return {
        "prompts": len(mine),
        "median_margin": middle,
        **_three(mine),
        "small_margin": _three([a for a in mine if a.margin <= middle]),
        "large_margin": _three([a for a in mine if a.margin > middle]),
    }


def _three(some: Sequence[Agreement]) -> dict[str, float | None]:
    return {
        "full": _share([a.full for a in some]),
        "honest": _share([a.honest for a in some]),
        "full_is_honest": _share([a.full_is_honest for a in some]),
    }
