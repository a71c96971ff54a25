"""Feed a recorded conversation to a server, turn by turn, under each arm."""

from __future__ import annotations

import copy
import traceback
import uuid
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import httpx

from leyline_agent.core import EditPlan, Fallback, Mode, PolicyError, Receipt, ServerError
from leyline_agent.planner import difference
from leyline_agent.policies import Policy, apply
from leyline_agent.replay.report import Arm, Turn
from leyline_agent.replay.trace import Trace
from leyline_agent.replay.wire import Reply, chat, tokenize
from leyline_agent.transport import CONVERSATION, client
from leyline_agent.transport import receipt as find_receipt

PLANNED = {Arm.AMORTIZE: Mode.AMORTIZE, Arm.FORGET: Mode.FORGET}

Seen = Callable[[Arm, Turn], None]
Finished = Callable[[Arm, list[Turn]], None]


def handshake(http: httpx.Client) -> dict[str, Any]:
    """Model and, where the server has Leyline, what it supports.

    Raises:
        ServerError: nobody answers, or it is no OpenAI server.
    """
    root = str(http.base_url).rstrip("/")
    try:
        answer = http.get("/v1/models")
        info = http.get("/leyline/v1/info")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServerError(
            f"nobody answers at {root} ({error}): is it running? start one with `leyline serve` "
            "and wait for `ready`"
        ) from error
    if answer.status_code in (401, 403):
        raise ServerError(f"{root} wants a key, which this command does not send")
    try:
        model = str(answer.json()["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise ServerError(
            f"what answers at {root} is no OpenAI server (HTTP {answer.status_code} for "
            "/v1/models): give the address that `leyline serve` printed with `ready`"
        ) from error
    return {"model": model, "leyline": _leyline(info)}


def _leyline(info: httpx.Response) -> dict[str, Any] | None:
    try:
        told = info.json() if info.status_code == 200 else None
    except ValueError:
        return None
    return told if isinstance(told, dict) else None


def prompts(trace: Trace, policy: Policy | None) -> list[list[dict[str, Any]]]:
    """The messages of every turn. Edits are sticky: what was cut once stays cut.

    The policy sees what it left last time, followed by what has come since.

    Raises:
        PolicyError: the policy failed; says on which turn (from 1) and where.
    """
    turns: list[list[dict[str, Any]]] = []
    history: list[dict[str, Any]] = []
    seen = 0
    for number, end in enumerate(trace.turns()):
        history = history + [copy.deepcopy(m) for m in trace.messages[seen:end]]
        seen = end
        if policy is not None:
            history = _applied(policy, history, number)
        turns.append(list(history))
    return turns


def _applied(policy: Policy, history: list[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    try:
        return apply(policy, history, number)
    except PolicyError as error:
        cause = error.__cause__
        what = f"{type(cause).__name__}: {cause}" if cause else str(error)
        where = f" at {_statement(cause)}" if cause else ""
        raise PolicyError(
            f"{type(policy).__name__} failed on turn {number + 1}{where}: {what}"
        ) from error


def _statement(error: BaseException) -> str:
    """file:line of the last statement in the file where the policy's transform stands."""
    frames = traceback.extract_tb(error.__traceback__)  # apply, transform, what it called
    own = frames[min(1, len(frames) - 1)].filename
    frame = next(f for f in reversed(frames) if f.filename == own)
    return f"{frame.filename}:{frame.lineno}"


def replay(
    trace: Trace,
    policy: Policy,
    arms: Sequence[Arm],
    base_url: str,
    *,
    max_tokens: int = 8,
    repeats: int = 1,
    seen: Seen = lambda _arm, _turn: None,
    finished: Finished = lambda _arm, _turns: None,
) -> dict[Arm, list[Turn]]:
    """Replay under each arm, one after the other, each in a cache namespace of its own.

    Args:
        repeats: how often, arms in turn; a turn's times are kept together, its counts are
            the first run's, or those of a run in which it fell back.
        max_tokens: how many tokens the model answers with in each turn; what it says is
            recorded and dropped, the next turn goes on with the record.
        seen: called after each turn. finished: with an arm's result, after its last repeat.

    Raises:
        ServerError: the server refused a turn or went away. PolicyError: see `prompts`.
    """
    sent = {arm: prompts(trace, None if arm is Arm.APPEND else policy) for arm in arms}
    runs: dict[Arm, list[list[Turn]]] = {arm: [] for arm in arms}
    results: dict[Arm, list[Turn]] = {}
    for repeat in range(repeats):
        for arm in arms:
            turns: list[Turn] = []
            for turn in _arm(trace, sent[arm], arm, base_url, max_tokens):
                turns.append(turn)
                seen(arm, turn)
            runs[arm].append(turns)
            if repeat == repeats - 1:
                results[arm] = [Turn.of(same) for same in zip(*runs[arm], strict=True)]
                finished(arm, results[arm])
    return results


def _arm(
    trace: Trace, sent: list[list[dict[str, Any]]], arm: Arm, base_url: str, max_tokens: int
) -> Iterator[Turn]:
    mode = PLANNED.get(arm)
    plain = httpx.Client(base_url=base_url, timeout=600)
    with plain, client(base_url, mode=mode, lib=httpx) if mode else nullcontext(plain) as http:
        server = handshake(plain)
        page = _page_size(server)
        shared = {
            "model": server["model"],
            "temperature": 0,
            "max_tokens": max_tokens,
            "cache_salt": f"replay-{uuid.uuid4().hex}",
            **({"tools": list(trace.tools)} if trace.tools else {}),
        }
        _warm(http, shared)
        if mode:
            # The record's answers are not the model's: only a name ties one turn to the next.
            http.headers[CONVERSATION] = shared["cache_salt"]
        before: array[int] | None = None
        for number, messages in enumerate(sent):
            body = {**shared, "messages": messages}
            ids = array("q", tokenize(plain, body))
            reply = chat(http, body)
            receipt = find_receipt(base_url, reply.id) if mode else None
            yield _turn(number, ids, before, page, reply, receipt)
            before = ids


def _warm(http: httpx.Client, shared: dict[str, Any]) -> None:
    """One short request in another namespace, so that no arm pays for first-time work."""
    body = {**shared, "messages": [{"role": "user", "content": "ready?"}], "cache_salt": "warm"}
    chat(http, body)


def _page_size(server: dict[str, Any]) -> int:
    ranks = (server.get("leyline") or {}).get("ranks") or [{}]
    return int(ranks[0].get("page_size") or 1)


def _turn(
    number: int,
    ids: array[int],
    before: array[int] | None,
    page: int,
    reply: Reply,
    receipt: Receipt | None,
) -> Turn:
    """Add one turn up. What is new and what replaced is counted from the prompts alone."""
    if before is None:
        new, replaced, edits, unpaged = len(ids), 0, 0, 0
    else:
        found = difference(before, len(before), ids, Mode.AMORTIZE)
        new = len(ids) - found.edited_len
        unpaged = _unpaged(EditPlan.of(before, found.directives), page)
        inside = [d for d in found.directives if d.replacement or d.end < len(before)]
        replaced, edits = sum(len(d.replacement) for d in inside), len(inside)
    cached = reply.cached_tokens - (receipt.replaced if receipt else 0)
    fallback: Fallback | None = receipt.fallback if receipt else None
    return Turn(
        index=number,
        prompt_tokens=len(ids),
        cached_tokens=cached,
        spliced_tokens=receipt.spliced if receipt else 0,
        prefilled_tokens=len(ids) - cached,
        replacement_tokens=replaced,
        new_tokens=new,
        unpaged_tokens=unpaged,
        edits=edits,
        fallback=fallback.value if fallback else None,
        ttft_ms_runs=(round(reply.ttft_ms, 2),),
        output=reply.text,
    )


def _unpaged(plan: EditPlan, page: int) -> int:
    """Kept tokens that share a cache page with others: before the first whole page of a
    segment, and behind its last.
    """
    lost = 0
    for kept in plan.kept():
        start, end = kept.edited.start, kept.edited.end
        whole = max(0, end // page * page - -(-start // page) * page)
        lost += end - start - whole
    return lost
