"""Wire format, version 1: the plan as the JSON string in `custom_params.leyline`.

{"v": 1, "base": {"id": completion id, "len": n, "sha": digest},
 "directives": [[start, end, [ids], "amortize" | "forget"], ...],
 "edited": {"len": n, "sha": digest}}
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from leyline_agent.core.directive import Directive, Mode
from leyline_agent.core.errors import PlanError, WireError
from leyline_agent.core.plan import EditPlan

VERSION = 1
PARAM = "leyline"
MAX_BYTES = 1 << 20
MAX_DIRECTIVES = 1024


@dataclass(frozen=True, slots=True)
class WirePlan:
    """A plan, the completion that names its base, and the digest of its result."""

    base_id: str
    plan: EditPlan
    edited_digest: str

    def dumps(self) -> str:
        """The wire text."""
        return json.dumps(
            {
                "v": VERSION,
                "base": {
                    "id": self.base_id,
                    "len": self.plan.base_len,
                    "sha": self.plan.base_digest,
                },
                "directives": [
                    [d.start, d.end, list(d.replacement), d.mode.value]
                    for d in self.plan.directives
                ],
                "edited": {"len": self.plan.edited_len, "sha": self.edited_digest},
            },
            separators=(",", ":"),
        )


def loads(text: object) -> WirePlan:
    """Parse a wire text; every type, range and order is checked.

    Raises:
        WireError: the text is not a version-1 plan.
    """
    if not isinstance(text, str):
        raise WireError(f"a plan travels as a JSON string, not as {type(text).__name__}")
    if len(text) > MAX_BYTES:
        raise WireError(f"a plan of {len(text)} characters exceeds {MAX_BYTES}")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WireError(f"not JSON: {type(error).__name__}") from error
    if not isinstance(data, dict):
        raise WireError("a plan is a JSON object")
    version = data.get("v")
    if type(version) is not int or version != VERSION:
        raise WireError(f"this side speaks version {VERSION}, not {version!r:.40}")
    base, edited = _object(data, "base"), _object(data, "edited")
    try:
        plan = EditPlan(_int(base, "len"), _text(base, "sha"), _directives(data.get("directives")))
    except WireError:
        raise
    except PlanError as error:
        raise WireError(str(error)) from error
    if _int(edited, "len") != plan.edited_len:
        raise WireError(f"edited.len is {edited['len']}, the directives give {plan.edited_len}")
    return WirePlan(_text(base, "id"), plan, _text(edited, "sha"))


def _directives(raw: object) -> tuple[Directive, ...]:
    if not isinstance(raw, list) or len(raw) > MAX_DIRECTIVES:
        raise WireError(f"directives is a list of at most {MAX_DIRECTIVES}")
    return tuple(_directive(item) for item in raw)


def _directive(item: object) -> Directive:
    if not isinstance(item, list) or len(item) != 4:
        raise WireError("a directive is [start, end, [ids], mode]")
    start, end, ids, mode = item
    if not isinstance(ids, list) or not all(_is_token(i) for i in (start, end, *ids)):
        raise WireError("start, end and ids are whole numbers from 0 to 2^31 - 1")
    if mode not in (Mode.AMORTIZE.value, Mode.FORGET.value):
        raise WireError(f"mode is 'amortize' or 'forget', not {mode!r:.40}")
    return Directive(start, end, tuple(ids), Mode(mode))


def _is_token(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 31


def _object(data: dict[str, Any], key: str) -> dict[str, Any]:
    value = data.get(key)
    if not isinstance(value, dict):
        raise WireError(f"{key} is an object")
    return value


def _int(data: dict[str, Any], key: str) -> int:
    value = data.get(key)
    if not _is_token(value):
        raise WireError(f"{key} is a whole number from 0 to 2^31 - 1")
    assert isinstance(value, int)
    return value


def _text(data: dict[str, Any], key: str) -> str:
    value = data.get(key)
    if not isinstance(value, str) or not value or len(value) > 256:
        raise WireError(f"{key} is a text of 1 to 256 characters")
    return value
