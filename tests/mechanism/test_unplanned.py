"""Without a plan, the server is stock SGLang: same tokens, same hits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from leyline_agent.launch import ServerProcess
from leyline_agent.verify.client import Client, tokens

pytestmark = pytest.mark.server

POOL = ["--max-total-tokens", "2500"]


def requests() -> list[tuple[list[int], dict[str, str]]]:
    """Chained, branching, salted and evicting requests: ids and further fields."""
    shared = tokens(400, "shared")
    made: list[tuple[list[int], dict[str, str]]] = []
    for number in range(6):
        made.append((shared + tokens(150, ("branch", number)), {}))
    chain = shared[:200]
    for number in range(6):
        chain = chain + tokens(90, ("chain", number))
        made.append((chain, {}))
    made += [(chain, {"cache_salt": "other"}), (chain, {"extra_key": "other"})]
    made += [(tokens(900, ("filler", n)), {}) for n in range(4)]
    return made + made[:8]


def run(client: Client) -> list[tuple[tuple[int, ...], int]]:
    """Output tokens and cached tokens of every request, in order."""
    answers = [client.generate(ids, new=6, **more) for ids, more in requests()]
    return [(answer.output, answer.cached) for answer in answers]


def test_tokens_and_hits_equal_stock(
    serve: Callable[..., ServerProcess], connect: Callable[[ServerProcess], Client]
) -> None:
    ours = run(connect(serve(extra_args=POOL)))
    stock_client = connect(serve(extra_args=POOL, stock=True))
    assert stock_client.http.get("/leyline/v1/info").status_code == 404
    stock = run(stock_client)
    assert ours == stock
    hits = [cached for _, cached in ours]
    assert min(hits) == 0
    assert max(hits) > 400
