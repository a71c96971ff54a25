"""What the synchronous and the asynchronous shell have in common: requests in, requests out."""

from __future__ import annotations

import json
import time
from typing import Any

from leyline_agent.core import Receipt
from leyline_agent.transport.call import Call, are_ids, note, without_ids
from leyline_agent.transport.lowering import CONVERSATION, MODE, Lowering

_OURS = (CONVERSATION, MODE)
# Too busy or too slow for any form of the request: the caller decides when to try again.
_BUSY = (408, 425, 429, 503, 504)
_OF_BODIES = ("content-length", "content-type", "transfer-encoding")
_TOKENIZE_S = 10.0
_GET_S = 5.0


class Requests:
    """How requests are built and answers read with one HTTP library; nothing is sent here."""

    lib: Any

    def __init__(self, inner: Any, lowering: Lowering) -> None:
        self.inner = inner
        self.lowering = lowering

    def _open(self, request: Any, content: bytes) -> Call | None:
        """The call to lower, or None when the request is to go through as it came."""
        if request.method != "POST":
            return None
        url = request.url
        origin = f"{url.scheme}://{url.netloc.decode()}"
        return self.lowering.open(url.path, request.headers, content, origin)

    def _plain(self, request: Any, content: bytes) -> Any:
        """The caller's request, without our headers."""
        if not any(name in request.headers for name in _OURS):
            return request
        return self._rebuilt(request, content)

    def _rebuilt(self, request: Any, content: bytes, url: Any = None) -> Any:
        headers = [
            (k, v)
            for k, v in request.headers.multi_items()
            if k.lower() not in (*_OURS, "content-length", "transfer-encoding")
        ]
        return self.lib.Request(
            request.method,
            url or request.url,
            headers=headers,
            content=content,
            extensions=request.extensions,
        )

    def _appended(self, request: Any, call: Call) -> Any:
        """The request to send without asking for its tokens first, if that will do."""
        body = self.lowering.append(call)
        return None if body is None else self._rebuilt(request, json.dumps(body).encode())

    def _tokenize(self, request: Any, call: Call) -> Any:
        """The request for the prompt's ids, with the caller's credentials."""
        path = request.url.path.removesuffix("/chat/completions") + "/tokenize"
        content = json.dumps(self.lowering.tokenize_body(call)).encode()
        built = self._rebuilt(request, content, request.url.copy_with(path=path))
        built.extensions = _within(request, _TOKENIZE_S)
        return built

    def _get(self, request: Any, path: str) -> Any:
        """A request to one of the server's own routes, with the caller's credentials."""
        root = request.url.path.removesuffix("/chat/completions").removesuffix("/v1")
        return self.lib.Request(
            "GET",
            request.url.copy_with(path=root + path),
            headers=[
                (k, v)
                for k, v in request.headers.multi_items()
                if k.lower() not in (*_OURS, *_OF_BODIES)
            ],
            extensions=_within(request, _GET_S),
        )

    def _objects(self, call: Call) -> bool:
        """Whether its server gets plain requests only; counted when so."""
        why = self.lowering.servers.objection(call.origin)
        if why:
            self.lowering.skip(why)
        return bool(why)

    def _receipted(self, call: Call, status: int, content: bytes) -> None:
        """Take in what the server says it did; status 0: it said nothing."""
        receipt = None
        if status == 200:
            try:
                receipt = Receipt.from_dict(json.loads(content))
            except (ValueError, TypeError, AttributeError, RecursionError):
                receipt = None
        self.lowering.receipted(call, receipt)

    def _lowered(self, request: Any, call: Call, status: int, answer: bytes, began: float) -> Any:
        """The request to send instead.

        Raises:
            ValueError: the server did not say which tokens the prompt has.
        """
        if status in (404, 405):
            self.lowering.trust.deaf(call.origin)
        tokens = json.loads(answer).get("tokens") if status == 200 else None
        if not tokens or not are_ids(tokens):
            raise ValueError(f"/tokenize answered {status}")
        body = self.lowering.lower(call, tokens, (time.perf_counter() - began) * 1e3)
        return self._rebuilt(request, json.dumps(body).encode())

    def _deaf(self, call: Call) -> bool:
        """Whether its server would not tell us tokens; counted when so."""
        deaf = self.lowering.trust.is_deaf(call.origin)
        if deaf:
            self.lowering.skip("no tokens from the server")
        return deaf

    def _lost(self, call: Call, error: Exception) -> bool:
        """Whether the plain request is to be sent when the lowered one met this error.

        No byte of an answer has come. After a timeout one may still be under way: then the
        caller's own retry goes plainly.
        """
        self.lowering.trust.failed(call.content)
        if isinstance(error, self.lib.TimeoutException):
            return False
        self.lowering.skip("connection lost", error)
        return True

    def _refused(self, call: Call, status: int) -> bool:
        """Whether the plain request is to be sent when the lowered one met this status."""
        if status < 400:
            self.lowering.trust.works(call.origin)
            return False
        if status in _BUSY:
            return False
        self.lowering.trust.failed(call.content)
        self.lowering.skip(f"refused with status {status}")
        return True

    def _again(self, response: Any, call: Call) -> Any:
        """The plain form's answer, handed on; where that is none the lowering did no harm."""
        if response.status_code < 400:
            self.lowering.trust.strike(call.origin)
        return response

    def _answer(self, response: Any, call: Call, content: bytes) -> Any:
        """A whole answer: noted, and handed on without the ids that we asked for."""
        self.lowering.first_bytes(call)
        try:
            answer = json.loads(content)
            if note(call, answer):
                content = json.dumps(without_ids(call, answer)).encode()
            self.lowering.close(call, str(answer.get("id") or ""))
        except (ValueError, AttributeError) as error:
            self.lowering.skip("unreadable answer", error)
        return self._response(response, content=content)

    def _response(self, response: Any, **body: Any) -> Any:
        """The same response with another body; content is decoded already."""
        headers = [
            (k, v)
            for k, v in response.headers.multi_items()
            if k.lower() not in ("content-length", "content-encoding", "transfer-encoding")
        ]
        return self.lib.Response(
            response.status_code, headers=headers, extensions=response.extensions, **body
        )


def _within(request: Any, seconds: float) -> dict[str, Any]:
    """The request's extensions, none of its timeouts longer than this."""
    limits = request.extensions.get("timeout") or {}
    short = {k: min(v or seconds, seconds) for k, v in limits.items()}
    return {**request.extensions, "timeout": short}
