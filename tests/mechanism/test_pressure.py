"""Eight conversations at once in a pool half as large again as they need."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from leyline_agent.core import Directive, Fallback, Receipt
from leyline_agent.launch import ServerProcess
from leyline_agent.verify.client import Client, tokens

pytestmark = pytest.mark.server

CONVERSATIONS, TURNS = 8, 15
START, REMOVED, STUB, NEW, OUTPUT = 300, 60, 6, 80, 4
END = START + TURNS * (STUB - REMOVED + NEW + OUTPUT) + OUTPUT
POOL = CONVERSATIONS * END * 3 // 2


def converse(client: Client, number: int) -> list[tuple[Receipt, int]]:
    """One conversation: an edit and some new tokens in every turn; receipts and bounds."""
    answer = client.generate(tokens(START, ("start", number)), new=OUTPUT)
    told = []
    for turn in range(TURNS):
        start = 20 + turn * 20
        stub = tuple(tokens(STUB, ("stub", number, turn)))
        extra = tokens(NEW, ("new", number, turn))
        change = Directive(start, start + REMOVED, stub)
        answer = client.edit(answer, [change], extra, new=OUTPUT)
        assert answer.receipt is not None
        told.append((answer.receipt, len(answer.prompt) - NEW - STUB))
    return told


def test_every_edit_finds_room(
    serve: Callable[..., ServerProcess], connect: Callable[[ServerProcess], Client]
) -> None:
    args: list[Any] = ["--max-total-tokens", str(POOL)]
    client = connect(serve(extra_args=args))
    pid = client.rank()["pid"]
    with ThreadPoolExecutor(CONVERSATIONS) as pool:
        told = [t for c in pool.map(lambda n: converse(client, n), range(CONVERSATIONS)) for t in c]
    refused = [(r.fallback, r.detail) for r, _ in told if not r.applied]
    assert refused == []
    bound = sum(b for _, b in told)
    reuse = sum(min(r.reused + r.spliced, b) for r, b in told) / bound
    print(f"{len(told)} edits, {reuse:.2%} of {bound} reusable tokens reused in a pool of {POOL}")
    assert reuse >= 0.99
    assert client.leaked_slots() == 0
    assert client.rank()["pid"] == pid, "the scheduler was restarted"


@pytest.mark.parametrize("touched", [300, 0])
def test_a_donor_that_is_partly_gone_is_told(
    serve: Callable[..., ServerProcess], connect: Callable[[ServerProcess], Client], touched: int
) -> None:
    """What lives is moved and the rest prefilled, with a word; nothing left is a fallback."""
    client = connect(serve(extra_args=["--max-total-tokens", str(POOL)]))
    base = client.generate(tokens(500, ("donor", touched)))
    for number in range(2 * POOL // 1000):
        if touched:
            client.generate([*base.prompt[:touched], *tokens(20, ("branch", number))])
        client.generate(tokens(1000, ("filler", touched, number)))
    changes = [Directive(90, 150, tuple(tokens(12, "stub")))]
    found = client.edit(base, changes, tokens(10, "new")).receipt
    assert found is not None
    assert found.reused + found.spliced + found.replaced + found.prefilled == found.prompt_tokens
    if touched:
        assert (found.applied, found.spliced) == (True, touched - 150)
        assert found.detail == (
            f"{503 - touched} tokens of the segment at 102 are not cached any more: they are "
            "prefilled instead of moved"
        )
    else:
        assert (found.applied, found.fallback) == (False, Fallback.DONOR_EVICTED)
        assert (found.reused, found.replaced) == (0, 102), "by the stage ahead of it"
    assert client.leaked_slots() == 0
