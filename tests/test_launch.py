"""A server that is interrupted while it starts or stops is never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from leyline_agent import launch
from leyline_agent.cli import app
from leyline_agent.interrupts import held_interrupts
from leyline_agent.launch import ServerProcess

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('up', flush=True); time.sleep(600)"
)


class Fake(ServerProcess):
    """A child that ignores SIGTERM in the place of SGLang; never healthy."""

    def command(self, python: str, path: str, cpu: bool) -> list[str]:
        return [sys.executable, "-c", STUBBORN]

    def healthy(self) -> bool:
        return False


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    monkeypatch.setattr(launch, "find_server_python", lambda _python: sys.executable)
    monkeypatch.setattr(launch, "model_path", lambda *_: "nowhere")
    monkeypatch.setattr(launch, "server_env", lambda *_: dict(os.environ))
    return Fake("tiny", log_path=tmp_path / "log")


def gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def interrupt(*_: Any) -> None:
    signal.raise_signal(signal.SIGINT)


def test_an_interrupt_right_after_the_child_began(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    born: list[int] = []

    class Popen(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            born.append(self.pid)
            interrupt()

    monkeypatch.setattr(launch.subprocess, "Popen", Popen)
    with pytest.raises(KeyboardInterrupt):
        fake.start()
    assert gone(born[0])


def test_a_second_interrupt_while_stopping_kills_at_once(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_then_again(_line: str) -> None:
        if fake._child and fake.log_path.read_text():
            monkeypatch.setattr(launch.time, "sleep", interrupt)
            interrupt()

    fake.progress = first_then_again
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        fake.start()
    assert gone(fake.pid)
    assert time.monotonic() - began < 10, "the grace of 15 s is cut short"


def test_held_interrupts_come_afterwards() -> None:
    done = False

    def inside() -> None:
        nonlocal done
        with held_interrupts():
            interrupt()
            done = True

    with pytest.raises(KeyboardInterrupt):
        inside()
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("command", [["serve"], ["verify", "--arch", "tiny"], ["demo"], ["bench"]])
def test_an_interrupted_command_says_so(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServerProcess, "start", interrupt)
    monkeypatch.setattr("leyline_agent.verify.command.started", interrupt)
    monkeypatch.setattr("leyline_agent.bench.command._measure", interrupt)
    done = CliRunner().invoke(app, [*command, "kernel"] if command == ["bench"] else command)
    assert done.exit_code == 130
    assert done.stderr.splitlines()[-1] == "stopped"
