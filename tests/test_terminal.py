"""What commands say where there is no terminal."""

from __future__ import annotations

import io

from rich.console import Console

from leyline_agent.terminal import tell_error, working
from leyline_agent.verify.command import CHECKS, FOLLOWS, tables


def test_without_a_terminal_each_step_is_one_line() -> None:
    out = io.StringIO()
    with working(Console(file=out), "starting") as say:
        for line in ("loading, 1 s", "loading, 2 s", "model [x]", "loading, 13 s"):
            say(line)
    assert out.getvalue().splitlines() == ["starting", "loading, 1 s", "model [x]"]


def test_an_error_is_neither_wrapped_nor_read_as_markup() -> None:
    out = io.StringIO()
    url = "http://" + "long" * 40
    tell_error(Console(file=out, width=80), f"[/red] {url}")
    assert out.getvalue() == f"error: [/red] {url}\n"


def test_the_tables_of_verify_fit_80_columns_with_nothing_cut() -> None:
    share = {"full": 1.0, "honest": 1.0}
    found = {
        **{"kv_error": 0.5, "logprob_error": 1.2e-05, "noise": 3.4e-06, "leaked_slots": 1234},
        **{"first_token_agreement": 1.0, "honest_untouched": 1.0, "forget_equal": 1.0},
        "amortize_follows": {"single": share, "multiple": share},
    }
    out = io.StringIO()
    for table in tables({"archs": {"tiny-moonlight": {"bfloat16": found}}}):
        Console(file=out, width=80).print(table)
    text = out.getvalue()
    for whole in ("tiny-moonlight", "bfloat16", "0.50", "1.2e-05", "3.4e-06", "1234", "100%/100%"):
        assert whole in text
    assert "…" not in text
    assert max(map(len, [*text.splitlines(), *CHECKS.splitlines(), *FOLLOWS.splitlines()])) <= 80
