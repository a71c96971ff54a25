"""Plans that break a rule of the wire, of the algebra, or of the server's own ledger."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from leyline_agent.core import Fallback

INVALID = Fallback.INVALID_DIRECTIVE
NAN = float("nan")
WRONG = [None, True, -1, 1.5, "1", [], {}, 1 << 31, 1 << 63, 10**400, NAN, float("inf")]
FIELDS = [
    ("v",),
    ("base",),
    ("base", "id"),
    ("base", "len"),
    ("base", "sha"),
    ("directives",),
    ("edited",),
    ("edited", "len"),
    ("edited", "sha"),
]


@dataclass(frozen=True, slots=True)
class Bad:
    """A value for custom_params.leyline, the fallbacks it may get (any, when empty), and
    further fields of the request."""

    name: str
    plan: object
    fallbacks: tuple[Fallback, ...] = (INVALID,)
    more: dict[str, Any] = field(default_factory=dict)


def changed(valid: dict[str, Any], path: tuple[str, ...], value: Any) -> str:
    """The plan's text with one field replaced, or removed when value is Ellipsis."""
    data = copy.deepcopy(valid)
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return json.dumps(data)


def not_plans(valid: dict[str, Any]) -> Iterator[Bad]:
    """Values that are no plan's text at all."""
    text = json.dumps(valid)
    for value in (None, 0, 7, -1, 1.5, True, False, [], [text], {}, valid, {"a": {"b": [valid]}}):
        yield Bad(f"not a text: {type(value).__name__}", value)
    texts = ["", " ", "null", "true", "[]", "{}", "7", '"x"', "{", "NaN", "\x00", "{}{}"]
    texts += ["[" * 60_000, '{"v":' * 60_000, "1" * 10_000, "x" * 1_200_000, text + "x", text[:-1]]
    texts += [text + " " * (1 << 20), json.dumps(text), text.replace('"v": 1', '"v": 1, "v": 2')]
    for value in texts:
        yield Bad(f"no plan in a text of {len(value)}", value)


def wrong_fields(valid: dict[str, Any]) -> Iterator[Bad]:
    """Fields missing or of another type."""
    texts = {("base", "id"), ("base", "sha"), ("edited", "sha")}
    for path in FIELDS:
        yield Bad(f"{path} missing", changed(valid, path, ...))
        for value in WRONG:
            if isinstance(value, str) and path in texts:
                value = "x" * 257
            if path == ("directives",) and value == []:
                value = [[]]
            yield Bad(f"{path} = {value!r:.20}", changed(valid, path, value))


def wrong_directives(valid: dict[str, Any]) -> Iterator[Bad]:
    """Directives that break the algebra, with everything else as it was."""
    length = valid["base"]["len"]
    start, end, ids, mode = valid["directives"][0]
    bad: list[Any] = [
        [[-1, end, ids, mode]],
        [[end, start, ids, mode]],
        [[start, length + 1, ids, mode]],
        [[length + 5, length + 9, ids, mode]],
        [[start, start, [], mode]],
        [[start, end, ids, mode], [end - 1, end + 5, [], mode]],
        [[end, end + 9, [], mode], [start, end, ids, mode]],
        [[start, end, ids, mode]] * 2,
        [[start, start, ids, mode]] * 2,
        [[start, end, ids]],
        [[start, end, ids, mode, 0]],
        [[start, end, mode, ids]],
        [{"start": start, "end": end, "ids": ids, "mode": mode}],
        [start, end, ids, mode],
        [None],
        [[[start, end, ids, mode]]],
        [[start, end, ids, "AMORTIZE"]],
        [[start, end, ids, None]],
        [[start, end, ids, ["amortize"]]],
        [[start, end, ids, {}]],
        [[True, end, ids, mode]],
        [[float(start), end, ids, mode]],
        [[str(start), end, ids, mode]],
        [[NAN, end, ids, mode]],
        [[start, end, None, mode]],
        [[start, end, "ids", mode]],
        [[start, end, [True], mode]],
        [[start, end, [1.0], mode]],
        [[start, end, [-1], mode]],
        [[start, end, [1 << 31], mode]],
        [[start, end, [[1]], mode]],
        [[i, i + 1, [], mode] for i in range(1025)],
    ]
    for number, value in enumerate(bad):
        yield Bad(f"directives {number}", changed(valid, ("directives",), value))


def wrong_facts(valid: dict[str, Any]) -> Iterator[Bad]:
    """Well-formed plans that are not true here."""
    start, end, ids, mode = valid["directives"][0]
    unknown, base, result = (
        (Fallback.UNKNOWN_BASE,),
        (Fallback.BASE_MISMATCH,),
        (Fallback.RESULT_MISMATCH,),
    )
    for name in ("", "../../etc/passwd", "'; --", "é\u0000", "\ud83d", valid["base"]["id"][:-1]):
        text = changed(valid, ("base", "id"), name)
        yield Bad(f"base {name!r}", text, unknown if name else (INVALID,))
    for space in ("cache_salt", "extra_key"):
        yield Bad(f"other {space}", json.dumps(valid), unknown, {space: "other"})
    for sha in ("0" * 32, "x", valid["base"]["sha"].upper() + "0", "\ud800"):
        yield Bad(f"base digest {sha!r}", changed(valid, ("base", "sha"), sha), base)
        yield Bad(f"edited digest {sha!r}", changed(valid, ("edited", "sha"), sha), result)
    longer = copy.deepcopy(valid)
    longer["base"]["len"] += 5
    longer["directives"][0][1] += 5
    yield Bad("base length", json.dumps(longer), base)
    empty = {"base": {**valid["base"], "len": 0}, "directives": []}
    empty["edited"] = {**valid["edited"], "len": 0}
    yield Bad("empty base", json.dumps({**valid, **empty}), result)
    for name, value in {
        "moved": [start + 1, end + 1, ids, mode],
        "other ids": [start, end, ids[::-1], mode],
        "at the end": [start + 100, end + 100, ids, mode],
    }.items():
        yield Bad(name, changed(valid, ("directives",), [value]), result)


def fuzzed(valid: dict[str, Any], seed: int, wanted: int) -> Iterator[Bad]:
    """A valid text with a slice cut out or a character replaced."""
    text, draw = json.dumps(valid, separators=(",", ":")), random.Random(seed)
    for number in range(wanted):
        at, size = draw.randrange(len(text)), draw.choice((1, 1, 3, 20))
        put = draw.choice(("", "", *(set('0123456789abcdef{}[]",:-') - {text[at]})))
        other = text[:at] + put + text[at + (size if not put else 1) :]
        yield Bad(f"fuzz {number}: {other[max(0, at - 9) : at + 9]!r}", other, ())


def malformed(valid_text: str, wanted: int = 200) -> list[Bad]:
    """At least `wanted` plans, the same ones every time."""
    valid = json.loads(valid_text)
    kinds: list[Callable[[dict[str, Any]], Iterator[Bad]]] = [
        not_plans,
        wrong_fields,
        wrong_directives,
        wrong_facts,
    ]
    made = [bad for kind in kinds for bad in kind(valid)]
    return made + list(fuzzed(valid, 7, max(30, wanted - len(made))))
