"""What the server did with a plan."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from leyline_agent.core.errors import Fallback, WireError


@dataclass(frozen=True, slots=True)
class Receipt:
    """The account of one request that carried a plan.

    id: completion id. applied: the whole group took effect. fallback: why it did not.
    Token counts of the request's prompt add up: reused (found in the cache, unmoved) +
    spliced (KV moved for this request) + replaced (replacements and page fill-up, prefilled
    ahead of the answer) + prefilled (computed by the answering forward pass) = prompt.
    mark: the lineage's name, in hex, or "". ms: time spent in the splice. detail: one
    sentence for a human.
    """

    id: str
    applied: bool
    fallback: Fallback | None = None
    prompt_tokens: int = 0
    reused: int = 0
    spliced: int = 0
    replaced: int = 0
    prefilled: int = 0
    directives: int = 0
    ms: float = 0.0
    mark: str = ""
    detail: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, JSON-ready."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Receipt:
        """The inverse of to_dict; unknown keys are ignored.

        Raises:
            WireError: a key is missing or its value has no meaning.
        """
        known = {f.name for f in fields(cls)}
        values = {k: v for k, v in data.items() if k in known}
        try:
            if values.get("fallback") is not None:
                values["fallback"] = Fallback(values["fallback"])
            return cls(**values)
        except (TypeError, ValueError) as error:
            raise WireError(f"not a receipt: {error}") from error
