"""What one request carries through the scheduler, and what became of it."""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass, field
from typing import Any

from leyline_agent.core import PARAM, Fallback, WireError, WirePlan, loads
from leyline_agent.server.mark import Marks, marked
from leyline_agent.server.route import Route

KEY = PARAM
"""The custom parameter of the public wire, and of the receipt in meta_info."""
INTERNAL = "leyline_ticket"
"""The custom parameter between the HTTP process and the scheduler; clients cannot set it."""


def seal(wire: WirePlan, stage: int | None) -> str:
    """The internal parameter: a validated plan, and for a prefill-only request its length."""
    return json.dumps({"plan": wire.dumps(), "stage": stage})


def unseal(text: object) -> tuple[WirePlan, int | None]:
    """The inverse of seal.

    Raises:
        WireError: the text was not made by seal.
    """
    if not isinstance(text, str):
        raise WireError("an internal ticket is a text")
    try:
        data = json.loads(text)
        return loads(data["plan"]), data["stage"]
    except (ValueError, KeyError, TypeError) as error:
        raise WireError(f"not an internal ticket: {error}") from error


@dataclass(slots=True)
class Ticket:
    """State of a planned request in the scheduler; lives on the request.

    marks is what the request's radix keys carry; a fallback empties it, so that the
    request's KV is cached under its honest path. Once fallen back it stays so.
    answering: a report went out with the first token.
    """

    wire: WirePlan
    stage: int | None
    route: Route | None = None
    marks: Marks = field(default_factory=dict)
    fallback: Fallback | None = None
    detail: str = ""
    spliced: int = 0
    ms: float = 0.0
    answering: bool = False

    def fall_back(self, reason: Fallback, detail: str) -> None:
        """Give up the plan: from here on the request is a plain one."""
        if self.fallback is None:
            if self.answering:
                detail = f"applied, then the request was retracted in mid-answer, and {detail}"
            self.fallback, self.detail = reason, detail
            self.marks = {}

    def key(self, tokens: array[int]) -> array[int]:
        """The radix key of a prefix of the request's tokens."""
        return marked(tokens, self.marks)

    def reach(self, edited: array[int]) -> int:
        """How many of the edited tokens the request has: all, or for a stage its length."""
        return len(edited) if self.stage is None else self.stage

    def report(self, prompt_tokens: int, cached: int) -> dict[str, Any]:
        """Scheduler-side figures, plain values: the raw material of a receipt."""
        reach = prompt_tokens if self.route is None else self.reach(self.route.edited)
        return {
            "honest": all(position >= reach for position in self.marks),
            "fallback": None if self.fallback is None else self.fallback.value,
            "detail": self.detail,
            "prompt": prompt_tokens,
            "cached": cached,
            "spliced": self.spliced,
            "ms": round(self.ms, 3),
            "mark": self.route.lineage if self.route and self.fallback is None else "",
        }
