"""A client on a fake server, in four kinds: two HTTP libraries, blocking and asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from fake_sglang import FakeServer

from leyline_agent.transport import Lowering, async_transport, transport

httpx2 = pytest.importorskip("httpx2")


@dataclass
class Wired:
    """`post` sends a body and gives the whole response, whatever kind of client it is."""

    server: FakeServer
    lowering: Lowering
    post: Callable[..., Any]

    def meet_another(self) -> None:
        """Another conversation came first: from now on new ones are looked at."""
        self.post({"model": "m", "messages": [{"role": "user", "content": "another"}]})
        self.server.asked.clear()
        self.server.plans.clear()
        self.lowering.counts.clear()


@pytest.fixture(params=[httpx, httpx2], ids=["httpx", "httpx2"])
def lib(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=["sync", "async"])
def wired(request: pytest.FixtureRequest, lib: Any) -> Wired:
    server, lowering = FakeServer(lib), Lowering()
    path = "http://server:1/v1/chat/completions"

    def post(body: Any, url: str = path, headers: dict[str, str] | None = None) -> Any:
        sent = {"content": body} if isinstance(body, bytes) else {"json": body}
        if request.param == "sync":
            with lib.Client(transport=transport(lib, lowering, server.transport)) as client:
                return client.post(url, headers=headers, **sent)

        async def go() -> Any:
            inner = async_transport(lib, lowering, server.transport)
            async with lib.AsyncClient(transport=inner) as client:
                return await client.post(url, headers=headers, **sent)

        return asyncio.run(go())

    return Wired(server, lowering, post)
