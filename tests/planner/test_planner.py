"""Which base a prompt continues, when a plan is sent, and the ledger behind it."""

from __future__ import annotations

from array import array
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leyline_agent.core import Mode, digest, loads
from leyline_agent.planner import Entry, Ledger, Planned, Planner

OPEN = [0, 1, 2]


def text(seed: int, size: int) -> list[int]:
    return [10 + seed * 1000 + i for i in range(size)]


def message(role: int, body: list[int]) -> list[int]:
    return [0, role, 2, *body, 4, 2]


class Server:
    """Plays the other side: numbers completions and keeps their ids."""

    def __init__(self, planner: Planner | None = None) -> None:
        self.planner = planner or Planner()
        self.held: dict[str, array[int]] = {}

    def turn(
        self,
        messages: list[list[int]],
        answer: list[int],
        conversation: str | None = None,
        mode: Mode = Mode.AMORTIZE,
        namespace: str = "model",
        finished: bool = True,
    ) -> Planned:
        """One request; a plan must be true of what this side holds."""
        ids = array("q", [t for m in messages for t in m] + OPEN)
        planned = self.planner.plan(ids, namespace, conversation, mode)
        if planned.wire is not None:
            wire = loads(planned.wire.dumps())
            got = wire.plan.apply(self.held[wire.base_id])
            assert array("q", got) == ids[: len(got)]
            assert wire.edited_digest == digest(got)
        if not finished:
            return planned
        name = f"c{len(self.held)}"
        self.held[name] = ids + array("q", answer)
        self.planner.ledger.put(
            Entry(name, self.held[name], len(ids), namespace, conversation, planned.amortized)
        )
        return planned


def base_of(planned: Planned) -> str | None:
    return planned.base.completion if planned.base else None


SYSTEM = message(5, text(0, 60))
TASK = message(6, text(1, 30))


def said(n: int) -> list[int]:
    return [*text(20 + n, 25), 4]


def history(n: int, cut: int = 0) -> list[list[int]]:
    """System, task, and n turns; the first `cut` observations truncated."""
    turns = [SYSTEM, TASK]
    for i in range(n):
        body = text(60 + i, 120)
        turns += [
            message(1, said(i)[:-1]),
            message(7, [*body[:20], 8, 9, *body[-20:]] if i < cut else body),
        ]
    return turns


def test_the_first_request_and_mere_growth_are_plain() -> None:
    server = Server()
    first = server.turn(history(0), said(0))
    assert (first.wire, first.base, first.why) == (None, None, "no earlier prompt to continue")
    for n in range(1, 4):
        grown = server.turn(history(n), said(n))
        assert (grown.wire, grown.why) == (None, "nothing was edited")
        assert base_of(grown) == f"c{n - 1}"
        # Everything but the end-of-message line, the observation and the opener was there.
        assert grown.new_tokens == 1 + 125 + 3


@pytest.mark.parametrize("conversation", [None, "named"])
def test_an_edit_is_planned_and_its_lineage_is_followed(conversation: str | None) -> None:
    server = Server()
    for n in range(3):
        server.turn(history(n), said(n), conversation)
    edit = server.turn(history(3, cut=1), said(3), conversation)
    assert edit.wire is not None
    assert base_of(edit) == "c2"
    assert [len(d.replacement) for d in edit.wire.plan.directives] == [2]
    assert (edit.edits, edit.replacement_tokens, edit.new_tokens) == (1, 2, 129)
    assert edit.reusable == sum(map(len, history(3, cut=1))) + 3 - 2 - 129
    # Nothing more is edited, but the base now carries moved KV: the plan without directives
    # says whose lineage goes on.
    later = server.turn(history(4, cut=1), said(4), conversation)
    assert later.wire is not None
    assert later.wire.plan.directives == ()
    assert base_of(later) == "c3"
    assert server.turn(history(5, cut=2), said(5), conversation).edits == 1


