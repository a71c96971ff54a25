"""`leyline`: help, serve (starts, tells, stops) and doctor (finds, tells what to do)."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from leyline_agent import __version__, doctor
from leyline_agent.builtin import TINY
from leyline_agent.cli import app
from leyline_agent.core import VERSION, SetupError
from leyline_agent.launch import ServerProcess
from leyline_agent.ports import free_port

RUN = CliRunner()
INFO: dict[str, Any] = {
    "leyline": __version__,
    "wire": VERSION,
    "sglang": "0.5.23",
    "active": True,
    "supported": True,
    "reasons": [],
    "ranks": [{"layout": {"kind": "mla", "layers": 6}}],
}


def faults(checks: list[doctor.Check]) -> list[str]:
    return [f"{c.name}: {c.remedy}" for c in checks if c.level == "fault"]


def leyline(*args: str) -> list[str]:
    return [sys.executable, "-c", "from leyline_agent.cli import app; app()", *args]


def test_version_and_help() -> None:
    def say(option: str) -> str:
        return subprocess.run(leyline(option), capture_output=True, text=True, check=True).stdout

    assert __version__ in say("--version")
    shown = say("--help")
    for command in ("serve", "doctor", "demo", "replay", "verify", "bench"):
        assert f" {command} " in shown


def test_serve_lists_every_built_in_model() -> None:
    shown = RUN.invoke(app, ["serve", "--help"], env={"COLUMNS": "300"}).output
    assert f"Built in, for a CPU: {', '.join(TINY)}." in shown


def test_a_missing_extra_is_a_note_and_a_missing_requirement_a_fault() -> None:
    def find(name: str) -> str:
        if name in ("langgraph", "httpx"):
            raise PackageNotFoundError(name)
        return "1.0"

    checks = {check.name: check for check in doctor.client_checks(find)}
    assert checks["langgraph"].level == "note"
    assert "leyline-agent[langchain]" in checks["langgraph"].remedy
    assert checks["httpx"].level == "fault"
    assert checks["openai"].level == "ok"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({}, []),
        ({"sglang": None}, ["sglang"]),
        ({"sglang": "0.6.0"}, ["sglang"]),
        ({"leyline-agent": "0.0.1"}, ["leyline-agent"]),
        ({"plugin": []}, ["plugin"]),
        ({"faults": ["a.b cannot be found"]}, ["fit"]),
        ({"error": "No such file"}, ["python"]),
    ],
)
def test_what_a_probe_of_the_server_environment_means(
    change: dict[str, Any], named: list[str]
) -> None:
    found = {
        "python": "3.11.7",
        "torch": "2.13.0",
        "sglang": "0.5.23",
        "leyline-agent": __version__,
        "plugin": ["leyline_agent.server.plugin:activate"],
        "faults": [],
    }
    checks = doctor.server_checks("/env/bin/python", {**found, **change})
    assert [c.name for c in checks if c.level == "fault"] == named
    assert all(c.remedy for c in checks if c.level == "fault")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, None),
        ({"wire": VERSION + 1}, "install one leyline-agent on both sides"),
        ({"supported": False, "reasons": ["unsupported_dtype: fp8"]}, "unsupported_dtype: fp8"),
        ({"active": False, "reasons": ["add the backend"]}, "add the backend"),
    ],
)
def test_what_a_handshake_means(change: dict[str, Any], told: str | None) -> None:
    checks = doctor.handshake_checks("http://host", {**INFO, **change})
    assert "kind mla, layers 6" in [c.value for c in checks]
    if told is None:
        assert faults(checks) == []
    else:
        assert told in faults(checks)[0]


@pytest.fixture
def answering(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server that answers everything with one status and body."""
    status, body = request.param

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("answering", "told"),
    [
        ((404, b"{}"), "stock SGLang"),
        ((200, b"[]"), "stock SGLang"),
        ((401, b""), "--api-key"),
        ((500, b""), "read its log"),
        ((200, b"<html>"), "stock SGLang or another server"),
    ],
    indirect=["answering"],
)
def test_every_wrong_answer_has_its_remedy(answering: str, told: str) -> None:
    found = doctor.get_info(answering)
    assert isinstance(found, doctor.Check)
    assert found.level == "fault"
    assert told in found.remedy


