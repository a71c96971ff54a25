"""Requests on their way through, for httpx and httpx2, blocking and asyncio."""

from __future__ import annotations

import json
import time
from array import array
from dataclasses import replace
from typing import Any

import fake_sglang
import pytest
from fake_sglang import ANSWER, CALL, render

from leyline_agent.core import Mode
from leyline_agent.transport import CONVERSATION, MODE, TurnRecord, collect

LONG = "an observation of many words, " * 20
CUT = LONG[:60] + "#cut#" + LONG[-60:]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


KEY = (json.dumps(["http://server:1", "m", None, None, None]), None)
FIRST = [user("task"), said("look"), user(LONG)]
SECOND = [user("task"), said("look"), user(CUT), said(ANSWER), user("and now?")]


@pytest.mark.parametrize("stream", [False, True])
def test_an_edit_becomes_a_plan(wired: Any, stream: bool) -> None:
    for messages in (FIRST, SECOND):
        answer = wired.post({**CALL, "messages": messages, "stream": stream, "user": "me"})
        assert answer.status_code == 200
    first, second = wired.server.chats
    assert "input_ids" not in first
    assert [entry.ids for entry in wired.lowering.planner.ledger.candidates(*KEY)][-1] == array(
        "q", [*render(FIRST), *map(ord, ANSWER), 4]
    )
    assert second["input_ids"] == render(SECOND)
    assert second["messages"] == SECOND
    assert second["user"] == "me"
    assert wired.server.plans[0] is None
    plan = wired.server.plans[1].plan
    [directive] = plan.directives
    assert directive.mode is Mode.AMORTIZE
    assert directive.end - directive.start == len(LONG) - 120
    assert wired.lowering.counts == {"appended": 1, "planned": 1}


SYSTEM = {"role": "system", "content": "You answer briefly, in plain words."}


def test_strangers_on_one_client_share_no_text(wired: Any) -> None:
    """Two users, one system prompt, the same handbook: nobody's history is edited."""
    yours = [SYSTEM, user("my password is hunter2. " + LONG)]
    mine = [SYSTEM, user("I am somebody else. " + LONG), said(ANSWER), user("and now?")]
    for messages in (yours, mine, [*mine, said(ANSWER), user(LONG)]):
        wired.post({**CALL, "messages": messages})
    assert wired.server.plans == [None] * 3
    assert wired.lowering.last.reusable_tokens > 0


@pytest.mark.parametrize("answer", [ANSWER, "ok.", "what the other user was told"])
def test_without_a_name_the_answer_tells_whose_it_is(wired: Any, answer: str) -> None:
    """The same first words are not enough, nor is an answer that anybody may be given."""
    wired.server.answer = answer
    opening = [SYSTEM, user("Read the handbook."), said("Done.")]
    wired.post({**CALL, "messages": [*opening, user("hunter2 is mine. " + LONG)]})
    heard = said(ANSWER if answer.startswith("what") else answer)
    later = [*opening, user("(cut) " + LONG), heard, user("and now?")]
    wired.post({**CALL, "messages": later})
    assert (wired.server.plans[-1] is not None) == (answer == ANSWER)
    if answer != ANSWER:
        assert "name conversations" in wired.lowering.last.why
    other = [{**SYSTEM, "content": SYSTEM["content"] + " (you)"}, *later[1:]]
    wired.post({**CALL, "messages": other})
    assert wired.server.plans[-1] is None
    for messages in ([*opening, user("hunter2 is mine. " + LONG)], later):
        wired.post({**CALL, "messages": messages}, headers={CONVERSATION: "named"})
    assert wired.server.plans[-1] is not None


