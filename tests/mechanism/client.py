"""Plain HTTP calls to `/generate`, and what comes back."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import httpx

from leyline_agent.core import Directive, EditPlan, Mode, Receipt, WirePlan, digest
from leyline_agent.launch import ServerProcess

VOCABULARY = 8192

Edit = tuple[int, int, int | Sequence[int]]
"""Start, end and the replacement, or how many random tokens it has."""


def tokens(count: int, seed: object) -> list[int]:
    """Random ordinary token ids; the same for the same seed."""
    draw = random.Random(str(seed))
    return [draw.randrange(400, 8000) for _ in range(count)]


@dataclass(frozen=True, slots=True)
class Answer:
    """One completion.

    prompt, output: token ids. cached: prompt tokens that the server had. logprobs: of the
    first new token, over the whole vocabulary (empty unless asked for).
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
    """Calls one server."""

    def __init__(self, server: ServerProcess) -> None:
        self.url = server.base_url
        self.http = httpx.Client(base_url=server.base_url, timeout=120)

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
        probs: bool = False,
        **more: Any,
    ) -> Answer:
        """A greedy completion of `ids`, with a plan or without."""
        params: dict[str, Any] = {"max_new_tokens": new, "temperature": 0, "ignore_eos": True}
        if plan is not None:
            params["custom_params"] = {"leyline": plan}
        body: dict[str, Any] = {"input_ids": list(ids), "sampling_params": params, **more}
        if probs:
            body |= {"return_logprob": True, "top_logprobs_num": VOCABULARY}
        done = self.http.post("/generate", json=body)
        assert done.status_code == 200, done.text[:500]
        return answer_of(ids, done.json())

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
        done = self.http.get("/leyline/v1/info")
        assert done.status_code == 200, done.text[:500]
        state: dict[str, Any] = done.json()["ranks"][0]
        return state

    def assert_nothing_leaked(self, pid: int | None = None) -> None:
        """Idle, every slot of the pool is free or evictable, and the scheduler is the same."""
        deadline = time.monotonic() + 10
        while True:
            state = self.rank()
            free = state["available_tokens"] + state["evictable_tokens"]
            if free == state["pool_tokens"] and state["protected_tokens"] == 0:
                break
            assert time.monotonic() < deadline, json.dumps(state)
            time.sleep(0.2)
        assert pid is None or state["pid"] == pid, "the scheduler was restarted"


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
    """Largest difference of log-probabilities: of the 50 likeliest tokens, and of all.

    Tokens 20 nats down carry the rounding of logits far from zero, so they get more room.
    """

    likely: float
    all: float

    LIKELY: ClassVar[float] = 1e-4
    ALL: ClassVar[float] = 1.5e-4

    @classmethod
    def of(cls, answer: Answer, other: Sequence[float] | Mapping[int, float]) -> Gap:
        """Between a server's distribution and another one."""
        assert len(answer.logprobs) == len(other) == VOCABULARY
        ranked = sorted(answer.logprobs, key=answer.logprobs.__getitem__, reverse=True)
        gaps = [abs(answer.logprobs[token] - other[token]) for token in ranked]
        return cls(max(gaps[:50]), max(gaps))

    @property
    def closed(self) -> bool:
        """Whether the two are the same up to float32 rounding."""
        return self.likely < self.LIKELY and self.all < self.ALL

    def __str__(self) -> str:
        return f"{self.likely:.1e} of the likely tokens, {self.all:.1e} of all"


def as_wire(changes: Sequence[Directive]) -> list[list[Any]]:
    """Directives as the reference reads them."""
    return [[d.start, d.end, list(d.replacement), d.mode.value] for d in changes]
