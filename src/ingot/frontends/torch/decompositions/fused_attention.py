"""Training of torch's fused GPU attention: what its backward ops read, so that no more is saved.

Both passes are ops. The forward pass gives the sums of exponentials, and with dropout the seed from which both draw the
same mask. The query takes the place of what is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten


def flash_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, cum_seq_q: Tensor,
    cum_seq_k: Tensor, max_q: int, max_k: int, dropout_p: float, is_causal: bool, seed: Tensor, offset: Tensor, *,
    scale: float | None = None,
) -> Any:  # fmt: skip
    if offset is query:
        return NotImplemented
    return _aten._scaled_dot_product_flash_attention_backward(
        grad, query, key, value, out, logsumexp, query, query, max_q, max_k, dropout_p, is_causal,
        seed if dropout_p else query, query, scale=scale,
    )  # fmt: skip


def efficient_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None, out: Tensor,
    logsumexp: Tensor, seed: Tensor, offset: Tensor, dropout_p: float, output_mask: Sequence[bool],
    is_causal: bool = False, *, scale: float | None = None,
) -> Any:  # fmt: skip
    if offset is query:
        return NotImplemented
    return _aten._scaled_dot_product_efficient_attention_backward(
        grad, query, key, value, attn_bias, out, logsumexp, seed if dropout_p else query, query, dropout_p,
        output_mask, is_causal, scale=scale,
    )  # fmt: skip


def cudnn_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, seed: Tensor,
    offset: Tensor, attn_bias: Tensor | None, cum_seq_q: Tensor, cum_seq_k: Tensor, max_q: int, max_k: int,
    dropout_p: float, is_causal: bool, *, scale: float | None = None,
) -> Any:  # fmt: skip
    if offset is query:
        return NotImplemented
    return _aten._scaled_dot_product_cudnn_attention_backward(
        grad, query, key, value, out, logsumexp, seed if dropout_p else query, query, attn_bias, query, query, max_q,
        max_k, dropout_p, is_causal, scale=scale,
    )  # fmt: skip


# by the op that they replace
FUSED: dict[Any, Callable[..., Any]] = {
    _aten._scaled_dot_product_flash_attention_backward.default: flash_backward,
    _aten._scaled_dot_product_efficient_attention_backward.default: efficient_backward,
    _aten._scaled_dot_product_cudnn_attention_backward.default: cudnn_backward,
}
