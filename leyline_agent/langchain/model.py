"""A ChatOpenAI whose requests go through the Leyline transport."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import asdict
from typing import Any

from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk
from langchain_openai import ChatOpenAI

from leyline_agent.core import Mode
from leyline_agent.transport import Lowering, TurnRecord, async_client, client, v1
from leyline_agent.transport.record import COLLECTING


class LeylineChatOpenAI(ChatOpenAI):
    """ChatOpenAI whose streams end with an empty chunk that carries the turn's record.

    Its `response_metadata["leyline"]` is what the whole message will have. Only inside
    collect(), as under LeylineMiddleware; else the stream is ChatOpenAI's own.
    """

    def _stream(self, *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        before, name = _collected(), None
        for chunk in super()._stream(*args, **kwargs):
            name = chunk.message.id or name
            yield chunk
        yield from _last(before, name, kwargs.get("run_manager"))

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        before, name = _collected(), None
        async for chunk in super()._astream(*args, **kwargs):
            name = chunk.message.id or name
            yield chunk
        manager = kwargs.get("run_manager")
        for chunk in _last(before, name):
            if manager is not None:
                await manager.on_llm_new_token("", chunk=chunk)
            yield chunk


def _collected() -> int:
    """How many records the innermost collect() has."""
    collecting = COLLECTING.get()
    return len(collecting[-1]) if collecting else 0


def _last(before: int, name: str | None, manager: Any = None) -> list[ChatGenerationChunk]:
    """The chunk behind the last one, when a record has come since."""
    if _collected() <= before:
        return []
    told = {"leyline": asdict(COLLECTING.get()[-1][-1])}
    message = AIMessageChunk("", id=name, response_metadata=told, chunk_position="last")
    chunk = ChatGenerationChunk(message=message)
    if manager is not None:
        manager.on_llm_new_token("", chunk=chunk)
    return [chunk]


def chat_model(
    base_url: str,
    model: str = "default",
    *,
    mode: Mode | str = Mode.AMORTIZE,
    on_turn: Callable[[TurnRecord], None] | None = None,
    lowering: Lowering | None = None,
    **options: Any,
) -> ChatOpenAI:
    """A chat model for a Leyline server; its blocking and asyncio clients share one ledger.

    Args:
        base_url: root of the server, with or without /v1. model: a name it serves.
        mode: of edits that name none. on_turn: called with a TurnRecord after each answer.
        lowering: state to share with other clients, instead of mode and on_turn.
        options: ChatOpenAI's own.
    """
    state = lowering or Lowering(mode=Mode(mode), on_turn=on_turn)
    defaults: dict[str, Any] = {
        "api_key": "none",
        "streaming": True,
        "stream_usage": True,
        "http_async_client": async_client(lowering=state),
    }
    if "http_client" not in options:
        defaults["http_client"] = client(lowering=state)
    return LeylineChatOpenAI(
        base_url=v1(base_url),
        model=model,
        **(defaults | options),
    )
