"""A ChatOpenAI whose requests go through the Leyline transport."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain_openai import ChatOpenAI

from leyline_agent.core import Mode
from leyline_agent.transport import Lowering, TurnRecord, async_client, client


def chat_model(
    base_url: str,
    model: str = "default",
    *,
    mode: Mode | str = Mode.AMORTIZE,
    on_turn: Callable[[TurnRecord], None] | None = None,
    **options: Any,
) -> ChatOpenAI:
    """A chat model for a Leyline server; its blocking and asyncio clients share one ledger.

    Args:
        base_url: root of the server, with or without /v1. model: a name it serves.
        mode: of edits that name none. on_turn: called with a TurnRecord after each answer.
        options: ChatOpenAI's own.
    """
    lowering = Lowering(mode=Mode(mode), on_turn=on_turn)
    defaults: dict[str, Any] = {"api_key": "none", "streaming": True, "stream_usage": True}
    return ChatOpenAI(
        base_url=base_url.rstrip("/").removesuffix("/v1") + "/v1",
        model=model,
        http_client=client(lowering=lowering),
        http_async_client=async_client(lowering=lowering),
        **(defaults | options),
    )
