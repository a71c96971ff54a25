"""The HTTP routes: what this server supports, and what became of a plan."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from leyline_agent import __version__
from leyline_agent.core import VERSION, Mode
from leyline_agent.server.orchestrate import receipts

PREFIX = "/leyline/v1"


def add_routes(result: Any, manager: Any, *args: Any, **kwargs: Any) -> None:
    """AFTER hook on TokenizerManager.__init__, which runs in the HTTP process alone."""
    from fastapi import HTTPException
    from sglang.srt.entrypoints.http_server import app, get_global_state

    async def info() -> dict[str, Any]:
        states = await manager.get_internal_state()
        templates = get_global_state().template_manager
        ranks = [state.get("leyline") or {} for state in states]
        return _info(ranks, lowering=templates.chat_template_name is None)

    async def receipt(completion: str) -> dict[str, Any]:
        found = receipts.get(completion)
        if found is None:
            raise HTTPException(
                404, f"no receipt: completion {completion!r} carried no plan, or is too old"
            )
        return found.to_dict()

    app.add_api_route(f"{PREFIX}/info", info, methods=["GET"])
    app.add_api_route(f"{PREFIX}/receipts/{{completion}}", receipt, methods=["GET"])


def _info(ranks: list[dict[str, Any]], lowering: bool) -> dict[str, Any]:
    """The handshake: the weakest rank decides what is supported.

    lowering: whether a chat request may carry its token ids. SGLang applies the stop strings
    of a conversation template (--chat-template NAME) only to requests without.
    """
    reasons = sorted({r["reason"] for r in ranks if r.get("reason")})
    active = bool(ranks) and all(r.get("backend") == "leyline" for r in ranks)
    return {
        "leyline": __version__,
        "wire": VERSION,
        "sglang": version("sglang"),
        "active": active,
        "supported": active and not reasons,
        "reasons": reasons if active else ["start the server with --radix-cache-backend leyline"],
        "lowering": lowering,
        "modes": [mode.value for mode in Mode],
        "outcomes": dict(receipts.counts),
        "ranks": ranks,
    }
