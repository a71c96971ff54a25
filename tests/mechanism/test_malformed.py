"""A bad plan costs its receipt, never the answer, and does not reach the scheduler's state."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest

from leyline_agent.core import Fallback, Receipt
from leyline_agent.launch import ServerProcess
from leyline_agent.verify.client import Client, directives, plan_text, tokens
from mechanism.malformed import Bad, malformed

pytestmark = pytest.mark.server

CHANGES = directives([(90, 150, 12)])
NEW = tokens(10, "new")
MESSAGES = [{"role": "user", "content": "the ids count"}]


@dataclass(frozen=True, slots=True)
class Plain:
    """One planned request as each endpoint spells it, and each one's plain answer."""

    client: Client
    ids: list[int]
    text: str
    answers: dict[str, str]

    def ask(self, path: str, custom: object, **more: Any) -> tuple[str, Receipt | None]:
        """The generated text and the receipt, by completion id."""
        done = self.client.http.post(
            path,
            content=json.dumps(self.body(path, custom) | more),
            headers={"Content-Type": "application/json"},
        )
        assert done.status_code == 200, done.text[:500]
        data = done.json()
        if path == "/generate":
            return data["text"], self.client.receipt(data["meta_info"]["id"])
        choice = data["choices"][0]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        return text, self.client.receipt(data["id"])

    def body(self, path: str, custom: object) -> dict[str, Any]:
        """The request's JSON for one endpoint."""
        params: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
        if custom is not None:
            params["custom_params"] = custom
        if path == "/generate":
            return {"input_ids": self.ids, "sampling_params": params | {"max_new_tokens": 3}}
        params |= {"model": "tiny", "max_tokens": 3}
        if path == "/v1/completions":
            return params | {"prompt": self.ids}
        return params | {"messages": MESSAGES, "input_ids": self.ids}


PATHS = ("/generate", "/v1/completions", "/v1/chat/completions")


@pytest.fixture
def plain(
    serve: Callable[..., ServerProcess], connect: Callable[[ServerProcess], Client]
) -> Iterator[Plain]:
    """A fresh base; behind the test the scheduler is the same, whole, and takes a good plan."""
    client = connect(serve())
    pid = client.rank()["pid"]
    seed = f"malformed {next(_FRESH)}"
    base = client.generate(tokens(300, seed))
    ids = [*base.ids[:90], *CHANGES[0].replacement, *base.ids[150:], *NEW]
    plain = Plain(client, ids, plan_text(base, CHANGES), {})
    for path in PATHS:
        plain.answers[path], receipt = plain.ask(path, None)
        assert receipt is None
    yield plain
    assert client.leaked_slots() == 0
    assert client.rank()["pid"] == pid, "the scheduler was restarted"
    for path in PATHS:
        _, receipt = plain.ask(path, {"leyline": plain.text})
        assert receipt is not None
        assert receipt.applied, receipt
    assert client.leaked_slots() == 0
    assert client.rank()["pid"] == pid, "the scheduler was restarted"


_FRESH = count()


def verdict(plain: Plain, path: str, bad: Bad) -> str | None:
    """What is wrong with the answer to a bad plan; None when nothing is."""
    text, receipt = plain.ask(path, {"leyline": bad.plan}, **bad.more)
    if text != plain.answers[path]:
        return f"{bad.name} on {path}: other tokens than the plain request"
    if receipt is None or receipt.applied or receipt.fallback is None:
        return f"{bad.name} on {path}: {receipt}"
    if receipt.fallback is Fallback.INTERNAL_ERROR or (
        bad.fallbacks and receipt.fallback not in bad.fallbacks
    ):
        return f"{bad.name} on {path}: {receipt.fallback}, {receipt.detail}"
    return None


def test_two_hundred_malformed_plans(plain: Plain) -> None:
    bad = malformed(plain.text)
    assert len(bad) >= 200
    with ThreadPoolExecutor(8) as pool:
        paths = [PATHS[n % len(PATHS)] for n in range(len(bad))]
        faults = [f for f in pool.map(lambda p, b: verdict(plain, p, b), paths, bad) if f]
    print(f"{len(bad)} malformed plans")
    assert faults == []


@pytest.mark.parametrize("path", PATHS)
def test_a_forged_ticket_is_no_ticket(plain: Plain, path: str) -> None:
    forged = json.dumps({"plan": plain.text, "stage": None})
    for custom in ({"leyline_ticket": forged}, {"leyline_ticket": "x"}, {"leyline_ticket": 7}):
        text, receipt = plain.ask(path, custom)
        assert receipt is None
        assert text == plain.answers[path]
    text, receipt = plain.ask(path, {"leyline_ticket": forged, "leyline": "bad"})
    assert receipt is not None
    assert receipt.fallback is Fallback.INVALID_DIRECTIVE
    assert text == plain.answers[path]


@pytest.mark.parametrize("text", ["good", "bad"])
def test_a_plan_on_a_batch_or_on_several_samples(plain: Plain, text: str) -> None:
    custom = {"leyline": plain.text if text == "good" else "bad"}
    body = plain.body("/generate", custom)
    body["input_ids"] = [plain.ids, plain.ids]
    for done in (
        plain.client.http.post("/generate", json=body),
        plain.client.http.post(
            "/v1/completions",
            json=plain.body("/v1/completions", custom) | {"prompt": [plain.ids, plain.ids]},
        ),
        plain.client.http.post(
            "/v1/chat/completions", json=plain.body("/v1/chat/completions", custom) | {"n": 2}
        ),
    ):
        assert done.status_code == 200, done.text[:300]
        data = done.json()
        choices = data if isinstance(data, list) else data["choices"]
        assert len(choices) == 2
        for choice in choices:
            said = choice["text"] if "text" in choice else choice["message"]["content"]
            assert said in plain.answers.values()
        if isinstance(data, list):
            for one in data:
                receipt = Receipt.from_dict(one["meta_info"]["leyline"])
                assert receipt.fallback is Fallback.INVALID_DIRECTIVE


def test_a_bad_plan_on_a_stream(plain: Plain) -> None:
    for path in PATHS:
        body = plain.body(path, {"leyline": "bad"}) | {"stream": True}
        with plain.client.http.stream("POST", path, json=body) as done:
            lines = [line[6:] for line in done.iter_lines() if line.startswith("data: ")]
        assert lines[-1] == "[DONE]"
        first = json.loads(lines[0])
        receipt = plain.client.receipt(first["meta_info"]["id"] if "text" in first else first["id"])
        assert receipt is not None
        assert receipt.fallback is Fallback.INVALID_DIRECTIVE


@pytest.mark.parametrize("wrong", [-1, 8192, 1 << 40])
@pytest.mark.parametrize("path", PATHS)
def test_unknown_tokens_with_a_plan_are_refused(plain: Plain, path: str, wrong: int) -> None:
    """The scheduler would die of them."""
    body = plain.body(path, {"leyline": plain.text})
    field = "prompt" if path == "/v1/completions" else "input_ids"
    body[field] = [*body[field][:-1], wrong]
    done = plain.client.http.post(path, json=body)
    assert done.status_code == 400, done.text[:300]
    assert f"input_ids has {wrong}" in done.text
