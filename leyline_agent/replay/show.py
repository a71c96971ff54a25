"""A replay for people: a table an arm, then the sums. Fits 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console

from leyline_agent.replay.report import Arm, Turn
from leyline_agent.terminal import narrow

SPLICED = "cached: not computed in this turn; spliced: of these, moved to a new position"
LEGEND = f"{SPLICED}\nreuse: cached ÷ bound; bound: what a perfect cache need not compute"
UNCHANGED = (
    "the policy changed nothing that had been sent: there was nothing to splice, and every arm "
    "is as good as append"
)


def show_fallbacks(console: Console, fallbacks: Iterable[tuple[int, str | None]]) -> None:
    """A line for each turn (from 1) whose plan was not applied."""
    for turn, why in fallbacks:
        if why:
            console.print(f"turn {turn}: fallback {why}", highlight=False)


def show_arm(console: Console, arm: Arm, turns: Sequence[Turn]) -> None:
    """Every turn of one arm."""
    names = ("turn", "prompt", "cached", "spliced", "prefilled", "edits", "reuse", "TTFT ms")
    table = narrow(names)
    for t in turns:
        counts = (t.index + 1, t.prompt_tokens, t.cached_tokens, t.spliced_tokens)
        table.add_row(
            *map(str, (*counts, t.prefilled_tokens, t.edits)),
            f"{t.reuse_of_bound:.1%}",
            f"{t.ttft_ms:.0f}",
        )
    console.print(f"\n[bold]{arm.value}[/bold]")
    console.print(table)
    show_fallbacks(console, ((t.index + 1, t.fallback) for t in turns))


def show_sums(
    console: Console, results: Mapping[Arm, Sequence[Turn]], result: Mapping[str, Any]
) -> None:
    """The legend, a line an arm, and what the arms say about each other."""

    def say(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True)

    say(f"\n{LEGEND}\n")
    for name, of_arm in result["arms"].items():
        s = of_arm["summary"]
        fallbacks = ", ".join(f"{why} {n}" for why, n in s["fallbacks"].items()) or "none"
        say(
            f"{name:9} reuse {s['reuse_of_bound']:.1%}, hits {s['hit_rate']:.1%}, "
            f"TTFT p50 {s['ttft_ms_p50']:.0f} ms, fallbacks {fallbacks}"
        )
    for name, ratio in result.get("ttft_ratio_to_reprefill", {}).items():
        edited, slow = ratio["p50_edited"], ", ".join(f"turn {t}" for t in ratio["slower"])
        say(
            f"{name} ÷ reprefill, TTFT turn by turn: p50 {ratio['p50']:.2f}, max {ratio['max']:.2f}"
            + (f", edited turns p50 {edited:.2f}" if edited else "")
            + (f"; slower in all {ratio['repeats']} repeats: {slow}" if slow else "")
        )
    if "forget_equals_reprefill" in result:
        same = "the same tokens" if result["forget_equals_reprefill"] else "OTHER tokens"
        say(f"forget generates {same} as reprefill")
    of_policy = [turns for arm, turns in results.items() if arm is not Arm.APPEND]
    if of_policy and not any(t.edits for turns in of_policy for t in turns):
        console.print(f"[yellow]note:[/yellow] {UNCHANGED}", highlight=False, soft_wrap=True)
