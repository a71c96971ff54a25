"""`leyline verify`: what an operator runs before trusting a model."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich.console import Console
from rich.table import Table

from leyline_agent.core import LeylineError, SetupError
from leyline_agent.handshake import root_of, splicing
from leyline_agent.launch import TINY, ServerProcess, find_server_python, model_path
from leyline_agent.terminal import did_you_mean, narrow, tell_error, working, write_json
from leyline_agent.verify import scenarios
from leyline_agent.verify.client import Client
from leyline_agent.verify.reference import ReferenceProcess
from leyline_agent.verify.report import summary
from leyline_agent.verify.scenarios import Seen

DTYPES = ("float32", "bfloat16")
ALL = 8192  # the built-in models' vocabulary
REFERENCE_BYTES = 2_000_000_000
CHECKS = """\
keys: error of moved keys, in spacings of the type; leak: KV slots lost
log-p: of edited requests against the reference, nats; noise: the same unedited
token: same first token beyond the noise; honest: plain requests untouched
forget: FORGET equal to an honest prefill"""
FOLLOWS = """\
AMORTIZE's first token: how often the full context's / an honest prefill's"""

console = Console(stderr=True)


def verify(
    arch: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help=f"Built-in models, separated by commas, or all: {', '.join(TINY)}."),
    ] = None,
    base_url: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="A running server's root, instead of starting some."),
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="Types of weights and KV of the servers to start.")
    ] = ",".join(DTYPES),
    weights: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="The running server's model folder, where it does not tell one here."),
    ] = None,
    prompts: Annotated[
        int, typer.Option(min=1, help="Prompts for each figure of first-token agreement.")
    ] = 40,
    json_path: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--json", help="Write the result here; - for stdout."),
    ] = None,
) -> None:
    """Check what splicing promises, on a running server or on the built-in architectures.

    Checked: moved keys to one rounding; log-probabilities after edits against an independent
    reference (transformers, float64, an explicitly edited cache) where the weights are on this
    machine; honest requests untouched; FORGET equal to an honest prefill; no slot leaked.
    Counted, as the paper's appendix does: whose first token AMORTIZE follows.

    The exit status is 1 when something does not hold. Examples:

        leyline verify --base-url http://127.0.0.1:30000

        leyline verify --arch all --json out/verify.json
    """
    result: dict[str, Any] = {"archs": {}}
    try:
        if base_url is not None and arch:
            raise SetupError("give --base-url or --arch, not both")
        if base_url is not None:
            name, storage, found = running(base_url, weights, prompts)
            result["archs"][name] = {storage: found}
        else:
            for name in _named(arch or "tiny", TINY, "model"):
                for storage in _named(dtype, DTYPES, "type"):
                    found = started(name, storage, prompts)
                    result["archs"].setdefault(name, {})[storage] = found
                    console.print(f"{name} {storage}: {_verdict(found)}", highlight=False)
    except LeylineError as error:
        tell_error(console, error)
        raise typer.Exit(1) from error
    write_json(console, result, json_path)
    for one, legend in zip(tables(result), (CHECKS, FOLLOWS), strict=True):
        console.line()
        console.print(one)
        console.print(f"\n{legend}", highlight=False)
    console.line()
    failures = [
        f"{name} {storage}: {sentence}"
        for name, types in result["archs"].items()
        for storage, found in types.items()
        for sentence in found["failures"]
    ]
    for sentence in failures:
        console.print(f"[red]does not hold:[/red] {sentence}", highlight=False)
    if failures:
        raise typer.Exit(1)


def started(model: str, dtype: str, prompts: int) -> dict[str, Any]:
    """Start a server of a built-in model, examine it, stop it.

    Raises:
        ServerError, SetupError: it does not start or does not answer.
    """
    with working(console, f"{model} {dtype}: starting") as say, ExitStack() as stack:

        def seen(line: str) -> None:
            say(f"{model} {dtype}: {line}")

        folder = model_path(model, find_server_python(), seen)
        reference = stack.enter_context(ReferenceProcess(folder, dtype))
        server = ServerProcess(model, dtype=dtype, progress=seen)
        stack.callback(server.stop)
        server.start()
        client = stack.enter_context(Client(server.base_url))
        return examine(client, reference, prompts, seen)[1]


