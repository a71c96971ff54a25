"""Pages of 16 and chunks shorter than a replacement; every endpoint, streaming or not."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from leyline_agent.core import Directive, EditPlan, Receipt
from leyline_agent.launch import ServerProcess
from leyline_agent.verify.client import Answer, Client, Gap, as_wire, directives, plan_text, tokens
from leyline_agent.verify.command import ALL

pytestmark = pytest.mark.server

PAGE, CHUNK = 16, 32
ARGS = ["--page-size", str(PAGE), "--chunked-prefill-size", str(CHUNK)]
PLANS = {
    "shorter": [(90, 150, 12)],
    "longer than two chunks": [(90, 110, 77)],
    "nothing put in": [(90, 150, 0)],
    "whole pages": [(96, 160, 32)],
    "insertion": [(100, 100, 9)],
    "three": [(40, 90, 50), (120, 125, 33), (160, 220, 0)],
    "a kept segment shorter than a page": [(40, 90, 5), (97, 140, 3)],
}
PATHS = ("/generate", "/v1/completions", "/v1/chat/completions")


@pytest.fixture
def client(
    serve: Callable[..., ServerProcess], connect: Callable[[ServerProcess], Client]
) -> Client:
    return connect(serve(extra_args=ARGS))


def rests(base: int, changes: list[Directive]) -> int:
    """Kept tokens that fill no page, or were never cached."""
    cached = (base - 1) // PAGE * PAGE
    shift, lost = 0, changes[0].start % PAGE
    for index, change in enumerate(changes):
        shift += change.shift
        stop = changes[index + 1].start if index + 1 < len(changes) else base
        first = -(-(change.end + shift) // PAGE) * PAGE - shift
        last = (min(stop, cached) + shift) // PAGE * PAGE - shift
        lost += stop - change.end - max(0, last - first)
    return lost


def worst(answers: list[Answer], rows: list[list[float]]) -> Gap:
    """The largest gaps of several answers."""
    gaps = [Gap.of(answer, row) for answer, row in zip(answers, rows, strict=True)]
    return Gap(*(max(getattr(gap, part) for gap in gaps) for part in ("likely", "all", "lead")))


def twice(client: Client, name: str, seed: str = "") -> tuple[list[Answer], list[dict[str, Any]]]:
    """A base, the named plan, and one more edit behind it; with the reference's steps."""
    prompt = tokens(317, name + seed)
    answers = [client.generate(prompt, probs=ALL)]
    steps: list[dict[str, Any]] = [{"new": prompt, "outputs": list(answers[0].output)}]
    for edits, new in ((PLANS[name], tokens(50, "new")), ([(230, 260, 7)], tokens(21, "more"))):
        changes = directives(edits)
        base = answers[-1]
        answer = client.edit(base, changes, new, probs=ALL)
        receipt = answer.receipt
        assert receipt is not None
        assert receipt.applied, receipt
        put = sum(len(c.replacement) for c in changes)
        bound = len(answer.prompt) - len(new) - put - rests(len(base.ids), changes)
        assert receipt.reused + receipt.spliced == bound, receipt
        answers.append(answer)
        steps.append({"directives": as_wire(changes), "new": new, "outputs": list(answer.output)})
    return answers, steps


@pytest.mark.parametrize("name", PLANS)
def test_pages_and_chunks(client: Client, reference: Callable[[str], Any], name: str) -> None:
    answers, steps = twice(client, name)
    found = worst(answers, reference("tiny")(steps, page=PAGE))
    print(f"page {PAGE}, {name}: {found}")
    assert found.closed
    assert client.leaked_slots() == 0


def test_whole_pages_are_what_page_size_1_gives(
    client: Client, reference: Callable[[str], Any]
) -> None:
    answers, steps = twice(client, "whole pages", "page 1")
    first = worst(answers[:2], reference("tiny")(steps[:2], page=1))
    print(f"page {PAGE} against page 1: {first}")
    assert first.closed


def ask(client: Client, path: str, ids: list[int], plan: str, stream: bool) -> tuple[str, Receipt]:
    """The generated text and the receipt of a planned request."""
    params: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
    params["custom_params"] = {"leyline": plan}
    if path == "/generate":
        body = {"input_ids": ids, "sampling_params": params | {"max_new_tokens": 6}}
    elif path == "/v1/completions":
        body = params | {"model": "tiny", "max_tokens": 6, "prompt": ids}
    else:
        body = params | {"model": "tiny", "max_tokens": 6, "messages": [], "input_ids": ids}
        body["messages"] = [{"role": "user", "content": "the ids count"}]
    if stream:
        with client.http.stream("POST", path, json=body | {"stream": True}) as done:
            assert done.status_code == 200
            lines = [line[6:] for line in done.iter_lines() if line.startswith("data: ")]
        parts = [json.loads(line) for line in lines if line != "[DONE]"]
    else:
        done = client.http.post(path, json=body)
        assert done.status_code == 200, done.text[:500]
        parts = [done.json()]
    name = parts[0]["meta_info"]["id"] if path == "/generate" else parts[0]["id"]
    receipt = client.receipt(name)
    assert receipt is not None
    return said(path, parts), receipt


def said(path: str, parts: list[dict[str, Any]]) -> str:
    """The text of an answer or of its chunks."""
    if path == "/generate":
        return str(parts[-1]["text"])
    choices = [part["choices"][0] for part in parts if part["choices"]]
    if path == "/v1/completions":
        return "".join(choice["text"] for choice in choices)
    texts = [(c.get("message") or c.get("delta") or {}).get("content") for c in choices]
    return "".join(text or "" for text in texts)


def test_every_endpoint_splices(client: Client) -> None:
    changes, new = directives(PLANS["longer than two chunks"]), tokens(40, "new")
    told = set()
    for path in PATHS:
        for stream in (False, True):
            base = client.generate(tokens(317, "endpoints"), cache_salt=None)
            edited = EditPlan.of(base.ids, changes).apply(base.ids)
            text, receipt = ask(client, path, [*edited, *new], plan_text(base, changes), stream)
            assert receipt.applied, (path, stream, receipt)
            told.add(text)
    assert len(told) == 1, told


def test_a_chat_completion_is_a_base(client: Client) -> None:
    ids = tokens(317, "chat base")
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "input_ids": ids}
    body |= {"max_tokens": 5, "temperature": 0, "ignore_eos": True}
    data = client.http.post(
        "/v1/chat/completions", json=body | {"return_output_ids_in_sglext": True}
    ).json()
    output = data["sglext"]["output_ids"]
    output = output[0] if isinstance(output[0], list) else output
    base = Answer(data["id"], tuple(ids), tuple(output), 0, None)
    answer = client.edit(base, directives(PLANS["shorter"]), tokens(20, "new"))
    assert answer.receipt is not None
    assert answer.receipt.applied, answer.receipt
