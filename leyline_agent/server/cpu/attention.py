"""Attention for `torch_native` on CPU that computes the new rows only.

    keys     |-------- prefix --------|---- new ----|      P + N rows gathered once
    queries                           |---- new ----|      N rows
                every query sees it      causal            two parts, merged by log-sum-exp

Query heads that share a key head are folded into rows, so keys are never repeated.
"""

import torch

from leyline_agent.server.cpu.targets import DECODE, EXTEND

_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def register() -> None:
    """Hook both SDPA loops of SGLang's `TorchNativeAttnBackend`."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(EXTEND.path, _extend, HookType.AROUND)
    HookRegistry.register(DECODE.path, _decode, HookType.AROUND)


def gather_rows(
    k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values at `slots` as [1, key heads, rows, key dim], values padded to key dim.

    k_cache, v_cache: [pool, key heads, dim].  MLA's values are the head of the same pool
    row as its keys, which then serves as both.
    """
    keys = k_cache.index_select(0, slots).to(dtype).transpose(0, 1).unsqueeze(0)
    if v_cache.data_ptr() == k_cache.data_ptr() and v_cache.shape[-1] <= k_cache.shape[-1]:
        return keys, keys
    values = v_cache.index_select(0, slots).to(dtype).transpose(0, 1).unsqueeze(0)
    narrow = keys.shape[-1] - values.shape[-1]
    return keys, torch.nn.functional.pad(values, (0, narrow)) if narrow else values


def attend_all(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float):
    """Unmasked attention; query [1, heads, N, d], keys and values [1, key heads, P, d].

    Returns the output [1, heads, N, d] and the log-sum-exp [1, heads, N] (float32).
    """
    _, heads, rows, dim = query.shape
    key_heads = keys.shape[1]
    folded = query.reshape(1, key_heads, heads // key_heads * rows, dim)
    out, lse = _FLASH(folded, keys, values, 0.0, False, scale=scale)
    return out.reshape(1, heads, rows, dim), lse.reshape(1, heads, rows)


def attend_causal(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float):
    """Causal attention over the rows themselves; shapes as in `attend_all`, P = N."""
    _, heads, rows, dim = query.shape
    shared = heads // keys.shape[1]

    def spread(x: torch.Tensor) -> torch.Tensor:
        return x.unsqueeze(2).expand(1, x.shape[1], shared, rows, dim).flatten(1, 2)

    if shared > 1:
        keys, values = spread(keys), spread(values)
    return _FLASH(query, keys, values, 0.0, True, scale=scale)


def attend_new_rows(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attention of the last N of P + N positions; query [1, heads, N, d] -> the same shape."""
    rows, total = query.shape[2], keys.shape[2]
    prefix = total - rows
    if rows == 1:
        return attend_all(query, keys, values, scale)[0]
    own, own_lse = attend_causal(query, keys[:, :, prefix:], values[:, :, prefix:], scale)
    if prefix == 0:
        return own
    past, past_lse = attend_all(query, keys[:, :, :prefix], values[:, :, :prefix], scale)
    weight = torch.sigmoid(past_lse - own_lse).unsqueeze(-1)
    return torch.lerp(own.float(), past.float(), weight).to(query.dtype)


def _run(query, output, k_cache, v_cache, req_to_token, rows, totals, news, scale) -> None:
    """Fill `output` [tokens, heads, v dim] request by request."""
    start = 0
    for row, total, new in zip(rows.tolist(), totals.tolist(), news, strict=True):
        end = start + new
        if new:
            slots = req_to_token[row, :total].long()
            keys, values = gather_rows(k_cache, v_cache, slots, query.dtype)
            mine = query[start:end].transpose(0, 1).unsqueeze(0)
            out = attend_new_rows(mine, keys, values, scale)
            output[start:end] = out[0].transpose(0, 1)[..., : output.shape[-1]]
        start = end


def _scale(query: torch.Tensor, scaling: float | None) -> float:
    return query.shape[-1] ** -0.5 if scaling is None else scaling


def _is_plain(encoder_lens, kwargs: dict) -> bool:
    window = kwargs.get("sliding_window_size")
    return (
        encoder_lens is None and not kwargs.get("is_cross_attn") and (window is None or window < 0)
    )


def _extend(
    original,
    backend,
    query,
    output,
    k_cache,
    v_cache,
    req_to_token,
    req_pool_indices,
    seq_lens,
    extend_prefix_lens,
    extend_seq_lens,
    encoder_lens=None,
    scaling=None,
    **kwargs,
):
    """SGLang's extend loop; sliding windows, encoders and cross attention go to the original."""
    pools = (k_cache, v_cache, req_to_token)
    if not (_is_plain(encoder_lens, kwargs) and kwargs.get("causal")):
        return original(
            backend,
            query,
            output,
            *pools,
            req_pool_indices,
            seq_lens,
            extend_prefix_lens,
            extend_seq_lens,
            encoder_lens,
            scaling,
            **kwargs,
        )
    news, scale = extend_seq_lens.tolist(), _scale(query, scaling)
    _run(query, output, *pools, req_pool_indices, seq_lens, news, scale)
    return output


def _decode(
    original,
    backend,
    query,
    output,
    k_cache,
    v_cache,
    req_to_token,
    req_pool_indices,
    seq_lens,
    encoder_lens=None,
    scaling=None,
    **kwargs,
):
    """SGLang's decode loop, under the same terms as `_extend`."""
    args = (query, output, k_cache, v_cache, req_to_token, req_pool_indices, seq_lens)
    if not _is_plain(encoder_lens, kwargs):
        return original(backend, *args, encoder_lens, scaling, **kwargs)
    _run(*args, [1] * len(seq_lens), _scale(query, scaling))
    return output
