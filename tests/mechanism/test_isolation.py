"""Amortized KV is found by nobody who did not ask for its lineage."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from leyline_agent.core import EditPlan, Fallback
from leyline_agent.launch import ServerProcess
from leyline_agent.verify.client import Client, Gap, directives, tokens
from leyline_agent.verify.command import ALL

pytestmark = pytest.mark.server

EDITS = directives([(90, 150, 12)])
WANTED, TRIES = 200, 800
OUT = Path(__file__).resolve().parents[2] / "out" / "first_token_agreement.json"


@pytest.fixture
def client(
    serve: Callable[..., ServerProcess], connect: Callable[[ServerProcess], Client]
) -> Client:
    return connect(serve())


@pytest.mark.parametrize("honest_first", [True, False])
def test_an_honest_request_is_served_honestly(client: Client, honest_first: bool) -> None:
    base = client.generate(tokens(300, f"isolation {honest_first}"))
    new = tokens(25, "new")
    edited_ids = [*base.ids[:90], *EDITS[0].replacement, *base.ids[150:], *new]
    before = client.generate(edited_ids, probs=ALL) if honest_first else None
    edited = client.edit(base, EDITS, new, probs=ALL)
    assert edited.receipt.applied
    after = client.generate(edited_ids, probs=ALL)
    fresh = client.generate(edited_ids, probs=ALL, extra_key=f"fresh {honest_first}")
    assert fresh.cached == 0
    for honest in filter(None, (before, after)):
        assert honest.receipt is None
        assert Gap.of(honest, fresh.logprobs).closed
        assert honest.output == fresh.output
    assert Gap.of(edited, fresh.logprobs).likely > 1e-2
    if honest_first:
        assert before.cached == 90
        assert after.cached == len(edited_ids) - 1, "its own entry, from before"
    else:
        assert after.cached == 90 + len(EDITS[0].replacement), "the honest prefix and no more"
    again = client.edit(base, EDITS, new, probs=ALL)
    assert again.output == edited.output
    assert Gap.of(again, edited.logprobs).closed
    assert again.receipt.spliced == 0, "it was still in place"


@pytest.mark.parametrize("space", [{"extra_key": "tenant"}, {"cache_salt": "pepper"}])
def test_a_base_of_another_namespace_is_unknown(client: Client, space: dict[str, str]) -> None:
    base = client.generate(tokens(300, f"namespace {space}"))
    mine = client.edit(base, EDITS, tokens(25, "new"), probs=ALL)
    assert mine.receipt.applied
    theirs = client.edit(base, EDITS, tokens(25, "new"), probs=ALL, **space)
    assert theirs.receipt.fallback is Fallback.UNKNOWN_BASE
    stage = 90 + len(EDITS[0].replacement)
    assert (theirs.receipt.reused, theirs.receipt.replaced) == (0, stage), "by its own stage"
    assert theirs.cached == stage
    honest = client.generate(theirs.prompt, probs=ALL)
    assert Gap.of(theirs, honest.logprobs).closed
    assert Gap.of(theirs, mine.logprobs).likely > 1e-2


@pytest.mark.parametrize("space", [{"extra_key": "tenant"}, {"cache_salt": "pepper"}])
def test_a_namespace_edits_its_own(client: Client, space: dict[str, str]) -> None:
    base = client.generate(tokens(300, f"own {space}"), **space)
    mine = client.edit(base, EDITS, tokens(25, "new"), **space)
    assert mine.receipt.applied
    assert mine.receipt.spliced == len(base.ids) - 1 - 150
    assert client.edit(base, EDITS, tokens(25, "new")).receipt.fallback is Fallback.UNKNOWN_BASE


def follower(client: Client, number: int) -> str | None:
    """Whose first token an amortized prompt gets; None when the two others agree."""
    base = client.generate(tokens(200, f"agreement {number}"), new=1)
    changes, new = directives([(60, 84, 4)]), tokens(12, f"new {number}")
    full = client.generate([*base.ids, *new], new=1)
    honest = client.generate(EditPlan.of(base.ids, changes).apply(base.ids) + tuple(new), new=1)
    if full.output == honest.output:
        return None
    amortized = client.edit(base, changes, new, new=1)
    assert amortized.receipt is not None
    assert amortized.receipt.applied
    return {full.output: "full", honest.output: "honest"}.get(amortized.output, "neither")


@pytest.mark.slow
def test_whom_the_first_token_follows(client: Client) -> None:
    """A figure to report, not to pass."""
    follows: Counter[str] = Counter(full=0, honest=0, neither=0)
    tried = 0
    with ThreadPoolExecutor(8) as pool:
        while follows.total() < WANTED and tried < TRIES:
            batch = range(tried, tried + min(40, WANTED - follows.total()))
            follows.update(filter(None, pool.map(lambda n: follower(client, n), batch)))
            tried = batch.stop
    figure = {"model": "tiny", "prompts": follows.total(), "tried": tried, "follows": dict(follows)}
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(figure, indent=1) + "\n")
    print(figure)
    assert follows.total() == WANTED, f"{follows.total()} such prompts in {tried} tries"
