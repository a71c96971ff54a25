"""What all commands say alike: errors, and what they are doing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table


def tell_error(console: Console, error: object) -> None:
    """One message, unwrapped so that what it names can be copied; brackets are no markup."""
    console.print("[red]error:[/red]", end=" ")
    console.print(str(error), markup=False, highlight=False, soft_wrap=True)


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
