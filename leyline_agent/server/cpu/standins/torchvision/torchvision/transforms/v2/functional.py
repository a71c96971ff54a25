"""Names of `torchvision.transforms.v2.functional`; each raises when called."""

from torchvision.transforms import functional


def __getattr__(name: str):
    return getattr(functional, name)
