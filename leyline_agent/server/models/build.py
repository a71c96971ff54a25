"""Build a named model into the cache, or find it there."""

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from leyline_agent.server.models.shapes import CONFIGS, VOCAB_SIZE
from leyline_agent.server.models.tokenizer import SPECIAL, TEMPLATE

_FORMAT = 1


def names() -> tuple[str, ...]:
    """The models that `build` knows."""
    return tuple(CONFIGS)


def cache_root() -> Path:
    """`$LEYLINE_CACHE`, else `~/.cache/leyline`."""
    return Path(os.environ.get("LEYLINE_CACHE") or Path.home() / ".cache" / "leyline")


def folder(name: str) -> Path:
    """Where the named model lives; the name carries a hash of everything it is made from."""
    here = Path(__file__).parent
    made_from = hashlib.sha256(f"{_FORMAT} {sys.version_info[:3]}".encode())
    made_from.update(json.dumps(CONFIGS[name], sort_keys=True).encode())
    for part in (here / "weights.py", here / "tokenizer.py", TEMPLATE):
        made_from.update(part.read_bytes())
    return cache_root() / "models" / f"{name}-{made_from.hexdigest()[:12]}"


def build(name: str, progress: Callable[[str], None] = lambda _line: None) -> Path:
    """The folder of the named model, built when absent (about 80 MB, half a minute).

    Safe when several processes build at once: each writes its own temporary folder and the
    first rename wins.  Raises `KeyError` for an unknown name, `OSError` when it cannot write.
    """
    target = folder(name)
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=target.parent))
    try:
        _write(name, scratch, progress)
        scratch.rename(target)
    except OSError:
        if not target.is_dir():
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _write(name: str, path: Path, progress: Callable[[str], None]) -> None:
    from safetensors.torch import save_file

    from leyline_agent.server.models.tokenizer import train
    from leyline_agent.server.models.weights import draw

    progress(f"training the tokenizer of {name} on the standard library's sources")
    tokenizer = train()
    if len(tokenizer) != VOCAB_SIZE:
        raise RuntimeError(f"the tokenizer has {len(tokenizer)} entries, expected {VOCAB_SIZE}")
    tokenizer.save_pretrained(path)
    progress(f"drawing the weights of {name}")
    save_file(draw(CONFIGS[name]), path / "model.safetensors", metadata={"format": "pt"})
    ends = {"eos_token_id": SPECIAL.index("<|im_end|>"), "pad_token_id": 0, "bos_token_id": 0}
    _dump(path / "config.json", CONFIGS[name] | ends)
    _dump(path / "generation_config.json", ends)


def _dump(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
