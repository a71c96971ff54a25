"""LangChain and LangGraph: the middleware and the model that goes with it."""

from leyline_agent.langchain.middleware import LeylineMiddleware
from leyline_agent.langchain.model import chat_model

__all__ = ["LeylineMiddleware", "chat_model"]
