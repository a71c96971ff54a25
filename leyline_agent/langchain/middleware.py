"""Middleware for LangChain's create_agent."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any
from urllib.parse import quote

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage
from langgraph.config import get_config

from leyline_agent.core import Mode, PolicyError
from leyline_agent.langchain.edit import AsItStands, Memory, edited
from leyline_agent.policies import Policy, load
from leyline_agent.policies.policy import checked, mode_of
from leyline_agent.transport import CONVERSATION, MODE, TurnRecord, collect

logger = logging.getLogger("leyline_agent")


class LeylineMiddleware(AgentMiddleware):
    """Applies a policy to what the model is sent, and names the conversation to the transport.

    Stands last in the list: other middleware may edit before it. Only the request is
    edited, never the agent's state. With policy=None it only names the conversation, and
    the edits of others become directives.

    The conversation's name is the running graph's thread_id. Give every conversation one:
    without it few edits become directives, because users must not meet in the cache (see
    Planner).

    Args:
        policy: what the history should look like: a Policy, or its description as
            `leyline_agent.policies.load` takes it. mode: how its edits reach the cache;
            None takes the policy's own `mode`, or amortize.

    An answer's `response_metadata["leyline"]` is its TurnRecord as a dict: what was planned,
    and what the server did (applied, spliced, fallback). A policy that
    fails, or returns what could not be sent, costs no request: the messages go as they
    stood, the failure is logged, counted in `policy_failures` and told in `why`.

    Raises:
        ValueError: mode is neither "amortize" nor "forget". PolicyError: no such policy, or
            one without transform or with an unknown mode.
    """

    def __init__(self, policy: Policy | str | None = None, mode: Mode | str | None = None) -> None:
        super().__init__()
        if isinstance(policy, str):
            policy = load(policy)
        self.policy: Policy | None = None if policy is None else checked(policy)
        self.mode = mode_of(self.policy) if mode is None else Mode(mode)
        self.policy_failures = 0
        self._memory = Memory()

    def wrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], ModelResponse[Any]],
    ) -> ModelResponse[Any]:
        """Edit, then call the model."""
        prepared, failure = self._prepared(request)
        with collect() as records:
            return _noted(handler(prepared), records, failure)

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        """The asyncio twin of wrap_model_call."""
        prepared, failure = self._prepared(request)
        with collect() as records:
            return _noted(await handler(prepared), records, failure)

    def prepared(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        """The request with edited messages and the transport's two headers.

        The caller's own headers win over ours, in model_settings and in the model's model_kwargs.
        """
        return self._prepared(request)[0]

    def _prepared(self, request: ModelRequest[Any]) -> tuple[ModelRequest[Any], str]:
        """The prepared request, and why its policy failed or ""."""
        thread = _thread()
        messages, failure = request.messages, ""
        if self.policy is not None:
            # Without a thread nothing ties two calls together: ids alone decide.
            messages, failure = self._edited(messages, self.policy, thread or "")
        settings = request.model_settings or {}
        headers = _headers(request, self.mode, thread)
        prepared = request.override(
            messages=messages, model_settings={**settings, "extra_headers": headers}
        )
        return prepared, failure

    def _edited(self, messages: list[Any], policy: Policy, thread: str) -> tuple[list[Any], str]:
        known = self._memory.of(thread)
        try:
            return edited(messages, policy, known), ""
        except PolicyError as error:
            self.policy_failures += 1
            logger.warning("leyline: the history goes unedited: %s", error)
            failure = f"policy failed: {error}"
        try:
            return edited(messages, AsItStands(), known), failure
        except PolicyError:
            return messages, failure


def _noted(
    response: ModelResponse[Any], records: list[TurnRecord], failure: str
) -> ModelResponse[Any]:
    """The same response; its answer tells what was planned for it, or why nothing was."""
    told: dict[str, Any] = asdict(records[-1]) if records else {"planned": False, "why": ""}
    if failure:
        told["why"] = "; ".join(filter(None, (failure, told["why"])))
    for message in getattr(response, "result", [response]):
        if (records or failure) and isinstance(message, AIMessage):
            message.response_metadata["leyline"] = told
    return response


def _headers(request: ModelRequest[Any], mode: Mode, thread: str | None) -> dict[str, Any]:
    """Ours, and the caller's over them; the conversation is percent-encoded (RFC 3986)."""
    ours = {MODE: mode.value, **({CONVERSATION: quote(thread)} if thread else {})}
    of_model = getattr(request.model, "model_kwargs", None) or {}
    of_call = (request.model_settings or {}).get("extra_headers") or {}
    theirs = {**(of_model.get("extra_headers") or {}), **of_call}
    taken = {name.lower() for name in theirs}
    return {**{k: v for k, v in ours.items() if k not in taken}, **theirs}


def _thread() -> str | None:
    """The running graph's thread_id with its checkpoint namespace, if it has one."""
    try:
        configurable = get_config().get("configurable") or {}
    except RuntimeError:
        return None
    thread = configurable.get("thread_id")
    if thread is None:
        return None
    # A sub-agent runs in a namespace of its own; a node's task id changes with every step.
    space = str(configurable.get("checkpoint_ns") or "").rpartition("|")[0]
    return f"{thread}/{space}" if space else str(thread)
