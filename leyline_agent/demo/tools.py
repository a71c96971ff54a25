"""The demo agent's tools: they really read this package's own sources."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from langchain.tools import tool

ROOT = Path(__file__).parents[1]
LINES = 60

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
Line = Literal[1, 41, 81, 121]
Word = Literal["directive", "mark", "donor", "digest", "fallback", "radix", "rotary", "base"]
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
    return "\n".join(hits[:60]) or f"no line in {folder} contains {word!r}"


@tool
def list_files(folder: Folder) -> str:
    """List a folder's source files with their sizes in lines."""
    files = sorted((ROOT / folder).glob("*.py"))
    sizes = [(f, len(f.read_text(encoding="utf-8").splitlines())) for f in files]
    return "\n".join(f"{f.relative_to(ROOT)}: {n} lines" for f, n in sizes)


TOOLS = [read_file, search, list_files]
