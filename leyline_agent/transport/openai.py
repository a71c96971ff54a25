"""OpenAI's own clients, planned."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from leyline_agent.core import Mode, SetupError
from leyline_agent.transport.clients import async_client, client
from leyline_agent.transport.lowering import Lowering
from leyline_agent.transport.record import TurnRecord

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI


def v1(base_url: str) -> str:
    """A server's root, with or without /v1, as OpenAI's clients want it."""
    return base_url.rstrip("/").removesuffix("/v1") + "/v1"


def openai_client(
    base_url: str,
    *,
    mode: Mode | str = Mode.AMORTIZE,
    on_turn: Callable[[TurnRecord], None] | None = None,
    lowering: Lowering | None = None,
    **options: Any,
) -> OpenAI:
    """An OpenAI client for a self-hosted SGLang.

    Args:
        base_url: the server's root, with or without /v1. mode: of edits that name none.
        on_turn: called with a TurnRecord after each answer. lowering: state to share with
            other clients, instead of mode and on_turn. options: OpenAI's own; the key is
            "none" unless one is given.

    Raises:
        SetupError: the package openai, or the HTTP library it runs on, is not installed.
    """
    http = client(mode=mode, on_turn=on_turn, lowering=lowering)
    made = _package().OpenAI(
        base_url=v1(base_url), http_client=http, **{"api_key": "none", **options}
    )
    return made  # type: ignore[no-any-return]


def async_openai_client(
    base_url: str,
    *,
    mode: Mode | str = Mode.AMORTIZE,
    on_turn: Callable[[TurnRecord], None] | None = None,
    lowering: Lowering | None = None,
    **options: Any,
) -> AsyncOpenAI:
    """The asyncio twin of openai_client()."""
    http = async_client(mode=mode, on_turn=on_turn, lowering=lowering)
    made = _package().AsyncOpenAI(
        base_url=v1(base_url), http_client=http, **{"api_key": "none", **options}
    )
    return made  # type: ignore[no-any-return]


def _package() -> Any:
    try:
        import openai
    except ImportError as error:
        raise SetupError("openai is not installed: pip install leyline-agent[openai]") from error
    return openai
