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

# One enumerated argument with a default: whatever an untrained model calls is a valid call.
Section = Literal[
    "core/plan.py:1",
    "core/plan.py:61",
    "core/wire.py:31",
    "planner/planner.py:31",
    "transport/lowering.py:61",
    "transport/shells.py:31",
    "server/cache.py:61",
    "server/splice.py:31",
    "server/route.py:1",
    "server/route.py:61",
    "server/orchestrate.py:61",
    "kernels/rotate.py:1",
]
Word = Literal["token", "plan", "cache", "request", "return", "import", "def", "self"]
Folder = Literal["core", "planner", "transport", "server", "policies"]


@tool
def read_file(section: Section = "core/plan.py:1") -> str:
    """Read 60 lines of a source file; a section is a path and its first line."""
    path, _, first = section.partition(":")
    start = int(first)
    lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
    numbered = [
        f"{start + i:4} {line}" for i, line in enumerate(lines[start - 1 : start - 1 + LINES])
    ]
    return "\n".join([f"{path}, {len(lines)} lines in all:", *numbered])


@tool
def search(word: Word = "token") -> str:
    """Find lines of the source files that contain a word."""
    hits = []
    for file in sorted(ROOT.glob("*/*.py")):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if re.search(rf"\b{word}", line, re.IGNORECASE):
                hits.append(f"{file.relative_to(ROOT)}:{number}: {line.strip()}")
    return "\n".join(hits[:HITS]) or f"no line contains {word!r}"


@tool
def outline(folder: Folder = "core") -> str:
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
