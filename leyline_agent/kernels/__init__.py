"""Moving cached keys and values to other slots and positions: the arithmetic of a splice."""

from leyline_agent.kernels.rotate import arithmetic, rotation
from leyline_agent.kernels.rows import Rows

__all__ = ["Rows", "arithmetic", "rotation"]