@pytest.mark.parametrize(
    "answering", [(200, json.dumps(INFO).encode())], ids=["leyline"], indirect=True
)
def test_doctor_on_a_client_machine(answering: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> str:
        raise SetupError("run `make setup`")

    monkeypatch.setattr(doctor, "find_server_python", nowhere)
    remote = RUN.invoke(app, ["doctor", "--base-url", f"{answering}/v1/", "--json"])
    assert remote.exit_code == 0, remote.output
    alone = RUN.invoke(app, ["doctor", "--json"])
    assert alone.exit_code == 1
    assert "make setup" in alone.output
    table = RUN.invoke(
        app,
        [
            "doctor",
        ],
    )
    assert table.exit_code == 1
    assert "FAULT" in table.stdout
    assert "looking at the environments" in table.stderr


def test_at_80_columns_remedies_stand_whole_below_the_table() -> None:
    url = "http://a-host-with-a-long-name.example.internal:30000"
    remedy = "start it with `leyline serve`, or install [it] and add --radix-cache-backend leyline"
    out = io.StringIO()
    found = doctor.Check("handshake", url, "answers, without Leyline", "fault", remedy)
    other = doctor.Check("client", "openai", "absent", "note", remedy)
    doctor.show(Console(file=out, width=80), [found, other])
    table, below = out.getvalue().split("\n\n")
    assert url in "".join(line.split("│")[2].strip() for line in table.splitlines() if "│" in line)
    assert below == f"FAULT {url}, openai: {remedy}\n", "the same remedy is told once"


@pytest.mark.server
def test_doctor_on_a_whole_machine(server: ServerProcess, stock_server: ServerProcess) -> None:
    good = RUN.invoke(app, ["doctor", "--json", "--base-url", server.base_url])
    assert good.exit_code == 0, good.output
    checks = json.loads(good.stdout)["checks"]
    found = {(c["area"], c["name"]): c["value"] for c in checks}
    assert found["server", "sglang"] == "0.5.23"
    assert found["handshake", "splicing"] == "on"
    assert "kind mla" in found["handshake", "rank 0 layout"]
    stock = doctor.get_info(stock_server.base_url)
    assert isinstance(stock, doctor.Check)
    assert "--radix-cache-backend leyline" in stock.remedy


@pytest.mark.parametrize(
    ("args", "env", "told"),
    [
        (["--model", "./no-such-model"], {}, "no model folder"),
        (
            ["--model", "tinny"],
            {},
            "no model 'tinny'; did you mean tiny? name a built-in one (tiny,",
        ),
        (["--model", "tiny_lama"], {}, "did you mean tiny-llama?"),
        (["--model", "gigantic"], {}, "no model 'gigantic'; name a built-in one"),
        (["--model", "tiny"], {"LEYLINE_SERVER_PYTHON": "/nowhere/python"}, "does not exist"),
    ],
)
def test_serve_says_what_is_missing(
    args: list[str], env: dict[str, str], told: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        leyline("serve", *args, "--log", str(tmp_path / "log")),
        capture_output=True,
        text=True,
        env={**os.environ, **env, "COLUMNS": "300"},
    )
    assert done.returncode == 1
    assert told in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])
def test_a_port_in_use_is_told_before_anything_is_started(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEYLINE_SERVER_PYTHON", "/bin/false")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        log = tmp_path / "out" / f"server-{port}.log"
        log.parent.mkdir()
        log.write_text("the running server's")
        done = RUN.invoke(app, ["serve", "--port", str(port), "--host", host])
    assert done.exit_code == 1
    assert f"port {port} is in use; choose another with --port" in done.stderr
    assert len(done.stderr.splitlines()) == 2, "what it does, and why it does not"
    assert log.read_text() == "the running server's"


@pytest.mark.parametrize(
    ("host", "port", "told"),
    [("127.0.0.1", 65536, "there is no port 65536"), ("192.0.2.1", 30000, "choose another --host")],
)
def test_an_address_nobody_can_listen_on(host: str, port: int, told: str) -> None:
    with pytest.raises(SetupError, match=told), ServerProcess(host=host, port=port):
        pass


@pytest.mark.parametrize("command", [["demo", "--model"], ["verify", "--arch"]])
def test_every_command_knows_the_closest_model(command: list[str]) -> None:
    done = RUN.invoke(app, [*command, "tinny"])
    assert done.exit_code == 1
    assert "'tinny'; did you mean tiny?" in done.stderr


@pytest.mark.server
def test_serve_shows_why_sglang_stopped(tmp_path: Path) -> None:
    args = ["serve", "--log", str(tmp_path / "log"), "--port", str(free_port()), "--", "--nonsense"]
    done = subprocess.run(leyline(*args), capture_output=True, text=True)
    assert done.returncode == 1
    first, second, *tail = done.stderr.split("error: SGLang", 1)[1].splitlines()
    assert first.startswith(" stopped with status 2 before it was ready: ")
    assert first.endswith("error: unrecognized arguments: --nonsense")
    assert str(tmp_path / "log") in second
    assert len(tail) <= 8
    assert "Traceback" not in done.stderr


@pytest.mark.server
@pytest.mark.slow
def test_serve_passes_arguments_on_and_stops_cleanly(tmp_path: Path) -> None:
    port, said = free_port(), tmp_path / "said"
    args = ["serve", "--log", str(tmp_path / "log"), "--port", str(port), "--", "--page-size", "16"]
    with said.open("wb") as sink:
        child = subprocess.Popen(leyline(*args), stdout=sink, stderr=sink)
    try:
        deadline = time.monotonic() + 180
        while not (found := re.search(r"pid (\d+)", said.read_text())):
            assert child.poll() is None, said.read_text()
            assert time.monotonic() < deadline, said.read_text()
            time.sleep(0.2)
        info = doctor.get_info(f"http://127.0.0.1:{port}")
        assert isinstance(info, dict)
        assert info["ranks"][0]["page_size"] == 16
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 0
        assert said.read_text().splitlines()[-1] == "stopped"
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
    with pytest.raises(ProcessLookupError):
        os.killpg(int(found[1]), 0)
