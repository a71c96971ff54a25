"""MLA dispatch for `torch_native`: always the absorbed path, on prefill and on decode."""

from leyline_agent.server.cpu.targets import MLA_METHOD, MLA_REGISTRY


def register() -> None:
    """Name the absorbed method for `torch_native` in SGLang's MLA backend registry."""
    method = MLA_METHOD.resolve()

    def absorbed(_attn, _forward_batch):
        return method

    MLA_REGISTRY.resolve()("torch_native", absorbed)  # type: ignore[operator]
