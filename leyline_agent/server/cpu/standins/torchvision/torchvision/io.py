"""Names of `torchvision.io`; each raises `NotImplementedError` when called."""


def __getattr__(name: str):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_args, **_kwargs):
        raise NotImplementedError(f"torchvision.io.{name} is not available in the CPU stand-in")

    return missing