def test_forget_is_planned_although_it_moves_nothing() -> None:
    server = Server()
    for n in range(3):
        server.turn(history(n), said(n))
    edit = server.turn(history(3, cut=1), said(3), mode=Mode.FORGET)
    assert edit.wire is not None
    assert {d.mode for d in edit.wire.plan.directives} == {Mode.FORGET}
    assert edit.wire.plan.cost().move == 0
    assert not edit.amortized
    assert server.turn(history(4, cut=1), said(4), mode=Mode.FORGET).wire is None


def modes(planned: Planned) -> set[Mode]:
    return {d.mode for d in planned.wire.plan.directives} if planned.wire else set()


@pytest.mark.parametrize("conversation", [None, "named"])
def test_forget_holds_until_it_is_done(conversation: str | None) -> None:
    """The request that asked for it was cancelled, or failed: the next one still forgets."""
    server = Server()
    for n in range(3):
        server.turn(history(n), said(n), conversation)
    cut = history(3, cut=1)
    asked = server.turn(cut, said(3), conversation, Mode.FORGET, finished=False)
    assert modes(asked) == {Mode.FORGET}
    later = server.turn(cut, said(3), conversation)
    assert modes(later) == {Mode.FORGET}
    assert not later.amortized
    # It is done now: what comes behind an honest completion is its own request's choice.
    assert modes(server.turn(history(4, cut=2), said(4), conversation)) == {Mode.AMORTIZE}
    # Going back to what still holds the removed text forgets again.
    back = server.turn([*history(2, cut=1), message(1, text(77, 9))], said(9), conversation)
    assert Mode.AMORTIZE not in modes(back)


def test_forget_after_amortize_is_a_plain_request() -> None:
    """The base's KV was moved and reflects the removed text: nothing of it may be kept."""
    server = Server()
    for n in range(3):
        server.turn(history(n), said(n), "a")
    assert server.turn(history(3, cut=1), said(3), "a").amortized
    for cut in (1, 2):
        plain = server.turn(history(4, cut), said(4), "a", Mode.FORGET, finished=False)
        assert (plain.wire, plain.amortized) == (None, False)
        assert "computed anew" in plain.why
    # Cancelled: the default mode does not go back to the moved KV.
    assert server.turn(history(4, cut=1), said(4), "a").wire is None
    assert server.turn(history(5, cut=1), said(5), "a").why == "nothing was edited"
    assert server.turn(history(6, cut=2), said(6), "a").amortized


def test_forget_reaches_other_models_and_answers_under_way() -> None:
    server = Server()
    for namespace in ("one", "two"):
        for n in range(3):
            server.turn(history(n), said(n), "a", namespace=namespace)
    cut = history(3, cut=1)
    under_way = server.turn(cut, said(3), "a", namespace="one", finished=False)
    server.turn(cut, said(3), "a", Mode.FORGET, namespace="two", finished=False)
    for other in ("one", "two"):
        assert modes(server.turn(cut, said(3), "a", namespace=other, finished=False)) == {
            Mode.FORGET
        }
    ids = array("q", [t for m in cut for t in m] + OPEN)
    late = Entry("late", ids, len(ids) - 3, "one", "a", under_way.amortized)
    server.planner.ledger.put(late, under_way.base)
    assert server.planner.ledger.forgotten(late)
    server.turn(history(3), said(3), "b")
    assert modes(server.turn(history(4, cut=1), said(4), "b")) == {Mode.AMORTIZE}


def test_a_branch_and_a_retry_compute_only_what_is_theirs() -> None:
    server = Server()
    for n in range(4):
        server.turn(history(n), said(n), "a")
    branch = [*history(2), message(1, text(300, 9)), message(7, text(301, 9))]
    planned = server.turn(branch, said(9), "a")
    assert base_of(planned) in ("c2", "c3")
    assert (planned.new_tokens, planned.wire) == (14 - 3 + 14 + 3, None)
    retry = server.turn(history(3), said(3), "a")
    assert (base_of(retry), retry.new_tokens, retry.wire) == ("c3", 0, None)


def test_conversations_models_and_salts_do_not_mix() -> None:
    server = Server()
    for n in range(3):
        server.turn(history(n), said(n), "a")
    assert server.turn(history(3, cut=1), said(3), "b").base is None
    assert server.turn(history(3, cut=1), said(3), None).base is None
    assert server.turn(history(3, cut=1), said(3), "a", namespace="salted").base is None


