"""Stand-in for SGLang's compiled kernels, for a CPU where the real package cannot load.

`assign_req_to_token_pool_cpu` is the only function that SGLang calls on the torch_native
path.  Every other name imports, and raises `NotImplementedError` when called.
"""

import torch

LEYLINE_STAND_IN = True
__version__ = "0.0.0"


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Write each request's new slots into its row of `req_to_token` (mutated).

    req_pool_indices, start_offset, end_offset: [batch]; req_to_token: [rows, pool_len];
    out_cache_loc: [sum(end - start)], the requests' slots one after another.
    """
    del pool_len
    taken = 0
    bounds = zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True)
    for row, start, end in bounds:
        slots = out_cache_loc[taken : taken + end - start]
        req_to_token[row, start:end] = slots.to(req_to_token.dtype)
        taken += end - start


def __getattr__(name: str):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_args, **_kwargs):
        raise NotImplementedError(f"sgl_kernel.{name} is not available in the CPU stand-in")

    missing.__name__ = name
    return missing
