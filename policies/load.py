"""Finding a policy: by name, from a file, or from another package."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from leyline_agent.core import PolicyError
from leyline_agent.policies.policy import Policy, checked
from leyline_agent.policies.truncate_older_than import TruncateOlderThan

GROUP = "leyline.policies"
_READY: dict[str, type] = {"truncate_older_than": TruncateOlderThan}


def names() -> list[str]:
    """All policies that can be named: the ready ones and those of other packages."""
    return sorted({*_READY, *(point.name for point in entry_points(group=GROUP))})


def load(spec: str) -> Policy:
    """A policy from its description.

    Args:
        spec: "name", "name:key=value,key=value", "path/to/file.py:Class", or
            "path/to/file.py:Class:key=value".

    Raises:
        PolicyError: nothing by that name, no such file or class, wrong parameters, no method
            transform, or an unknown mode.
    """
    if ".py:" in spec or spec.endswith(".py"):
        path, _, rest = spec.partition(".py:")
        name, _, parameters = rest.partition(":")
        found = _from_file(Path(path.removesuffix(".py") + ".py"), name)
    else:
        name, _, parameters = spec.partition(":")
        found = _named(name)
    values = _values(spec, parameters)
    try:
        policy = found(**values)
    except TypeError as error:
        raise PolicyError(f"{name} takes {inspect.signature(found)}: {error}") from error
    try:
        return checked(policy)
    except PolicyError as error:
        raise PolicyError(f"{spec}: {error}") from error


def _named(name: str) -> Any:
    if name in _READY:
        return _READY[name]
    for point in entry_points(group=GROUP):
        if point.name == name:
            try:
                return point.load()
            except Exception as error:
                raise PolicyError(f"{point.value}: {type(error).__name__}: {error}") from error
    raise PolicyError(
        f"there is no policy {name!r}; there are {', '.join(names())}, or path/to/file.py:Class"
    )


def _from_file(path: Path, name: str) -> Any:
    if not name:
        raise PolicyError(f"name the class: {path}:Class")
    spec = importlib.util.spec_from_file_location(f"leyline_policy_{path.stem}", path)
    if spec is None or spec.loader is None or not path.exists():
        raise PolicyError(f"no policy file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their own module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise PolicyError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    found = getattr(module, name, None)
    if found is None:
        raise PolicyError(f"{path} has no class {name!r}")
    return found


def _values(spec: str, text: str) -> dict[str, Any]:
    """key=value pairs; values are Python literals, or else text."""
    values: dict[str, Any] = {}
    for pair in filter(None, (p.strip() for p in text.split(","))):
        key, sign, value = pair.partition("=")
        if not sign or not key.strip().isidentifier():
            raise PolicyError(f"{spec!r}: parameters are written key=value, separated by commas")
        try:
            values[key.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            values[key.strip()] = value.strip()
    return values
