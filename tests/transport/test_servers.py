"""The handshake before anything is lowered, and receipts behind what was planned."""

from __future__ import annotations

import time
from typing import Any

import pytest
from fake_sglang import ANSWER, CALL

from leyline_agent.transport import CONVERSATION, collect
from leyline_agent.transport.servers import NO_LEYLINE, OWN_STOPS, UNKNOWN, Servers

LONG = "an observation of many words, " * 20
FIRST = [{"role": "user", "content": "task"}, {"role": "user", "content": LONG}]
SECOND = [
    FIRST[0],
    {"role": "user", "content": LONG[:60] + LONG[-60:]},
    {"role": "assistant", "content": ANSWER},
    {"role": "user", "content": "and now?"},
]


def turns(wired: Any, stream: bool = False) -> list[Any]:
    """Records of two turns with an edit between them."""
    with collect() as records:
        for messages in (FIRST, SECOND):
            body = {**CALL, "messages": messages, "stream": stream}
            assert wired.post(body, headers={"authorization": "Bearer x"}).status_code == 200
    return records


@pytest.mark.parametrize(
    ("info", "why"),
    [
        (None, NO_LEYLINE),
        ({"path": "a catch-all"}, NO_LEYLINE),
        ({"leyline": "1", "active": False}, NO_LEYLINE),
        ({"leyline": "1", "active": True, "lowering": False}, OWN_STOPS),
    ],
    ids=str,
)
def test_some_servers_get_plain_requests_only(wired: Any, info: Any, why: str, caplog: Any) -> None:
    wired.server.info = info
    records = turns(wired)
    assert wired.server.chats == [{**CALL, "messages": m, "stream": False} for m in (FIRST, SECOND)]
    assert [(r.planned, r.why) for r in records] == [(False, why)] * 2
    assert wired.lowering.counts == {why: 2}
    assert [r.message for r in caplog.records if r.levelname == "WARNING"] == [
        f"leyline: http://server:1 gets plain requests: {why}"
    ]


@pytest.mark.parametrize(
    "info", [{"leyline": "1", "active": True, "lowering": True}, {"leyline": 1}]
)
def test_one_handshake_with_the_callers_credentials(wired: Any, info: Any) -> None:
    wired.server.info = info
    assert [r.planned for r in turns(wired)] == [False, True]
    [headers] = wired.server.greeted
    assert headers["authorization"] == "Bearer x"
    assert not {CONVERSATION, "content-length", "content-type"} & set(headers)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("receipt", "told"),
    [
        ({"id": "", "applied": True, "spliced": 9}, (True, 9, None, "")),
        ({"id": "", "applied": False, "fallback": "no_memory"}, (False, 0, "no_memory", "")),
        (None, (None, None, None, "the server gave no receipt for the plan")),
        ({"odd": 1}, (None, None, None, "the server gave no receipt for the plan")),
    ],
    ids=str,
)
def test_a_record_tells_what_the_server_did(
    wired: Any, stream: bool, receipt: Any, told: Any
) -> None:
    wired.server.receipt = receipt
    first, second = turns(wired, stream)
    assert (first.planned, first.applied, first.fallback) == (False, None, None)
    assert second.planned
    assert (second.applied, second.spliced, second.fallback, second.why) == told


def test_answers_hold_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    servers = Servers()
    assert (servers.is_due("s"), servers.objection("s")) == (True, UNKNOWN)
    for status, content, why, holds in [
        (0, b"", UNKNOWN, 10),
        (401, b"", UNKNOWN, 10),
        (404, b"", NO_LEYLINE, 60),
        (200, b"<html>", NO_LEYLINE, 60),
        (200, b'{"leyline": "1"}', "", 3600),
        (500, b"", "", 10),  # a good answer outlives a failed handshake
        (200, b'{"leyline": "1", "lowering": false}', OWN_STOPS, 60),
    ]:
        servers.learn("s", status, content)
        assert (servers.is_due("s"), servers.objection("s")) == (False, why)
        now += holds - 1
        assert not servers.is_due("s")
        now += 1
        assert servers.is_due("s")
    assert servers.is_due("another")
