"""One conversation on a server, and the same steps for the independent reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from leyline_agent.core import Directive, ServerError
from leyline_agent.verify.cases import BASE, Plan
from leyline_agent.verify.client import Answer, Client, Gap, as_wire, directives, tokens

Run = Callable[[Sequence[dict[str, Any]]], list[list[float]]]


class Twin:
    """Grows a conversation turn by turn; `gaps` compares every turn with the reference.

    Args:
        more: goes into every request; probs: how many log-probabilities of each answer.
    """

    def __init__(self, client: Client, prompt: list[int], **more: Any) -> None:
        self.client, self.more = client, more
        self.last: Answer = client.generate(prompt, **more)
        self.steps: list[dict[str, Any]] = [{"new": prompt, "outputs": list(self.last.output)}]
        self.answers = [self.last]

    @classmethod
    def of(cls, client: Client, name: str, plans: Sequence[Plan], **more: Any) -> Twin:
        """A whole case: a random prompt named after it, and a turn for each plan."""
        twin = cls(client, tokens(BASE, name), **more)
        for turn, (edits, modes) in enumerate(plans):
            twin.edit(directives(edits, modes), tokens(20, f"{name} {turn}"))
        return twin

    def edit(self, changes: list[Directive], new: list[int]) -> Answer:
        """An edited turn on both sides.

        Raises:
            ServerError: the plan was not applied.
        """
        self.last = self.client.edit(self.last, changes, new, **self.more)
        receipt = self.last.receipt
        if receipt is None or not receipt.applied:
            raise ServerError(f"a plan was not applied: {receipt}")
        self.steps.append(
            {"directives": as_wire(changes), "new": new, "outputs": list(self.last.output)}
        )
        self.answers.append(self.last)
        return self.last

    def gaps(self, reference: Run) -> list[Gap]:
        """Server against reference, turn by turn."""
        rows = reference(self.steps)
        return [Gap.of(a, row) for a, row in zip(self.answers, rows, strict=True)]
