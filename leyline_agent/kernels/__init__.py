"""Rotate-and-copy of cached keys and values: the arithmetic of a splice."""

from leyline_agent.kernels.rotate import copy_rows, rotate_copy_rows, rotation

__all__ = ["copy_rows", "rotate_copy_rows", "rotation"]
