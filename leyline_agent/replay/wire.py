"""One streamed chat call over plain HTTP, timed."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

import httpx

from leyline_agent.core import ServerError


@dataclass(frozen=True, slots=True)
class Reply:
    """A streamed answer: completion id, text, token counts, time to the first chunk (ms)."""

    id: str
    text: str
    prompt_tokens: int
    cached_tokens: int
    ttft_ms: float


def chat(client: httpx.Client, body: dict[str, Any]) -> Reply:
    """Stream one chat completion.

    Time to first token runs from before the request is handed to the client (so that
    planning and tokenizing count) to the first data line.

    Raises:
        ServerError: the server refused the request or broke off; carries what it said.
    """
    request = {**body, "stream": True, "stream_options": {"include_usage": True}}
    completion, text, usage, first = "", [], {}, None
    began = time.perf_counter()
    try:
        with client.stream("POST", "/v1/chat/completions", json=request) as response:
            if response.status_code != 200:
                response.read()
                raise ServerError(
                    f"the server answered {response.status_code}: {response.text[:500]}"
                )
            for line in response.iter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                first = first or time.perf_counter()
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    raise ServerError(f"the server broke off: {chunk['error']}")
                completion = chunk.get("id") or completion
                usage = chunk.get("usage") or usage
                text += [_text(choice.get("delta") or {}) for choice in chunk.get("choices") or ()]
    except httpx.HTTPError as error:
        raise ServerError(f"no answer from {client.base_url}: {error}") from error
    if first is None:
        raise ServerError("the server closed the stream without an answer")
    details = usage.get("prompt_tokens_details") or {}
    return Reply(
        completion,
        "".join(text),
        usage.get("prompt_tokens", 0),
        details.get("cached_tokens") or 0,
        (first - began) * 1e3,
    )


def _text(delta: dict[str, Any]) -> str:
    """All that a delta says: reasoning, content and tool calls."""
    said = (delta.get("reasoning_content") or "") + (delta.get("content") or "")
    for call in delta.get("tool_calls") or ():
        function = call.get("function") or {}
        said += (function.get("name") or "") + (function.get("arguments") or "")
    return said


def tokenize(client: httpx.Client, body: dict[str, Any]) -> list[int]:
    """The prompt's token ids as the chat endpoint will have them.

    Raises:
        ServerError: the server cannot say.
    """
    wanted = {k: body[k] for k in ("model", "messages", "tools") if body.get(k)}
    response = client.post("/v1/tokenize", json=wanted)
    if response.status_code != 200:
        raise ServerError(f"/v1/tokenize answered {response.status_code}: {response.text[:500]}")
    tokens: list[int] = response.json()["tokens"]
    return tokens
