"""The thin shells: one synchronous, one asynchronous, for httpx and httpx2 alike.

openai before 3 runs on httpx, from 3 on httpx2; a transport of one fails in a client of
the other. Both libraries have the same names, so a shell is made for a library by
subclassing its base class and naming it in `lib`.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from leyline_agent.transport.call import Call, note, without_ids
from leyline_agent.transport.events import Watch
from leyline_agent.transport.lowering import CONVERSATION, MODE, Lowering

_OURS = (CONVERSATION, MODE)
# Too busy or too slow for any form of the request: the caller decides when to try again.
_BUSY = (408, 425, 429, 503, 504)
_TOKENIZE_S = 10.0


class _Requests:
    """How requests are built with one HTTP library."""

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
        limits = request.extensions.get("timeout") or {}
        short = {k: min(v or _TOKENIZE_S, _TOKENIZE_S) for k, v in limits.items()}
        built.extensions = {**request.extensions, "timeout": short}
        return built

    def _lowered(self, request: Any, call: Call, status: int, answer: bytes, began: float) -> Any:
        """The request to send instead.

        Raises:
            ValueError: the server did not say which tokens the prompt has.
        """
        if status in (404, 405):
            self.lowering.trust.deaf(call.origin)
        tokens = json.loads(answer).get("tokens") if status == 200 else None
        if (
            not isinstance(tokens, list)
            or not all(type(t) is int for t in tokens[:1])
            or not tokens
        ):
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


class SyncShell(_Requests):
    """handle_request for blocking clients."""

    def handle_request(self, request: Any) -> Any:
        """Send a request, lowered when it is a chat completion that we understand."""
        content = request.read()
        call = self._open(request, content)
        plain = self._plain(request, content)
        if call is None:
            return self.inner.handle_request(plain)
        lowered = self._appended(request, call)
        if lowered is None and self._deaf(call):
            return self.inner.handle_request(plain)
        if lowered is None:
            try:
                began = time.perf_counter()
                answer = self.inner.handle_request(self._tokenize(request, call))
                try:
                    text = answer.read()
                finally:
                    answer.close()
                lowered = self._lowered(request, call, answer.status_code, text, began)
            except Exception as error:
                self.lowering.skip("no tokens from the server", error)
                return self.inner.handle_request(plain)
        try:
            response = self.inner.handle_request(lowered)
        except Exception as error:
            if not self._lost(call, error):
                raise
            return self._again(self.inner.handle_request(plain), call)
        if self._refused(call, response.status_code):
            response.close()
            return self._again(self.inner.handle_request(plain), call)
        if response.status_code != 200:
            return response
        if "text/event-stream" in response.headers.get("content-type", ""):
            watch = Watch(self.lowering, call)
            stream = _stream(self.lib.SyncByteStream, _sync_events(response, watch), response)
            return self._response(response, stream=stream)
        try:
            text = response.read()
        finally:
            response.close()
        return self._answer(response, call, text)

    def close(self) -> None:
        """Close the inner transport."""
        self.inner.close()


class AsyncShell(_Requests):
    """handle_async_request for asyncio clients; step by step as SyncShell."""

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request, lowered when it is a chat completion that we understand."""
        content = await request.aread()
        call = self._open(request, content)
        plain = self._plain(request, content)
        if call is None:
            return await self.inner.handle_async_request(plain)
        lowered = self._appended(request, call)
        if lowered is None and self._deaf(call):
            return await self.inner.handle_async_request(plain)
        if lowered is None:
            try:
                began = time.perf_counter()
                answer = await self.inner.handle_async_request(self._tokenize(request, call))
                try:
                    text = await answer.aread()
                finally:
                    await answer.aclose()
                lowered = self._lowered(request, call, answer.status_code, text, began)
            except Exception as error:
                self.lowering.skip("no tokens from the server", error)
                return await self.inner.handle_async_request(plain)
        try:
            response = await self.inner.handle_async_request(lowered)
        except Exception as error:
            if not self._lost(call, error):
                raise
            return self._again(await self.inner.handle_async_request(plain), call)
        if self._refused(call, response.status_code):
            await response.aclose()
            return self._again(await self.inner.handle_async_request(plain), call)
        if response.status_code != 200:
            return response
        if "text/event-stream" in response.headers.get("content-type", ""):
            watch = Watch(self.lowering, call)
            stream = _stream(self.lib.AsyncByteStream, _async_events(response, watch), response)
            return self._response(response, stream=stream)
        try:
            text = await response.aread()
        finally:
            await response.aclose()
        return self._answer(response, call, text)

    async def aclose(self) -> None:
        """Close the inner transport."""
        await self.inner.aclose()


def _sync_events(response: Any, watch: Watch) -> Iterator[bytes]:
    for data in response.iter_bytes():
        if out := watch.feed(data):
            yield out
    if rest := watch.finish():
        yield rest


async def _async_events(response: Any, watch: Watch) -> AsyncIterator[bytes]:
    async for data in response.aiter_bytes():
        if out := watch.feed(data):
            yield out
    if rest := watch.finish():
        yield rest


def _stream(base: Any, events: Any, response: Any) -> Any:
    """A byte stream of the library's own kind that closes the inner response with itself."""

    class Stream(base):  # type: ignore[misc]
        def __iter__(self) -> Iterator[bytes]:
            return iter(events)

        def __aiter__(self) -> AsyncIterator[bytes]:
            return aiter(events)

        def close(self) -> None:
            response.close()

        async def aclose(self) -> None:
            await response.aclose()

    return Stream()
