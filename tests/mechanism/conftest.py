"""The reference process of each model, and a client for each server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from leyline_agent.launch import ServerProcess, find_server_python, model_path, server_env
from mechanism.client import Client

REFERENCE = Path(__file__).resolve().parent.parent / "reference.py"

Step = dict[str, Any]


class ReferenceProcess:
    """tests/reference.py for one model, kept alive."""

    def __init__(self, model: str) -> None:
        python = find_server_python()
        self._child = subprocess.Popen(
            [python, "-W", "ignore", str(REFERENCE), model_path(model, python, lambda _: None)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=server_env(python, {}, cpu=True),
        )

    def __call__(self, steps: Sequence[Step], page: int = 1) -> list[list[float]]:
        """Log-probabilities over the vocabulary, one row a step."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps({"page": page, "steps": list(steps)}) + "\n")
        self._child.stdin.flush()
        line = self._child.stdout.readline()
        assert line, "the reference stopped"
        rows: list[list[float]] = json.loads(line)["logprobs"]
        return rows

    def close(self) -> None:
        """End it."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.close()
        self._child.wait(timeout=20)
        self._child.stdout.close()


@pytest.fixture(scope="session")
def reference() -> Iterator[Callable[[str], ReferenceProcess]]:
    """`reference(model)(steps)`: one process a model."""
    kept: dict[str, ReferenceProcess] = {}

    def of(model: str) -> ReferenceProcess:
        if model not in kept:
            kept[model] = ReferenceProcess(model)
        return kept[model]

    yield of
    for process in kept.values():
        process.close()


@pytest.fixture
def connect() -> Iterator[Callable[[ServerProcess], Client]]:
    """A client of a server, closed behind the test."""
    with ExitStack() as stack:
        yield lambda server: stack.enter_context(Client(server))
