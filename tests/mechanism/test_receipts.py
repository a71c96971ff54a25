"""What a receipt says happened: retraction, aborts, prompts whose log-probabilities are asked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from leyline_agent.core import EditPlan, Fallback, WirePlan, digest
from leyline_agent.launch import ServerProcess
from leyline_agent.verify.client import (
    Answer,
    Client,
    Gap,
    answer_of,
    directives,
    plan_text,
    tokens,
)

pytestmark = pytest.mark.server

EDITS = directives([(60, 90, 4)])
ARGS = ["--max-total-tokens", "4096", "--page-size", "16", "--chunked-prefill-size", "64"]

Connect = Callable[[ServerProcess], Client]


@pytest.fixture
def client(serve: Callable[..., ServerProcess], connect: Connect) -> Client:
    return connect(serve(extra_args=ARGS))


def planned(base: Answer, extra: list[int], new: int, **more: Any) -> dict[str, Any]:
    """The body of a planned request."""
    ids = [*EditPlan.of(base.ids, EDITS).apply(base.ids), *extra]
    params = {"max_new_tokens": new, "temperature": 0, "ignore_eos": True}
    custom = {"custom_params": {"leyline": plan_text(base, EDITS)}}
    return {"input_ids": ids, "sampling_params": params | custom, **more}


@contextmanager
def pressure(client: Client) -> Iterator[None]:
    """Long prompts that evict what is not locked, one a second."""
    stop = threading.Event()

    def press() -> None:
        with Client(client.url) as other:
            for number in range(60):
                if stop.wait(1):
                    return
                other.generate(tokens(3300, f"pressure {number}"), new=1)

    thread = threading.Thread(target=press)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.slow
def test_a_plan_lost_by_retraction_is_told(
    serve: Callable[..., ServerProcess], connect: Connect
) -> None:
    client = connect(serve(extra_args=ARGS, env={"SGLANG_TEST_RETRACT": "1"}))
    bases = [client.generate(tokens(300, f"retracted {n}"), new=2) for n in range(6)]

    def ask(number: int) -> tuple[Answer, int]:
        body = planned(bases[number], tokens(10, number), 50)
        data = client.http.post("/generate", json=body).json()
        return answer_of(body["input_ids"], data), data["meta_info"]["num_retractions"]

    with pressure(client), ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(ask, range(6)))
    assert sum(retractions for _, retractions in answers) > 0
    for answer, _ in answers:
        same = WirePlan(answer.id, EditPlan.of(answer.ids, []), digest(answer.ids)).dumps()
        entry = client.generate([*answer.ids, 500], same, new=1).receipt
        told = answer.receipt
        assert told is not None
        assert entry is not None
        assert told.applied == bool(entry.mark), (told, entry)
        assert client.receipt(answer.id) == told
        if not told.applied:
            assert told.spliced == 0
            assert "retracted" in told.detail
    assert client.leaked_slots() == 0


def test_a_donor_cut_short_is_told(client: Client) -> None:
    client.http.post("/flush_cache")
    new = tokens(12, "new")
    base = client.generate(tokens(300, "short"), new=4)
    for put, left in enumerate((0, 100, 144, 200), 3):
        changes = directives([(60, 80, put)])
        client.edit(base, directives([(100, 120, 3)]), new, new=1)
        free = client.rank()["available_tokens"]
        client.generate(tokens(free + left, f"press {left}"), new=1)
        answer = client.edit(base, changes, new, new=1, probs=200)
        told = answer.receipt
        assert told is not None
        if told.applied:
            whole = (len(base.ids) - 1) // 16 * 16 - 80
            assert told.spliced > 0, told
            assert told.spliced >= whole - 16 or "prefilled instead of moved" in told.detail, told
        else:
            assert told.fallback is Fallback.DONOR_EVICTED
            honest = client.generate(answer.prompt, new=1, probs=200, extra_key=f"{left}")
            assert Gap.of(answer, honest.logprobs).closed
        client.generate(base.prompt, new=4)
    assert client.leaked_slots() == 0


def test_an_abort_reaches_the_stages(client: Client) -> None:
    base = client.generate(tokens(900, "abort"))
    changes = directives([(90, 150, 700), (800, 810, 5)])
    ids = [*EditPlan.of(base.ids, changes).apply(base.ids), *tokens(20, "new")]
    params = {"max_new_tokens": 400, "temperature": 0, "ignore_eos": True}
    params["custom_params"] = {"leyline": plan_text(base, changes)}
    body = {"input_ids": ids, "sampling_params": params, "rid": "victim"}
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client.http.post, "/generate", json=body)
        time.sleep(0.2)
        assert client.http.post("/abort_request", json={"rid": "victim"}).status_code == 200
        done = asked.result().json()
    assert done["meta_info"]["finish_reason"]["type"] == "abort"
    assert len(done["output_ids"]) < 400
    assert client.leaked_slots() == 0


def test_log_probabilities_of_the_prompt_are_honest(client: Client) -> None:
    base = client.generate(tokens(300, "logprobs"))
    body = planned(base, tokens(20, "new"), 2)
    body |= {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 50}
    answer = answer_of(body["input_ids"], client.http.post("/generate", json=body).json())
    assert answer.receipt is not None
    assert answer.receipt.fallback is Fallback.NOT_WORTH_IT
    honest = client.generate(answer.prompt, new=2, probs=200, extra_key="honest")
    assert Gap.of(answer, honest.logprobs).closed


def test_plain_requests_beside_planned_ones_show_nothing(client: Client) -> None:
    base = client.generate(tokens(300, "beside"))

    def plain(number: int) -> dict[str, Any]:
        params = {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True}
        body = {"input_ids": tokens(60, f"plain {number}"), "sampling_params": params}
        meta: dict[str, Any] = client.http.post("/generate", json=body).json()["meta_info"]
        return meta

    with ThreadPoolExecutor(8) as pool:
        edited = [
            pool.submit(client.http.post, "/generate", json=planned(base, [n], 30))
            for n in range(500, 504)
        ]
        metas = list(pool.map(plain, range(8)))
    assert all(asked.result().json()["meta_info"]["leyline"]["applied"] for asked in edited)
    assert all("leyline" not in meta for meta in metas)
