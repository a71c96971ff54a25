"""LangChain and LangGraph: the middleware and the model that goes with it.

from langchain.agents import create_agent
from leyline_agent.langchain import LeylineMiddleware, chat_model

agent = create_agent(
    chat_model("http://127.0.0.1:30000", "my-model"),
    tools,
    middleware=[LeylineMiddleware("truncate_older_than:n=2")],
)
"""

from leyline_agent.langchain.middleware import LeylineMiddleware
from leyline_agent.langchain.model import chat_model

__all__ = ["LeylineMiddleware", "chat_model"]
