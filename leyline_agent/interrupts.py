"""Ctrl-C that comes at the wrong moment."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_HELD = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def held_interrupts() -> Iterator[None]:
    """SIGINT and SIGTERM that come inside take effect behind it.

    Other threads than the main one are never interrupted: there it does nothing. A child
    that is started inside has the signals' defaults, as caught signals have after exec.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.signal(number, note) for number in _HELD}
    try:
        yield
    finally:
        for number, handler in before.items():
            # None: whoever set it did not do so from Python.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if came:
            os.kill(os.getpid(), came[0])
