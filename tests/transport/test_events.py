"""Server-sent events: passed on as they come, whatever their bytes are cut into."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from fake_sglang import CALL, events
from hypothesis import given, settings
from hypothesis import strategies as st

from leyline_agent.core import Mode
from leyline_agent.transport import Lowering
from leyline_agent.transport.call import Call
from leyline_agent.transport.events import Watch

EXT = {"sglext": {"output_ids": [[1, 2, 3]]}}
USAGE = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 7}}


def watch(wants_ids: bool = False) -> Watch:
    lowering = Lowering()
    body = {**CALL, "return_output_ids_in_sglext": wants_ids}
    call = Call(body, Mode.AMORTIZE, None, time.perf_counter(), links=(b"hi",))
    lowering.lower(call, [5, 6, 7], 0.0)
    return Watch(lowering, call)


@settings(max_examples=200)
@given(st.lists(st.integers(1, 40), max_size=60), st.sampled_from([b"\n\n", b"\r\n\r\n"]))
def test_all_cuts_give_the_same_stream(cuts: list[int], end: bytes) -> None:
    sent = b"".join(events("c1", "grüße", USAGE, EXT, end))
    wanted = b"".join(events("c1", "grüße", USAGE, {}, end))
    stream, got, at = watch(), b"", 0
    for cut in [*cuts, len(sent)]:
        got += stream.feed(sent[at : at + cut])
        at += cut
    assert got + stream.finish() == wanted
    assert stream.call.output == [1, 2, 3]
    assert stream.call.cached == 7
    [entry] = stream.lowering.planner.ledger.candidates(stream.call.namespace, None)
    assert (entry.completion, entry.ids.tolist()) == ("c1", [5, 6, 7, 1, 2, 3])


def test_every_event_leaves_at_once() -> None:
    stream = watch()
    for event in events("c1", "hello", USAGE, {}):
        assert stream.feed(event) == event


def test_ids_that_the_caller_wants_are_passed_on() -> None:
    sent = b"".join(events("c1", "x", USAGE, EXT))
    stream = watch(wants_ids=True)
    assert stream.feed(sent) + stream.finish() == sent
    assert stream.call.output == [1, 2, 3]


def test_other_extensions_beside_the_ids_are_passed_on() -> None:
    sent = b"".join(events("c1", "x", USAGE, {"sglext": {**EXT["sglext"], "routed_experts": "e"}}))
    stream = watch()
    passed = stream.feed(sent)
    assert b'{"routed_experts": "e"}' in passed
    assert b"output_ids" not in passed
    assert stream.call.output == [1, 2, 3]


@pytest.mark.parametrize("beside", [{"error": {"message": "boom"}}, {"news": 1}], ids=str)
def test_what_stands_beside_our_ids_is_passed_on(beside: dict[str, Any]) -> None:
    every = {"id": "c1", "object": "chat.completion.chunk", "created": 7, "model": "m"}
    stream = watch()
    sent = {**every, "choices": [], "usage": None, **EXT}
    assert stream.feed(b"data: " + json.dumps(sent).encode() + b"\n\n") == b""
    passed = stream.feed(b"data: " + json.dumps({**sent, **beside}).encode() + b"\n\n")
    assert json.loads(passed[6:]) == {**every, "choices": [], "usage": None, **beside}


def test_the_answer_is_entered_at_done_and_once() -> None:
    """Many clients close the stream when they see [DONE]."""
    stream, told = watch(), []
    stream.lowering.on_turn = told.append
    stream.feed(b"".join(events("c1", "x", USAGE, EXT)))
    assert len(told) == 1
    stream.finish()
    assert len(told) == 1


def test_a_stream_that_breaks_off_leaves_no_entry() -> None:
    stream = watch()
    for event in events("c1", "hello", USAGE, EXT)[:3]:
        stream.feed(event)
    assert len(stream.lowering.planner.ledger) == 0


@pytest.mark.parametrize(
    "chunk",
    [
        {"error": {"message": "out of memory"}},
        {"sglext": 7},
        {"sglext": {"output_ids": "x"}},
        {"sglext": {"output_ids": [[1], [2]]}},
        {"sglext": {"output_ids": [["a"]], "input_ids": [None]}},
        {"sglext": {"input_ids": [-1, 1 << 70]}},
        {"usage": [1]},
        {"usage": {"prompt_tokens_details": 3}},
        {"id": None, "choices": None},
    ],
    ids=str,
)
def test_odd_chunks_are_passed_on(chunk: dict[str, Any]) -> None:
    event = b"data: " + json.dumps(chunk).encode() + b"\n\n"
    stream = watch()
    assert stream.feed(event) == event


@given(st.binary(max_size=80))
def test_any_bytes_come_out_as_they_went_in(data: bytes) -> None:
    stream = watch()
    assert stream.feed(data) + stream.finish() == data