@pytest.mark.parametrize("stream", [False, True])
def test_the_caller_sees_the_answer_it_would_have_seen(wired: Any, stream: bool) -> None:
    """No sglext that was not asked for; everything else as the server sent it."""
    body = {**CALL, "stream": stream}
    with wired.server.lib.Client(transport=wired.server.transport) as client:
        plain = client.post("http://server:1/v1/chat/completions", json=body)
    answer = wired.post(body)
    expected = plain.text.replace("chatcmpl-0", "chatcmpl-1")
    assert answer.text == expected if stream else json.loads(answer.text) == json.loads(expected)
    asked = wired.post({**body, "return_output_ids_in_sglext": True})
    assert '"output_ids"' in asked.text


@pytest.mark.parametrize("stream", [False, True])
def test_ids_that_a_header_asks_for_are_handed_on(wired: Any, stream: bool) -> None:
    for wanted, value in (("input", "1"), ("output", "1"), ("input", "0")):
        headers = {f"x-sglext-return-{wanted}-ids": value}
        told = wired.post({**CALL, "stream": stream}, headers=headers).text
        assert [f'"{name}_ids"' in told for name in ("input", "output")] == [
            wanted == name and value == "1" for name in ("input", "output")
        ]


def test_the_hook_is_told_everything(wired: Any) -> None:
    seen: list[TurnRecord] = []
    wired.lowering.on_turn = seen.append
    with collect() as collected:
        for messages in (FIRST, SECOND):
            wired.post({**CALL, "messages": messages, "stream": True})
    assert wired.lowering.last == seen[1]
    # asyncio.run copies the context: the list inside is the same.
    assert collected == [seen[0], replace(seen[1], applied=True, spliced=7)]
    first, second = seen
    assert (first.completion, first.planned, first.why) == (
        "chatcmpl-0", False, "no earlier prompt to continue",
    )  # fmt: skip
    assert (second.completion, second.planned, second.edits) == ("chatcmpl-1", True, 1)
    assert second.prompt_tokens == len(render(SECOND))
    assert second.replacement_tokens == len("#cut#")
    total = second.new_tokens + second.replacement_tokens + second.reusable_tokens
    assert total == second.prompt_tokens
    assert second.cached_tokens == 5
    assert min(second.ttft_ms, second.plan_ms, second.tokenize_ms) > 0
    assert first.prompt_tokens == first.new_tokens == len(render(FIRST))
    assert first.tokenize_ms == 0 < first.ttft_ms


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("headers", [None, {CONVERSATION: "a"}])
def test_appending_asks_for_no_tokens(wired: Any, stream: bool, headers: Any) -> None:
    """... until something was edited: then every turn carries a plan."""
    seen: list[TurnRecord] = []
    wired.lowering.on_turn = seen.append
    messages = [user("a task of many letters")]
    for turn in range(4):
        body = {**CALL, "messages": messages, "stream": stream, "max_tokens": 9 + turn}
        assert "sglext" not in wired.post(body, headers=headers).text
        messages = [*messages, said(ANSWER), user(LONG.replace("many", f"{turn}"))]
    assert [path for path, _, _ in wired.server.asked if path.endswith("/tokenize")] == []
    assert [r.prompt_tokens for r in seen] == [
        len(render(c["messages"])) for c in wired.server.chats
    ]
    assert [r.reusable_tokens > 0 for r in seen] == [False, True, True, True]
    assert all(r.reusable_tokens + r.new_tokens == r.prompt_tokens for r in seen)
    assert {r.edits for r in seen} == {0}
    messages[2] = user(CUT)
    for turn in range(4, 6):
        wired.post({**CALL, "messages": messages}, headers=headers)
        messages = [*messages, said(ANSWER), user(LONG.replace("many", f"{turn}"))]
    assert [plan is not None for plan in wired.server.plans] == [False] * 4 + [True] * 2
    assert wired.lowering.counts == {"appended": 4, "planned": 2}


