"""What a caller can learn about one request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

COLLECTING: ContextVar[tuple[list[TurnRecord], ...]] = ContextVar("collecting", default=())


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """The client's side of one chat request; the server's side is its receipt.

    completion: its id. planned: whether a plan was sent; else `why` not. Token counts:
    prompt = the whole prompt, new = behind the old conversation, replacement = new text
    inside it, reusable = what a perfect cache would not compute; cached = what the server
    says it had, None when its answer carries no usage. edits: places where the
    old conversation changed. Times in milliseconds: tokenize_ms (one round trip), plan_ms,
    ttft_ms from the request's arrival here to the answer's first bytes.

    applied, spliced, fallback: of the server's receipt, where a plan was sent inside
    collect(); None where there is none. A request that went through untouched is told to
    collect() alone: no completion, no counts, and `why`.
    """

    completion: str
    planned: bool
    why: str
    prompt_tokens: int
    new_tokens: int
    replacement_tokens: int
    reusable_tokens: int
    cached_tokens: int | None
    edits: int
    tokenize_ms: float
    plan_ms: float
    ttft_ms: float
    applied: bool | None = None
    spliced: int | None = None
    fallback: str | None = None

    @classmethod
    def untouched(cls, why: str) -> TurnRecord:
        """Of a request that was sent as it came."""
        return cls("", False, why, 0, 0, 0, 0, None, 0, 0.0, 0.0, 0.0)


@contextmanager
def collect() -> Iterator[list[TurnRecord]]:
    """A list that fills with the records of all requests finished in this context.

    Follows contextvars: threads and tasks started inside with a copied context count too.
    """
    records: list[TurnRecord] = []
    token = COLLECTING.set((*COLLECTING.get(), records))
    try:
        yield records
    finally:
        COLLECTING.reset(token)
