"""HTTP transports that turn edited conversations into directives on their way out.

from openai import OpenAI
from leyline_agent.transport import client

llm = OpenAI(base_url="http://127.0.0.1:30000/v1", api_key="none", http_client=client())
"""

from leyline_agent.transport.clients import async_client, async_transport, client, transport
from leyline_agent.transport.lowering import CONVERSATION, MODE, Lowering
from leyline_agent.transport.record import TurnRecord

__all__ = [
    "CONVERSATION",
    "MODE",
    "Lowering",
    "TurnRecord",
    "async_client",
    "async_transport",
    "client",
    "transport",
]