def running(base_url: str, weights: Path | None, prompts: int) -> tuple[str, str, dict[str, Any]]:
    """Examine a server that runs already.

    Returns:
        The model's name, its KV's type, the figures.

    Raises:
        ServerError, SetupError: it does not answer, or has no splicing.
    """
    root = root_of(base_url)
    with working(console, "asking the server") as say, ExitStack() as stack:
        splicing(root)
        client = stack.enter_context(Client(root))
        about = client.model()
        folder = weights or Path(about["model_path"])
        reference = None
        if folder.is_dir() and _bytes(folder) <= REFERENCE_BYTES:
            reference = stack.enter_context(ReferenceProcess(folder, about["dtype"]))
        elif weights:
            raise SetupError(f"{weights} is no folder, or its weights exceed 2 GB in float64")
        else:
            console.print("no reference: the weights are not on this machine, or are too large")
        storage, found = examine(client, reference, prompts, say)
        return about["name"], storage, found


def examine(
    client: Client, reference: ReferenceProcess | None, prompts: int, seen: Seen
) -> tuple[str, dict[str, Any]]:
    """Run all scenarios on one server.

    Returns:
        The type that its KV is stored in, and `report.summary`.

    Raises:
        ServerError: it does not answer or does not splice.
    """
    info = splicing(client.url)
    rank = info["ranks"][0]
    storage = str(rank["layout"]["dtype"])
    page = int(rank["page_size"])
    space = scenarios.namespace(time.time_ns())
    run = None if reference is None else (lambda steps: reference(steps, page))
    told = ALL if storage == "float32" and client.model()["name"] in TINY else scenarios.FEW
    steps = (
        scenarios.against_reference(client, run, {**space, "probs": told}, seen) if run else None
    )
    untouched = scenarios.untouched(client, space, seen)
    forgotten = scenarios.forgotten(client, space, seen)
    agreement = scenarios.agreement(client, space, prompts, seen)
    worst = max(r["kv_error"] for r in info["ranks"])
    return storage, summary(
        storage, worst, steps, untouched, forgotten, client.leaked_slots(), agreement
    )


def _named(text: str, known: tuple[str, ...], what: str) -> list[str]:
    names = list(known) if text == "all" else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            meant = did_you_mean(name, known)
            raise SetupError(
                f"there is no {what} {name!r}; {meant}known are all, {', '.join(known)}"
            )
    return names


def _bytes(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.glob("*.safetensors"))


def _verdict(found: dict[str, Any]) -> str:
    return "[green]holds[/green]" if not found["failures"] else "[red]does not hold[/red]"


def tables(result: dict[str, Any]) -> tuple[Table, Table]:
    """Two tables with a line a server, within 80 columns: the checks; what AMORTIZE follows."""
    figures = ("keys", "log-p", "noise", "token", "honest", "forget", "leak")
    checks = narrow(figures, ("model", "KV"))
    follows = narrow(("1 edit", "3 edits"), ("model", "KV"))
    for model, types in result["archs"].items():
        for storage, found in types.items():
            checks.add_row(
                model,
                storage,
                _figure(found["kv_error"], ".2f"),
                _figure(found["logprob_error"], ".1e"),
                _figure(found["noise"], ".1e"),
                _figure(found["first_token_agreement"], ".0%"),
                _figure(found["honest_untouched"], ".0%"),
                _figure(found["forget_equal"], ".0%"),
                str(found["leaked_slots"]),
            )
            shares = (found["amortize_follows"][kind] for kind in ("single", "multiple"))
            follows.add_row(
                model, storage, *(f"{share['full']:.0%}/{share['honest']:.0%}" for share in shares)
            )
    return checks, follows


def _figure(value: float | None, how: str) -> str:
    return "–" if value is None else format(value, how)
