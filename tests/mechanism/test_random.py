"""Random conversations against a model of what each request may match."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run

from leyline_agent.core import Directive, Mode
from leyline_agent.launch import ServerProcess
from leyline_agent.verify.client import Client, tokens
from mechanism.honest import Honest, Session

pytestmark = [pytest.mark.server, pytest.mark.slow]

POOL = ["--max-total-tokens", "2048"]
SESSIONS = 16
OPERATIONS = int(os.environ.get("LEYLINE_SOAK", "600"))
"""The whole run of 10,000: LEYLINE_SOAK=10000 pytest tests/mechanism/test_random.py -k sessions"""

Connect = Callable[[ServerProcess], Client]


@contextmanager
def unharmed(client: Client) -> Iterator[None]:
    """The scheduler stays the same one and leaks nothing."""
    pid = client.rank()["pid"]
    yield
    assert client.leaked_slots() == 0
    assert client.rank()["pid"] == pid, "the scheduler was restarted"


def test_sessions_at_once(serve: Callable[..., ServerProcess], connect: Connect) -> None:
    client = connect(serve(extra_args=POOL))
    honest = Honest()
    sessions = [Session(client, honest, f"session {n}", f"tenant {n % 3}") for n in range(SESSIONS)]

    def work(session: Session) -> Counter[str]:
        for _ in range(OPERATIONS // SESSIONS):
            session.step()
        return session.counts

    with unharmed(client), ThreadPoolExecutor(SESSIONS) as pool:
        counts = sum(pool.map(work, sessions), Counter())
    print(f"{counts.total()} operations: {dict(counts)}")
    assert counts["amortize"] > counts.total() / 20, "most plans must be possible at all"


def machine(client: Client) -> type[RuleBasedStateMachine]:
    """A state machine on one server; every run has namespaces of its own."""
    honest, runs = Honest(), iter(range(10**6))

    class Conversations(RuleBasedStateMachine):
        @initialize()
        def begin(self) -> None:
            name = f"run {next(runs)}"
            self.sessions = [Session(client, honest, f"{name} {n}", name) for n in range(2)]
            self.other = Session(client, honest, f"{name} other", f"{name} other")

        def session(self, number: int) -> Session:
            return (*self.sessions, self.other)[number]

        @rule(number=st.integers(0, 2))
        def start(self, number: int) -> None:
            self.session(number).start()

        @precondition(lambda self: any(s.last for s in (*self.sessions, self.other)))
        @rule(data=st.data(), number=st.integers(0, 2))
        def edit(self, data: st.DataObject, number: int) -> None:
            session = self.session(number)
            if session.last is None:
                return
            cuts = data.draw(
                st.lists(
                    st.integers(1, len(session.last.ids) - 1), min_size=2, max_size=6, unique=True
                )
            )
            cuts = sorted(cuts[: len(cuts) // 2 * 2])
            changes = []
            for start, end in zip(cuts[::2], cuts[1::2], strict=True):
                put = tuple(tokens(data.draw(st.sampled_from((0, 1, 5, 30))), (start, end)))
                changes.append(Directive(start, end, put, data.draw(st.sampled_from(Mode))))
            session.plan(changes)

        @rule(number=st.integers(0, 2), act=st.sampled_from(("append", "ask_honestly")))
        def go_on(self, number: int, act: str) -> None:
            if self.session(number).last is not None:
                getattr(self.session(number), act)()

        @rule(number=st.integers(0, 1))
        def fork(self, number: int) -> None:
            """The other session goes on from this one's state."""
            here, there = self.sessions[number], self.sessions[1 - number]
            there.last, there.unmarked = here.last, here.unmarked

        @rule()
        def flush(self) -> None:
            client.http.post("/flush_cache")

    return Conversations


def test_any_order_of_operations(serve: Callable[..., ServerProcess], connect: Connect) -> None:
    client = connect(serve(extra_args=POOL))
    checks: Any = list(HealthCheck)
    with unharmed(client):
        run(
            machine(client),
            settings=settings(
                max_examples=12,
                stateful_step_count=20,
                deadline=None,
                suppress_health_check=checks,
                print_blob=True,
            ),
        )