def test_going_back_is_looked_at(wired: Any) -> None:
    """A branch, other tools: what was appended to before may be an edit now."""
    grown = [*FIRST, said(ANSWER), user("and now?")]
    for messages in (FIRST, grown):
        wired.post({**CALL, "messages": messages})
    wired.post({**CALL, "messages": [*FIRST, said("other"), user("way")]})
    assert "input_ids" in wired.server.chats[-1]
    wired.post({**CALL, "messages": [*grown, said(ANSWER), user("x")], "tools": [{"x": 1}]})
    assert "input_ids" in wired.server.chats[-1]
    wired.post({**CALL, "messages": [*grown, said(ANSWER), user("x")], "temperature": 1})
    assert "input_ids" not in wired.server.chats[-1]


def test_a_template_that_rewrites_is_noticed_once(wired: Any) -> None:
    """Such as one that strips the reasoning of earlier turns."""
    thought = {"role": "assistant", "content": LONG}
    first = [user("a task of many letters"), thought, user(LONG)]
    render_all = fake_sglang.render
    stripped = lambda ms: render_all(  # noqa: E731
        [{**m, "content": "-"} if m == thought and len(ms) > 3 else m for m in ms]
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fake_sglang, "render", stripped)
        messages = first
        for _ in range(3):
            wired.post({**CALL, "messages": messages})
            messages = [*messages, said(ANSWER), user("more, " * 20)]
    assert ["input_ids" in body for body in wired.server.chats] == [False, False, True]
    assert wired.server.plans[1] is None


def test_a_hook_that_raises_harms_nobody(wired: Any) -> None:
    def broken(_record: TurnRecord) -> None:
        raise RuntimeError("mine")

    wired.lowering.on_turn = broken
    assert wired.post(CALL).status_code == 200


