"""Scaled dot-product attention: the ops of PyTorch that compute it."""

from __future__ import annotations

import math

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.torch.aten.random import dropped
from ingot.frontends.torch.aten.shape import reshape
from ingot.frontends.torch.table import Table
from ingot.frontends.torch.values import (
    Context,
    Number,
    Operand,
    boolean,
    cast,
    expand,
    node_of,
    with_size,
)
from ingot.ir.dims import Dim, DimLike, product
from ingot.ir.node import Node

aten = Table()


def _four(x: Node) -> Node:
    """(..., heads, length, width) with everything before the heads merged into one batch axis."""
    if x.type.rank == 3:
        return reshape(x, (x.shape[0], 1, *x.shape[1:]))
    if x.type.rank == 2:
        return reshape(x, (1, 1, *x.shape))
    return reshape(x, (product(x.shape[:-3]), *x.shape[-3:]))


def _four_mask(mask: Node, lead: tuple[DimLike, ...]) -> Node:
    """The mask as (batch or 1, heads or 1, queries, keys); `lead` are q's axes before the last two."""
    shape = (*((1,) * (len(lead) + 2 - mask.type.rank)), *mask.shape)
    mask = reshape(mask, shape)
    leading = shape[:-2]
    if len(lead) <= 2:
        batch, heads = (leading[0], 1) if len(lead) == 1 else leading if len(lead) == 2 else (1, 1)
        return reshape(mask, (batch, heads, *shape[-2:]))
    if any(d != 1 for d in leading[:-1]):
        mask = expand(mask, (*lead[:-1], *shape[-3:]))
    return reshape(mask, (product(mask.shape[:-3]), *mask.shape[-3:]))


def attend(
    c: Context, q: Node, k: Node, v: Node, mask: Node | None, dropout: float, causal: bool, scale: Operand | None
) -> Node:
    if isinstance(q.shape[-1], Dim) and scale is None:
        raise Unsupported(f"a head of symbolic width {q.shape[-1]} without an explicit scale")
    if isinstance(scale, Number | Dim | Node):
        # a scale known only at run time is multiplied into q
        q = ops.Mul()(q, expand(node_of(scale, q.dtype), q.shape))
        scale = 1.0
    lead = q.shape[:-2]
    attention, operands = _attention(c, q, k, v, mask, causal, scale)
    if dropout:
        q4, k4, v4, *masks = operands
        weights = dropped(c, attention.weights(q4, k4, *masks), dropout)
        # the queries that share keys are stacked
        rows = ops.reshape(weights, (q4.shape[0], k4.shape[1], -1, k4.shape[2]))
        result = reshape(ops.MatMul()(rows, v4), (*q4.shape[:3], v4.shape[3]))
    else:
        result = attention(*operands)
    return reshape(result, (*lead, *result.shape[-2:])) if len(lead) != 2 else result


def _attention(
    c: Context, q: Node, k: Node, v: Node, mask: Node | None, causal: bool, scale: float | None
) -> tuple[ops.Attention, list[Node]]:
    """The op and its operands, each (batch, heads, length, width)."""
    factor = float(scale) if scale is not None else 1 / math.sqrt(q.shape[-1])
    q4, k4, v4 = _four(q), _four(k), _four(v)
    batch = next((t.shape[0] for t in (q4, k4, v4) if t.shape[0] != 1), 1)
    q4, k4, v4 = (expand(t, (batch, *t.shape[1:])) for t in (q4, k4, v4))
    operands = [q4, k4, with_size(c, v4, 2, k4.shape[2])]
    if mask is not None:
        if mask.dtype != boolean:
            mask = cast(mask, q.dtype)
        operands.append(_four_mask(mask, q.shape[:-2]))
    return ops.Attention("upper_left" if causal else "none", factor, 0.0), operands


@aten(
    "scaled_dot_product_attention.default", "_scaled_dot_product_attention_math.default",
    "_scaled_dot_product_attention_math_for_mps.default", "_scaled_dot_product_flash_attention_for_cpu.default",
    by_name=True,
)  # fmt: skip
def attention(
    c: Context, q: Node, k: Node, v: Node, *, attn_mask: Node | None = None, attn_bias: Node | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: Operand | None = None, **unused: object,
) -> Node | tuple[Node | None, ...]:  # fmt: skip
    """The result, followed by None for the values that other kernels save for their gradients."""
    result = attend(c, q, k, v, attn_bias if attn_mask is None else attn_mask, dropout_p, is_causal, scale)
    return (result, *((None,) * 8)) if len(c.results) > 1 else result


@aten(
    "_scaled_dot_product_flash_attention.default", "_scaled_dot_product_efficient_attention.default",
    "_scaled_dot_product_cudnn_attention.default", by_name=True,
)  # fmt: skip
def attention_with_sums(
    c: Context, q: Node, k: Node, v: Node, *, attn_bias: Node | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, **unused: object,
) -> tuple[Node | None, ...]:  # fmt: skip
    """The result and the logarithms of the sums of exponentials, as torch returns them on GPUs."""
    sums = next((t for t in c.results[1:2] if product(t.shape) != 0), None)
    if dropout_p or sums is None:
        result = attend(c, q, k, v, attn_bias, dropout_p, is_causal, scale)
        return (result, *(None,) * 8)
    op, operands = _attention(c, q, k, v, attn_bias, is_causal, scale)
    result, own_sums = ops.AttentionWithSums(op.causal, op.scale)(*operands).results
    padding = 0 if len(sums.shape) == 4 else sums.shape[2] - own_sums.shape[2]  # one kernel has 32 rows at a time
    return result, reshape(ops.pad(own_sums, (0, 0, 0), (0, 0, padding)), sums.shape), *(None,) * 7


@aten("_scaled_dot_product_flash_attention_for_cpu_backward.default", by_name=True)
def flash_for_cpu_backward(
    c: Context, grad: Node, q: Node, k: Node, v: Node, *, is_causal: bool = False, attn_mask: Node | None = None,
    scale: float | None = None, **unused: object,
) -> tuple[Node | None, ...]:  # fmt: skip
    """Gradients, each (batch, heads, length, width); scores are recomputed, so the forward pass's sums are not read."""
    op, operands = _attention(c, q, k, v, attn_mask, is_causal, scale)
    return ops.AttentionGradients(op.causal, op.scale)(*operands[:3], grad, *operands[3:]).results


@aten(
    "_scaled_dot_product_flash_attention_backward.default", "_scaled_dot_product_efficient_attention_backward.default",
    "_scaled_dot_product_cudnn_attention_backward.default", by_name=True,
)  # fmt: skip
def backward_of_sums(
    c: Context, grad: Node, q: Node, k: Node, v: Node, *, out: Node, logsumexp: Node, is_causal: bool = False,
    attn_bias: Node | None = None, scale: float | None = None, **unused: object,
) -> tuple[Node | None, ...]:  # fmt: skip
    """The gradients of q, k and v; calls with dropout or a trained bias are decomposed instead."""
    op, operands = _attention(c, q, k, v, attn_bias, is_causal, scale)
    sums = reshape(logsumexp, logsumexp.shape[:3])
    sums = ops.slice_axis(sums, 2, 0, q.shape[2])
    gradients = ops.AttentionGradients(op.causal, op.scale)(*operands[:3], grad, out, sums, *operands[3:])
    return (*gradients.results, None)
