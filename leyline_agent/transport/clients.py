"""Ready transports and clients, for whichever HTTP library is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from leyline_agent.core import Mode, SetupError
from leyline_agent.transport.lowering import Lowering
from leyline_agent.transport.record import TurnRecord
from leyline_agent.transport.shells import AsyncShell, SyncShell

TIMEOUT = 600.0
CONNECTIONS = 1000


def openai_library() -> Any:
    """The HTTP library that the installed openai package runs on: httpx2 from 3 on, else httpx."""
    try:
        major = int(version("openai").split(".")[0])
    except PackageNotFoundError:
        major = 2
    name = "httpx2" if major >= 3 else "httpx"
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SetupError(f"{name} is not installed: pip install {name}") from error


@cache
def _shells(lib: Any) -> tuple[type, type]:
    """The two transport classes for one library."""
    sync = type("LeylineTransport", (SyncShell, lib.BaseTransport), {"lib": lib})
    asynchronous = type("AsyncLeylineTransport", (AsyncShell, lib.AsyncBaseTransport), {"lib": lib})
    return sync, asynchronous


def transport(lib: Any, lowering: Lowering | None = None, inner: Any = None) -> Any:
    """A blocking transport of `lib` (the module httpx or httpx2) around `inner`."""
    return _shells(lib)[0](inner or lib.HTTPTransport(limits=_limits(lib)), lowering or Lowering())


def async_transport(lib: Any, lowering: Lowering | None = None, inner: Any = None) -> Any:
    """The asyncio twin of transport()."""
    return _shells(lib)[1](
        inner or lib.AsyncHTTPTransport(limits=_limits(lib)), lowering or Lowering()
    )


def _limits(lib: Any) -> Any:
    """As openai's own clients have them."""
    return lib.Limits(max_connections=CONNECTIONS, max_keepalive_connections=100)


def client(
    base_url: str = "",
    *,
    mode: Mode | str = Mode.AMORTIZE,
    on_turn: Callable[[TurnRecord], None] | None = None,
    lowering: Lowering | None = None,
    lib: Any = None,
) -> Any:
    """A blocking HTTP client whose chat completions are planned.

    Args:
        base_url: of the server; OpenAI's client brings its own. mode: of edits that name
            none. on_turn: called with a TurnRecord after each answer. lowering: state to
            share with other clients, instead of mode and on_turn. lib: the module httpx or
            httpx2; what the installed openai runs on when None.
    """
    lib = lib or openai_library()
    state = lowering or Lowering(mode=Mode(mode), on_turn=on_turn)
    return lib.Client(
        base_url=base_url,
        transport=transport(lib, state),
        timeout=TIMEOUT,
        follow_redirects=True,
    )


def async_client(
    base_url: str = "",
    *,
    mode: Mode | str = Mode.AMORTIZE,
    on_turn: Callable[[TurnRecord], None] | None = None,
    lowering: Lowering | None = None,
    lib: Any = None,
) -> Any:
    """The asyncio twin of client()."""
    lib = lib or openai_library()
    state = lowering or Lowering(mode=Mode(mode), on_turn=on_turn)
    return lib.AsyncClient(
        base_url=base_url,
        transport=async_transport(lib, state),
        timeout=TIMEOUT,
        follow_redirects=True,
    )
