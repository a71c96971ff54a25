"""Commands on a server that is stock, unsupported, or no OpenAI server at all."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from leyline_agent.cli import app
from leyline_agent.core import VERSION, ServerError
from leyline_agent.handshake import root_of, splicing

MODELS = {"data": [{"id": "m"}]}
CHUNK = {"id": "c", "choices": [{"delta": {"content": "x"}}], "usage": {"prompt_tokens": 3}}
OURS = {"leyline": "0", "wire": VERSION, "active": True, "supported": True, "ranks": [{}]}
UNFIT = {**OURS, "supported": False, "reasons": ["unsupported_dtype: fp8"]}
OTHER_WIRE = {**OURS, "wire": VERSION + 1}


class Answers(ThreadingHTTPServer):
    """Answers by path; 404 to the rest. Chats answer one token."""

    def __init__(self, paths: dict[str, Any]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.paths = paths

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Answers

    def do_GET(self) -> None:
        found = self.server.paths.get(self.path)
        self.send_response(404 if found is None else 200)
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        chat = self.path.endswith("/chat/completions")
        self.send_response(200)
        self.end_headers()
        said = f"data: {json.dumps(CHUNK)}\n\ndata: [DONE]\n\n"
        self.wfile.write((said if chat else json.dumps({"tokens": [1, 2, 3]})).encode())

    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def answers() -> Iterator[Answers]:
    with Answers({"/v1/models": MODELS}) as stock:
        thread = threading.Thread(target=stock.serve_forever, args=(0.02,))
        thread.start()
        yield stock
        stock.shutdown()
        thread.join()


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([{"role": "user", "content": "hi"}]))
    return str(path)


def leyline(*args: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, args)
    assert "error:" not in done.stdout
    return done.exit_code, " ".join(done.output.split())


@pytest.mark.parametrize("arms", ["amortize", "append,forget", "append,reprefill,amortize,forget"])
def test_replay_measures_no_directives_on_a_stock_server(
    answers: Answers, trace: str, arms: str
) -> None:
    code, said = leyline("replay", trace, "--base-url", f"{answers.url}/v1", "--arms", arms)
    assert code == 1
    assert "cannot be measured" in said
    assert "--radix-cache-backend leyline" in said
    assert f"leyline doctor --base-url {answers.url} " in said
    assert "--arms append,reprefill" in said
    assert "fallbacks" not in said


def test_replay_runs_the_other_arms_on_a_stock_server(answers: Answers, trace: str) -> None:
    url = answers.url
    code, said = leyline("replay", trace, "--base-url", url, "--arms", "append,reprefill")
    assert code == 0, said


@pytest.mark.parametrize(
    ("info", "told"),
    [
        (None, "stock SGLang"),
        (UNFIT, "model not supported: unsupported_dtype: fp8"),
        (OTHER_WIRE, "install one leyline-agent on both sides"),
    ],
)
@pytest.mark.parametrize("command", ["demo", "verify", "replay"])
def test_every_command_says_what_doctor_says(
    answers: Answers, trace: str, command: str, info: Any, told: str
) -> None:
    answers.paths["/leyline/v1/info"] = info
    args = [trace] if command == "replay" else []
    code, said = leyline(command, *args, "--base-url", answers.url)
    assert code == 1
    assert told in said
    assert f"leyline doctor --base-url {answers.url}" in said


@pytest.mark.parametrize("command", ["demo", "verify", "replay"])
def test_the_wrong_address_is_not_advised_again(answers: Answers, trace: str, command: str) -> None:
    del answers.paths["/v1/models"]
    args = [trace] if command == "replay" else []
    code, said = leyline(command, *args, "--base-url", answers.url)
    assert code == 1
    assert "such as" not in said
    assert "leyline serve" in said
    assert "is no OpenAI server (HTTP 404 for /v1/models)" in said or command == "verify"


def test_splicing_is_the_handshake_or_an_error(answers: Answers) -> None:
    answers.paths["/leyline/v1/info"] = OURS
    assert splicing(answers.url) == OURS
    answers.paths["/leyline/v1/info"] = {}
    with pytest.raises(ServerError, match="does not splice"):
        splicing(answers.url)


@pytest.mark.parametrize("text", ["h:1", "http://h:1", "http://h:1/", "http://h:1/v1/", " h:1/v1"])
def test_the_root(text: str) -> None:
    assert root_of(text) == "http://h:1"


@pytest.mark.parametrize("text", ["", "http://", "http://h:99999", "http://[h", "ftp://h", "h:x"])
@pytest.mark.parametrize("command", ["demo", "verify", "replay", "doctor"])
def test_an_address_that_is_none(trace: str, command: str, text: str) -> None:
    args = [trace] if command == "replay" else []
    code, said = leyline(command, *args, "--base-url", text)
    assert code == 1
    assert "is no server's address" in said
