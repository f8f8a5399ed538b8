"""Scaled dot-product attention: the ops of PyTorch that compute it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
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
from ingot.ir.types import DType, u64
from ingot.ops import sampling

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
        op = ops.AttentionWithSums(attention.causal, attention.scale, dropout=dropout)
        result = op(*operands, _seed(c, u64)).results[0]
    else:
        result = attention(*operands)
    return reshape(result, (*lead, *result.shape[-2:])) if len(lead) != 2 else result


def _seed(c: Context, dtype: DType) -> Node:
    """A seed of dropout, fresh in each call."""
    key = c.key()
    return cast(sampling.join_words(ops.index_axis(key, 0, 0), ops.index_axis(key, 0, 1)), dtype)


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


def _with_sums(
    c: Context, q: Node, k: Node, v: Node, bias: Node | None, dropout: float, causal: bool, scale: float | None
) -> tuple[Node, Node | None, Node | None]:
    """The result, the logarithms of the sums of exponentials and the seed of dropout, as torch returns them on GPUs."""
    sums = next((t for t in c.results[1:2] if product(t.shape) != 0), None)
    if sums is None:
        return attend(c, q, k, v, bias, dropout, causal, scale), None, None
    op, operands = _attention(c, q, k, v, bias, causal, scale)
    seed = _seed(c, c.results[2].dtype) if dropout else None
    result, own_sums = ops.AttentionWithSums(op.causal, op.scale, dropout=dropout)(
        *operands, *(() if seed is None else (seed,))
    ).results
    padding = 0 if len(sums.shape) == 4 else sums.shape[2] - own_sums.shape[2]  # one kernel has 32 rows at a time
    own_sums = reshape(ops.pad(own_sums, (0, 0, 0), (0, 0, padding)), sums.shape)
    return result, own_sums, None if seed is None else expand(seed, c.results[2].shape)


@aten("_scaled_dot_product_flash_attention.default", "_scaled_dot_product_cudnn_attention.default", by_name=True)
def attention_with_sums(
    c: Context, q: Node, k: Node, v: Node, *, attn_bias: Node | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, **unused: object,
) -> tuple[Node | None, ...]:  # fmt: skip
    result, sums, seed = _with_sums(c, q, k, v, attn_bias, dropout_p, is_causal, scale)
    return result, sums, *(None,) * 4, seed, *(None,) * 2


@aten("_scaled_dot_product_efficient_attention.default", by_name=True)
def efficient_attention(
    c: Context, q: Node, k: Node, v: Node, *, attn_bias: Node | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, **unused: object,
) -> tuple[Node | None, ...]:  # fmt: skip
    return *_with_sums(c, q, k, v, attn_bias, dropout_p, is_causal, scale), None


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
    c: Context, grad: Node, q: Node, k: Node, v: Node, *, out: Node, logsumexp: Node, philox_seed: Node,
    dropout_p: float = 0.0, is_causal: bool = False, attn_bias: Node | None = None,
    grad_input_mask: Sequence[bool] = (), scale: float | None = None, **unused: object,
) -> tuple[Node | None, ...]:  # fmt: skip
    """The gradients of q, k and v, and of the bias where it is wanted."""
    attention, operands = _attention(c, q, k, v, attn_bias, is_causal, scale)
    sums = reshape(logsumexp, logsumexp.shape[:3])
    sums = ops.slice_axis(sums, 2, 0, q.shape[2])
    seed = ()
    if dropout_p:
        seed = (ops.index_axis(philox_seed, 0, 0) if philox_seed.type.rank else philox_seed,)
    op = ops.AttentionGradients(attention.causal, attention.scale, dropout=dropout_p)
    inputs = *operands[:3], grad, out, sums, *operands[3:], *seed
    gradients = op(*inputs).results
    if attn_bias is None or not any(grad_input_mask[3:]):
        return *gradients, None
    return *gradients, reshape(
        ops.AttentionMaskGradient(op.causal, op.scale, dropout=op.dropout)(*inputs), attn_bias.shape
    )
