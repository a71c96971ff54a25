"""HTTP transports that turn edited conversations into directives on their way out.

    from leyline_agent.transport import openai_client

    llm = openai_client("http://127.0.0.1:30000")     # an openai.OpenAI, used as ever

Name each conversation in the header CONVERSATION; without a name few edits become directives,
because several users of one client must not meet in the cache (see planner.Planner).

`client` and `transport` are the layers below, for other callers of httpx or httpx2.
"""

from leyline_agent.transport.clients import async_client, async_transport, client, transport
from leyline_agent.transport.lowering import CONVERSATION, MODE, Lowering
from leyline_agent.transport.openai import async_openai_client, openai_client, v1
from leyline_agent.transport.receipts import async_receipt, receipt
from leyline_agent.transport.record import TurnRecord, collect

__all__ = [
    "CONVERSATION",
    "MODE",
    "Lowering",
    "TurnRecord",
    "async_client",
    "async_openai_client",
    "async_receipt",
    "async_transport",
    "client",
    "collect",
    "openai_client",
    "receipt",
    "transport",
    "v1",
]
