"""Stand-in for torchvision: SGLang imports names from it at start, text models call none."""

LEYLINE_STAND_IN = True
__version__ = "0.0.0"

from torchvision import io, transforms  # noqa: E402 (they import this package)

__all__ = ["io", "transforms"]
