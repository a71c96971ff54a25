"""Edits that a server must get right: one plan, chains of plans, both modes."""

from __future__ import annotations

from collections.abc import Sequence

Edit = tuple[int, int, "int | Sequence[int]"]
"""Start, end and the replacement, or how many random tokens it has."""

Plan = tuple[Sequence[Edit], "str | Sequence[str]"]
"""The edits of one turn, and the mode of all or of each."""

BASE = 300
"""Tokens of the prompt that every case begins with."""

CASES: dict[str, Sequence[Plan]] = {
    "shorter": [([(90, 150, 12)], "amortize")],
    "longer": [([(90, 110, 45)], "amortize")],
    "empty": [([(90, 150, 0)], "amortize")],
    "insertion": [([(120, 120, 9)], "amortize")],
    "from token 0": [([(0, 40, 7)], "amortize")],
    "token 0 dropped": [([(0, 40, 0)], "amortize")],
    "end of the base": [([(250, 304, 0)], "amortize")],
    "end replaced": [([(250, 304, 20)], "amortize")],
    "three": [([(40, 90, 10), (120, 125, 33), (160, 220, 0)], "amortize")],
    "three, insertion first": [([(30, 30, 8), (31, 60, 0), (200, 230, 31)], "amortize")],
    "chain, later": [([(60, 100, 5)], "amortize"), ([(150, 180, 12)], "amortize")],
    "chain, earlier": [([(150, 180, 5)], "amortize"), ([(60, 100, 40)], "amortize")],
    "chain, mark removed": [([(100, 140, 5)], "amortize"), ([(95, 125, 8)], "amortize")],
    "chain, mark first of the kept": [
        ([(100, 140, 0)], "amortize"),
        ([(80, 100, 3)], "amortize"),
    ],
    "chain, three in a row": [
        ([(60, 100, 5)], "amortize"),
        ([(120, 150, 0)], "amortize"),
        ([(40, 41, 30)], "amortize"),
    ],
    "chain, of three, then two": [
        ([(40, 90, 10), (120, 125, 33), (160, 220, 0)], "amortize"),
        ([(50, 70, 0), (99, 120, 5)], "amortize"),
    ],
    "forget": [([(90, 150, 12)], "forget")],
    "forget, nothing put in": [([(90, 150, 0)], "forget")],
    "amortize and forget": [([(60, 90, 10), (150, 180, 5)], ["amortize", "forget"])],
    "forget and amortize": [([(60, 90, 10), (150, 180, 5)], ["forget", "amortize"])],
    "forget after amortize": [([(100, 140, 6)], "amortize"), ([(95, 110, 4)], "forget")],
}


def is_honest(plans: Sequence[Plan]) -> bool:
    """Whether the last plan leaves nothing amortized: it forgets from its first edit on, and
    no earlier one amortized anything before that."""
    edits, modes = plans[-1]
    first = modes if isinstance(modes, str) else modes[0]
    start = min(edit[0] for edit in edits)
    earlier = [edit[0] for changes, _ in plans[:-1] for edit in changes]
    return first == "forget" and all(at >= start for at in earlier)
