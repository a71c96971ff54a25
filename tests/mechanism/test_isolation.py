"""Amortized KV is found by nobody who did not ask for its lineage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leyline_agent.core import Fallback
from mechanism.client import Answer, Client, directives, plan_text, tokens

pytestmark = pytest.mark.server

EDITS = directives([(90, 150, 12)])
WANTED, TRIES = 200, 800
OUT = Path(__file__).resolve().parents[2] / "out" / "first_token_agreement.json"


def gap(a: Answer, b: Answer) -> float:
    """Largest difference between two answers' log-probabilities."""
    return max(abs(value - b.logprobs[token]) for token, value in a.logprobs.items())


@pytest.fixture
def client(serve, connect) -> Client:
    return connect(serve())


@pytest.mark.parametrize("honest_first", [True, False])
def test_an_honest_request_is_served_honestly(client: Client, honest_first: bool) -> None:
    base = client.generate(tokens(300, f"isolation {honest_first}"))
    new = tokens(25, "new")
    edited_ids = [*base.ids[:90], *EDITS[0].replacement, *base.ids[150:], *new]
    before = client.generate(edited_ids, probs=True) if honest_first else None
    edited = client.edit(base, EDITS, new, probs=True)
    assert edited.receipt.applied
    after = client.generate(edited_ids, probs=True)
    fresh = client.generate(edited_ids, probs=True, extra_key=f"fresh {honest_first}")
    assert fresh.cached == 0
    for honest in filter(None, (before, after)):
        assert honest.receipt is None
        assert gap(honest, fresh) < 1e-4
        assert honest.output == fresh.output
    assert gap(edited, fresh) > 1e-2
    if honest_first:
        assert before.cached == 90
        assert after.cached == len(edited_ids) - 1, "its own entry, from before"
    else:
        assert after.cached == 90 + len(EDITS[0].replacement), "the honest prefix and no more"
    again = client.edit(base, EDITS, new, probs=True)
    assert again.output == edited.output
    assert gap(again, edited) < 1e-4
    assert again.receipt.spliced == 0, "it was still in place"


@pytest.mark.parametrize("space", [{"extra_key": "tenant"}, {"cache_salt": "pepper"}])
def test_a_base_of_another_namespace_is_unknown(client: Client, space: dict[str, str]) -> None:
    base = client.generate(tokens(300, f"namespace {space}"))
    mine = client.edit(base, EDITS, tokens(25, "new"), probs=True)
    assert mine.receipt.applied
    theirs = client.edit(base, EDITS, tokens(25, "new"), probs=True, **space)
    assert theirs.receipt.fallback is Fallback.UNKNOWN_BASE
    assert theirs.cached == 0
    honest = client.generate(theirs.prompt, probs=True)
    assert gap(theirs, honest) < 1e-4
    assert gap(theirs, mine) > 1e-2


@pytest.mark.parametrize("space", [{"extra_key": "tenant"}, {"cache_salt": "pepper"}])
def test_a_namespace_edits_its_own(client: Client, space: dict[str, str]) -> None:
    base = client.generate(tokens(300, f"own {space}"), **space)
    mine = client.edit(base, EDITS, tokens(25, "new"), **space)
    assert mine.receipt.applied
    assert mine.receipt.spliced == len(base.ids) - 1 - 150
    assert client.edit(base, EDITS, tokens(25, "new")).receipt.fallback is Fallback.UNKNOWN_BASE


def test_marks_cannot_be_spelled_by_a_prompt(client: Client) -> None:
    base = client.generate(tokens(300, "spelled"))
    edited = client.edit(base, EDITS, tokens(25, "new"))
    ids = list(edited.prompt)
    ids[102] = int(edited.receipt.mark, 16)
    done = client.http.post("/generate", json={"input_ids": ids, "sampling_params": {}})
    assert done.status_code == 400
    client.assert_nothing_leaked()


@pytest.mark.slow
def test_whom_the_first_token_follows(client: Client) -> None:
    """A figure to report, not to pass."""
    counts = {"full": 0, "honest": 0, "neither": 0}
    found = tries = 0
    while found < WANTED and tries < TRIES:
        tries += 1
        base = client.generate(tokens(200, f"agreement {tries}"), new=1)
        changes, new = directives([(40, 120, 8)]), tokens(12, f"new {tries}")
        full = client.generate([*base.ids, *new], new=1)
        honest_ids = [*base.ids[:40], *changes[0].replacement, *base.ids[120:], *new]
        honest = client.generate(honest_ids, new=1)
        if full.output == honest.output:
            continue
        found += 1
        amortized = client.generate(honest_ids, plan_text(base, changes), new=1)
        assert amortized.receipt.applied
        who = {full.output: "full", honest.output: "honest"}.get(amortized.output, "neither")
        counts[who] += 1
    figure = {"prompts": found, "tried": tries, "follows": counts, "model": "tiny"}
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(figure, indent=1) + "\n")
    print(figure)
    assert found == WANTED, f"{found} such prompts in {tries} tries"
