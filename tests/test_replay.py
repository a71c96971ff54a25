"""`leyline replay` and `leyline demo` on a real server: counts, bound, faults."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console
from typer.testing import CliRunner

from leyline_agent.cli import app
from leyline_agent.core import PolicyError
from leyline_agent.demo.command import LEGEND as DEMO
from leyline_agent.demo.command import _table as demo_table
from leyline_agent.demo.results import Row, plot, summary
from leyline_agent.launch import ServerProcess
from leyline_agent.policies import TruncateOlderThan
from leyline_agent.policies import load as load_policy
from leyline_agent.replay.report import Arm, Turn, document, ratios
from leyline_agent.replay.run import prompts
from leyline_agent.replay.show import LEGEND, UNCHANGED, show_arm, show_sums
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
    assert done.stderr.index("append: 7 turns, 2 times") < done.stderr.index("reprefill: 7 turns")
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
        (("--policy", "truncate_older_than:n=-1"), "n is -1"),
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
        ('[{"role": "user"}]', "message 0"),
        ('[{"role": "user", "content": "x"}, {"role": "tool"}]', "has neither content nor tool"),
    ],
)
def test_a_trace_that_is_none(tmp_path: Path, text: str | None, told: str) -> None:
    path = tmp_path / "trace.json"
    if text is not None:
        path.write_text(text)
    done = leyline("replay", path)
    assert done.exit_code == 1
    assert told in " ".join(done.output.split())


def test_a_policy_that_fails_is_named_before_any_server(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(FAILING)
    done = leyline("replay", trace, "--base-url", "http://127.0.0.1:9", "--policy", f"{path}:Fails")
    assert done.exit_code == 1
    assert f"Fails failed on turn 3 at {path}:4: IndexError: list index" in done.output


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("return sorted(messages, key=self.key)", "turn 1 at {path}:7: ZeroDivisionError"),
        ("return 'no list'", "turn 1: Fails.transform must return a list"),
        ("import json; return json.loads('{')", "turn 1 at {path}:4: JSONDecodeError"),
    ],
)
def test_where_a_policy_failed(trace: Path, tmp_path: Path, body: str, told: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        f"class Fails:\n\n    def transform(self, messages, turn):\n        {body}\n\n"
        "    def key(self, message):\n        return 1 / 0\n"
    )
    with pytest.raises(PolicyError, match=re.escape(told.format(path=path))):
        prompts(load(trace), load_policy(f"{path}:Fails"))


def a_turn(index: int, **more: Any) -> Turn:
    counts = (123456, 120000, 100000, 3456, 12, 3400, 0, 17)
    return Turn(**{
        **dict(zip(FIELDS, (index, *counts, None, (12345.6,), ""), strict=True)), **more
    })  # fmt: skip


FIELDS = tuple(Turn.__dataclass_fields__)


def shown(*lines: Any) -> str:
    out = io.StringIO()
    console = Console(file=out, width=80)
    for line in lines:
        line(console)
    return out.getvalue()


def test_tables_fit_80_columns_with_nothing_cut() -> None:
    turns = [a_turn(0), a_turn(41, fallback="gated_by_calibration")]
    text = shown(lambda c: show_arm(c, Arm.AMORTIZE, turns))
    assert "turn 42: fallback gated_by_calibration" in text
    for name in ("123456", "prefilled", "TTFT ms", "12346", "100.0%"):
        assert name in text
    row = Row(42, 123456, 120000, 100000, 3456, 12, 3400, 120000, 17, None, 12345.6, 99999, 23456.7)
    demo = shown(lambda c: c.print(demo_table([row])))
    for name in ("123456", "100000", "12346", "99999", "23457", "cached, off", "ms, off"):
        assert name in demo
    assert "…" not in text + demo
    lines = [*text.splitlines(), *demo.splitlines(), *LEGEND.splitlines(), *DEMO.splitlines()]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(("arms", "edits", "told"), [
    ((Arm.APPEND, Arm.AMORTIZE), 0, True),
    ((Arm.REPREFILL,), 0, True),
    ((Arm.APPEND,), 0, False),
    ((Arm.APPEND, Arm.AMORTIZE), 1, False),
])  # fmt: skip
def test_a_policy_that_changed_nothing(arms: tuple[Arm, ...], edits: int, told: bool) -> None:
    results = {
        arm: [a_turn(i, edits=0 if arm is Arm.APPEND else edits) for i in range(2)] for arm in arms
    }
    text = shown(lambda c: show_sums(c, results, document("t", "p", {}, results)))
    assert (UNCHANGED in text) is told
    assert text.count("fallbacks none") == len(arms)


def test_ratios_pair_the_repeats() -> None:
    def turn(*times: float) -> Turn:
        return Turn(0, 9, 5, 0, 4, 0, 4, 0, 1, None, times, "")

    found = ratios([turn(*[1.1] * 5), turn(1, 2, 3, 4, 0.5)], [turn(*[1.0] * 5)] * 2)
    assert found["per_turn"] == [1.1, 2.0]
    assert found["per_turn_range"] == [[1.1, 1.1], [0.5, 4.0]]
    assert found["slower"] == [1]
    assert ratios([turn(2.0)], [turn(1.0)])["slower"] == [], "one repeat says nothing"


def test_the_plot_counts_whole_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Row(n, 100, 90, 20, 10, 5, 5, 90, 1, None, 10.0, 50, 20.0) for n in (1, 2, 3)]
    drawn: list[Any] = []
    monkeypatch.setattr("matplotlib.pyplot.close", drawn.append)
    plot(rows, summary(rows, "tiny", "0"), tmp_path / "demo.png")
    for axis in drawn[0].axes:
        assert all(tick == int(tick) for tick in axis.get_xticks())


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
