"""The command `leyline`."""

from __future__ import annotations

import signal
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Optional

import typer
from rich.console import Console
from typer.core import TyperGroup
from typer.main import get_command

from leyline_agent import __version__
from leyline_agent.builtin import TINY
from leyline_agent.core import LeylineError
from leyline_agent.terminal import tell_error, working

_LATER = {
    "replay": "replay.command",
    "demo": "demo.command",
    "doctor": "doctor",
    "bench": "bench.command",
    "verify": "verify.command",
}


class _Commands(TyperGroup):
    """Those of `_LATER` are imported when they are asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *_LATER]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _LATER:
            return super().get_command(ctx, cmd_name)
        module = import_module(f"leyline_agent.{_LATER[cmd_name]}")
        found = getattr(module, cmd_name)
        if isinstance(found, typer.Typer):
            group = get_command(found)
            group.name = cmd_name
            return group
        alone = typer.Typer(rich_markup_mode="rich", add_completion=False)
        alone.command(cmd_name)(found)
        return get_command(alone)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Edit an agent's conversation and keep its KV cache. Start with [bold]leyline demo[/].",
    pretty_exceptions_enable=False,
)
console = Console(stderr=True)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"leyline-agent {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Before any command: SIGTERM ends it as Ctrl-C does, so that it stops what it started."""
    signal.signal(signal.SIGTERM, _as_interrupt)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def serve(
    ctx: typer.Context,
    model: Annotated[
        str,
        typer.Option(
            help=f"Built in, for a CPU: {', '.join(TINY)}. Or a folder, or owner/name on the hub."
        ),
    ] = "tiny",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 30000,
    dtype: Annotated[Optional[str], typer.Option(help="float32, bfloat16, … (SGLang's).")] = None,  # noqa: UP045
    stock: Annotated[
        bool, typer.Option("--stock", help="Without Leyline, for comparison.")
    ] = False,
    log: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Where SGLang's log goes; else out/server-PORT.log."),
    ] = None,
) -> None:
    """Start SGLang with the Leyline plugin and wait until it is ready.

    Everything that is not an option of this command goes to SGLang as it is:

        leyline serve --model tiny --port 30000 -- --page-size 16

    Stop it with Ctrl-C.
    """
    from leyline_agent import server_log
    from leyline_agent.launch import ServerProcess

    log = log or Path(f"out/server-{port}.log")
    with working(console, "starting") as say:
        server = ServerProcess(
            model,
            dtype=dtype,
            extra_args=[a for a in ctx.args if a != "--"],
            stock=stock,
            host=host,
            port=port,
            log_path=log,
            progress=say,
        )
        _or_exit(server.__enter__)
    try:
        console.print(f"[green]ready[/green] at {server.base_url} — log {log}, pid {server.pid}")
        console.print(
            f"  OpenAI clients: base_url={server.base_url}/v1, model={model}, any API key"
        )
        console.print(f"  handshake:      leyline doctor --base-url {server.base_url}")
        status_code = server.wait()
        console.print(f"[red]SGLang ended with status {status_code}:[/red]", end=" ")
        console.print(server_log.told(log), markup=False, highlight=False)
        raise typer.Exit(1)
    except KeyboardInterrupt:
        console.print("stopping")
    finally:
        server.stop()


def _as_interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _or_exit(act: object) -> None:
    """Call it; an error of ours becomes one plain message and exit status 1."""
    try:
        act()  # type: ignore[operator]
    except LeylineError as error:
        tell_error(console, error)
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(130) from error
