"""The transport on a real SGLang: exact ids, applied plans, both client generations' paths."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from leyline_agent.launch import ServerProcess
from leyline_agent.policies import TruncateOlderThan
from leyline_agent.transport import (
    CONVERSATION,
    MODE,
    TurnRecord,
    async_openai_client,
    async_receipt,
    client,
    openai_client,
    receipt,
)

pytestmark = pytest.mark.server

# The recorded answers are not the model's: only a name ties one turn to the next.
NAMED = {CONVERSATION: "files"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read_file",
            "description": "Read a file — ümlauts, “quotes”.",
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {
                    "path": {"type": "string", "default": None},
                    "lines": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                },
                "required": ["path"],
            },
        },
    }
]


def call(number: int) -> dict[str, Any]:
    function = {"name": "read_file", "arguments": '{"path": "a.py", "lines": null}'}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"call-{number}", "type": "function", "function": function}],
    }


def result(number: int) -> dict[str, Any]:
    text = " ".join(f"def f{number}_{i}(): return {i * number}" for i in range(60))
    return {"role": "tool", "tool_call_id": f"call-{number}", "content": text}


def history(turns: int) -> list[dict[str, Any]]:
    messages = [
        {"role": "system", "content": "You read files."},
        {"role": "user", "content": [{"type": "text", "text": "Read them all. 🙂"}]},
    ]
    for number in range(turns):
        messages += [call(number), result(number)]
    return messages


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"tools": TOOLS},
        {"tools": TOOLS, "tool_choice": "none"},
        {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "low", "stop": ["x"], "seed": 3, "logprobs": True},
        {"response_format": {"type": "json_object"}, "min_p": 0.1, "user": "me"},
        {"add_generation_prompt": False, "add_special_tokens": True},
    ],
    ids=lambda extra: ",".join(extra) or "plain",
)
def test_tokenize_gives_the_ids_of_the_chat_path(server: ServerProcess, extra: Any) -> None:
    """The prompt that runs with our ids is the one that would have run without us."""
    body = {"model": "tiny", "messages": history(2), "max_tokens": 1, "temperature": 0, **extra}
    own = httpx.post(
        f"{server.base_url}/v1/chat/completions",
        json={**body, "return_input_ids_in_sglext": True},
        timeout=60,
    ).json()["sglext"]["input_ids"]
    seen: list[TurnRecord] = []
    with client(server.base_url, on_turn=seen.append, lib=httpx) as http:
        # Behind another conversation a new one is looked at.
        other = [{"role": "user", "content": "another"}]
        http.post("/v1/chat/completions", json={**body, "messages": other})
        ours = http.post("/v1/chat/completions", json={**body, "return_input_ids_in_sglext": True})
    assert ours.json()["sglext"]["input_ids"] == own
    assert "output_ids" not in ours.json()["sglext"]
    assert seen[-1].prompt_tokens == len(own)
    assert seen[-1].tokenize_ms > 0


def check(records: list[TurnRecord], base_url: str) -> None:
    """Every edited turn was spliced, and everything reusable was reused."""
    assert [r.edits for r in records] == [0, 0, 0, 1, 1]
    for record in records:
        found = receipt(base_url, record.completion)
        assert (found is not None) == record.planned
        if found is not None:
            assert (found.applied, found.fallback) == (True, None)
            assert found.reused + found.spliced >= 0.99 * record.reusable_tokens
            assert found.prompt_tokens == record.prompt_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_an_openai_client_keeps_its_cache_through_edits(
    server: ServerProcess, stream: bool
) -> None:
    records: list[TurnRecord] = []
    llm = openai_client(server.base_url, on_turn=records.append)
    policy = TruncateOlderThan(n=2)
    salt = {"cache_salt": f"openai-{stream}"}
    with llm:
        for turns in range(5):
            answer: Any = llm.chat.completions.create(
                model="tiny",
                messages=policy.transform(history(turns), turns),  # type: ignore[arg-type]
                tools=TOOLS,  # type: ignore[arg-type]
                max_tokens=4,
                temperature=0,
                stream=stream,
                extra_body=salt,
                extra_headers=NAMED,
            )
            name = [chunk.id for chunk in answer][-1] if stream else answer.id
            assert records[-1].completion == name
    check(records, server.base_url)


async def test_the_asyncio_client_does_too(server: ServerProcess) -> None:
    records: list[TurnRecord] = []
    policy = TruncateOlderThan(n=2)
    async with async_openai_client(server.base_url, on_turn=records.append) as llm:
        for turns in range(5):
            await llm.chat.completions.create(
                model="tiny",
                messages=policy.transform(history(turns), turns),  # type: ignore[arg-type]
                max_tokens=4,
                temperature=0,
                extra_body={"cache_salt": "async"},
                extra_headers=NAMED,
            )
        last = await async_receipt(server.base_url, records[-1].completion)
        assert last is not None
        assert await async_receipt(server.base_url, "nobody") is None
    await asyncio.to_thread(check, records, server.base_url)


def test_forget_is_answered_as_an_honest_request(server: ServerProcess) -> None:
    """The same tokens as without us."""
    policy = TruncateOlderThan(n=2)
    body = {"model": "tiny", "max_tokens": 8, "temperature": 0, "cache_salt": "forget"}
    with client(server.base_url, mode="forget", lib=httpx) as http:
        for turns in range(5):
            sent = {**body, "messages": policy.transform(history(turns), turns)}
            ours = http.post("/v1/chat/completions", json=sent, headers=NAMED).json()
            sent["cache_salt"] = f"honest-{turns}"
            own = httpx.post(f"{server.base_url}/v1/chat/completions", json=sent, timeout=60).json()
            assert ours["choices"][0]["message"] == own["choices"][0]["message"]


@pytest.mark.parametrize("cancelled", [False, True])
def test_forget_after_amortize_is_honest_too(server: ServerProcess, cancelled: bool) -> None:
    """Without a new edit, and in the turn behind one that was broken off."""
    policy = TruncateOlderThan(n=2)
    salt = f"forget-later-{cancelled}"
    body = {"model": "tiny", "max_tokens": 8, "temperature": 0, "logprobs": True}
    seen: list[TurnRecord] = []
    with client(server.base_url, on_turn=seen.append, lib=httpx) as http:

        def turn(number: int, **extra: Any) -> dict[str, Any]:
            messages = policy.transform(history(number), number)
            return {**body, "messages": messages, "cache_salt": salt, **extra}

        for number in range(4):
            http.post("/v1/chat/completions", json=turn(number), headers=NAMED)
        assert seen[-1].planned
        headers = {**NAMED, MODE: "forget"}
        later = [*turn(3)["messages"], {"role": "user", "content": "and now?"}]
        sent = {**turn(3), "messages": later}
        if cancelled:
            streamed = {**sent, "stream": True}
            with http.stream("POST", "/v1/chat/completions", json=streamed, headers=headers) as r:
                next(r.iter_bytes())
            headers = NAMED
        ours = http.post("/v1/chat/completions", json=sent, headers=headers).json()
    assert "computed anew" in seen[-1].why
    honest = {**sent, "cache_salt": f"honest-{salt}"}
    own = httpx.post(f"{server.base_url}/v1/chat/completions", json=honest, timeout=60).json()
    mine, theirs = (a["choices"][0]["logprobs"]["content"] for a in (ours, own))
    assert [t["token"] for t in mine] == [t["token"] for t in theirs]
    # What was cached in other pieces differs by rounding alone.
    assert [t["logprob"] for t in mine] == pytest.approx([t["logprob"] for t in theirs], abs=1e-3)
