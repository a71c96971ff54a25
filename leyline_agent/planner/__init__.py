"""What the server holds, and from a difference to directives."""

from leyline_agent.planner.diff import Block, Difference, align, difference
from leyline_agent.planner.ledger import Entry, Ledger
from leyline_agent.planner.planner import Planned, Planner

__all__ = [
    "Block",
    "Difference",
    "Entry",
    "Ledger",
    "Planned",
    "Planner",
    "align",
    "difference",
]
