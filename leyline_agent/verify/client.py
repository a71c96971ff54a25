"""Plain HTTP calls to `/generate`, and what comes back."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import httpx

from leyline_agent.core import (
    Directive,
    EditPlan,
    Mode,
    Receipt,
    ServerError,
    WirePlan,
    digest,
)
from leyline_agent.verify.cases import Edit

LIKELY, RIVALS = 50, 10
"""How many of the likeliest tokens are compared closely, and as rivals of the first."""


def tokens(count: int, seed: object) -> list[int]:
    """Random ordinary token ids; the same for the same seed."""
    draw = random.Random(str(seed))
    return [draw.randrange(400, 8000) for _ in range(count)]


@dataclass(frozen=True, slots=True)
class Answer:
    """One completion.

    prompt, output: token ids. cached: prompt tokens that the server had. logprobs: of the
    first new token, of its likeliest tokens (empty unless asked for).
    """

    id: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    cached: int
    receipt: Receipt | None
    logprobs: dict[int, float] = field(default_factory=dict)

    @property
    def ids(self) -> tuple[int, ...]:
        """What the completion id names as a base."""
        return self.prompt + self.output


def directives(edits: Sequence[Edit], mode: str | Sequence[str] = "amortize") -> list[Directive]:
    """Directives with random replacements of the given lengths."""
    modes = [mode] * len(edits) if isinstance(mode, str) else mode
    made = []
    for (start, end, ids), kind in zip(edits, modes, strict=True):
        put = tuple(tokens(ids, ("replacement", start, ids)) if isinstance(ids, int) else ids)
        made.append(Directive(start, end, put, Mode(kind)))
    return made


def plan_text(base: Answer, changes: Sequence[Directive]) -> str:
    """The wire text of directives against a completion."""
    plan = EditPlan.of(base.ids, changes)
    return WirePlan(base.id, plan, digest(plan.apply(base.ids))).dumps()


class Client:
    """Calls one server.

    Args:
        url: its root.

    Every method raises ServerError when the server does not answer, or refuses.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = httpx.Client(base_url=url, timeout=300)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def generate(
        self,
        ids: Sequence[int],
        plan: object = None,
        *,
        new: int = 4,
        probs: int = 0,
        **more: Any,
    ) -> Answer:
        """A greedy completion of `ids`, with a plan or without.

        Args:
            new: tokens to generate. probs: how many of the first one's likeliest tokens to tell
                the log-probabilities of. more: goes into the request's body.
        """
        params: dict[str, Any] = {"max_new_tokens": new, "temperature": 0, "ignore_eos": True}
        if plan is not None:
            params["custom_params"] = {"leyline": plan}
        body: dict[str, Any] = {"input_ids": list(ids), "sampling_params": params, **more}
        if probs:
            body |= {"return_logprob": True, "top_logprobs_num": probs}
        return answer_of(ids, self._call("POST", "/generate", json=body).json())

    def edit(
        self, base: Answer, changes: Sequence[Directive], extra: Sequence[int], **more: Any
    ) -> Answer:
        """A completion of the edited base and `extra` behind it, with the plan."""
        edited = EditPlan.of(base.ids, changes).apply(base.ids)
        return self.generate([*edited, *extra], plan_text(base, changes), **more)

    def receipt(self, completion: str) -> Receipt | None:
        """What the receipts route says."""
        done = self.http.get(f"/leyline/v1/receipts/{completion}")
        return Receipt.from_dict(done.json()) if done.status_code == 200 else None

    def rank(self) -> dict[str, Any]:
        """The first scheduler's part of the handshake."""
        state: dict[str, Any] = self.info()["ranks"][0]
        return state

    def info(self) -> dict[str, Any]:
        """The handshake."""
        state: dict[str, Any] = self._call("GET", "/leyline/v1/info").json()
        return state

    def model(self) -> dict[str, Any]:
        """name; model_path: the folder it was started with; dtype: of its weights."""
        told = self._call("GET", "/server_info").json()
        return {
            "name": str(told.get("served_model_name") or told["model_path"]),
            "model_path": str(told["model_path"]),
            "dtype": str(told.get("dtype", "auto")),
        }

    def leaked_slots(self, patience: float = 10) -> int:
        """Slots that, with no request running, are neither free nor evictable.

        Args:
            patience: seconds to wait for the last requests to let go of theirs.
        """
        deadline = time.monotonic() + patience
        while True:
            leaked = 0
            for state in self.info()["ranks"]:
                free = state["available_tokens"] + state["evictable_tokens"]
                leaked += max(abs(state["pool_tokens"] - free), state["protected_tokens"])
            if not leaked or time.monotonic() > deadline:
                return leaked
            time.sleep(0.2)

    def _call(self, method: str, path: str, **more: Any) -> httpx.Response:
        try:
            done = self.http.request(method, path, **more)
        except httpx.HTTPError as error:
            raise ServerError(f"{self.url}{path} does not answer: {error!r}") from error
        if done.status_code != 200:
            raise ServerError(f"{self.url}{path}: HTTP {done.status_code} {done.text[:500]}")
        return done


def answer_of(ids: Sequence[int], data: dict[str, Any]) -> Answer:
    """Read a `/generate` response."""
    meta = data["meta_info"]
    rows = meta.get("output_top_logprobs") or [[]]
    receipt = meta.get("leyline")
    return Answer(
        meta["id"],
        tuple(ids),
        tuple(data["output_ids"]),
        meta["cached_tokens"],
        Receipt.from_dict(receipt) if receipt else None,
        {row[1]: row[0] for row in rows[0]},
    )


@dataclass(frozen=True, slots=True)
class Gap:
    """Largest difference of log-probabilities: of the 50 likeliest tokens, and of all told.

    Tokens 20 nats down carry the rounding of logits far from zero, so they get more room.
    lead: by how much the other one's best token lost of its lead over one of the ten behind it;
    the first token is another one exactly when the lead itself was smaller.
    """

    likely: float
    all: float
    lead: float

    LIKELY: ClassVar[float] = 1e-4
    ALL: ClassVar[float] = 1.5e-4

    @classmethod
    def of(cls, answer: Answer, other: Sequence[float] | Mapping[int, float]) -> Gap:
        """Between a server's distribution and another one, over the server's tokens.

        A token that the other one does not tell makes the gap infinite, if it is likely.
        """
        ranked = sorted(answer.logprobs, key=answer.logprobs.__getitem__, reverse=True)
        if not ranked:
            raise ValueError("the answer has no log-probabilities: ask with probs=N")
        told = other if isinstance(other, Mapping) else dict(enumerate(other))
        gaps = [abs(answer.logprobs[t] - told.get(t, float("inf"))) for t in ranked]
        known = [gap for gap in gaps if gap != float("inf")]
        best, *rivals = sorted(told, key=told.__getitem__, reverse=True)[: RIVALS + 1]
        drift = {t: answer.logprobs.get(t, -float("inf")) - told[t] for t in (best, *rivals)}
        lead = max(drift[t] for t in rivals) - drift[best]
        return cls(max(gaps[:LIKELY]), max(known, default=float("inf")), max(lead, 0.0))

    @property
    def closed(self) -> bool:
        """Whether the two are the same up to float32 rounding."""
        return self.likely < self.LIKELY and self.all < self.ALL

    def __str__(self) -> str:
        return f"{self.likely:.1e} of the likely tokens, {self.all:.1e} of all"


def as_wire(changes: Sequence[Directive]) -> list[list[Any]]:
    """Directives as the reference reads them."""
    return [[d.start, d.end, list(d.replacement), d.mode.value] for d in changes]
