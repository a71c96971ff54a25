"""What the operator sets, through the environment of the server: one reading for all processes."""

from __future__ import annotations

import os
from dataclasses import dataclass

from leyline_agent.core import SetupError

LINKS = {"bfloat16": 3, "float16": 24, "float32": 100_000}
"""Roundings after which the relative L2 of keys is still below 4e-3: measured for bfloat16 by
tests/mechanism/test_drift.py; the others have 8 and 65,536 times finer spacings."""


@dataclass(frozen=True, slots=True)
class Settings:
    """boundary: tokens behind every replacement that are prefilled with it instead of moved.
    max_links: how many roundings moved keys may carry; None: what LINKS says of their type."""

    boundary: int = 0
    max_links: int | None = None

    @classmethod
    def read(cls) -> Settings:
        """From LEYLINE_BOUNDARY and LEYLINE_MAX_LINKS.

        Raises:
            SetupError: one is not a whole number in its range.
        """
        return cls(_number("LEYLINE_BOUNDARY", 0) or 0, _number("LEYLINE_MAX_LINKS", 1))


def _number(name: str, least: int) -> int | None:
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal() or int(text) < least:
        raise SetupError(f"{name} is {text!r}: it must be a whole number, {least} or more")
    return int(text)
