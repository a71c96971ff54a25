"""The CPU recipe: what stock SGLang needs to serve MLA and GQA models on `torch_native`.

`activate()` is called by the plugin in every SGLang process.  It does nothing unless the
CPU engine was asked for.
"""

import os

from leyline_agent.server.cpu.targets import TARGETS, Target, missing_targets, require_targets

__all__ = ["TARGETS", "Target", "activate", "is_wanted", "missing_targets", "require_targets"]


def is_wanted() -> bool:
    """Whether this SGLang process runs on its CPU engine."""
    return os.environ.get("SGLANG_USE_CPU_ENGINE") == "1"


def activate() -> bool:
    """Register the CPU hooks with SGLang's plugin registry; answers whether it did.

    Idempotent in one process.  Raises `RuntimeError` naming every SGLang internal that is
    missing, before anything is patched.
    """
    global _active
    if _active or not is_wanted():
        return _active
    require_targets()
    from leyline_agent.server.cpu import attention, mla, rope

    attention.register()
    mla.register()
    rope.register()
    _active = True
    return True


_active = False
