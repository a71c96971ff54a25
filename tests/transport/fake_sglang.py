"""A stand-in for SGLang behind either HTTP library, as strict as the real one about plans."""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass, field
from typing import Any

from leyline_agent.core import PARAM, WirePlan, digest, loads

OPEN = [0, 1, 2]
ANSWER = "fine, and what comes next?"
CALL = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def render(messages: list[dict[str, Any]]) -> list[int]:
    """A chat template with one token a character."""
    ids: list[int] = []
    for message in messages:
        text = message["content"] or ""
        if not isinstance(text, str):
            text = "".join(part["text"] for part in text)
        ids += [0, 1 if message["role"] == "assistant" else 3, 2, *map(ord, text), 4, 2]
    return ids + OPEN


@dataclass
class FakeServer:
    """Answers /v1/tokenize and chat completions with `answer`; keeps what it was sent.

    status: path ending -> status to answer instead. asked: (path, body, headers) in order.
    info: what the handshake says, None without Leyline; greeted: headers of each handshake.
    receipt: what the server did with every plan; None: it tells nothing.
    """

    lib: Any
    answer: str = ANSWER
    status: dict[str, int] = field(default_factory=dict)
    only_lowered: bool = False
    info: dict[str, Any] | None = field(default_factory=lambda: {"leyline": "1", "active": True})
    greeted: list[dict[str, str]] = field(default_factory=list)
    receipt: dict[str, Any] | None = field(
        default_factory=lambda: {"id": "", "applied": True, "spliced": 7}
    )
    asked: list[tuple[str, Any, dict[str, str]]] = field(default_factory=list)
    held: dict[str, array[int]] = field(default_factory=dict)
    plans: list[WirePlan | None] = field(default_factory=list)

    @property
    def transport(self) -> Any:
        """For blocking and asyncio clients alike."""
        return self.lib.MockTransport(self)

    @property
    def chats(self) -> list[Any]:
        """Bodies of the chat requests that arrived."""
        return [body for path, body, _ in self.asked if path.endswith("/chat/completions")]

    def __call__(self, request: Any) -> Any:
        path = request.url.path
        if request.method == "GET":
            return self._own_route(path, dict(request.headers))
        try:
            body = json.loads(request.content)
        except (ValueError, RecursionError):
            body = None
        self.asked.append((path, body, dict(request.headers)))
        lowered = isinstance(body, dict) and "input_ids" in body
        for end, status in self.status.items():
            if path.endswith(end) and (lowered or not self.only_lowered):
                return self.lib.Response(status, json={"error": {"message": "as told"}})
        if path.endswith("/tokenize"):
            return self.lib.Response(200, json={"tokens": render(body["messages"]), "count": 0})
        if path.endswith("/chat/completions") and body is not None:
            return self._chat(body)
        return self.lib.Response(200, json={"path": path})

    def _own_route(self, path: str, headers: dict[str, str]) -> Any:
        told = None
        if path == "/leyline/v1/info":
            self.greeted.append(headers)
            told = self.info
        elif path.removeprefix("/leyline/v1/receipts/") in self.held:
            told = self.receipt
        return self.lib.Response(404 if told is None else 200, json=told)

    def _chat(self, body: dict[str, Any]) -> Any:
        ids = array("q", body.get("input_ids") or render(body["messages"]))
        self._check(body, ids)
        name = f"chatcmpl-{len(self.held)}"
        output = [*map(ord, self.answer), 4]
        self.held[name] = ids + array("q", output)
        told = {"input_ids": ids.tolist(), "output_ids": [output]}
        told = {k: v for k, v in told.items() if body.get(f"return_{k}_in_sglext")}
        ext = {"sglext": told} if told else {}
        usage = {"prompt_tokens": len(ids), "prompt_tokens_details": {"cached_tokens": 5}}
        if not body.get("stream"):
            message = {"role": "assistant", "content": self.answer}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return self.lib.Response(
                200, json={"id": name, "choices": [choice], "usage": usage, **ext}
            )
        return self.lib.Response(
            200,
            headers={"content-type": "text/event-stream"},
            content=b"".join(events(name, self.answer, usage, ext)),
        )

    def _check(self, body: dict[str, Any], ids: array[int]) -> None:
        """A plan must be true of what is held."""
        text = (body.get("custom_params") or {}).get(PARAM)
        self.plans.append(loads(text) if text is not None else None)
        if text is not None:
            wire = loads(text)
            edited = array("q", wire.plan.apply(self.held[wire.base_id]))
            assert edited == ids[: len(edited)]
            assert digest(edited) == wire.edited_digest


def events(
    name: str, answer: str, usage: dict[str, Any], ext: dict[str, Any], end: bytes = b"\n\n"
) -> list[bytes]:
    """The chunks of a stream, in SGLang's order: words, finish, ids, usage, [DONE]."""
    chunks: list[dict[str, Any]] = [
        {"id": name, "choices": [{"index": 0, "delta": {"content": letter}}]} for letter in answer
    ]
    chunks.append({"id": name, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    if ext:
        chunks.append({"id": name, "choices": [], **ext})
    chunks.append({"id": name, "choices": [], "usage": usage})
    lines = [b"data: " + json.dumps(chunk).encode() for chunk in chunks]
    return [line + end for line in [*lines, b"data: [DONE]"]]
