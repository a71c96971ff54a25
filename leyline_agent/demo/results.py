"""The demo's figures: a row for each turn, the sum, the plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """One turn with splicing, and the same prompt without.

    Counts in tokens, times in milliseconds. cached: not computed in this turn. bound: what
    a perfect cache would not compute. *_off: the same prompt sent plainly, stock radix.
    """

    turn: int
    prompt_tokens: int
    cached_tokens: int
    spliced_tokens: int
    prefilled_tokens: int
    replacement_tokens: int
    new_tokens: int
    bound: int
    edits: int
    fallback: str | None
    ttft_ms: float
    cached_tokens_off: int | None = None
    ttft_ms_off: float | None = None


def summary(rows: Sequence[Row], model: str, sglang: str) -> dict[str, Any]:
    """Sums and medians; reuse as a share of the bound, with splicing and without."""
    bound = sum(r.bound for r in rows)
    edited = [r for r in rows if r.edits and r.ttft_ms_off]
    return {
        "model": model,
        "sglang": sglang,
        "turns": len(rows),
        "edited_turns": sum(1 for r in rows if r.edits),
        "fallbacks": sum(1 for r in rows if r.fallback),
        "reuse_of_bound": sum(min(r.cached_tokens, r.bound) for r in rows) / bound,
        "radix_reuse": sum(min(r.cached_tokens_off or 0, r.bound) for r in rows) / bound,
        "prefilled_tokens": sum(r.prefilled_tokens for r in rows),
        "prefilled_tokens_off": sum(r.prompt_tokens - (r.cached_tokens_off or 0) for r in rows),
        "ttft_ms_p50": median(r.ttft_ms for r in rows),
        "ttft_ms_p50_off": median(r.ttft_ms_off or 0.0 for r in rows),
        "ttft_ratio_p50_edited": median(r.ttft_ms / r.ttft_ms_off for r in edited if r.ttft_ms_off)
        if edited
        else None,
    }


def document(rows: Sequence[Row], total: dict[str, Any]) -> dict[str, Any]:
    """What goes into out/demo.json."""
    return {"turns": [asdict(r) for r in rows], "summary": total}


def plot(rows: Sequence[Row], total: dict[str, Any], path: Path) -> None:
    """Tokens computed and time to first token, turn by turn, with splicing and without."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    turns = [r.turn for r in rows]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    off = [r.prompt_tokens - (r.cached_tokens_off or 0) for r in rows]
    left.plot(turns, [r.prompt_tokens for r in rows], color="0.6", ls=":", label="prompt")
    left.plot(turns, off, color="tab:orange", marker="o", ms=4, label="computed, stock radix")
    left.plot(
        turns, [r.prefilled_tokens for r in rows], color="tab:blue", marker="o", ms=4,
        label="computed, Leyline",
    )  # fmt: skip
    left.set(title="Tokens computed in a turn", xlabel="turn", ylabel="tokens", ylim=(0, None))
    right.plot(
        turns, [r.ttft_ms_off or 0 for r in rows], color="tab:orange", marker="o", ms=4,
        label="stock radix",
    )  # fmt: skip
    right.plot(
        turns, [r.ttft_ms for r in rows], color="tab:blue", marker="o", ms=4, label="Leyline"
    )
    right.set(title="Time to first token", xlabel="turn", ylabel="milliseconds", ylim=(0, None))
    for axis in (left, right):
        axis.legend(frameon=False)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        f"{total['model']} on SGLang {total['sglang']}: {total['reuse_of_bound']:.1%} of the "
        f"reusable tokens reused, stock {total['radix_reuse']:.1%}",
        fontsize=11,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
