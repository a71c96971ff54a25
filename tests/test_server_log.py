"""What the log of a server that did not start is cut down to."""

from __future__ import annotations

from pathlib import Path

import pytest

from leyline_agent.server_log import told

SCHEDULER = """\
[2026-01-01 00:00:00] server_args=ServerArgs(model_path='Error: no')
[2026-01-01 00:00:01] Scheduler hit an exception: Traceback (most recent call last):
  File "memory.py", line 1, in profile
    raise ValueError(
ValueError: no memory for the KV cache

[2026-01-01 00:00:02] Received sigquit from a child process.
"""
DIED = (
    SCHEDULER
    + """\
Traceback (most recent call last):
RuntimeError: Rank 0 scheduler died during initialization (exit code: 1)
[2026-01-01 00:00:02] kill_process_tree called
"""
)
ARGUMENTS = "usage: sglang serve [-h]\nsglang serve: error: unrecognized arguments: --x\n"


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (SCHEDULER, "ValueError: no memory for the KV cache"),
        (DIED, "ValueError: no memory for the KV cache"),
        (ARGUMENTS, "sglang serve: error: unrecognized arguments: --x"),
        ("[2026-01-01 00:00:01] loading\nKilled\n\n", "Killed"),
        ("OSError: first\nduring which\ntorch.cuda.OutOfMemoryError: then", None),
        ("", "it said nothing"),
    ],
)
def test_the_reason_then_the_path_then_the_end(
    log: str, reason: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "server.log"
    path.write_text("early\n" * 50 + log if log else "")
    first, second, *tail = told(path).splitlines()
    assert first == (reason or "torch.cuda.OutOfMemoryError: then")
    assert str(path) in second
    assert len(tail) <= 8
    assert not log or log.rstrip().splitlines()[-1] in tail[-1] or not tail[-1].strip()


def test_no_log_at_all(tmp_path: Path) -> None:
    assert told(tmp_path / "none").startswith("it said nothing")
