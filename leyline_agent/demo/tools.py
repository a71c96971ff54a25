"""The demo agent's tools: they really read this package's own sources."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Literal

from langchain.tools import tool

ROOT = Path(__file__).parents[1]
LINES = 60
HITS = 40

# Enumerated arguments let the server's grammar keep even an untrained model to valid calls.
Source = Literal[
    "core/plan.py",
    "core/wire.py",
    "core/directive.py",
    "planner/diff.py",
    "planner/planner.py",
    "transport/lowering.py",
    "transport/shells.py",
    "server/cache.py",
    "server/splice.py",
    "server/route.py",
    "server/orchestrate.py",
    "kernels/rotate.py",
]
Line = Literal[1, 31, 61]
Word = Literal["token", "plan", "cache", "request", "return", "import", "def", "self"]
Folder = Literal["core", "planner", "transport", "server", "kernels", "langchain"]


@tool
def read_file(path: Source, first_line: Line) -> str:
    """Read 60 lines of a source file, from a line number on."""
    lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
    shown = lines[first_line - 1 : first_line - 1 + LINES]
    numbered = [f"{first_line + i:4} {line}" for i, line in enumerate(shown)]
    return "\n".join([f"{path}, {len(lines)} lines in all:", *numbered])


@tool
def search(word: Word, folder: Folder) -> str:
    """Find the lines of a folder's source files that contain a word."""
    hits = []
    for file in sorted((ROOT / folder).glob("*.py")):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if re.search(rf"\b{word}", line, re.IGNORECASE):
                hits.append(f"{file.relative_to(ROOT)}:{number}: {line.strip()}")
    return "\n".join(hits[:HITS]) or f"no line in {folder} contains {word!r}"


@tool
def outline(folder: Folder) -> str:
    """Show what a folder's source files are for and what they define."""
    shown = []
    for file in sorted((ROOT / folder).glob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        purpose = (ast.get_docstring(tree) or "").partition("\n")[0]
        shown.append(f"{file.relative_to(ROOT)}: {purpose}")
        for node in tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                kind = "class" if isinstance(node, ast.ClassDef) else "def"
                shown.append(f"    line {node.lineno}: {kind} {node.name}")
    return "\n".join(shown)


TOOLS = [read_file, search, outline]
