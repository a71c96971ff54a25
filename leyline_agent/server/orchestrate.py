"""In the HTTP process: validate a plan, prefill what must come first, send the request.

    request with plan --> check --> stage 1 --> stage 2 --> ... --> the request itself
                            |          prefill-only, [0, move.start)
                            +--> typed fallback: the same request without the plan

Wraps TokenizerManager.generate_request, the one door of every endpoint. Whatever happens
to the plan, the request itself is answered.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from array import array
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from sglang.srt.arg_groups.overrides import resolving_view

from leyline_agent.core import Fallback, LeylineError, PlanError, WirePlan, digest, loads
from leyline_agent.server.receipts import Receipts, Work, receipt_of
from leyline_agent.server.route import stages_of
from leyline_agent.server.settings import Settings
from leyline_agent.server.ticket import INTERNAL, KEY, seal

logger = logging.getLogger(__name__)

MAX_STAGES = 64
# What decides under which key a request is cached and where it runs: a stage shares it.
_SHARED = ("extra_key", "cache_salt", "lora_path", "lora_id", "priority", "routed_dp_rank")

receipts = Receipts()


class Disconnected(ValueError):
    """The client of a request went away; SGLang's own answer to that is a ValueError, too."""


class Refused(Exception):
    """A plan that is not sent on: its typed fallback and a sentence."""

    def __init__(self, reason: Fallback, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(slots=True)
class _Staging:
    """A request whose stages run: SGLang does not know its id yet, so an abort is kept here."""

    rid: str | None
    stage: str | None = None
    aborted: bool = False

    @classmethod
    def enter(cls, obj: Any) -> _Staging:
        """From now on aborts of the request reach its stages."""
        staging = cls(obj.rid if isinstance(obj.rid, str) else None)
        _staging[id(staging)] = staging
        return staging

    def leave(self) -> None:
        """The stages are done."""
        _staging.pop(id(self), None)

    def abort_later(self, manager: Any) -> None:
        """Abort the request as soon as SGLang knows it: the answer is that of any abort."""

        async def wait() -> None:
            for _ in range(1000):
                if self.rid in manager.rid_to_state:
                    manager.abort_request(self.rid)
                    return
                await asyncio.sleep(0.005)

        task = asyncio.get_running_loop().create_task(wait())
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)


_staging: dict[int, _Staging] = {}
_tasks: set[asyncio.Task[None]] = set()


def abort_request(original: Any, manager: Any, rid: str = "", abort_all: bool = False) -> Any:
    """AROUND hook: as SGLang's, also for requests whose stages run."""
    for staging in list(_staging.values()):
        if abort_all or (rid and staging.rid == rid):
            staging.aborted = True
            if staging.stage and not abort_all:
                original(manager, staging.stage)
    return original(manager, rid, abort_all)


async def generate_request(
    original: Any, manager: Any, obj: Any, request: Any = None
) -> AsyncIterator[dict[str, Any]]:
    """AROUND hook: as SGLang's, for a request with a plan with its stages before it.

    Raises:
        ValueError: a request with a plan has tokens that the model does not know; SGLang
            would run it, and the scheduler would die of it.
    """
    found, text = _take(obj)
    if not found:
        async for out in original(manager, obj, request):
            for answer in out if isinstance(out, list) else (out,):
                # SGLang fills the key for all requests that share a batch with a planned one.
                (answer.get("meta_info") or {}).pop(KEY, None)
            yield out
        return
    _refuse_unknown_tokens(manager, obj)
    work, wire, refused = Work(), None, None
    staging = _Staging.enter(obj)
    try:
        wire = _read(text)
        ids = _checked_ids(manager, obj, wire)
        await _run_stages(original, manager, obj, request, staging, wire, ids, work)
        _custom(obj)[INTERNAL] = seal(wire, None)
    except Refused as error:
        refused = error
    except Disconnected:
        raise
    except Exception as error:
        logger.exception("leyline: a plan failed; the request goes on without it")
        _custom(obj).pop(INTERNAL, None)
        refused = Refused(Fallback.INTERNAL_ERROR, f"{type(error).__name__}: {error}")
    finally:
        staging.leave()
    if staging.aborted:
        staging.abort_later(manager)
    directives = len(wire.plan.directives) if wire else 0
    settled: dict[str, Any] = {}
    async for out in original(manager, obj, request):
        for answer in out if isinstance(out, list) else (out,):
            _settle(answer, settled, refused, work, directives)
        yield out


def _take(obj: Any) -> tuple[bool, object]:
    """Remove the plan (and any forged ticket) from a request's custom parameters.

    Returns:
        Whether there was a plan, and its raw value.
    """
    found, text = False, None
    params = getattr(obj, "sampling_params", None)
    for entry in params if isinstance(params, list) else [params]:
        custom = entry.get("custom_params") if isinstance(entry, dict) else None
        if isinstance(custom, dict):
            custom.pop(INTERNAL, None)
            if KEY in custom:
                found, text = True, custom.pop(KEY)
            if not custom:
                entry["custom_params"] = None
    return found, text


def _refuse_unknown_tokens(manager: Any, obj: Any) -> None:
    """See generate_request."""
    ids = obj.input_ids or ()
    size = manager.model_config.vocab_size
    for row in ids if ids and isinstance(ids[0], list) else [ids]:
        wrong = next((i for i in row if not isinstance(i, int) or not 0 <= i < size), None)
        if wrong is not None:
            raise ValueError(f"input_ids has {wrong!r}; token ids are whole numbers below {size}")


