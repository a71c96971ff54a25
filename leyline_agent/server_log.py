"""What the log of a server that did not start says."""

from __future__ import annotations

import re
from pathlib import Path

# Dumps of SGLang's arguments: long, and never the reason.
_NO_FAULT = ("freeze_gc", "server_args=")
# An exception's own line in a traceback, or argparse's last word.
_REASON = re.compile(r"^(?:[\w.]*(?:Error|Exception|Exit|Interrupt)\b|[\w .-]+: error: )")
# Of processes that end because another one did.
_FOLLOWS = re.compile(r"^EOFError|scheduler died|Rank \d+ scheduler|SystemExit|KeyboardInterrupt")
_STAMP = re.compile(r"^\[\d{4}-\d\d-\d\d[^\]]*\]\s*")


def lines(log: Path) -> list[str]:
    """The log's lines without dumps of arguments, cut to 400 characters; none without a log."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return [line[:400] for line in text.splitlines() if not any(n in line for n in _NO_FAULT)]


def reason(found: list[str]) -> str:
    """The line that tells most: the last exception that no other one caused, or the last line."""
    plain = [line for line in (_STAMP.sub("", text).rstrip() for text in found) if line]
    named = [line for line in plain if _REASON.match(line) and not _FOLLOWS.search(line)]
    return (named or plain or ["it said nothing"])[-1]


def told(log: Path, tail: int = 8) -> str:
    """The reason, the log's path, the log's last lines."""
    found = lines(log)
    end = "\n".join(f"  {line[:200]}" for line in found[-tail:])
    return f"{reason(found)}\nIts log is {log}; it ends with\n{end}"
