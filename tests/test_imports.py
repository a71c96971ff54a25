"""Arrows run one way: core <- policies <- planner <- adapters; kernels <- server."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "leyline_agent"
ROOMS = {
    "core": {"core"},
    "policies": {"core", "policies"},
    "planner": {"core", "policies", "planner"},
    "transport": {"core", "policies", "planner", "transport"},
    "langchain": {"core", "policies", "planner", "transport", "langchain"},
    "kernels": {"kernels"},
    "server": {"core", "kernels", "server"},
    "verify": {"core", "handshake", "launch", "terminal", "verify"},
    "bench": {"core", "launch", "terminal", "bench"},
}
SERVER_SIDE = {"server", "kernels"}
HEAVY = {"torch", "sglang", "transformers", "langchain", "langgraph", "openai"}
RUNS_OWN_RULES = "standins"


def sources(room: str | None = None) -> list[Path]:
    """The .py files of one room, or of all; stand-ins are packages of their own."""
    top = PACKAGE / room if room else PACKAGE
    names = [p for p in top.rglob("*.py") if RUNS_OWN_RULES not in p.parts]
    if room is None:  # rglob does not follow the link
        names += [p for p in (PACKAGE / "policies").glob("*.py") if p not in names]
    return sorted(names)


def room_of(path: Path) -> str:
    """`leyline_agent/core/span.py` -> core; `leyline_agent/cli.py` -> cli."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported(tree: ast.AST, package: str) -> Iterator[str]:
    """Dotted names of every import, wherever it stands; relative ones made absolute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1]
            start = ".".join(base) + "." if node.level else ""
            module = (start + (node.module or "")).rstrip(".")
            yield from (f"{module}.{alias.name}" for alias in node.names)


def names_in(path: Path) -> list[str]:
    package = ".".join(path.relative_to(PACKAGE.parent).parent.parts)
    return list(imported(ast.parse(path.read_text(encoding="utf-8")), package))


def rooms_in(path: Path) -> set[str]:
    """Rooms of this package that a file imports (`__version__` belongs to none)."""
    parts = [name.split(".") for name in names_in(path)]
    inside = [p[1] for p in parts if p[0] == "leyline_agent" and len(p) > 1]
    return {name for name in inside if not name.startswith("_")}


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_rooms_import_only_what_is_below_them(room: str) -> None:
    found = sources(room)
    assert found, f"no sources in {room}"
    for path in found:
        assert rooms_in(path) <= ROOMS[room], path


def test_core_imports_only_the_standard_library() -> None:
    for path in sources("core"):
        tops = {name.split(".")[0] for name in names_in(path)}
        assert tops <= sys.stdlib_module_names | {"leyline_agent"}, path


@pytest.mark.parametrize("room", ["policies", "planner"])
def test_pure_rooms_import_nothing_heavy(room: str) -> None:
    for path in sources(room):
        assert not {name.split(".")[0] for name in names_in(path)} & HEAVY, path


def test_client_code_never_imports_server_code() -> None:
    client = [p for p in sources() if room_of(p) not in SERVER_SIDE]
    assert len(client) > 20
    for path in client:
        assert not rooms_in(path) & SERVER_SIDE, path
        assert not {name.split(".")[0] for name in names_in(path)} & {"torch", "sglang"}, path


def test_importing_core_and_the_command_line_loads_nothing_heavy() -> None:
    code = (
        "import sys, leyline_agent.core, leyline_agent.cli;"
        f"print(sorted({HEAVY!r} & {{m.split('.')[0] for m in sys.modules}}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("import leyline_agent.server.cache", "leyline_agent.server.cache"),
        ("from leyline_agent import server", "leyline_agent.server"),
        ("from ..server import cache", "leyline_agent.server.cache"),
        ("from . import span", "leyline_agent.core.span"),
        ("def f():\n    from torch import nn", "torch.nn"),
    ],
)
def test_the_parser_sees_every_kind_of_import(line: str, name: str) -> None:
    assert list(imported(ast.parse(line), "leyline_agent.core")) == [name]
