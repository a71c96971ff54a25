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

from leyline_agent import __version__, server_log
from leyline_agent.builtin import TINY
from leyline_agent.core import LeylineError, ServerError
from leyline_agent.launch import ServerProcess
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

    def invoke(self, ctx: Any) -> Any:
        """Run a command; an interrupt has stopped what it started, and is said in a word."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            console.print("stopped")
            raise typer.Exit(130) from error

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
    log = log or Path(f"out/server-{port}.log")
    server = ServerProcess(
        model,
        dtype=dtype,
        extra_args=[a for a in ctx.args if a != "--"],
        stock=stock,
        host=host,
        port=port,
        log_path=log,
    )
    try:
        _run(server)
    except LeylineError as error:
        tell_error(console, error)
        raise typer.Exit(1) from error


def _run(server: ServerProcess) -> None:
    """Start it and wait. Once it is ready an interrupt is the ordinary end; before, it is not.

    Raises:
        ServerError, SetupError: it does not start, or ends by itself.
    """
    ready = False
    try:
        with working(console, "starting") as say:
            server.progress = say
            server.start()
        ready = True
        _tell_ready(server)
        code = server.wait()
        raise ServerError(f"SGLang ended with status {code}: {server_log.told(server.log_path)}")
    except KeyboardInterrupt:
        if not ready:
            raise
        console.print("stopping")
    finally:
        server.stop()
    console.print("stopped")


def _tell_ready(server: ServerProcess) -> None:
    url = server.base_url
    console.print(f"[green]ready[/green] at {url} — log {server.log_path}, pid {server.pid}")
    console.print(f"  OpenAI clients: base_url={url}/v1, model={server.model}, any API key")
    console.print(f"  handshake:      leyline doctor --base-url {url}")


def _as_interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