def test_without_names_samples_of_one_task_are_kept_apart() -> None:
    """Two runs of the same task read the same file after different words."""
    server = Server()
    words = [text(400, 25), text(401, 25)]
    read = message(7, text(99, 200))
    server.turn(history(0), [*words[0], 4])
    server.turn([*history(0), message(1, words[0]), read], said(1))
    server.turn(history(0), [*words[1], 4])
    planned = server.turn([*history(0), message(1, words[1]), read], said(1))
    assert planned.wire is None
    assert base_of(planned) == "c2"


@pytest.mark.parametrize(
    ("answer", "known"),
    [
        (said(2)[:-1], True),  # its reasoning was dropped by the chat template
        (said(2)[:15], False),
        (text(500, 25), False),
    ],
)
def test_without_a_name_the_base_s_own_answer_must_go_on(answer: list[int], known: bool) -> None:
    server = Server()
    server.turn(history(2), [*text(400, 9), *said(2)])
    edited = history(3, cut=1)
    edited[-2] = message(1, answer)
    planned = server.turn(edited, said(3))
    assert (planned.wire is not None) == known
    if not known:
        assert "name conversations" in planned.why


def test_a_named_conversation_is_found_from_its_first_token_on() -> None:
    """A system prompt that begins with the time of day."""
    server = Server()
    for n in range(3):
        turns = [message(5, [900 + n, *text(0, 60)]), *history(n)[1:]]
        planned = server.turn(turns, said(n), "a")
    assert planned.wire is not None
    assert planned.replacement_tokens == 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()), max_size=12))
def test_whatever_a_client_sends_its_plans_are_true(steps: list[tuple[int, int, bool]]) -> None:
    """Server.turn proves every plan against what the other side holds."""
    server = Server()
    for turns, cut, forget in steps:
        mode = Mode.FORGET if forget else Mode.AMORTIZE
        planned = server.turn(history(turns, cut), said(turns), mode=mode)
        total = planned.new_tokens + planned.replacement_tokens + planned.reusable
        assert total == sum(map(len, history(turns, cut))) + 3


def test_of_many_edits_the_longest_stretches_are_moved() -> None:
    """A policy that comes late to a long conversation; a server runs 64 stages at most."""
    server = Server()
    server.turn(history(99), said(99), "a")
    edit = server.turn(history(100, cut=97), said(100), "a")
    assert edit.wire is not None
    moved = [k for k in edit.wire.plan.kept()[1:] if len(k.span)]
    assert len(moved) == server.planner.most_moves


def test_replacements_that_fill_no_wire_text_are_plain() -> None:
    server = Server()
    tail = message(7, text(99, 400))
    server.turn([SYSTEM, message(6, text(1, 30)), tail], said(0), "a")
    plan = server.turn([SYSTEM, message(6, [5] * 100_001), tail], said(1), "a")
    assert (plan.wire, plan.why) == (None, "the replacements are too long for a plan")


def entry(name: str, size: int) -> Entry:
    return Entry(name, array("q", range(size)), size, "model", None, False)


def test_the_ledger_is_bounded_in_entries_and_tokens() -> None:
    ledger = Ledger(max_entries=3, max_tokens=100)
    for n in range(5):
        ledger.put(entry(f"c{n}", 10))
    assert [e.completion for e in ledger.candidates("model", None)] == ["c4", "c3", "c2"]
    ledger.put(entry("c4", 80))
    assert [e.completion for e in ledger.candidates("model", None)] == ["c4", "c3", "c2"]
    ledger.put(entry("big", 500))
    assert [e.completion for e in ledger.candidates("model", None)] == ["big"]
    ledger.put(entry("small", 1))
    assert [e.completion for e in ledger.candidates("model", None)] == ["small"]


def test_the_ledger_takes_many_threads() -> None:
    ledger = Ledger(max_entries=50)

    def work(worker: int) -> None:
        for n in range(200):
            ledger.put(entry(f"{worker}-{n}", 5))
            assert ledger.candidates("model", None)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert len(ledger) == 50
