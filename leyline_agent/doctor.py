"""`leyline doctor`: what is installed, what answers, and what to do about each fault."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from leyline_agent import __version__
from leyline_agent.core import LeylineError, SetupError
from leyline_agent.handshake import Check, Level, get_info, handshake_checks, root_of
from leyline_agent.launch import find_server_python, has_cuda, server_env
from leyline_agent.terminal import tell_error, working

SGLANG = "0.5.23"
REQUIRED = ("httpx", "pydantic", "typer")
OPTIONAL = {
    "openai": "openai",
    "httpx2": "openai",
    "langchain": "langchain",
    "langchain-openai": "langchain",
    "langgraph": "langchain",
    "matplotlib": "results",
}

_PROBE = """
import json, platform
from importlib.metadata import PackageNotFoundError, entry_points, version

def installed(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None

names = ("torch", "sglang", "transformers", "leyline-agent")
found = {name: installed(name) for name in names}
found["python"] = platform.python_version()
found["plugin"] = [e.value for e in entry_points(group="sglang.srt.plugins") if e.name == "leyline"]
try:
    from leyline_agent.server import cpu
    from leyline_agent.server.checks import faults
    found["faults"] = faults() + (cpu.missing_targets() if cpu.is_wanted() else [])
except Exception as error:
    found["faults"] = [f"{type(error).__name__}: {error}"]
print(json.dumps(found))
"""


def client_checks(find: Callable[[str], str] = version) -> list[Check]:
    """This Python, and the packages of the client; missing extras are notes."""
    checks = [
        Check("client", "python", platform.python_version()),
        Check("client", "leyline-agent", __version__),
    ]
    for name in (*REQUIRED, *OPTIONAL):
        try:
            checks.append(Check("client", name, find(name)))
        except PackageNotFoundError:
            if name in REQUIRED:
                remedy = "install leyline-agent again: pip install --force-reinstall leyline-agent"
                checks.append(Check("client", name, "missing", "fault", remedy))
            else:
                remedy = f"only for that integration: pip install 'leyline-agent[{OPTIONAL[name]}]'"
                checks.append(Check("client", name, "absent", "note", remedy))
    return checks


def probe_server(python: str) -> dict[str, Any]:
    """Ask the server environment's Python about itself; {"error": text} when it cannot say."""
    env = server_env(python, {}, cpu=not has_cuda(python))
    try:
        done = subprocess.run(
            [python, "-W", "ignore", "-c", _PROBE],
            capture_output=True,
            text=True,
            env=env,
            timeout=300,
        )
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return found
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": str(error)}
    except (ValueError, IndexError):
        return {"error": (done.stderr.strip().splitlines() or ["no output"])[-1]}


def server_checks(python: str, found: dict[str, Any]) -> list[Check]:
    """What a probe of the server environment means."""
    again = "run `make setup` in the checkout, or install leyline-agent into that environment"
    checks = [Check("server", "python", f"{found.get('python', '?')} at {python}")]
    if "error" in found:
        return [Check("server", "python", python, "fault", f"it fails ({found['error']}); {again}")]
    for name, wanted in (("sglang", SGLANG), ("torch", ""), ("leyline-agent", __version__)):
        value = found.get(name)
        if not value:
            checks.append(Check("server", name, "missing", "fault", again))
        elif wanted and value != wanted:
            checks.append(Check("server", name, value, "fault", f"{wanted} is needed; {again}"))
        else:
            checks.append(Check("server", name, value))
    if found.get("plugin"):
        checks.append(Check("server", "plugin", found["plugin"][0]))
    else:
        checks.append(Check("server", "plugin", "not registered", "fault", again))
    faults = [Check("server", "fit", f, "fault", _unfit()) for f in found.get("faults", ())]
    return checks + (faults or [Check("server", "fit", "every SGLang name it touches is there")])


def _unfit() -> str:
    return f"the plugin is written for sglang {SGLANG}: install that version"


def examine(root: str | None, api_key: str | None = None) -> list[Check]:
    """Every check; a missing server environment is a note when a server was named."""
    checks = client_checks()
    try:
        python = find_server_python()
    except SetupError as error:
        level: Level = "note" if root else "fault"
        checks.append(Check("server", "environment", "not found", level, str(error)))
    else:
        checks += server_checks(python, probe_server(python))
    if root:
        info = get_info(root, api_key)
        checks += [info] if isinstance(info, Check) else handshake_checks(root, info)
    return checks


def show(console: Console, checks: list[Check]) -> None:
    """The report for people: a table, below it what to do, unwrapped so that it can be copied."""
    marks = {
        "ok": "[green]ok[/green]",
        "note": "[yellow]note[/yellow]",
        "fault": "[red]FAULT[/red]",
    }
    table = Table(show_edge=False)
    for name in ("", "where", "what", "found"):
        table.add_column(name, overflow="fold")
    for check in checks:
        table.add_row(marks[check.level], *map(escape, (check.area, check.name, check.value)))
    console.print(table)
    told: dict[str, list[Check]] = {}
    for check in checks:
        if check.remedy:
            told.setdefault(check.remedy, []).append(check)
    if told:
        console.line()
    for remedy, same in told.items():
        names = ", ".join(check.name for check in same)
        console.print(f"{marks[same[0].level]} {escape(names)}: {escape(remedy)}", soft_wrap=True)


def doctor(
    base_url: Annotated[
        str | None, typer.Option(help="A running server, with or without /v1.")
    ] = None,
    api_key: Annotated[str | None, typer.Option(help="That server's key.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Look at both environments and at a server; say what to do about each fault.

    The exit status is 1 when something is broken; notes are not faults.
    """
    console = Console(stderr=True)
    try:
        with working(console, "looking at the environments (half a minute)"):
            checks = examine(None if base_url is None else root_of(base_url), api_key)
    except LeylineError as error:
        tell_error(console, error)
        raise typer.Exit(1) from error
    broken = any(check.level == "fault" for check in checks)
    if as_json:
        report = {"ok": not broken, "checks": [asdict(check) for check in checks]}
        typer.echo(json.dumps(report, indent=1))
    else:
        show(Console(), checks)
    if broken:
        raise typer.Exit(1)
