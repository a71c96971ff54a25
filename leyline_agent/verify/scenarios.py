"""What is checked on one server, and what is only counted.

checked   reference   every case of `cases`, turn by turn, against the edited float64 cache
          isolation   honest requests with an amortized prompt's tokens
          forget      forgotten against honest prefill, of the same shape
          leaks       slots neither free nor evictable at the end
counted   agreement   whose first token AMORTIZE follows: the full context's, or an honest
                      prefill's; by the honest margin

Comparisons between two answers of the server give both sides the same prefix lengths, so
that both run the same matrix products: what differs then is what is cached, not rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from leyline_agent.core import EditPlan
from leyline_agent.verify.cases import BASE, CASES, Edit
from leyline_agent.verify.client import Answer, Client, Gap, directives, tokens
from leyline_agent.verify.twin import Run, Twin

SINGLE: Sequence[Edit] = [(60, 84, 4)]
MULTIPLE: Sequence[Edit] = [(30, 50, 4), (60, 84, 4), (110, 150, 12)]
SAME = 1e-4
"""Nats between two answers that ran the same products."""

FEW = 200
"""Log-probabilities to tell where two answers of the server are compared."""

Seen = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Step:
    """One answer against the reference.

    margin: the reference's likeliest token over its second, nats. same: the server's first
    token is the likeliest. edited: a plan was applied.
    """

    case: str
    edited: bool
    gap: Gap
    margin: float
    same: bool

    @classmethod
    def of(cls, case: str, edited: bool, answer: Answer, row: Sequence[float]) -> Step:
        """An answer and the reference's log-probabilities [vocabulary]."""
        best, second = sorted(row, reverse=True)[:2]
        same = row[answer.output[0]] == best
        return cls(case, edited, Gap.of(answer, row), best - second, same)


def against_reference(
    client: Client, reference: Run, space: dict[str, Any], seen: Seen
) -> list[Step]:
    """Every turn of every case; server and reference work side by side.

    Args:
        space: goes into every request; a namespace, and how many log-probabilities to tell.
    """
    waiting: list[tuple[str, list[Answer], Future[list[list[float]]]]] = []
    with ThreadPoolExecutor(1) as beside:
        for name, plans in CASES.items():
            seen(f"reference: {name}")
            twin = Twin.of(client, name, plans, **space)
            waiting.append((name, twin.answers, beside.submit(reference, twin.steps)))
            if len(plans) == 1:
                new = tokens(20, f"{name} full")
                full = client.generate([*twin.answers[0].ids, *new], **space)
                steps = [{"new": list(full.prompt)}]
                waiting.append((f"{name}: full", [full], beside.submit(reference, steps)))
        return [
            Step.of(name, turn > 0, answer, row)
            for name, answers, rows in waiting
            for turn, (answer, row) in enumerate(zip(answers, rows.result(), strict=True))
        ]


def untouched(client: Client, space: dict[str, str], seen: Seen) -> list[bool]:
    """Honest requests with the tokens of amortized ones, in the same namespace.

    Each is compared with the same request in a namespace where nothing was amortized.
    """
    found = []
    for name, edits in (("single", SINGLE), ("multiple", MULTIPLE)):
        for number in range(4):
            seen(f"isolation: {name} {number + 1}")
            prompt, new = tokens(BASE, f"honest {name} {number}"), tokens(20, number)
            changes = directives(edits)
            base = client.generate(prompt, **space)
            ids = [*EditPlan.of(base.ids, changes).apply(base.ids), *new]
            clean = {"cache_salt": f"{space['cache_salt']}, clean {number}"}
            client.generate(prompt, **clean)
            before = number % 2 == 0
            if before:  # its own entry exists already
                client.generate(ids, **space)
                client.generate(ids, **clean)
            amortized = client.edit(base, changes, new, probs=FEW, **space)
            honest = client.generate(ids, probs=FEW, **space)
            if not before:  # the stage of the replacement was prefilled honestly
                client.generate(ids[: honest.cached], new=1, **clean)
            wanted = client.generate(ids, probs=FEW, **clean)
            applied = amortized.receipt is not None and amortized.receipt.applied
            found.append(applied and _same(honest, wanted))
    return found


def forgotten(client: Client, space: dict[str, str], seen: Seen) -> list[bool]:
    """FORGET against an honest prefill behind the same cached prefix; also of amortized spans."""
    found = []
    for number in range(4):
        seen(f"forget: {number + 1}")
        prompt, new = tokens(BASE, f"forget {number}"), tokens(20, number)
        first = directives([(100, 140, 6)])
        second = directives([(95, 110, 4)], "forget")
        base = client.generate(prompt, new=8, **space)
        if number % 2:
            base = client.edit(base, first, tokens(12, "between"), new=8, **space)
        answer = client.edit(base, second, new, new=8, probs=FEW, **space)
        clean = {"cache_salt": f"{space['cache_salt']}, clean forget {number}"}
        client.generate(prompt, new=8, **clean)  # where the prefix before the edit comes from
        wanted = client.generate(answer.prompt, new=8, probs=FEW, **clean)
        applied = answer.receipt is not None and answer.receipt.applied
        found.append(applied and _same(answer, wanted))
    return found


def _same(answer: Answer, wanted: Answer) -> bool:
    close = Gap.of(answer, wanted.logprobs).likely <= SAME
    return close and answer.output == wanted.output and answer.cached == wanted.cached


@dataclass(frozen=True, slots=True)
class Agreement:
    """One prompt: the first tokens of three ways to serve it.

    margin: nats between the honest prefill's likeliest two tokens.
    """

    edits: str
    margin: float
    full: bool
    honest: bool
    full_is_honest: bool


def agreement(client: Client, space: dict[str, str], prompts: int, seen: Seen) -> list[Agreement]:
    """`prompts` times one edit, and as often three at once."""
    found = []
    for name, edits in (("single", SINGLE), ("multiple", MULTIPLE)):
        changes = directives(edits)
        for number in range(prompts):
            seen(f"agreement, {name}: {number + 1} of {prompts}")
            base = client.generate(tokens(200, f"agree {name} {number}"), new=1, **space)
            new = tokens(12, f"agree new {number}")
            ids = [*EditPlan.of(base.ids, changes).apply(base.ids), *new]
            full = client.generate([*base.ids, *new], new=1, **space)
            honest = client.generate(ids, new=1, probs=2, **space)
            amortized = client.edit(base, changes, new, new=1, **space)
            best, second = sorted(honest.logprobs.values(), reverse=True)[:2]
            found.append(
                Agreement(
                    name,
                    best - second,
                    amortized.output == full.output,
                    amortized.output == honest.output,
                    full.output == honest.output,
                )
            )
    return found


def namespace(run: Any) -> dict[str, str]:
    """A namespace of its own, so that a second run finds nothing of the first."""
    return {"cache_salt": f"leyline verify {run}"}
