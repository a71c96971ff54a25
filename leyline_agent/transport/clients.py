"""Ready transports and clients, for whichever HTTP library is asked for."""

from __future__ import annotations

import importlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from leyline_agent.core import SetupError
from leyline_agent.transport.lowering import Lowering
from leyline_agent.transport.shells import AsyncShell, SyncShell

TIMEOUT = 600.0


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
    return _shells(lib)[0](inner or lib.HTTPTransport(), lowering or Lowering())


def async_transport(lib: Any, lowering: Lowering | None = None, inner: Any = None) -> Any:
    """The asyncio twin of transport()."""
    return _shells(lib)[1](inner or lib.AsyncHTTPTransport(), lowering or Lowering())


def client(base_url: str = "", lowering: Lowering | None = None, lib: Any = None) -> Any:
    """A blocking HTTP client whose chat completions are planned.

    Args:
        base_url: of the server. lowering: shared state; one for each client when None.
        lib: the module httpx or httpx2; what the installed openai runs on when None.
    """
    lib = lib or openai_library()
    return lib.Client(base_url=base_url, transport=transport(lib, lowering), timeout=TIMEOUT)


def async_client(base_url: str = "", lowering: Lowering | None = None, lib: Any = None) -> Any:
    """The asyncio twin of client()."""
    lib = lib or openai_library()
    return lib.AsyncClient(
        base_url=base_url, transport=async_transport(lib, lowering), timeout=TIMEOUT
    )
