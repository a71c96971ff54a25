"""`leyline bench`: how fast, as ratios measured in one run."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import typer
from rich.console import Console
from rich.table import Table

from leyline_agent.core import LeylineError, ServerError
from leyline_agent.launch import find_server_python, server_env
from leyline_agent.terminal import tell_error, working, write_json

console = Console(stderr=True)
bench = typer.Typer(
    rich_markup_mode="rich",
    add_completion=False,
    no_args_is_help=True,
    help="Measure how fast, as ratios within one run.",
)


@bench.callback()
def _root() -> None:
    """Keeps the commands a group, however few they are."""


@bench.command()
def kernel(
    tokens: Annotated[int, typer.Option(min=64, help="Tokens to move.")] = 17_000,
    layers: Annotated[int, typer.Option(min=1, help="Layers of the pool.")] = 27,
    latent: Annotated[int, typer.Option(min=0, help="Columns without position in a row.")] = 512,
    rotary: Annotated[int, typer.Option(min=2, help="Columns with position, even.")] = 64,
    dtype: Annotated[
        Literal["bfloat16", "float16", "float32"], typer.Option(help="Storage type.")
    ] = "bfloat16",
    repeats: Annotated[int, typer.Option(min=1, help="Rounds; medians are told.")] = 7,
    threads: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="Threads on the CPU; without it torch's own choice."),
    ] = None,
    json_path: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--json", help="Write the result here; - for stdout."),
    ] = None,
) -> None:
    """Moving the KV of a splice against a plain indexed copy of the same rows.

    The defaults are the shape of DeepSeek-V2-Lite: 27 layers of 512 + 64 columns. Measured on
    the CPU, and on a GPU where the server environment sees one.

    Example: leyline bench kernel --json out/kernel.json
    """
    if rotary % 2:
        tell_error(console, "--rotary must be even: columns are rotated in pairs")
        raise typer.Exit(2)
    shape = {
        "tokens": tokens,
        "layers": layers,
        "latent": latent,
        "rotary": rotary,
        "dtype": dtype,
        "repeats": repeats,
        "threads": threads,
    }
    try:
        with working(console, "moving rows, in turn with copying them"):
            told = _measure(shape)
    except LeylineError as error:
        tell_error(console, error)
        raise typer.Exit(1) from error
    write_json(console, {**told, "shape": shape}, json_path)
    console.print(_table(told))


def _measure(shape: dict[str, Any]) -> dict[str, Any]:
    python = find_server_python()
    done = subprocess.run(
        [python, "-W", "ignore", "-m", "leyline_agent.kernels.bench", json.dumps(shape)],
        capture_output=True,
        text=True,
        env=server_env(python, {}, cpu=False),
    )
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise ServerError(f"the measurement failed: {reason}; fewer --tokens need less memory")
    told: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return told


def _table(told: dict[str, Any]) -> Table:
    table = Table(show_edge=False)
    for name in ("device", "splice GB/s", "copy GB/s", "ratio", "one splice, ms"):
        table.add_column(name, justify="left" if name == "device" else "right")
    for name in ("cpu", "gpu"):
        row = told[name]
        if row is None:
            table.add_row(f"{name}: none here", "", "", "", "")
            continue
        figures = (row["splice_gbps"], row["copy_gbps"], row["ratio"], row["splice_ms"])
        table.add_row(f"{name}: {row['device']}", *(f"{figure:.2f}" for figure in figures))
    return table
