"""Reports out of the scheduler: one per planned request, in its output's meta_info."""

from __future__ import annotations

from typing import Any

from sglang.srt.managers.scheduler_components.output_streamer import SchedulerOutputStreamer

from leyline_agent.server.ticket import KEY


class LeylineOutputStreamer(SchedulerOutputStreamer):
    """SGLang's streamer, with the ticket's report attached to every output.

    A request may be retracted in mid-answer and lose its plan then: the last report counts.
    """

    def stream_output(self, reqs: list[Any], return_logprob: bool, skip_req: Any = None) -> None:
        for req in reqs:
            ticket = getattr(req, "leyline_ticket", None)
            if ticket is not None:
                report = ticket.report(len(req.origin_input_ids), req.cached_tokens)
                ticket.answering = bool(req.output_ids)
                # SGLang requires a list here, one entry a value.
                req.customized_info = {**(req.customized_info or {}), KEY: [report]}
        super().stream_output(reqs, return_logprob, skip_req)

    def is_request_level_customized_info_key(self, key: str) -> bool:
        return key == KEY or super().is_request_level_customized_info_key(key)


def streamer_class(original: Any, *args: Any, **kwargs: Any) -> type:
    """AROUND hook on Scheduler.get_output_streamer_class.

    Raises:
        RuntimeError: another plugin replaced the streamer by a class that ours would hide.
    """
    chosen = original(*args, **kwargs)
    if chosen is not SchedulerOutputStreamer:
        raise RuntimeError(f"leyline needs SGLang's own output streamer, found {chosen.__name__}")
    return LeylineOutputStreamer
