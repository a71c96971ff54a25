"""The README's examples do what it says of them."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from leyline_agent.launch import ServerProcess
from leyline_agent.policies import apply
from leyline_agent.replay.run import prompts
from leyline_agent.replay.trace import Trace

README = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")
ERROR = "Traceback (most recent call last)"


def block(word: str) -> str:
    """The Python block that holds a word."""
    [found] = [b for b in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if word in b]
    return str(found)


def forget_errors() -> Any:
    scope: dict[str, Any] = {}
    exec(block("class ForgetErrors"), scope)
    return scope["ForgetErrors"]()


def call(name: str, content: Any) -> list[dict[str, Any]]:
    calls = [{"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    return [
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": name, "content": content},
    ]


def test_the_policy_cuts_an_error_once_the_model_has_answered_it() -> None:
    parts = [{"type": "text", "text": ERROR}]
    messages = [{"role": "user", "content": "go"}, *call("a", ERROR), *call("b", parts)]
    first, second, third = prompts(Trace("t", tuple(messages)), forget_errors())
    assert first[-1]["content"] == "go"
    assert second[-1]["content"] == ERROR, "sent as it is the first time"
    assert [m["content"] for m in third if m["role"] == "tool"] == ["(failed)", parts]
    assert apply(forget_errors(), third, 3) == third, "idempotent"


def test_the_first_call_has_no_answer_yet() -> None:
    first = [{"role": "tool", "content": ERROR, "tool_call_id": "a"}]
    assert apply(forget_errors(), first, 0) == first


@pytest.mark.server
def test_the_agent_runs_within_seconds(
    server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    code = block("create_agent").replace("http://127.0.0.1:30000", server.base_url)
    assert server.base_url in code
    began = time.monotonic()
    exec(code, {})
    assert time.monotonic() - began < 30
    assert "'prompt_tokens':" in capsys.readouterr().out
