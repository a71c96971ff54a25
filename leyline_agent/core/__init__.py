"""The edit algebra: spans, directives, plans, their wire format, receipts and errors."""

from leyline_agent.core.digest import digest
from leyline_agent.core.directive import Directive, Mode
from leyline_agent.core.errors import (
    Fallback,
    LeylineError,
    PlanError,
    PolicyError,
    ServerError,
    SetupError,
    WireError,
)
from leyline_agent.core.plan import Cost, EditPlan, Kept
from leyline_agent.core.receipt import Receipt
from leyline_agent.core.span import Span
from leyline_agent.core.wire import PARAM, VERSION, WirePlan, loads

__all__ = [
    "PARAM",
    "VERSION",
    "Cost",
    "Directive",
    "EditPlan",
    "Fallback",
    "Kept",
    "LeylineError",
    "Mode",
    "PlanError",
    "PolicyError",
    "Receipt",
    "ServerError",
    "SetupError",
    "Span",
    "WireError",
    "WirePlan",
    "digest",
    "loads",
]
