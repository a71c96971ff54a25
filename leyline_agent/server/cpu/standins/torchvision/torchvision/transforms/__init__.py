"""Names of `torchvision.transforms`; the transforms raise when called."""

from enum import Enum

from torchvision.transforms import functional, v2


class InterpolationMode(Enum):
    """Same members and values as torchvision's."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


def __getattr__(name: str):
    return getattr(functional, name)


__all__ = ["InterpolationMode", "functional", "v2"]
