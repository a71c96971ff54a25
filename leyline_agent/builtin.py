"""The built-in models, and what else can be named as one."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from leyline_agent.core import ServerError, SetupError
from leyline_agent.terminal import did_you_mean

TINY = (
    *("tiny", "tiny-moonlight", "tiny-joyai", "tiny-glm"),
    *("tiny-qwen3", "tiny-llama"),
)
_HUB = re.compile(r"[\w.-]+/[\w.-]+")

Progress = Callable[[str], None]


def check_model(model: str) -> None:
    """A model is a built-in name, a folder, or owner/name on the Hugging Face hub.

    Raises:
        SetupError: it is none of these; names the closest built-in model.
    """
    if model in TINY or Path(model).expanduser().is_dir():
        return
    if model.startswith((".", "/", "~")):
        raise SetupError(f"no model folder {model}; the built-in models are {', '.join(TINY)}")
    if not _HUB.fullmatch(model):
        meant = did_you_mean(model, TINY)
        raise SetupError(
            f"there is no model {model!r}; {meant}name a built-in one ({', '.join(TINY)}), "
            "a folder, or owner/name on the Hugging Face hub"
        )


def model_path(model: str, python: str, progress: Progress) -> str:
    """A folder or hub name for SGLang: a tiny model is built into the cache.

    Raises:
        ServerError: the build failed; SetupError: there is no such model.
    """
    check_model(model)
    if model not in TINY:
        folder = Path(model).expanduser()
        return str(folder) if folder.is_dir() else model
    progress(f"model {model}: looking in the cache (built once: about 80 MB, half a minute)")
    done = subprocess.run(
        [python, "-W", "ignore", "-m", "leyline_agent.server.models", model],
        capture_output=True,
        text=True,
        env={**os.environ, "SGLANG_PLUGINS": ""},
    )
    if done.returncode != 0:
        raise ServerError(f"the model {model} could not be built:\n{done.stderr[-2000:]}")
    return done.stdout.strip().splitlines()[-1]
