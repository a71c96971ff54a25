"""What the server holds, and from a difference to directives."""

from leyline_agent.planner.align import align
from leyline_agent.planner.blocks import Block
from leyline_agent.planner.diff import Difference, difference
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
