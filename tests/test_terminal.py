"""What commands say where there is no terminal."""

from __future__ import annotations

import io

from rich.console import Console

from leyline_agent.terminal import tell_error, working


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
