"""Tiny random-weight models with real architectures, built once and cached.

`python -m leyline_agent.server.models tiny` prints the folder of the named model.
"""

from leyline_agent.server.models.build import build, folder, names

__all__ = ["build", "folder", "names"]