def test_headers_name_the_conversation_and_the_mode_and_stay_here(wired: Any) -> None:
    for messages in (FIRST, SECOND):
        wired.post({**CALL, "messages": messages}, headers={CONVERSATION: "a", MODE: "forget"})
    assert [d.mode for d in wired.server.plans[1].plan.directives] == [Mode.FORGET]
    wired.post({**CALL, "messages": FIRST}, headers={CONVERSATION: "b"})
    assert wired.lowering.last.why == "no earlier prompt to continue"
    wired.post(CALL, headers={MODE: "perhaps", "authorization": "Bearer x"})
    assert wired.lowering.counts["unreadable"] == 1
    assert "input_ids" not in wired.server.chats[-1]
    for _, _, headers in wired.server.asked:
        assert not {CONVERSATION, MODE} & set(headers)
    assert wired.server.asked[-1][2]["authorization"] == "Bearer x"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({**CALL, "n": 2}, "several answers"),
        ({**CALL, "input_ids": [1, 2]}, "caller sends ids"),
        ({**CALL, "custom_params": {"leyline": "mine"}}, "caller sends a plan"),
        ({**CALL, "custom_params": 7}, "unreadable"),
        ({**CALL, "messages": "hi"}, "unreadable"),
        ({**CALL, "continue_final_message": True}, "continued message"),
        (
            {**CALL, "messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "content other than text",
        ),
        (b"[]", "unreadable"),
        (b"{", "unreadable"),
        (b"[" * 100_000, "unreadable"),
        (b"\xff\xfe", "unreadable"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_not_understood_goes_through_as_it_came(wired: Any, body: Any, reason: str) -> None:
    wired.server.status = {"/chat/completions": 418}
    assert wired.post(body).status_code == 418
    [(_, arrived, _)] = wired.server.asked
    if not isinstance(body, bytes):
        assert arrived == body
    assert wired.lowering.counts == {reason: 1}


def test_other_paths_and_methods_are_none_of_ours(wired: Any) -> None:
    assert (
        wired.post(CALL, url="http://server:1/v1/completions").json()["path"] == "/v1/completions"
    )
    assert not wired.lowering.counts


def test_tokens_are_asked_for_what_the_chat_endpoint_renders(wired: Any) -> None:
    """It ignores fields that /v1/tokenize would obey."""
    wired.meet_another()
    rendered = {
        **{"tools": [], "tool_choice": "none", "parallel_tool_calls": False, "task": "domain"},
        **{"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}},
        **{"response_format": {"type": "text"}, "thinking": {"type": "x"}, "reasoning": {}},
    }
    beside = {"add_generation_prompt": False, "add_special_tokens": True, "prompt": "x"}
    wired.post({**CALL, **rendered, **beside, "stream": True, "temperature": 0, "rid": "r"})
    [asked] = [body for path, body, _ in wired.server.asked if path.endswith("/tokenize")]
    assert asked == {**CALL, **rendered}
    assert beside.items() <= wired.server.chats[-1].items()


@pytest.mark.parametrize("status", [404, 400, 500, 503])
def test_without_tokens_the_request_is_plain(wired: Any, status: int) -> None:
    wired.meet_another()
    wired.server.status = {"/tokenize": status}
    for _ in range(2):
        assert wired.post(CALL).status_code == 200
    assert wired.server.chats == [CALL, CALL]
    assert wired.lowering.counts == {"no tokens from the server": 2}
    asked = [path for path, _, _ in wired.server.asked if path.endswith("/tokenize")]
    assert len(asked) == (1 if status == 404 else 2)


@pytest.mark.parametrize("tokens", [None, [], "x", [[1, 2]], ["a"], {"a": 1}, [1, -5], [1, True]])
def test_odd_tokens_are_no_tokens(wired: Any, tokens: Any) -> None:
    wired.meet_another()
    inner = wired.server.__call__

    class Odd:
        def __call__(self, request: Any) -> Any:
            if request.url.path.endswith("/tokenize"):
                return wired.server.lib.Response(200, json={"tokens": tokens})
            return inner(request)

    type(wired.server).transport = property(lambda self: self.lib.MockTransport(Odd()))
    try:
        assert wired.post(CALL).status_code == 200
    finally:
        type(wired.server).transport = property(lambda self: self.lib.MockTransport(self))
    assert wired.server.chats == [CALL]


ODD = [400, 401, 403, 404, 413, 422, 500, 501, 502]


@pytest.mark.parametrize("status", ODD)
def test_a_refused_plan_is_sent_again_plainly(wired: Any, status: int) -> None:
    wired.meet_another()
    wired.server.status, wired.server.only_lowered = {"/chat/completions": status}, True
    assert wired.post(CALL).status_code == 200
    assert ["input_ids" in body for body in wired.server.chats] == [True, False]
    assert wired.server.chats[-1] == CALL
    assert wired.lowering.counts[f"refused with status {status}"] == 1
    assert wired.post(CALL).status_code == 200
    assert ["input_ids" in body for body in wired.server.chats] == [True, False, False]


@pytest.mark.parametrize("status", [*ODD, 408, 429, 503, 504])
def test_what_fails_plainly_too_is_the_callers(wired: Any, status: int) -> None:
    """A busy server is not asked twice, and no failure is the lowering's."""
    wired.server.status = {"/chat/completions": status}
    for number in range(4):
        assert wired.post({**CALL, "seed": number}).status_code == status
    assert len(wired.server.chats) == 4 * (1 + (status in ODD))
    wired.server.status = {}
    wired.post(CALL)
    assert "return_output_ids_in_sglext" in wired.server.chats[-1]


def failing(wired: Any, error: Any, answers: bool = False) -> None:
    """Lowered requests meet an error before, or with `answers` in, the body of an answer."""
    lib, chat = wired.server.lib, wired.server._chat

    class Broken(lib.SyncByteStream, lib.AsyncByteStream):  # type: ignore[misc]
        def __iter__(self) -> Any:
            yield b'{"id": '
            raise error

        async def __aiter__(self) -> Any:
            yield b'{"id": '
            raise error

    def answer(body: Any) -> Any:
        if "return_output_ids_in_sglext" not in body:
            return chat(body)
        if answers:
            return lib.Response(200, stream=Broken())
        raise error

    wired.server._chat = answer


@pytest.mark.parametrize("name", ["ReadError", "WriteError", "RemoteProtocolError", "ConnectError"])
def test_a_connection_that_dies_on_lowered_requests(wired: Any, name: str) -> None:
    failing(wired, getattr(wired.server.lib, name)("reset by proxy"))
    for number in range(5):
        assert wired.post({**CALL, "seed": number}).status_code == 200
    # Three times in vain, and then no more for a while.
    assert len(wired.server.chats) == 3 * 2 + 2
    assert wired.lowering.counts["connection lost"] == 3
    assert wired.lowering.counts["lowered requests failed repeatedly"] == 2


def test_lowering_goes_on_after_a_pause(wired: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = wired.server._chat
    failing(wired, wired.server.lib.ReadError("reset"))
    for number in range(3):
        wired.post({**CALL, "seed": number})
    wired.server._chat = chat
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 61)
    wired.post({**CALL, "seed": 9})
    assert "return_output_ids_in_sglext" in wired.server.chats[-1]


def test_now_and_then_a_failure_pauses_nothing(wired: Any) -> None:
    for number in range(8):
        wired.server.only_lowered = True
        wired.server.status = {"/chat/completions": 500} if number % 2 else {}
        wired.post({**CALL, "messages": [user(f"{number}")]})
    assert wired.lowering.counts["lowered requests failed repeatedly"] == 0


@pytest.mark.parametrize("name", ["ReadTimeout", "ConnectTimeout"])
def test_what_may_still_be_answered_is_not_sent_twice(wired: Any, name: str) -> None:
    error = getattr(wired.server.lib, name)
    failing(wired, error("slow"))
    with pytest.raises(error):
        wired.post(CALL)
    assert len(wired.server.chats) == 1
    assert wired.post(CALL).status_code == 200
    assert wired.server.chats[-1] == CALL


@pytest.mark.parametrize("untouched", ["tokens", "lowered", "never answered", "n"])
def test_forget_holds_though_its_request_went_plainly(wired: Any, untouched: str) -> None:
    named = {CONVERSATION: "a"}
    wired.post({**CALL, "messages": FIRST}, headers=named)
    wired.server.status = {
        "tokens": {"/tokenize": 500},
        "never answered": {"/chat/completions": 503},
    }.get(untouched, {"/chat/completions": 400} if untouched == "lowered" else {})
    wired.server.only_lowered = untouched == "lowered"
    asked = {**CALL, "messages": SECOND, "n": 2 if untouched == "n" else 1}
    wired.post(asked, headers={**named, MODE: "forget"})
    wired.server.status = {}
    wired.post({**CALL, "messages": [*SECOND, said(ANSWER), user("more")]}, headers=named)
    assert {d.mode for d in wired.server.plans[-1].plan.directives} == {Mode.FORGET}


def test_an_answer_that_breaks_off_is_an_error(wired: Any) -> None:
    failing(wired, wired.server.lib.ReadError("gone"), answers=True)
    with pytest.raises(wired.server.lib.ReadError):
        wired.post(CALL)
    assert len(wired.server.chats) == 1


def test_a_cancelled_request_is_not_sent_again(wired: Any) -> None:
    class Cancelled(BaseException):
        pass

    failing(wired, Cancelled())
    with pytest.raises(Cancelled):
        wired.post(CALL)
    assert len(wired.server.chats) == 1


def test_an_unreadable_answer_is_handed_on(wired: Any) -> None:
    wired.server.answer = "x"
    lib = wired.server.lib
    real = wired.server._chat
    wired.server._chat = lambda body: (real(body), lib.Response(200, content=b"not json"))[1]
    assert wired.post(CALL).text == "not json"
    assert wired.lowering.counts["unreadable answer"] == 1
