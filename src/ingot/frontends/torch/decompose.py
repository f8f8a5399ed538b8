"""Decompositions: torch's, except for ops that Ingot has handlers for, and further ones that torch lacks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from typing import Any

import sympy
import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch.export import ExportedProgram, default_decompositions
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from ingot.frontends.torch.aten import ATEN, KNOWN
from ingot.frontends.torch.aten.complex import takes_complex
from ingot.frontends.torch.decompositions import composed, histograms, segments
from ingot.frontends.torch.decompositions.backward import BACKWARD
from ingot.frontends.torch.decompositions.formats import FORMATS
from ingot.frontends.torch.decompositions.fused_attention import FUSED
from ingot.frontends.torch.tracing.guards import noted_equalities
from ingot.frontends.torch.tracing.inplace import destination
from ingot.frontends.torch.tracing.whole_ops import whole_recurrences


def decomposed(
    program: ExportedProgram, refused: Collection[str] = ()
) -> tuple[ExportedProgram, Sequence[sympy.Basic]]:
    """`program` functionalized: writes become values, autocast regions casts, unknown composites core aten.

    Every op that has a handler stays whole: composite ops are imported as such, which is faster.
    refused: names of ops whose handlers refuse their use in this program; torch's decomposition is tried instead.

    Also returns the new program's assumptions on sizes.
    """
    table = default_decompositions()
    for op in list(table.keys()):
        if isinstance(op, torch._ops.OpOverload) and op_name(op) in KNOWN and op_name(op) not in refused:
            table.pop(op)
    table.update(DECOMPOSITIONS)
    with whole_recurrences(), noted_equalities() as assumed:
        _stop_gradients(program)
        return program.run_decompositions(table), assumed


def _stop_gradients(program: torch.export.ExportedProgram) -> None:
    """no_grad: f(x)   ->   no_grad: f(detach(x)), as regions are inlined. The region's inputs are detached, not its
    results: it may write to part of a buffer, or to a parameter, which then has gradients of its own."""
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            if node.target is not torch.ops.higher_order.wrap_with_set_grad_enabled or node.args[0]:
                continue
            body = module.get_submodule(node.args[1].target)
            assert isinstance(body, torch.fx.GraphModule)
            inputs = [n for n in body.graph.nodes if n.op == "placeholder"]
            end = next(n for n in body.graph.nodes if n.op == "output")
            end.args = torch.fx.map_arg(end.args, destination)
            for x in (n for n in inputs if isinstance(n.meta.get("val"), torch.Tensor)):
                with body.graph.inserting_after(inputs[-1]):
                    detached = body.graph.call_function(torch.ops.aten.detach.default, (x,))
                detached.meta = dict(x.meta)
                x.replace_all_uses_with(detached, lambda user, detached=detached, end=end: user not in (detached, end))
            body.recompile()


def op_name(op: torch._ops.OpOverload) -> str:
    """`aten.relu.default`, as the tables write it."""
    return f"{op._schema.name.replace('::', '.')}.{op._overloadname}"


def without_handled(table: Mapping[Any, Callable[..., Any]]) -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """`table` without the ops that have a handler, plus `DECOMPOSITIONS`. An op whose handler takes real tensors only
    is decomposed on complex ones."""
    rest = {op: f for op, f in table.items() if isinstance(op, torch._ops.OpOverload)}
    of_complex = {
        op: _if_complex(f) for op, f in rest.items() if op_name(op) in ATEN and not takes_complex(op_name(op))
    }
    return {op: f for op, f in rest.items() if op_name(op) not in KNOWN} | of_complex | DECOMPOSITIONS


def _if_complex(decompose: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(decompose)
    def decomposed_if_complex(*args: Any, **named: Any) -> Any:
        values = tree_leaves((args, named))
        is_complex = any(isinstance(v, Tensor) and v.is_complex() for v in values)
        return decompose(*args, **named) if is_complex else NotImplemented  # which leaves the op whole

    return decomposed_if_complex


def _attention(
    query: Tensor, key: Tensor, value: Tensor, embed_dim: int, num_head: int, qkv_weight: Tensor, qkv_bias: Tensor,
    proj_weight: Tensor, proj_bias: Tensor, mask: Tensor | None = None, need_weights: bool = True,
    average_attn_weights: bool = True, mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """nn.MultiheadAttention's fast path. The mask is True where a key is ignored; mask_type 0: (queries, keys),
    1: (batch, keys), 2: (batch, heads, queries, keys)."""
    weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
    q, k, v = (
        F.linear(x, w, b).unflatten(-1, (num_head, embed_dim // num_head)).transpose(1, 2)
        for x, w, b in zip((query, key, value), weights, biases, strict=True)
    )
    is_visible = None if mask is None else ~mask.bool()
    if is_visible is not None and mask_type == 1:
        is_visible = is_visible[:, None, None, :]
    heads = F.scaled_dot_product_attention(q, k, v, is_visible)
    projected = F.linear(heads.transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights:
        return projected, None
    scores = q @ k.transpose(-1, -2) * (embed_dim // num_head) ** -0.5
    p = (scores if is_visible is None else scores.masked_fill(~is_visible, float("-inf"))).softmax(-1)
    return projected, p.mean(1) if average_attn_weights else p


def _encoder_layer(
    src: Tensor, embed_dim: int, num_heads: int, qkv_weight: Tensor, qkv_bias: Tensor, proj_weight: Tensor,
    proj_bias: Tensor, use_gelu: bool, norm_first: bool, eps: float, norm_weight_1: Tensor, norm_bias_1: Tensor,
    norm_weight_2: Tensor, norm_bias_2: Tensor, ffn_weight_1: Tensor, ffn_bias_1: Tensor, ffn_weight_2: Tensor,
    ffn_bias_2: Tensor, mask: Tensor | None = None, mask_type: int | None = None,
) -> Tensor:  # fmt: skip
    """nn.TransformerEncoderLayer's fast path."""

    def attended(x: Tensor) -> Tensor:
        projected, _ = _attention(
            x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False, True, mask_type
        )
        return projected

    def fed(x: Tensor) -> Tensor:
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(hidden) if use_gelu else F.relu(hidden), ffn_weight_2, ffn_bias_2)

    def norm_1(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = src + attended(norm_1(src))
        return x + fed(norm_2(x))
    x = norm_1(src + attended(src))
    return norm_2(x + fed(x))


def _trilinear(
    i1: Tensor, i2: Tensor, i3: Tensor, expand1: Sequence[int], expand2: Sequence[int], expand3: Sequence[int],
    sumdim: Sequence[int], unroll_dim: int = 1,
) -> Tensor:  # fmt: skip
    """nn.Bilinear's product of three tensors, summed."""
    parts = [i1, i2, i3]
    for n, axes in enumerate((expand1, expand2, expand3)):
        for axis in sorted(axes):
            parts[n] = parts[n].unsqueeze(axis)
    return (parts[0] * parts[1] * parts[2]).sum(list(sumdim), dtype=i1.dtype)


def _fake_quantized(
    x: Tensor, scale: Tensor | float, zero: Tensor | float, low: int, high: int
) -> tuple[Tensor, Tensor]:
    """(x rounded to the grid of `scale`, a mask of the elements within the grid's range)."""
    step = torch.round(x * (1 / scale)) + zero
    return (step.clamp(low, high) - zero) * scale, (step >= low) & (step <= high)


def _fake_quantized_by_channel(
    x: Tensor, scale: Tensor, zero: Tensor, axis: int, low: int, high: int
) -> tuple[Tensor, Tensor]:
    shape = [-1 if i == axis else 1 for i in range(x.dim())]
    return _fake_quantized(x, scale.view(shape), zero.view(shape), low, high)


_aten = torch.ops.aten
# ops for which torch has no decomposition
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    _aten._native_multi_head_attention.default: _attention,
    _aten._transformer_encoder_layer_fwd.default: _encoder_layer,
    _aten._trilinear.default: _trilinear,
    _aten.logcumsumexp.default: composed.logcumsumexp,
    _aten.mode.default: composed.mode,
    _aten.nanmedian.default: composed.nanmedian_of_all,
    _aten.nanmedian.dim: composed.nanmedian,
    _aten.nonzero_static.default: composed.nonzero_static,
    _aten.put.default: composed.put,
    _aten._pdist_forward.default: composed.pdist,
    _aten.fractional_max_pool2d.default: composed.fractional_max_pool,
    _aten.fractional_max_pool3d.default: composed.fractional_max_pool,
    _aten.hash_tensor.default: composed.hash_tensor,
    _aten.nextafter.default: composed.nextafter,
    _aten.frexp.Tensor: composed.frexp,
    _aten.segment_reduce.default: segments.segment_reduce,
    _aten.ldexp.Tensor: lambda x, other: x * torch.pow(2.0, other),
    _aten._linalg_det.default: composed.determinant,
    _aten._linalg_slogdet.default: composed.log_determinant,
    _aten.dist.default: lambda x, y, p=2: torch.linalg.vector_norm(x - y, p),
    # initial tangents of forward mode, batched
    _aten._new_zeros_with_same_feature_meta.default: lambda x, other, *, self_num_batch_dims=0: x.new_zeros(
        (*x.shape[:self_num_batch_dims], *other.shape)
    ),
    # training ops, which core aten keeps whole
    **get_decompositions(
        [
            _aten._batch_norm_with_update_functional,
            _aten.batch_norm_backward,
        ]
    ),
    _aten.embedding_renorm.default: composed.embedding_renorm,
    _aten.histogram.bins_tensor: histograms.histogram,
    _aten.histogram.bin_ct: histograms.histogram_of_count,
    _aten._histogramdd_bin_edges.default: histograms.edges_of_counts,
    _aten._histogramdd_from_bin_cts.default: histograms.histogramdd_of_counts,
    _aten._histogramdd_from_bin_tensors.default: histograms.histogramdd,
    _aten.fake_quantize_per_tensor_affine_cachemask.default: _fake_quantized,
    _aten.fake_quantize_per_channel_affine_cachemask.default: _fake_quantized_by_channel,
    **composed.each_alone(),
    **FORMATS,
    **BACKWARD,
    **FUSED,
}