def _custom(obj: Any) -> dict[str, Any]:
    """The custom parameters of a single request, created when missing."""
    if not isinstance(obj.sampling_params, dict):
        obj.sampling_params = {}
    if not obj.sampling_params.get("custom_params"):
        obj.sampling_params["custom_params"] = {}
    custom: dict[str, Any] = obj.sampling_params["custom_params"]
    return custom


def _read(text: object) -> WirePlan:
    """The plan.

    Raises:
        Refused: the text spells none.
    """
    try:
        return loads(text)
    except PlanError as error:
        raise Refused(Fallback.INVALID_DIRECTIVE, str(error)) from error


def _checked_ids(manager: Any, obj: Any, wire: WirePlan) -> array[int]:
    """The request's token ids, which begin with the plan's result.

    Raises:
        Refused: they do not, or it is no single text request.
    """
    ids = _ids_of(manager, obj)
    if ids is None:
        raise Refused(Fallback.INVALID_DIRECTIVE, "a plan goes with one prompt of text or tokens")
    length = wire.plan.edited_len
    if length > len(ids) or digest(ids[:length]) != wire.edited_digest:
        raise Refused(
            Fallback.RESULT_MISMATCH,
            f"the request's first {length} of {len(ids)} tokens are not the edited sequence",
        )
    first = getattr(obj, "logprob_start_len", None)
    if getattr(obj, "return_logprob", False) and first is not None and 0 <= first < length:
        raise Refused(
            Fallback.NOT_WORTH_IT,
            f"log-probabilities of the prompt from token {first} need all behind it prefilled",
        )
    return ids


def _ids_of(manager: Any, obj: Any) -> array[int] | None:
    """The token ids of a single text request; None for batches and other kinds."""
    if (getattr(obj, "parallel_sample_num", 1) or 1) > 1 or getattr(obj, "input_embeds", None):
        return None
    sampling = obj.sampling_params
    if isinstance(sampling, list) or (isinstance(sampling, dict) and sampling.get("n", 1) != 1):
        return None
    if any(getattr(obj, kind, None) for kind in ("image_data", "video_data", "audio_data")):
        return None
    ids = obj.input_ids
    if ids is None and isinstance(obj.text, str) and manager.tokenizer is not None:
        ids = manager.tokenizer.encode(obj.text)
    if ids is None or len(ids) == 0 or not isinstance(ids[0], int):
        return None
    return array("q", ids)


async def _run_stages(
    original: Any,
    manager: Any,
    obj: Any,
    request: Any,
    staging: _Staging,
    wire: WirePlan,
    ids: array[int],
    work: Work,
) -> None:
    """Prefill every stretch that has to stand before a moved segment.

    Raises:
        Refused: the plan asks for more stages than are worth it.
        Disconnected: the client is gone; nothing more is run for it.
    """
    page = resolving_view(manager.server_args).page_size
    stages = stages_of(wire.plan, page, Settings.read().boundary)
    if len(stages) > MAX_STAGES:
        raise Refused(Fallback.NOT_WORTH_IT, f"{len(stages)} stages, at most {MAX_STAGES} are run")
    for length in stages:
        if request is not None and not obj.background and await request.is_disconnected():
            raise Disconnected("the client disconnected while its plan was being prepared")
        stage = _stage(obj, wire, ids, length)
        staging.stage = stage.rid
        report = await _run_stage(original, manager, stage)
        if report is None or staging.aborted:
            return
        work.add(report)
        if report["fallback"] is not None:
            return


async def _run_stage(original: Any, manager: Any, stage: Any) -> dict[str, Any] | None:
    """Run one prefill-only request to its end; its report, or None when it had none."""
    report = None
    async for out in original(manager, stage, None):
        for entry in out["meta_info"].pop(KEY, None) or ():
            report = entry
    return report


def _stage(obj: Any, wire: WirePlan, ids: array[int], length: int) -> Any:
    """A prefill-only request for the first `length` tokens, cached under obj's key."""
    shared = {name: getattr(obj, name) for name in _SHARED if getattr(obj, name, None) is not None}
    return type(obj)(
        input_ids=ids[:length].tolist(),
        sampling_params={
            "max_new_tokens": 0,
            "temperature": 0.0,
            "custom_params": {INTERNAL: seal(wire, length)},
        },
        rid=uuid.uuid4().hex,
        stream=False,
        **shared,
    )


def _settle(
    out: dict[str, Any],
    settled: dict[str, Any],
    refused: Refused | None,
    work: Work,
    directives: int,
) -> None:
    """Turn the scheduler's report into the receipt of a completion, again when it changes.

    Mutates `settled`: completion id -> the last report.
    """
    meta = out.get("meta_info") or {}
    reports = meta.pop(KEY, None) or []
    completion = str(meta.get("id", ""))
    report = reports[0] if reports else None
    if report is None and refused is not None and completion not in settled:
        report = {
            "fallback": refused.reason.value,
            "detail": str(refused),
            "prompt": meta.get("prompt_tokens", 0),
            "cached": meta.get("cached_tokens", 0) or 0,
            "spliced": 0,
            "ms": 0.0,
            "mark": "",
        }
    if report is not None and settled.get(completion) != report:
        settled[completion] = report
        try:
            receipts.put(receipt_of(completion, report, work, directives))
        except (LeylineError, KeyError, ValueError, TypeError):
            logger.exception("leyline: a receipt could not be written")
            return
    kept = receipts.get(completion)
    if kept is not None:
        meta[KEY] = kept.to_dict()
