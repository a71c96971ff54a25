"""`leyline replay`: a recorded trajectory under several arms, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Optional

import httpx
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from leyline_agent.core import LeylineError, ServerError, SetupError
from leyline_agent.handshake import root_of, splicing
from leyline_agent.launch import ServerProcess
from leyline_agent.policies import Policy
from leyline_agent.policies import load as load_policy
from leyline_agent.replay.report import Arm, Turn, document
from leyline_agent.replay.run import PLANNED, handshake, prompts
from leyline_agent.replay.run import replay as run
from leyline_agent.replay.show import show_arm, show_sums
from leyline_agent.replay.trace import Trace, load
from leyline_agent.terminal import tell_error, working, write_json

console = Console(stderr=True)


def replay(
    trace: Annotated[Path, typer.Argument(help="JSON with OpenAI chat messages.")],
    policy: Annotated[
        str, typer.Option(help="A policy: name, name:key=value, or path.py:Class.")
    ] = "truncate_older_than",
    arms: Annotated[
        str, typer.Option(help="Which arms, in order, separated by commas.")
    ] = "append,reprefill,amortize,forget",
    base_url: Annotated[
        Optional[str], typer.Option(help="A running server's root; without it one is started.")  # noqa: UP045
    ] = None,
    model: Annotated[str, typer.Option(help="Model of the server to start.")] = "tiny",
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate in a turn.")] = 8,
    repeats: Annotated[
        int, typer.Option(min=1, help="Run the arms so often in turn; times become medians.")
    ] = 1,
    json_path: Annotated[
        Optional[Path], typer.Option("--json", help="Write the result here; - for stdout.")  # noqa: UP045
    ] = None,
) -> None:
    """Feed a recorded conversation to a server, turn by turn.

    Arms: [bold]append[/bold] as recorded; [bold]reprefill[/bold] edited by the policy, stock
    behaviour; [bold]amortize[/bold] and [bold]forget[/bold] edited, with directives.

    Example: leyline replay run.json --policy truncate_older_than:n=3 --json out/replay.json
    """
    try:
        chosen = parse_arms(arms)
        record = load(trace)
        # Before any server: a policy that fails on this trace fails at once.
        prompts(record, load_policy(policy))
        with server(base_url, model) as root:
            with httpx.Client(base_url=root, timeout=60) as http:
                about = handshake(http)
            check_arms(chosen, root)
            results = _run(record, load_policy(policy), chosen, root, max_tokens, repeats)
    except LeylineError as error:
        tell_error(console, error)
        raise typer.Exit(1) from error
    result = document(str(trace.name), policy, about, results)
    write_json(console, result, json_path)
    show_sums(console, results, result)


def parse_arms(text: str) -> list[Arm]:
    """Names of arms, separated by commas.

    Raises:
        SetupError: one is unknown, or there is none.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    known = [arm.value for arm in Arm]
    for name in names:
        if name not in known:
            raise SetupError(f"there is no arm {name!r}; the arms are {', '.join(known)}")
    if not names:
        raise SetupError(f"no arm was named; the arms are {', '.join(known)}")
    return [Arm(name) for name in dict.fromkeys(names)]


def check_arms(arms: Sequence[Arm], root: str) -> None:
    """On a server that does not splice, an arm with directives would measure stock SGLang.

    Raises:
        ServerError: there is such an arm; says what to do, and which arms can run.
    """
    planned = [arm.value for arm in arms if arm in PLANNED]
    if not planned:
        return
    try:
        splicing(root)
    except ServerError as error:
        raise ServerError(
            f"{' and '.join(planned)} cannot be measured: {error}\n"
            "Without Leyline there are: --arms append,reprefill"
        ) from error


@contextmanager
def server(base_url: str | None, model: str) -> Iterator[str]:
    """The root of a running server, or of one that is started here and stopped again."""
    if base_url is not None:
        yield root_of(base_url)
        return
    process = ServerProcess(model)
    try:
        with working(console, "starting a server") as say:
            process.progress = say
            process.start()
        yield process.base_url
    finally:
        process.stop()


def _run(
    record: Trace, policy: Policy, arms: list[Arm], root: str, max_tokens: int, repeats: int
) -> dict[Arm, list[Turn]]:
    """Replay, with a bar on a terminal and a line an arm elsewhere; an arm is shown when done."""
    turns = len(record.turns())
    times = f", {repeats} times" if repeats > 1 else ""
    started: set[Arm] = set()
    with _progress() as bar:
        task = bar.add_task("replay", total=turns * len(arms) * repeats)

        def seen(arm: Arm, turn: Turn) -> None:
            bar.update(task, advance=1, description=f"{arm.value} turn {turn.index + 1}")
            if arm not in started and not console.is_terminal:
                console.print(f"{arm.value}: {turns} turns{times}", highlight=False)
            started.add(arm)

        def finished(arm: Arm, result: list[Turn]) -> None:
            show_arm(console, arm, result)

        return run(
            record,
            policy,
            arms,
            root,
            max_tokens=max_tokens,
            repeats=repeats,
            seen=seen,
            finished=finished,
        )


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
