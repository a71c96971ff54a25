"""The thin shells: one synchronous, one asynchronous, for httpx and httpx2 alike.

openai before 3 runs on httpx, from 3 on httpx2; a transport of one fails in a client of
the other. Both libraries have the same names, so a shell is made for a library by
subclassing its base class and naming it in `lib`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from leyline_agent.transport.events import Watch
from leyline_agent.transport.receipts import PATH
from leyline_agent.transport.requests import Requests
from leyline_agent.transport.servers import INFO


class SyncShell(Requests):
    """handle_request for blocking clients."""

    def handle_request(self, request: Any) -> Any:
        """Send a request, lowered when it is a chat completion that we understand."""
        content = request.read()
        call = self._open(request, content)
        plain = self._plain(request, content)
        if call is None:
            return self.inner.handle_request(plain)
        if self.lowering.servers.is_due(call.origin):
            self.lowering.servers.learn(call.origin, *self._got(request, INFO))
        if self._objects(call):
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
            stream = _stream(
                self.lib.SyncByteStream, self._events(request, response, watch), response
            )
            return self._response(response, stream=stream)
        try:
            text = response.read()
        finally:
            response.close()
        answer = self._answer(response, call, text)
        if self.lowering.wants_receipt(call):
            self._receipted(call, *self._got(request, PATH + call.completion))
        return answer

    def _got(self, request: Any, path: str) -> tuple[int, bytes]:
        """Status and content of one of the server's own routes; status 0 when it fails."""
        try:
            answer = self.inner.handle_request(self._get(request, path))
            try:
                return answer.status_code, answer.read()
            finally:
                answer.close()
        except Exception:
            return 0, b""

    def _events(self, request: Any, response: Any, watch: Watch) -> Iterator[bytes]:
        """The stream's events; at its end the record is complete before the caller sees it."""
        for data in response.iter_bytes():
            out = watch.feed(data)
            if watch.ended and self.lowering.wants_receipt(watch.call):
                self._receipted(watch.call, *self._got(request, PATH + watch.completion))
                watch.ended = False
            if out:
                yield out
        if rest := watch.finish():
            yield rest

    def close(self) -> None:
        """Close the inner transport."""
        self.inner.close()


class AsyncShell(Requests):
    """handle_async_request for asyncio clients; step by step as SyncShell."""

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request, lowered when it is a chat completion that we understand."""
        content = await request.aread()
        call = self._open(request, content)
        plain = self._plain(request, content)
        if call is None:
            return await self.inner.handle_async_request(plain)
        if self.lowering.servers.is_due(call.origin):
            self.lowering.servers.learn(call.origin, *await self._got(request, INFO))
        if self._objects(call):
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
            stream = _stream(
                self.lib.AsyncByteStream, self._events(request, response, watch), response
            )
            return self._response(response, stream=stream)
        try:
            text = await response.aread()
        finally:
            await response.aclose()
        answer = self._answer(response, call, text)
        if self.lowering.wants_receipt(call):
            self._receipted(call, *await self._got(request, PATH + call.completion))
        return answer

    async def _got(self, request: Any, path: str) -> tuple[int, bytes]:
        """Status and content of one of the server's own routes; status 0 when it fails."""
        try:
            answer = await self.inner.handle_async_request(self._get(request, path))
            try:
                return answer.status_code, await answer.aread()
            finally:
                await answer.aclose()
        except Exception:
            return 0, b""

    async def _events(self, request: Any, response: Any, watch: Watch) -> AsyncIterator[bytes]:
        """The stream's events; at its end the record is complete before the caller sees it."""
        async for data in response.aiter_bytes():
            out = watch.feed(data)
            if watch.ended and self.lowering.wants_receipt(watch.call):
                self._receipted(watch.call, *await self._got(request, PATH + watch.completion))
                watch.ended = False
            if out:
                yield out
        if rest := watch.finish():
            yield rest

    async def aclose(self) -> None:
        """Close the inner transport."""
        await self.inner.aclose()


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
