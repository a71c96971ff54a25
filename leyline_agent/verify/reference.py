"""The independent reference as a process: transformers with a cache edited by hand."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from leyline_agent.core import ServerError
from leyline_agent.launch import PACKAGE, find_server_python, server_env

SCRIPT = PACKAGE / "server" / "reference.py"

Step = dict[str, Any]
"""directives (as `client.as_wire` writes them), new (token ids), outputs (token ids)."""


class ReferenceProcess:
    """server/reference.py for one model folder, kept alive; a context manager.

    Args:
        dtype: what the server rounds the weights to ("auto": as they are stored); the
            arithmetic is float64.
    """

    def __init__(self, model: str | Path, dtype: str = "float32") -> None:
        python = find_server_python()
        self._child = subprocess.Popen(
            [python, "-W", "ignore", str(SCRIPT), str(model), dtype],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=server_env(python, {}, cpu=True),
        )

    def __call__(self, steps: Sequence[Step], page: int = 1) -> list[list[float]]:
        """Log-probabilities [steps, vocabulary] of the token after each step.

        Raises:
            ServerError: the process ended; the model or a step is beyond it.
        """
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            self._child.stdin.write(json.dumps({"page": page, "steps": list(steps)}) + "\n")
            self._child.stdin.flush()
            line = self._child.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise ServerError("the reference stopped: transformers cannot run this model here")
        rows: list[list[float]] = json.loads(line)["logprobs"]
        return rows

    def close(self) -> None:
        """End it."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with suppress(BrokenPipeError):
            self._child.stdin.close()
        try:
            self._child.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child.stdout.close()

    def __enter__(self) -> ReferenceProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()
