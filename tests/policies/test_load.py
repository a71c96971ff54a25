"""Finding policies, and what is said when one is not found."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from leyline_agent.core import PolicyError
from leyline_agent.policies import TruncateOlderThan, load, names
from leyline_agent.policies import load as load_function

OWN = """
from __future__ import annotations
from dataclasses import dataclass
from typing import ClassVar

@dataclass(frozen=True, slots=True)
class Mine:
    mode: ClassVar[str] = "forget"
    keep: int = 3
    word: str = "a"
    def transform(self, messages, turn):
        return list(messages)[-self.keep:]

class NoPolicy: ...

class Sometimes(Mine):
    mode = "sometimes"
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def points(monkeypatch: pytest.MonkeyPatch, *found: EntryPoint) -> None:
    module = __import__("sys").modules[load_function.__module__]
    monkeypatch.setattr(module, "entry_points", lambda group: found)


def test_by_name() -> None:
    assert load("truncate_older_than") == TruncateOlderThan()
    assert "truncate_older_than" in names()


def test_with_parameters() -> None:
    found = load("truncate_older_than:n=3, max_chars=120,observations=tool")
    assert found == TruncateOlderThan(n=3, max_chars=120, observations="tool")


def test_from_a_file(own: Path) -> None:
    policy = load(f"{own}:Mine:keep=1,word=b")
    assert (policy.keep, policy.word, policy.mode) == (1, "b", "forget")
    assert policy.transform([{"role": "user"}, {"role": "tool"}], 0) == [{"role": "tool"}]


def test_from_another_package(monkeypatch: pytest.MonkeyPatch) -> None:
    value = "leyline_agent.policies.truncate_older_than:TruncateOlderThan"
    points(monkeypatch, EntryPoint("theirs", value, "leyline.policies"))
    assert names() == ["theirs", "truncate_older_than"]
    assert load("theirs:n=1") == TruncateOlderThan(n=1)


def test_a_broken_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    points(monkeypatch, EntryPoint("theirs", "no_such_module:Policy", "leyline.policies"))
    with pytest.raises(PolicyError, match=r"no_such_module:Policy"):
        load("theirs")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("nothing", r"no policy 'nothing'; there are truncate_older_than.*file\.py:Class"),
        ("", r"truncate_older_than"),
        ("truncate_older_than:m=1", r"n: 'int' = 2, max_chars: 'int' = 200, observations"),
        ("truncate_older_than:n=x", r"n is 'x'.*whole number"),
        ("truncate_older_than:n=-1", r"n is -1.*0 or more"),
        ("truncate_older_than:3", r"key=value"),
        ("{own}", r"name the class"),
        ("{own}:Other", r"has no class 'Other'"),
        ("{own}:NoPolicy", r"no method transform"),
        ("{own}:Sometimes", r"Sometimes.*no mode 'sometimes'; the modes are amortize, forget"),
        ("{own}x.py:Mine", r"no policy file"),
    ],
)
def test_errors_say_what_there_is(own: Path, spec: str, says: str) -> None:
    with pytest.raises(PolicyError, match=says):
        load(spec.format(own=own))


def test_a_file_that_fails(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text("1/0")
    with pytest.raises(PolicyError, match="ZeroDivisionError"):
        load(f"{path}:Any")
