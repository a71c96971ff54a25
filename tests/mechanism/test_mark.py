"""A mark cannot be spelled by a prompt: SGLang takes any number for a token id."""

from __future__ import annotations

import subprocess
import sys
from array import array

from leyline_agent.server.mark import MARK_BASE, mark, name_of

CODE = """
from array import array
from leyline_agent.server.mark import mark, name_of
print(mark(array("q", range(50)), 20), name_of(1 << 62))
"""


def test_another_process_cannot_compute_a_mark_or_its_name() -> None:
    told = {
        subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True).stdout
        for _ in range(2)
    }
    assert len(told) == 2
    assert all(len(text.split()) == 2 for text in told)


def test_a_mark_is_its_lineage_and_its_name_tells_nothing() -> None:
    key = array("q", range(50))
    value = mark(key, 20)
    assert MARK_BASE <= value < 1 << 63
    assert value == mark(key[:21], 20)
    assert value != mark(key, 21)
    assert name_of(value) == name_of(mark(key, 20))
    assert int(name_of(value), 16) not in (value, value - MARK_BASE)
