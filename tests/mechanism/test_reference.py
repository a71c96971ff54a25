"""After an edit the next-token distribution is the reference's, to 1e-4 in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leyline_agent.launch import ServerProcess
from leyline_agent.verify.cases import BASE, CASES, is_honest
from leyline_agent.verify.client import Client, Gap, directives, tokens
from leyline_agent.verify.command import ALL
from leyline_agent.verify.twin import Twin

pytestmark = pytest.mark.server

MODELS = ("tiny", pytest.param("tiny-qwen3", marks=pytest.mark.slow))


def close(what: str, *gaps: Gap) -> None:
    """Print the last gap; check them all."""
    print(f"{what}: {gaps[-1]}")
    assert all(gap.closed for gap in gaps), [str(gap) for gap in gaps]


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(
    serve: Callable[..., ServerProcess], connect: Callable[[ServerProcess], Client], model: str
) -> Client:
    return connect(serve(model=model))


@pytest.mark.parametrize("name", CASES)
def test_edits(client: Client, reference: Callable[[str], Any], model: str, name: str) -> None:
    twin = Twin.of(client, name, CASES[name], probs=ALL)
    close(name, *twin.gaps(reference(model)))
    if is_honest(CASES[name]):
        honest = reference(model)([{"new": list(twin.last.prompt)}])[0]
        close(f"{name}, honest pre-fill", Gap.of(twin.last, honest))


def test_full_context_and_honest_prefill(
    client: Client, reference: Callable[[str], Any], model: str
) -> None:
    base, new = client.generate(tokens(BASE, "full")), tokens(25, "new")
    full = client.generate([*base.ids, *new], probs=ALL)
    assert full.cached == len(base.ids) - 1
    close("full context", Gap.of(full, reference(model)([{"new": [*base.ids, *new]}])[0]))
    edited = client.edit(base, directives([(90, 150, 12)]), new, probs=ALL)
    honest = client.generate(edited.prompt, probs=ALL)
    row = reference(model)([{"new": list(honest.prompt)}])[0]
    close("honest pre-fill", Gap.of(honest, row))
    assert Gap.of(edited, row).likely > 100 * Gap.LIKELY, "amortized is not honest pre-fill"
