"""The SGLang internals that the CPU recipe touches, in one place, and their verification."""

import inspect
import pkgutil
from dataclasses import dataclass

BACKEND = "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend"
HANDLERS = "sglang.srt.models.deepseek_common.attention_backend_handler"
METHODS = "sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods"
ROPE = "sglang.srt.layers.rotary_embedding.factory"

_SDPA = (
    "query",
    "output",
    "k_cache",
    "v_cache",
    "req_to_token",
    "req_pool_indices",
    "seq_lens",
)
_ROPE = ("head_size", "rotary_dim", "max_position", "base", "is_neox_style", "rope_scaling")


@dataclass(frozen=True, slots=True)
class Target:
    """A dotted SGLang name and the leading parameters it must have (`self` left out)."""

    path: str
    parameters: tuple[str, ...] = ()

    def resolve(self) -> object:
        """The object at `path`.  Raises `ImportError` or `AttributeError`."""
        return pkgutil.resolve_name(self.path)

    def fault(self) -> str | None:
        """What is wrong with this target in the installed SGLang, or None."""
        try:
            found = self.resolve()
        except (ImportError, AttributeError) as error:
            return f"{self.path}: {error}"
        if not self.parameters:
            return None
        names = [name for name in inspect.signature(found).parameters if name != "self"]  # type: ignore[arg-type]
        if tuple(names[: len(self.parameters)]) != self.parameters:
            return f"{self.path}: parameters are {names}, expected {list(self.parameters)} first"
        return None


EXTEND = Target(
    f"{BACKEND}._run_sdpa_forward_extend", (*_SDPA, "extend_prefix_lens", "extend_seq_lens")
)
DECODE = Target(f"{BACKEND}._run_sdpa_forward_decode", _SDPA)
MLA_REGISTRY = Target(f"{HANDLERS}.AttentionBackendRegistry.register")
MLA_METHOD = Target(f"{METHODS}.AttnForwardMethod.MLA")
ROPE_CPU = Target(f"{ROPE}.get_rope_cpu", _ROPE)
ROPE_PLAIN = Target(f"{ROPE}.get_rope", _ROPE)

TARGETS = (EXTEND, DECODE, MLA_REGISTRY, MLA_METHOD, ROPE_CPU, ROPE_PLAIN)


def missing_targets() -> list[str]:
    """One line for each target that the installed SGLang lacks or spells differently."""
    return [fault for target in TARGETS if (fault := target.fault())]


def require_targets() -> None:
    """Raises `RuntimeError` listing the faults; the recipe knows sglang 0.5.23."""
    faults = missing_targets()
    if faults:
        raise RuntimeError(
            "leyline's CPU recipe does not fit the installed sglang (it knows 0.5.23):\n  "
            + "\n  ".join(faults)
        )
