"""After an edit the next-token distribution is the reference's, to 1e-4 in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leyline_agent.core import Directive
from leyline_agent.launch import ServerProcess
from mechanism.client import Answer, Client, Gap, as_wire, directives, tokens

pytestmark = pytest.mark.server

MODELS = ("tiny", "tiny-qwen3")
SHORTER, LONGER, EMPTY = (90, 150, 12), (90, 110, 45), (90, 150, 0)
ALONE = {
    "shorter": [SHORTER],
    "longer": [LONGER],
    "empty": [EMPTY],
    "insertion": [(120, 120, 9)],
    "from token 0": [(0, 40, 7)],
    "token 0 dropped": [(0, 40, 0)],
    "end of the base": [(250, 304, 0)],
    "end replaced": [(250, 304, 20)],
    "three": [(40, 90, 10), (120, 125, 33), (160, 220, 0)],
    "three, insertion first": [(30, 30, 8), (31, 60, 0), (200, 230, 31)],
}
CHAINS = {
    "later": [[(60, 100, 5)], [(150, 180, 12)]],
    "earlier": [[(150, 180, 5)], [(60, 100, 40)]],
    "mark removed": [[(100, 140, 5)], [(95, 125, 8)]],
    "mark first of the kept": [[(100, 140, 0)], [(80, 100, 3)]],
    "three in a row": [[(60, 100, 5)], [(120, 150, 0)], [(40, 41, 30)]],
    "of three, then two": [
        [(40, 90, 10), (120, 125, 33), (160, 220, 0)],
        [(50, 70, 0), (99, 120, 5)],
    ],
}
MODES = {
    "forget": ([(90, 150, 12)], ["forget"]),
    "forget, nothing put in": ([(90, 150, 0)], ["forget"]),
    "amortize, forget": ([(60, 90, 10), (150, 180, 5)], ["amortize", "forget"]),
    "forget, amortize": ([(60, 90, 10), (150, 180, 5)], ["forget", "amortize"]),
}


class Twin:
    """One conversation on the server and the same steps for the reference."""

    def __init__(
        self, client: Client, reference: Callable[..., list[list[float]]], prompt: list[int]
    ) -> None:
        self.client, self.reference = client, reference
        self.last: Answer = client.generate(prompt, probs=True)
        self.steps: list[dict[str, Any]] = [{"new": prompt, "outputs": list(self.last.output)}]
        self.answers = [self.last]

    def edit(self, changes: list[Directive], new: list[int]) -> Answer:
        """An edited turn on both sides."""
        self.last = self.client.edit(self.last, changes, new, probs=True)
        receipt = self.last.receipt
        assert receipt is not None
        assert receipt.fallback is None, receipt
        assert receipt.applied
        self.steps.append(
            {"directives": as_wire(changes), "new": new, "outputs": list(self.last.output)}
        )
        self.answers.append(self.last)
        return self.last

    def gaps(self) -> list[Gap]:
        """Server against reference, step by step."""
        rows = self.reference(self.steps)
        return [Gap.of(a, row) for a, row in zip(self.answers, rows, strict=True)]


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


@pytest.fixture
def twin(
    client: Client, reference: Callable[[str], Any], model: str, request: pytest.FixtureRequest
) -> Twin:
    return Twin(client, reference(model), tokens(300, request.node.name))


@pytest.mark.parametrize("name", ALONE)
def test_one_plan(twin: Twin, name: str) -> None:
    twin.edit(directives(ALONE[name]), tokens(25, "new"))
    close(f"amortize {name}", *twin.gaps())


@pytest.mark.parametrize("name", CHAINS)
def test_chained_plans(twin: Twin, name: str) -> None:
    for turn, edits in enumerate(CHAINS[name]):
        twin.edit(directives(edits), tokens(20, turn))
    close(f"chain {name}", *twin.gaps())


@pytest.mark.parametrize("name", MODES)
def test_modes(twin: Twin, name: str) -> None:
    answer = twin.edit(directives(*MODES[name]), tokens(25, "new"))
    close(name, *twin.gaps())
    if MODES[name][1][0] == "forget":
        honest = twin.reference([{"new": list(answer.prompt)}])[0]
        close(f"{name}, honest pre-fill", Gap.of(answer, honest))


def test_forget_what_was_amortized(twin: Twin) -> None:
    first = directives([(100, 140, 6)])
    twin.edit(first, tokens(20, "first"))
    answer = twin.edit(directives([(95, 110, 4)], "forget"), tokens(20, "second"))
    close("forget after amortize", *twin.gaps())
    close("and honest pre-fill", Gap.of(answer, twin.reference([{"new": list(answer.prompt)}])[0]))


def test_full_context_and_honest_prefill(twin: Twin) -> None:
    base, new = twin.last, tokens(25, "new")
    full = twin.client.generate([*base.ids, *new], probs=True)
    assert full.cached == len(base.ids) - 1
    close("full context", Gap.of(full, twin.reference([{"new": [*base.ids, *new]}])[0]))
    edited = twin.client.edit(base, directives([SHORTER]), new, probs=True)
    honest = twin.client.generate(edited.prompt, probs=True)
    row = twin.reference([{"new": list(honest.prompt)}])[0]
    close("honest pre-fill", Gap.of(honest, row))
    assert Gap.of(edited, row).likely > 100 * Gap.LIKELY, "amortized is not honest pre-fill"
