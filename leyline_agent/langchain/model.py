"""A ChatOpenAI whose requests go through the Leyline transport."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain_openai import ChatOpenAI

from leyline_agent.core import Mode
from leyline_agent.transport import Lowering, TurnRecord, async_client, client, v1


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
    return ChatOpenAI(
        base_url=v1(base_url),
        model=model,
        **(defaults | options),
    )
