"""The reference process of each model, and a client for each server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from leyline_agent.launch import ServerProcess, find_server_python, model_path
from leyline_agent.verify.client import Client
from leyline_agent.verify.reference import ReferenceProcess


@pytest.fixture(scope="session")
def reference() -> Iterator[Callable[[str], ReferenceProcess]]:
    """`reference(model)(steps)`: one process a model."""
    kept: dict[str, ReferenceProcess] = {}

    def of(model: str) -> ReferenceProcess:
        if model not in kept:
            kept[model] = ReferenceProcess(model_path(model, find_server_python(), lambda _: None))
        return kept[model]

    yield of
    for process in kept.values():
        process.close()


@pytest.fixture
def connect() -> Iterator[Callable[[ServerProcess], Client]]:
    """A client of a server, closed behind the test."""
    with ExitStack() as stack:
        yield lambda server: stack.enter_context(Client(server.base_url))
