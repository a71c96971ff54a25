"""Real servers, at most two alive at once, and code run in the server environment."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from leyline_agent.launch import ServerProcess, find_server_python, server_env

ROOT = Path(__file__).resolve().parent.parent
ALIVE = 2


class Servers:
    """Servers by their arguments; asking for a third one stops the least recently asked."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._stacks: dict[str, tuple[ServerProcess, ExitStack]] = {}

    def __call__(self, **arguments: Any) -> ServerProcess:
        """A running server; the same one for the same arguments while it lives."""
        arguments = {"model": "tiny", "dtype": "float32", **arguments}
        key = json.dumps(arguments, sort_keys=True, default=str)
        kept = self._stacks.pop(key, None)
        if kept and kept[0].healthy():
            self._stacks[key] = kept
            return kept[0]
        if kept:
            kept[1].close()
        while len(self._stacks) >= ALIVE:
            self._stacks.pop(next(iter(self._stacks)))[1].close()
        stack = ExitStack()
        log = self._logs / f"server-{len(list(self._logs.iterdir()))}.log"
        server = stack.enter_context(ServerProcess(**arguments, log_path=log))
        self._stacks[key] = (server, stack)
        return server

    def close(self) -> None:
        """Stop them all."""
        for _, stack in self._stacks.values():
            stack.close()
        self._stacks.clear()


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """`serve(extra_args=[...], stock=True, ...)`: ask in every test, keep no server yourself."""
    servers = Servers(tmp_path_factory.mktemp("servers"))
    yield servers
    servers.close()


@pytest.fixture
def server(serve: Servers) -> ServerProcess:
    """The tiny MLA model in float32, with the plugin."""
    return serve()


@pytest.fixture
def stock_server(serve: Servers) -> ServerProcess:
    """The same model on SGLang's own radix cache."""
    return serve(stock=True)


@pytest.fixture(scope="session")
def in_server_env() -> Callable[[str], Any]:
    """Run code that prints JSON last, in the server environment; the value it printed."""
    python = find_server_python()
    env = server_env(python, {}, cpu=True)

    def run(code: str) -> Any:
        done = subprocess.run(
            [python, "-W", "ignore", "-c", code],
            capture_output=True,
            text=True,
            env=env,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.strip().splitlines()[-1])

    return run


@pytest.fixture(scope="session")
def post() -> Callable[[str, dict[str, Any]], dict[str, Any]]:
    """POST JSON, answer JSON."""

    def send(url: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            url, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            value: dict[str, Any] = json.load(answer)
        return value

    return send
