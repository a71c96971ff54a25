"""`leyline doctor`: what is installed, what answers, and what to do about each fault."""

from __future__ import annotations

import json
import platform
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from leyline_agent import __version__
from leyline_agent.core import VERSION, SetupError
from leyline_agent.launch import find_server_python, has_cuda, server_env
from leyline_agent.terminal import working

Level = Literal["ok", "note", "fault"]
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


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report; `remedy` says what to do (a fault) or could be done (a note)."""

    area: str
    name: str
    value: str
    level: Level = "ok"
    remedy: str = ""


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


def get_info(root: str, api_key: str | None = None) -> dict[str, Any] | Check:
    """The handshake of a server, or the fault that stands in its place."""
    request = urllib.request.Request(f"{root}/leyline/v1/info")
    if api_key:
        request.add_header("Authorization", f"Bearer {api_key}")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
            return found if isinstance(found, dict) else _not_ours(root)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return _not_ours(root)
        remedy = "give its key with --api-key" if error.code in (401, 403) else "read its log"
        return Check("handshake", root, f"HTTP {error.code}", "fault", remedy)
    except (OSError, ValueError) as error:
        reason = str(getattr(error, "reason", error))
        remedy = "is it running? start one with `leyline serve` and wait for `ready`"
        return Check("handshake", root, f"no answer: {reason}", "fault", remedy)


def _not_ours(root: str) -> Check:
    remedy = (
        "this is a stock SGLang or another server: start it with `leyline serve`, or install "
        "leyline-agent into its environment and add --radix-cache-backend leyline"
    )
    return Check("handshake", root, "answers, without Leyline", "fault", remedy)


def handshake_checks(root: str, info: dict[str, Any]) -> list[Check]:
    """What a server's handshake means for this client."""
    wire, theirs = info.get("wire"), str(info.get("leyline", "?"))
    checks = [Check("handshake", root, f"leyline {theirs} on sglang {info.get('sglang', '?')}")]
    if wire == VERSION:
        checks.append(Check("handshake", "wire", str(wire)))
    else:
        remedy = f"this client speaks version {VERSION}: install one leyline-agent on both sides"
        checks.append(Check("handshake", "wire", str(wire), "fault", remedy))
    if info.get("active") and info.get("supported"):
        checks.append(Check("handshake", "splicing", "on"))
    else:
        value = "model not supported" if info.get("active") else "not active"
        remedy = "; ".join(map(str, info.get("reasons") or ["read the server's log"]))
        checks.append(Check("handshake", "splicing", value, "fault", remedy))
    for number, rank in enumerate(info.get("ranks") or []):
        layout = rank.get("layout") or {}
        value = ", ".join(f"{key} {item}" for key, item in layout.items()) or "none"
        checks.append(Check("handshake", f"rank {number} layout", value))
    return checks


def examine(base_url: str | None, api_key: str | None = None) -> list[Check]:
    """Every check; a missing server environment is a note when a server was named."""
    checks = client_checks()
    try:
        python = find_server_python()
    except SetupError as error:
        level: Level = "note" if base_url else "fault"
        checks.append(Check("server", "environment", "not found", level, str(error)))
    else:
        checks += server_checks(python, probe_server(python))
    if base_url:
        root = base_url.rstrip("/").removesuffix("/v1")
        info = get_info(root, api_key)
        checks += [info] if isinstance(info, Check) else handshake_checks(root, info)
    return checks


def table_of(checks: list[Check]) -> Table:
    """The report for people."""
    marks = {
        "ok": "[green]ok[/green]",
        "note": "[yellow]note[/yellow]",
        "fault": "[red]FAULT[/red]",
    }
    table = Table("", "where", "what", "found", "what to do", show_edge=False)
    for check in checks:
        row = (check.area, check.name, check.value, check.remedy)
        table.add_row(marks[check.level], *(text.replace("[", r"\[") for text in row))
    return table


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
    with working(Console(stderr=True), "looking at the environments (half a minute)"):
        checks = examine(base_url, api_key)
    broken = any(check.level == "fault" for check in checks)
    if as_json:
        report = {"ok": not broken, "checks": [asdict(check) for check in checks]}
        typer.echo(json.dumps(report, indent=1))
    else:
        Console().print(table_of(checks))
    if broken:
        raise typer.Exit(1)
