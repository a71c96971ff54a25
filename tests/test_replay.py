"""`leyline replay` and `leyline demo` on a real server: counts, bound, faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from leyline_agent.cli import app
from leyline_agent.launch import ServerProcess
from leyline_agent.policies import TruncateOlderThan
from leyline_agent.replay.report import Turn, ratios
from leyline_agent.replay.run import prompts
from leyline_agent.replay.trace import load
from leyline_agent.replay.wire import tokenize

TURNS = 6
ARMS = ("append", "reprefill", "amortize", "forget")
FAILING = """
class Fails:
    def transform(self, messages, turn):
        return messages if turn < 2 else messages[99]
"""


def leyline(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tool outputs of different lengths; one is too short to be cut."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You read files."},
        {"role": "user", "content": "Read them all."},
    ]
    for turn in range(TURNS):
        call = {"name": "read", "arguments": json.dumps({"path": f"{turn}.py"})}
        text = "\n".join(f"def f{turn}_{i}(x): return x * {i + turn}" for i in range(30 - 5 * turn))
        messages += [
            {"role": "assistant", "tool_calls": [{"id": f"c{turn}", "function": call}]},
            {"role": "tool", "tool_call_id": f"c{turn}", "content": text},
        ]
    path = tmp_path_factory.mktemp("trace") / "run.json"
    path.write_text(json.dumps(messages), encoding="utf-8")
    return path


@pytest.mark.server
def test_every_arm_of_a_replay(server: ServerProcess, trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "replay.json"
    done = leyline(
        *("replay", trace, "--base-url", f"{server.base_url}/v1/", "--repeats", 2),
        *("--arms", ",".join(ARMS), "--json", out),
    )
    assert done.exit_code == 0, done.output
    result = json.loads(out.read_text())
    arms = {name: result["arms"][name]["turns"] for name in ARMS}
    assert all(len(turns) == TURNS + 1 for turns in arms.values())
    assert all(len(t["ttft_ms_runs"]) == 2 for turns in arms.values() for t in turns)
    assert result["forget_equals_reprefill"] is True
    edited = [t for t in arms["amortize"] if t["edits"]]
    assert len(edited) >= 3
    for turn in edited:
        assert turn["reuse_of_bound"] >= 0.99
        assert turn["spliced_tokens"] > 0
    for name, turns in arms.items():
        for turn in turns:
            assert turn["cached_tokens"] + turn["prefilled_tokens"] == turn["prompt_tokens"]
            assert turn["fallback"] is None
            if name != "amortize":
                assert turn["spliced_tokens"] == 0
    hits = {name: result["arms"][name]["summary"]["hit_rate"] for name in ARMS}
    assert hits["amortize"] > hits["reprefill"] == hits["forget"]
    check_bound(server.base_url, trace, arms["amortize"])


def check_bound(base_url: str, trace: Path, turns: list[dict[str, Any]]) -> None:
    """The bound is no smaller than what whole unchanged messages come to.

    Counted without the planner: the prompt, less the new messages, less the changed ones.
    """
    sent = prompts(load(trace), TruncateOlderThan())
    with httpx.Client(base_url=base_url, timeout=60) as http:

        def count(messages: list[dict[str, Any]]) -> int:
            return len(tokenize(http, {"model": "tiny", "messages": messages}))

        for turn, before, after in zip(turns[1:], sent, sent[1:], strict=False):
            old = after[: len(before)]
            changed = [i for i, (a, b) in enumerate(zip(before, old, strict=True)) if a != b]
            emptied = [{**m, "content": ""} if i in changed else m for i, m in enumerate(old)]
            assert bool(changed) == bool(turn["edits"])
            assert turn["bound"] >= count(emptied) - 10, "the opening of the answer is new too"
            assert turn["bound"] <= turn["prompt_tokens"] - turn["new_tokens"]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (("--arms", "append,nothing"), "there is no arm 'nothing'; the arms are append"),
        (("--arms", ","), "no arm was named"),
        (("--policy", "truncate_odler_than"), "there is no policy 'truncate_odler_than'"),
        (("--policy", "truncate_older_than:n=-1"), "needs n >= 0"),
        (("--policy", "nowhere.py:Rule"), "no policy file nowhere.py"),
        (("--base-url", "http://127.0.0.1:9"), "nobody answers at http://127.0.0.1:9 ("),
    ],
)
def test_a_mistake_is_told_in_one_sentence(trace: Path, wrong: Any, told: str) -> None:
    done = leyline("replay", trace, *wrong)
    assert done.exit_code == 1
    assert told in " ".join(done.output.split())
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "cannot read the trace"),
        ("{", "is not JSON"),
        ("[]", "holds no conversation"),
        ('[{"role": "wizard"}]', "message 0"),
        ('[{"role": "assistant", "content": "x"}]', "holds no turn"),
    ],
)
def test_a_trace_that_is_none(tmp_path: Path, text: str | None, told: str) -> None:
    path = tmp_path / "trace.json"
    if text is not None:
        path.write_text(text)
    done = leyline("replay", path)
    assert done.exit_code == 1
    assert told in " ".join(done.output.split())


@pytest.mark.server
def test_a_policy_that_fails_is_named(server: ServerProcess, trace: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FAILING)
    done = leyline(
        "replay", trace, "--base-url", server.base_url, "--policy", f"{tmp_path}/mine.py:Fails"
    )
    assert done.exit_code == 1
    assert "Fails failed on turn 2: IndexError" in " ".join(done.output.split())


def test_ratios_pair_the_repeats() -> None:
    def turn(*times: float) -> Turn:
        return Turn(0, 9, 5, 0, 4, 0, 4, 0, 1, None, times, "")

    found = ratios([turn(*[1.1] * 5), turn(1, 2, 3, 4, 0.5)], [turn(*[1.0] * 5)] * 2)
    assert found["per_turn"] == [1.1, 2.0]
    assert found["per_turn_range"] == [[1.1, 1.1], [0.5, 4.0]]
    assert found["slower"] == [1]
    assert ratios([turn(2.0)], [turn(1.0)])["slower"] == [], "one repeat says nothing"


@pytest.mark.server
def test_the_demo_in_short(server: ServerProcess, tmp_path: Path) -> None:
    done = leyline("demo", "--base-url", server.base_url, "--turns", 7, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "demo.json").read_text())
    summary = result["summary"]
    assert len(result["turns"]) == summary["turns"] == 7
    assert summary["fallbacks"] == 0
    assert summary["reuse_of_bound"] >= 0.99
    assert 0 < summary["radix_reuse"] <= summary["reuse_of_bound"]
    assert (summary["model"], summary["sglang"]) == ("tiny", "0.5.23")
    assert all(t["ttft_ms"] > 0 < t["ttft_ms_off"] for t in result["turns"])
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
