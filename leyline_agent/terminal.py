"""What all commands say alike: errors, results, and what they are doing."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table


def tell_error(console: Console, error: object) -> None:
    """One message, unwrapped so that what it names can be copied; brackets are no markup."""
    console.print("[red]error:[/red]", end=" ")
    console.print(str(error), markup=False, highlight=False, soft_wrap=True)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question with the closest known name, and a blank behind it; "" when none is close."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]}? " if close else ""


def write_json(console: Console, result: Mapping[str, Any], path: Path | None) -> None:
    """What --json asks for: a file, told on the console; - is stdout, None is nothing."""
    text = json.dumps(result, indent=1)
    if str(path) == "-":
        typer.echo(text)
    elif path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
        console.print(f"written: {path}")


def narrow(numbers: Iterable[str], names: Iterable[str] = ()) -> Table:
    """A table of numbers, as narrow as they are; `names` stand before them and may wrap."""
    table = Table(show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for name in names:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


@contextmanager
def working(console: Console, text: str) -> Iterator[Callable[[str], None]]:
    """A status line while something runs; yields what replaces its text.

    Where there is no terminal every new text becomes a line; texts that differ in numbers
    alone (seconds, counts) are one text.
    """
    if console.is_terminal:
        with console.status(text) as status:
            yield status.update
        return
    said: set[str] = set()

    def say(line: str) -> None:
        kind = re.sub(r"\d+", "", line)
        if kind not in said:
            said.add(kind)
            console.print(line, markup=False, highlight=False, soft_wrap=True)

    say(text)
    yield say
