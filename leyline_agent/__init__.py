"""Leyline: KV cache directives for agents that edit their own history."""

__version__ = "0.1.0"
