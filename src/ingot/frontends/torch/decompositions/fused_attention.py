"""Training of torch's fused GPU attention: gradients, and dropout with one mask for both passes.

Without dropout both passes stay ops, and the sums of exponentials are saved. The query takes the place of the backward
op's random state, so that no state is saved. With dropout, torch saves a random state from which the backward op draws
the same mask; here the mask itself is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ingot.frontends.torch.decompositions.backward import attention_gradients, attention_weights

_aten = torch.ops.aten


def _forward(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, p: float, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    """(the result, a mask of the weights that dropout kept)"""
    key, value = _per_head(query, key, value)
    weights = attention_weights(query, key, bias, causal, scale)
    is_kept = torch.rand_like(weights) >= p
    result = torch.where(is_kept, weights / (1 - p), 0.0) @ value.to(weights.dtype)
    return result.to(query.dtype), is_kept


def _per_head(query: Tensor, *shared: Tensor) -> tuple[Tensor, ...]:
    """Keys or values that groups of heads share, repeated for each head."""
    return tuple(x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in shared)


def _backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, out: Tensor, is_kept: Tensor,
    p: float, causal: bool, scale: float | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The gradients of query, key, value and of the scores with their bias."""
    heads = key.shape[1]
    key, value = _per_head(query, key, value)
    factor = is_kept / (1 - p) if p else None
    of_query, of_key, of_value, of_scores = attention_gradients(
        grad, query, key, value, out, causal, bias, scale, factor
    )  # fmt: skip
    of_key, of_value = (x.unflatten(1, (heads, -1)).sum(2) for x in (of_key, of_value))
    return of_query, of_key, of_value, of_scores


def flash(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False,
    return_debug_mask: bool = False, *, scale: float | None = None,
) -> Any:  # fmt: skip
    return cudnn(query, key, value, None, False, dropout_p, is_causal, return_debug_mask, scale=scale)


def flash_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, cum_seq_q: Tensor,
    cum_seq_k: Tensor, max_q: int, max_k: int, dropout_p: float, is_causal: bool, is_kept: Tensor, offset: Tensor, *,
    scale: float | None = None,
) -> Any:  # fmt: skip
    if is_kept is query:
        return NotImplemented
    if not dropout_p:
        return _aten._scaled_dot_product_flash_attention_backward(
            grad, query, key, value, out, logsumexp, query, query, max_q, max_k, 0.0, is_causal, query, query,
            scale=scale,
        )  # fmt: skip
    return _backward(grad, query, key, value, None, out, is_kept, dropout_p, is_causal, scale)[:3]


def efficient(
    query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None, compute_log_sumexp: bool,
    dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
) -> Any:  # fmt: skip
    if not dropout_p:
        return NotImplemented
    result, is_kept = _forward(query, key, value, attn_bias, dropout_p, is_causal, scale)
    sums = query.new_empty(query.shape[:3], dtype=torch.float32)
    return result, sums, is_kept, query.new_empty(0, dtype=torch.int64)


def efficient_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None, out: Tensor,
    logsumexp: Tensor, is_kept: Tensor, offset: Tensor, dropout_p: float, output_mask: Sequence[bool],
    is_causal: bool = False, *, scale: float | None = None,
) -> Any:  # fmt: skip
    if is_kept is query:
        return NotImplemented
    if not dropout_p and (attn_bias is None or not output_mask[3]):
        return _aten._scaled_dot_product_efficient_attention_backward(
            grad, query, key, value, attn_bias, out, logsumexp, query, query, 0.0, output_mask, is_causal, scale=scale
        )
    *gradients, of_scores = _backward(grad, query, key, value, attn_bias, out, is_kept, dropout_p, is_causal, scale)
    if attn_bias is None or not output_mask[3]:
        return (*gradients, None)
    return (*gradients, of_scores.sum_to_size(attn_bias.shape).to(attn_bias.dtype))


def cudnn(
    query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None, compute_log_sumexp: bool,
    dropout_p: float = 0.0, is_causal: bool = False, return_debug_mask: bool = False, *, scale: float | None = None,
) -> Any:  # fmt: skip
    if not dropout_p:
        return NotImplemented  # kept as one op
    result, is_kept = _forward(query, key, value, attn_bias, dropout_p, is_causal, scale)
    lengths = query.new_empty(0, dtype=torch.int32)
    sums = query.new_empty(query.shape[:3], dtype=torch.float32)
    return result, sums, lengths, lengths, query.shape[2], key.shape[2], is_kept, lengths, lengths


def cudnn_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, is_kept: Tensor,
    offset: Tensor, attn_bias: Tensor | None, cum_seq_q: Tensor, cum_seq_k: Tensor, max_q: int, max_k: int,
    dropout_p: float, is_causal: bool, *, scale: float | None = None,
) -> Any:  # fmt: skip
    if is_kept is query:
        return NotImplemented
    if not dropout_p:
        return _aten._scaled_dot_product_cudnn_attention_backward(
            grad, query, key, value, out, logsumexp, query, query, attn_bias, query, query, max_q, max_k, 0.0,
            is_causal, scale=scale,
        )  # fmt: skip
    return _backward(grad, query, key, value, attn_bias, out, is_kept, dropout_p, is_causal, scale)[:3]


# by the op that they replace
FUSED: dict[Any, Callable[..., Any]] = {
    _aten._scaled_dot_product_flash_attention.default: flash,
    _aten._scaled_dot_product_flash_attention_backward.default: flash_backward,
    _aten._scaled_dot_product_efficient_attention.default: efficient,
    _aten._scaled_dot_product_efficient_attention_backward.default: efficient_backward,
    _aten._scaled_dot_product_cudnn_attention.default: cudnn,
    _aten._scaled_dot_product_cudnn_attention_backward.default: cudnn_backward,
}
