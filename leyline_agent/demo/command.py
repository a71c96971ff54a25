"""`leyline demo`: an agent whose old tool outputs are cut, with and without splicing."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from leyline_agent.core import LeylineError
from leyline_agent.demo.results import Row, document, plot, summary
from leyline_agent.handshake import splicing
from leyline_agent.policies import load as load_policy
from leyline_agent.replay.command import server
from leyline_agent.replay.run import handshake
from leyline_agent.replay.show import SPLICED, show_fallbacks
from leyline_agent.replay.wire import chat
from leyline_agent.terminal import narrow, tell_error
from leyline_agent.transport import TurnRecord
from leyline_agent.transport import receipt as find_receipt

console = Console()
LEGEND = (
    f"{SPLICED}\noff: the same prompt without Leyline; reusable (bound): all that could be cached"
)


def demo(
    base_url: Annotated[
        str | None,
        typer.Option(help="A running Leyline server's root; without it one is started."),
    ] = None,
    model: Annotated[str, typer.Option(help="Model of the server to start.")] = "tiny",
    policy: Annotated[
        str, typer.Option(help="What is cut from the history.")
    ] = "truncate_older_than",
    turns: Annotated[int, typer.Option(min=2, help="Calls of the model.")] = 18,
    out: Annotated[Path, typer.Option(help="Folder for demo.json and demo.png.")] = Path("out"),
) -> None:
    """Run a LangGraph agent on a real SGLang and watch its KV cache survive its edits.

    The agent reads this package's own sources with real tools. Its model is small and
    untrained: what it decides is arbitrary, what is measured is not.
    """
    from leyline_agent.demo.agent import Recording, run_agent

    try:
        rule = load_policy(policy)
        with server(base_url, model) as root, httpx.Client(base_url=root, timeout=600) as http:
            about = handshake(http)
            splicing(root)
            rows: list[Row] = []
            recording = Recording()
            # The first call compiles the tools' grammar, whoever makes it: not in a measured turn.
            run_agent(root, about["model"], rule, 1, Recording(), lambda _: None, _namespace())
            console.print(f"An agent works for {turns} turns; its policy is {policy}.")
            with Live(_table(rows), console=console, auto_refresh=False) as live:

                def on_turn(record: TurnRecord) -> None:
                    rows.append(_row(root, len(rows) + 1, record))
                    live.update(_table(rows), refresh=True)

                run_agent(root, about["model"], rule, turns, recording, on_turn, _namespace())
                console.print("The same prompts again, splicing off.")
                _without(
                    http, recording.bodies, rows, lambda: live.update(_table(rows), refresh=True)
                )
    except LeylineError as error:
        tell_error(Console(stderr=True), error)
        raise typer.Exit(1) from error
    _finish(rows, about, out)


def _namespace() -> str:
    """A cache salt that nobody has used."""
    return f"demo-{uuid.uuid4().hex}"


def _row(root: str, turn: int, record: TurnRecord) -> Row:
    """One turn, from the client's record and, where a plan was sent, the server's receipt."""
    receipt = find_receipt(root, record.completion)
    # The server counts replacements that were prefilled ahead of the answer as cached.
    cached = (record.cached_tokens or 0) - (receipt.replaced if receipt else 0)
    return Row(
        turn=turn,
        prompt_tokens=record.prompt_tokens,
        cached_tokens=cached,
        spliced_tokens=receipt.spliced if receipt else 0,
        prefilled_tokens=record.prompt_tokens - cached,
        replacement_tokens=record.replacement_tokens,
        new_tokens=record.new_tokens,
        bound=record.reusable_tokens,
        edits=record.edits,
        fallback=receipt.fallback.value if receipt and receipt.fallback else None,
        ttft_ms=round(record.ttft_ms, 2),
    )


def _without(
    http: httpx.Client, bodies: list[dict[str, Any]], rows: list[Row], show: Callable[[], None]
) -> None:
    """Send the same bodies plainly, in a cache namespace of their own. Mutates rows."""
    salt = _namespace()
    for index, body in enumerate(bodies[: len(rows)]):
        # As many tokens as the agent had: the overlap scheduler tells a token when the next one
        # is under way, so that an answer of one token would come sooner.
        reply = chat(http, {**body, "cache_salt": salt})
        rows[index] = replace(
            rows[index],
            cached_tokens_off=reply.cached_tokens,
            ttft_ms_off=round(reply.ttft_ms, 2),
        )
        show()


def _table(rows: list[Row]) -> Table:
    names = ("turn", "prompt", "cached", "spliced", "prefilled", "edits", "TTFT ms")
    table = narrow((*names, "cached, off", "ms, off"))
    for r in rows:
        table.add_row(
            *(str(n) for n in (r.turn, r.prompt_tokens, r.cached_tokens, r.spliced_tokens)),
            str(r.prefilled_tokens),
            str(r.edits),
            f"{r.ttft_ms:.0f}",
            "" if r.cached_tokens_off is None else str(r.cached_tokens_off),
            "" if r.ttft_ms_off is None else f"{r.ttft_ms_off:.0f}",
        )
    return table


def _finish(rows: list[Row], about: dict[str, Any], out: Path) -> None:
    """Write the results and say the one line."""
    total = summary(rows, about["model"], about["leyline"]["sglang"])
    out.mkdir(parents=True, exist_ok=True)
    (out / "demo.json").write_text(json.dumps(document(rows, total), indent=1), encoding="utf-8")
    plot(rows, total, out / "demo.png")
    if not console.is_terminal:
        console.line()  # there, a live table ends without one
    show_fallbacks(console, ((r.turn, r.fallback) for r in rows))
    console.print(f"\n{LEGEND}\n", highlight=False)
    console.print(
        f"[bold]{total['reuse_of_bound']:.1%}[/bold] of the reusable tokens reused (stock radix "
        f"{total['radix_reuse']:.1%}), {total['fallbacks']} fallbacks, TTFT p50 "
        f"{total['ttft_ms_p50']:.0f} ms (off {total['ttft_ms_p50_off']:.0f} ms); "
        f"{out / 'demo.json'}, {out / 'demo.png'}",
        soft_wrap=True,
    )
