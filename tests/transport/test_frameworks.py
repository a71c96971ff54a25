"""OpenAI's client and a LangGraph agent on the transport, whichever HTTP library they run on."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fake_sglang import ANSWER, FakeServer
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from openai import AsyncOpenAI, OpenAI

from leyline_agent.core import ServerError
from leyline_agent.langchain import LeylineMiddleware, chat_model
from leyline_agent.transport import (
    Lowering,
    async_client,
    async_openai_client,
    async_transport,
    client,
    openai_client,
    receipt,
    transport,
)
from leyline_agent.transport.clients import openai_library

URL = "http://server:1/v1"
LONG = "words of an observation, " * 40


@pytest.fixture
def server() -> FakeServer:
    return FakeServer(openai_library())


def clients(server: FakeServer, lowering: Lowering) -> dict[str, Any]:
    """HTTP clients of the library that the installed openai runs on."""
    lib = server.lib
    return {
        "http_client": lib.Client(transport=transport(lib, lowering, server.transport)),
        "http_async_client": lib.AsyncClient(
            transport=async_transport(lib, lowering, server.transport)
        ),
    }


def test_openai_streams_and_answers(server: FakeServer) -> None:
    lowering = Lowering()
    llm = OpenAI(base_url=URL, api_key="none", http_client=clients(server, lowering)["http_client"])
    messages: list[Any] = [{"role": "user", "content": "hi"}]
    answer = llm.chat.completions.create(model="m", messages=messages)
    assert answer.choices[0].message.content == ANSWER
    chunks = list(llm.chat.completions.create(model="m", messages=messages, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == ANSWER
    assert len(lowering.planner.ledger) == 2


def agent(server: FakeServer, lowering: Lowering, streaming: bool) -> Any:
    model = ChatOpenAI(
        base_url=URL, api_key="none", model="m", streaming=streaming, **clients(server, lowering)
    )
    middleware = [LeylineMiddleware("truncate_older_than:n=1,observations=user", "forget")]
    return create_agent(model, [], middleware=middleware, checkpointer=InMemorySaver())


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_an_agents_edits_become_plans_and_its_answers_say_so(
    server: FakeServer, streaming: bool, asynchronous: bool
) -> None:
    lowering = Lowering()
    loop = agent(server, lowering, streaming)
    config = {"configurable": {"thread_id": "ä thread"}}
    for text in ("task", LONG, "more", "and more"):
        asked = {"messages": [{"role": "user", "content": text}]}
        state = await loop.ainvoke(asked, config) if asynchronous else loop.invoke(asked, config)
    plans = [plan for plan in server.plans if plan is not None]
    assert len(plans) == 1
    assert [d.mode.value for d in plans[0].plan.directives] == ["forget"]
    # The state keeps everything; each answer tells what was planned for it.
    assert any(message.content == LONG for message in state["messages"])
    told = [m.response_metadata["leyline"] for m in state["messages"] if isinstance(m, AIMessage)]
    assert [record["planned"] for record in told] == [False, False, True, False]
    assert told[2]["completion"] == "chatcmpl-2"
    assert [record["applied"] for record in told] == [None, None, True, None]
    assert (told[2]["spliced"], told[2]["fallback"]) == (7, None)
    other = {"configurable": {"thread_id": "another"}}
    loop.invoke({"messages": [{"role": "user", "content": "task"}]}, other)
    assert lowering.last is not None
    assert lowering.last.why == "no earlier prompt to continue"


@pytest.mark.parametrize("streaming", [False, True])
def test_answers_of_a_server_without_leyline_say_so(server: FakeServer, streaming: bool) -> None:
    server.info = None
    asked = {"messages": [{"role": "user", "content": "task"}]}
    config = {"configurable": {"thread_id": "a"}}
    state = agent(server, Lowering(), streaming).invoke(asked, config)
    told = state["messages"][-1].response_metadata["leyline"]
    assert (told["planned"], told["why"]) == (False, "no leyline server")


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_stream_s_last_chunk_says_so_too(server: FakeServer, asynchronous: bool) -> None:
    lowering = Lowering()
    model = chat_model(URL, "m", **clients(server, lowering))
    loop = create_agent(model, [], middleware=[LeylineMiddleware()])
    asked = {"messages": [{"role": "user", "content": "task"}]}
    if asynchronous:
        chunks = [c async for c, _ in loop.astream(asked, stream_mode="messages")]
    else:
        chunks = [c for c, _ in loop.stream(asked, stream_mode="messages")]
    assert "".join(c.content for c in chunks) == ANSWER
    told = [c.response_metadata["leyline"] for c in chunks if "leyline" in c.response_metadata]
    assert "leyline" in chunks[-1].response_metadata
    assert [(t["completion"], t["planned"]) for t in told] == [("chatcmpl-0", False)]
    assert len({c.id for c in chunks}) == 1
    # Outside of the middleware nobody collects, and the stream is ChatOpenAI's own.
    assert not any("leyline" in c.response_metadata for c in model.stream("hi"))
    state = await loop.ainvoke(asked)
    message = state["messages"][-1]
    assert (message.content, message.response_metadata["leyline"]["planned"]) == (ANSWER, False)


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_ready_clients_take_a_root_with_and_without_v1(url: str) -> None:
    shared = Lowering()
    llm, twin = openai_client(url, lowering=shared), async_openai_client(url, max_retries=1)
    assert (type(llm), type(twin), twin.max_retries) == (OpenAI, AsyncOpenAI, 1)
    assert str(llm.base_url) == str(twin.base_url) == "http://h:1/v1/"
    assert llm._client._transport.lowering is shared
    assert chat_model(url, lowering=shared).http_client._transport.lowering is shared


def test_both_libraries_give_clients_of_their_own() -> None:
    httpx2 = pytest.importorskip("httpx2")
    for lib in (httpx, httpx2):
        assert isinstance(client("http://h:1", lib=lib), lib.Client)
        assert isinstance(async_client("http://h:1", lib=lib), lib.AsyncClient)
    with pytest.raises(ValueError, match="soften"):
        client("http://h:1", mode="soften")


def test_a_receipt_from_nobody() -> None:
    with pytest.raises(ServerError, match="no receipt from"):
        receipt("http://127.0.0.1:9", "chatcmpl-1")
