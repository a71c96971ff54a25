"""The demo's agent: a LangGraph loop with real tools, and a recording of what was sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import ModelCallLimitMiddleware, wrap_model_call

from leyline_agent.demo.tools import TOOLS
from leyline_agent.langchain import LeylineMiddleware, chat_model
from leyline_agent.policies import Policy
from leyline_agent.transport import Lowering, TurnRecord
from leyline_agent.transport.clients import openai_library, transport

SYSTEM = (
    "You study the source code of leyline-agent with your tools and note how a conversation's "
    "edit becomes a splice of the KV cache. Use one tool in every turn."
)
TASK = "Find out how the pieces work together, from the planner to the radix cache."


@dataclass(slots=True)
class Recording:
    """Bodies of the chat requests as the agent sent them, before they were lowered."""

    bodies: list[dict[str, Any]] = field(default_factory=list)


def _recorder(lib: Any, inner: Any, recording: Recording) -> Any:
    """A transport that notes chat bodies and hands everything on."""

    class Recorder(lib.BaseTransport):  # type: ignore[misc]
        def handle_request(self, request: Any) -> Any:
            if request.url.path.endswith("/chat/completions"):
                recording.bodies.append(json.loads(request.read()))
            return inner.handle_request(request)

        def close(self) -> None:
            inner.close()

    return Recorder()


@wrap_model_call
def _always_a_tool(request: Any, handler: Callable[[Any], Any]) -> Any:
    """Strict schemas and a required tool call: the grammar allows nothing else."""
    settings = {**request.model_settings, "strict": True, "parallel_tool_calls": False}
    return handler(request.override(tool_choice="required", model_settings=settings))


def run_agent(
    base_url: str,
    model: str,
    policy: Policy,
    turns: int,
    recording: Recording,
    on_turn: Callable[[TurnRecord], None],
    salt: str,
) -> list[Any]:
    """Let the agent work for `turns` calls of the model; its messages at the end.

    Args:
        on_turn: called after each call of the model, while the agent runs.
        salt: the namespace in the server's cache.
    """
    lib = openai_library()
    lowering = Lowering(on_turn=on_turn)
    http = lib.Client(transport=_recorder(lib, transport(lib, lowering), recording), timeout=600.0)
    llm = chat_model(
        base_url,
        model,
        lowering=lowering,
        http_client=http,
        temperature=1.0,
        max_tokens=96,
        extra_body={"cache_salt": salt},
    )
    agent = create_agent(
        llm,
        TOOLS,
        system_prompt=SYSTEM,
        middleware=[
            ModelCallLimitMiddleware(run_limit=turns, exit_behavior="end"),
            _always_a_tool,
            LeylineMiddleware(policy),
        ],
    )
    with http:
        state = agent.invoke(
            {"messages": [{"role": "user", "content": TASK}]},
            {"recursion_limit": 10 * turns + 10, "configurable": {"thread_id": salt}},
        )
    messages: list[Any] = state["messages"]
    return messages
