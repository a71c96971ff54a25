"""The middleware in real create_agent loops over a fake model that notes what it is given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    ModelRequest,
    wrap_model_call,
)
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    HumanMessage,
    ToolMessage,
)
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from leyline_agent.core import PolicyError
from leyline_agent.langchain import LeylineMiddleware, chat_model
from leyline_agent.policies import TruncateOlderThan
from leyline_agent.transport import CONVERSATION, MODE

LONG = "head " + "x" * 2000 + " tail"


@tool
def read(path: str) -> str:
    """Read a file."""
    return LONG


class Noting(GenericFakeChatModel):
    """Calls `read` a few times, then answers; notes messages and settings of each call."""

    messages: Iterator[AIMessage | str] = iter(())
    turns: int = 4
    seen: list[list[AnyMessage]] = []  # noqa: RUF012
    settings: list[dict[str, Any]] = []  # noqa: RUF012
    model_kwargs: dict[str, Any] = {}  # noqa: RUF012

    def bind_tools(self, tools: Any, **settings: Any) -> Any:
        return self.bind(**settings)

    def _answer(self, messages: list[AnyMessage], settings: dict[str, Any]) -> AIMessage:
        self.seen.append(list(messages))
        self.settings.append(settings)
        done = sum(isinstance(m, AIMessage) for m in messages)
        if done % (self.turns + 1) == self.turns:
            return AIMessage("done")
        return AIMessage(
            "", tool_calls=[{"name": "read", "args": {"path": "p"}, "id": f"call-{done}"}]
        )

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kw: Any) -> Any:
        self.messages = iter([self._answer(messages, kw)])
        return super()._generate(messages, stop, run_manager)

    def _stream(self, messages: Any, stop: Any = None, run_manager: Any = None, **kw: Any) -> Any:
        answer = self._answer(messages, kw)
        yield ChatGenerationChunk(
            message=AIMessageChunk(answer.content, tool_calls=answer.tool_calls)
        )

    async def _astream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kw: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in self._stream(messages, **kw):
            yield chunk


@pytest.fixture
def model() -> Noting:
    return Noting(seen=[], settings=[])


START: dict[str, Any] = {"messages": [{"role": "user", "content": "go"}]}
THREAD: dict[str, Any] = {"configurable": {"thread_id": "thread"}}


def by_invoke(agent: Any) -> list[AnyMessage]:
    messages: list[AnyMessage] = agent.invoke(START, THREAD)["messages"]
    return messages


def by_ainvoke(agent: Any) -> list[AnyMessage]:
    return asyncio.run(agent.ainvoke(START, THREAD))["messages"]  # type: ignore[no-any-return]


def by_stream(agent: Any) -> list[AnyMessage]:
    *_, (_, last) = [
        item for item in agent.stream(START, THREAD, stream_mode=["messages", "values"])
    ]
    return last["messages"]  # type: ignore[no-any-return]


def by_astream(agent: Any) -> list[AnyMessage]:
    async def run() -> Any:
        modes = ["messages", "values"]
        return [item async for item in agent.astream(START, THREAD, stream_mode=modes)]

    return asyncio.run(run())[-1][1]["messages"]  # type: ignore[no-any-return]


WAYS = [by_invoke, by_ainvoke, by_stream, by_astream]
Way = Callable[[Any], list[AnyMessage]]


def sizes(messages: list[AnyMessage]) -> list[int]:
    return [len(m.content) for m in messages if isinstance(m, ToolMessage)]


def headers(**settings: Any) -> dict[str, Any]:
    """The model_settings that the middleware makes of these, outside of any graph."""
    kwargs = settings.pop("model_kwargs", {})
    request: ModelRequest[Any] = ModelRequest(
        model=Noting(model_kwargs=kwargs), messages=[HumanMessage("x")], model_settings=settings
    )
    return LeylineMiddleware(mode="forget").prepared(request).model_settings


@pytest.mark.parametrize("way", WAYS)
def test_the_model_is_given_stubs_and_the_state_keeps_all(model: Noting, way: Way) -> None:
    state = way(create_agent(model, [read], middleware=[LeylineMiddleware(TruncateOlderThan())]))
    whole = len(LONG)
    assert [sizes(m) for m in model.seen] == [
        [],
        [whole],
        [whole, whole],
        [200, whole, whole],
        [200, 200, whole, whole],
    ]
    assert sizes(state) == [whole] * 4
    ids = {m.id for m in state}
    assert all(m.id in ids for m in model.seen[-1])
    assert model.seen[4][2] == model.seen[3][2]


class FailsLate(TruncateOlderThan):
    """From the fifth call on it raises."""

    def transform(self, messages: Any, turn: int) -> Any:
        if turn == 4:
            raise ValueError("mine")
        return super().transform(messages, turn)


@pytest.mark.parametrize("way", WAYS)
def test_a_policy_that_fails_costs_no_request(model: Noting, way: Way, caplog: Any) -> None:
    """What it cut before stays cut; the agent goes on to its end."""
    middleware = LeylineMiddleware(FailsLate())
    state = way(create_agent(model, [read], middleware=[middleware]))
    assert state[-1].content == "done"
    whole = len(LONG)
    assert sizes(model.seen[3]) == [200, whole, whole]
    assert sizes(model.seen[4]) == [200, whole, whole, whole]
    assert middleware.policy_failures == 1
    assert "FailsLate failed on turn 4: ValueError: mine" in caplog.text


@pytest.mark.parametrize(
    "garbage",
    [[], [{"role": "user", "content": 5}], [{"role": "tool", "content": "", "tool_call_id": [1]}]],
    ids=str,
)
@pytest.mark.parametrize("way", WAYS)
def test_garbage_of_a_policy_costs_no_request(
    model: Noting, way: Way, garbage: Any, caplog: Any
) -> None:
    class Garbage:
        def transform(self, messages: Any, turn: int) -> Any:
            return garbage

    model.turns = 0
    middleware = LeylineMiddleware(Garbage())
    state = way(create_agent(model, [read], middleware=[middleware]))
    assert [m.content for m in model.seen[0]] == ["go"]
    assert middleware.policy_failures == len(caplog.records) == 1
    told = state[-1].response_metadata["leyline"]
    assert told["why"].startswith("policy failed: Garbage")
    assert told["planned"] is False


@pytest.mark.parametrize("way", WAYS)
def test_key_and_mode_reach_every_call(model: Noting, way: Way) -> None:
    way(create_agent(model, [read], middleware=[LeylineMiddleware(mode="forget")]))
    assert len(model.settings) == 5
    for settings in model.settings:
        assert settings["extra_headers"] == {CONVERSATION: "thread", MODE: "forget"}


def test_without_a_policy_messages_are_untouched(model: Noting) -> None:
    state = by_invoke(create_agent(model, [read], middleware=[LeylineMiddleware()]))
    assert model.seen[-1] == state[:-1]


def test_without_a_thread_edits_work_and_no_key_is_sent(model: Noting) -> None:
    agent = create_agent(model, [read], middleware=[LeylineMiddleware(TruncateOlderThan())])
    agent.invoke(START)
    assert sizes(model.seen[-1]) == [200, 200, len(LONG), len(LONG)]
    assert model.settings[-1]["extra_headers"] == {MODE: "amortize"}


def test_a_thread_that_goes_on_keeps_its_stubs(model: Noting) -> None:
    agent = create_agent(
        model,
        [read],
        middleware=[LeylineMiddleware(TruncateOlderThan())],
        checkpointer=InMemorySaver(),
    )
    by_invoke(agent)
    by_invoke(agent)
    before, after = model.seen[4], model.seen[-1]
    assert [m for m in after if m.content != LONG][:3] == [m for m in before if m.content != LONG][
        :3
    ]
    assert sizes(after) == [200] * 6 + [len(LONG)] * 2


@pytest.mark.parametrize("way", WAYS)
def test_behind_context_editing(model: Noting, way: Way) -> None:
    clearing = ContextEditingMiddleware(
        edits=[ClearToolUsesEdit(trigger=1, keep=3, placeholder="[cleared]")]
    )
    policy = LeylineMiddleware(TruncateOlderThan())
    state = way(create_agent(model, [read], middleware=[clearing, policy]))
    assert sizes(model.seen[-1]) == [len("[cleared]"), 200, len(LONG), len(LONG)]
    assert sizes(state) == [len(LONG)] * 4


def test_the_order_shows_what_others_did(model: Noting) -> None:
    @wrap_model_call
    def shout(request: Any, handler: Any) -> Any:
        return handler(request.override(messages=[*request.messages, HumanMessage("now")]))

    middleware = [shout, LeylineMiddleware(TruncateOlderThan())]
    by_invoke(create_agent(model, [read], middleware=middleware))
    assert all(m[-1].content == "now" for m in model.seen)
    assert sizes(model.seen[-1])[0] == 200


def test_the_policy_says_the_mode_unless_told() -> None:
    class Forgetful(TruncateOlderThan):
        mode = "forget"

    assert LeylineMiddleware(Forgetful()).mode == "forget"
    assert LeylineMiddleware(Forgetful(), mode="amortize").mode == "amortize"
    assert LeylineMiddleware(TruncateOlderThan()).mode == "amortize"
    with pytest.raises(ValueError, match="no mode 'sometimes'; the modes are amortize, forget"):
        LeylineMiddleware(mode="sometimes")


def test_what_is_no_policy_is_refused_at_once() -> None:
    class Sometimes(TruncateOlderThan):
        mode = "sometimes"

    with pytest.raises(PolicyError, match="Sometimes: there is no mode 'sometimes'; the modes are"):
        LeylineMiddleware(Sometimes())
    with pytest.raises(PolicyError, match="is a class"):
        LeylineMiddleware(TruncateOlderThan)  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="object has no method transform"):
        LeylineMiddleware(object())  # type: ignore[arg-type]


def test_the_users_settings_stay() -> None:
    body = {"custom_params": {"a": 1}}
    found = headers(extra_body=body, temperature=0, extra_headers={"x-mine": "1"})
    assert found["extra_body"] is body
    assert found["temperature"] == 0
    assert found["extra_headers"] == {MODE: "forget", "x-mine": "1"}


def test_the_users_headers_win_however_they_are_spelled() -> None:
    assert headers(extra_headers={"X-Leyline-Mode": "amortize"})["extra_headers"] == {
        "X-Leyline-Mode": "amortize"
    }
    of_model = {"extra_headers": {"x-mine": "model", "x-other": "model"}}
    found = headers(model_kwargs=of_model, extra_headers={"x-mine": "call"})["extra_headers"]
    assert found == {MODE: "forget", "x-mine": "call", "x-other": "model"}


@pytest.mark.parametrize("thread", ["käse", "a\nx-evil: 1", "日本", 7])
def test_any_thread_id_makes_a_header(model: Noting, thread: Any) -> None:
    agent = create_agent(model, [read], middleware=[LeylineMiddleware()])
    agent.invoke(START, {"configurable": {"thread_id": thread}})
    keys = {s["extra_headers"][CONVERSATION] for s in model.settings}
    assert len(keys) == 1
    assert keys.pop().isascii()
    assert all("\n" not in s["extra_headers"][CONVERSATION] for s in model.settings)


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_chat_model(url: str) -> None:
    llm = chat_model(url, mode="forget", temperature=0, streaming=False)
    assert llm.openai_api_base == "http://h:1/v1"
    assert (llm.model_name, llm.streaming, llm.stream_usage) == ("default", False, True)
    assert chat_model(url).streaming
    sync, asynchronous = llm.http_client._transport, llm.http_async_client._transport
    assert sync.lowering is asynchronous.lowering
    assert sync.lowering.mode == "forget"
    assert llm.root_client._client is llm.http_client
    assert llm.root_async_client._client is llm.http_async_client
