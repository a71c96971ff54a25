"""What a server says about itself, and what to do when it says something else."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from leyline_agent.core import VERSION, ServerError, SetupError

Level = Literal["ok", "note", "fault"]


@dataclass(frozen=True, slots=True)
class Check:
    """One line of doctor's report; `remedy` says what to do (a fault) or could be done (a note)."""

    area: str
    name: str
    value: str
    level: Level = "ok"
    remedy: str = ""


def root_of(base_url: str) -> str:
    """The server's root: without /v1 and slashes at the end, http:// where no scheme stands.

    Raises:
        SetupError: no server can have this address.
    """
    full = base_url.strip() if "://" in base_url else f"http://{base_url.strip()}"
    root = full.rstrip("/").removesuffix("/v1").rstrip("/")
    try:
        parts = urlsplit(root)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise SetupError(f"{base_url!r} is no server's address; one is http://HOST:PORT")
    return root


def get_info(root: str, api_key: str | None = None) -> dict[str, Any] | Check:
    """The handshake of a server, or the fault that stands in its place."""
    try:
        request = urllib.request.Request(f"{root}/leyline/v1/info")
        if api_key:
            request.add_header("Authorization", f"Bearer {api_key}")
        with urllib.request.urlopen(request, timeout=10) as answer:
            found = json.load(answer)
            return found if isinstance(found, dict) else _not_ours(root)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return _not_ours(root)
        remedy = "give its key with --api-key" if error.code in (401, 403) else "read its log"
        return Check("handshake", root, f"HTTP {error.code}", "fault", remedy)
    except json.JSONDecodeError:
        return _not_ours(root)
    except (OSError, ValueError) as error:
        reason = str(getattr(error, "reason", error))
        remedy = "is it running? start one with `leyline serve` and wait for `ready`"
        return Check("handshake", root, f"no answer: {reason}", "fault", remedy)


def _not_ours(root: str) -> Check:
    remedy = (
        "this is a stock SGLang or another server: start it with `leyline serve`, or install "
        "leyline-agent into its environment and add --radix-cache-backend leyline"
    )
    return Check("handshake", root, "answers, without Leyline", "fault", remedy)


def handshake_checks(root: str, info: dict[str, Any]) -> list[Check]:
    """What a server's handshake means for this client."""
    wire, theirs = info.get("wire"), str(info.get("leyline", "?"))
    checks = [Check("handshake", root, f"leyline {theirs} on sglang {info.get('sglang', '?')}")]
    if wire == VERSION:
        checks.append(Check("handshake", "wire", str(wire)))
    else:
        remedy = f"this client speaks version {VERSION}: install one leyline-agent on both sides"
        checks.append(Check("handshake", "wire", str(wire), "fault", remedy))
    if info.get("active") and info.get("supported"):
        checks.append(Check("handshake", "splicing", "on"))
    else:
        value = "model not supported" if info.get("active") else "not active"
        remedy = "; ".join(map(str, info.get("reasons") or ["read the server's log"]))
        checks.append(Check("handshake", "splicing", value, "fault", remedy))
    for number, rank in enumerate(info.get("ranks") or []):
        layout = rank.get("layout") or {}
        value = ", ".join(f"{key} {item}" for key, item in layout.items()) or "none"
        checks.append(Check("handshake", f"rank {number} layout", value))
    return checks


def splicing(root: str) -> dict[str, Any]:
    """The handshake of a server that splices.

    Raises:
        ServerError: it does not; says why, what to do, and how to look closer.
    """
    info = get_info(root)
    checks = [info] if isinstance(info, Check) else handshake_checks(root, info)
    faults = [f"{c.value}: {c.remedy}" for c in checks if c.level == "fault"]
    if isinstance(info, Check) or faults:
        raise ServerError(
            f"{root} does not splice ({'; '.join(faults)}). "
            f"Look closer: leyline doctor --base-url {root}"
        )
    return info
