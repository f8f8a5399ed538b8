"""Keeps ops whole while torch traces that torch decomposes above autograd.

Recurrences: torch's rule for `aten.lstm`, `gru` and `rnn` runs the recurrence step by step even to infer the shape of
its result, which takes seconds and fixes the length of the sequence. The rules here infer only the shape.

Resizes: torch decomposes them into gathers, whose gradients would be scatters. Those of images of static sizes are kept
whole, with torch's gradients, which are ops, too.

Attention on GPUs: torch has fused kernels only for masks whose last axis is contiguous. An expanded mask, as
transformers makes them, would be decomposed into float32 products and a softmax: it is copied first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._decomp import decomposition_table
from torch._decomp.decompositions import upsample_compute_output_size

from ingot.frontends.torch.tracing.switch import Switch

_aten = torch.ops.aten
_COMPOSITE = DispatchKey.CompositeImplicitAutograd
_KEYS = (_COMPOSITE, DispatchKey.Autograd)
_attention = _aten.scaled_dot_product_attention.default
_NEED_CONTIGUOUS_MASKS = {"cuda"}  # devices whose fused kernels do
_RESIZES = (
    _aten.upsample_nearest1d, _aten.upsample_nearest2d, _aten.upsample_nearest3d, _aten._upsample_nearest_exact1d,
    _aten._upsample_nearest_exact2d, _aten._upsample_nearest_exact3d, _aten.upsample_linear1d,
    _aten.upsample_bilinear2d, _aten.upsample_trilinear3d, _aten.upsample_bicubic2d, _aten._upsample_bilinear2d_aa,
    _aten._upsample_bicubic2d_aa,
)  # fmt: skip


def _output(x: Tensor, hidden: Tensor, bidirectional: bool) -> Tensor:
    return x.new_empty((*x.shape[:-1], hidden.shape[-1] * (2 if bidirectional else 1)))


def _lstm(x: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor], has_biases: bool, num_layers: int, dropout: float,
          train: bool, bidirectional: bool, batch_first: bool) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return _output(x, hx[0], bidirectional), torch.empty_like(hx[0]), torch.empty_like(hx[1])


def _simple(x: Tensor, hx: Tensor, params: Sequence[Tensor], has_biases: bool, num_layers: int, dropout: float,
            train: bool, bidirectional: bool, batch_first: bool) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _output(x, hx, bidirectional), torch.empty_like(hx)


_RULES: tuple[tuple[torch._ops.OpOverload, Callable[..., Any]], ...] = (
    (_aten.lstm.input, _lstm),
    (_aten.gru.input, _simple),
    (_aten.rnn_tanh.input, _simple),
    (_aten.rnn_relu.input, _simple),
)


def _install() -> None:
    """Register the rules before torch's own, for tracing: only Python's dispatcher uses them."""
    for op, rule in _RULES:
        for key in _KEYS:
            op.py_kernels[key] = _with_rule(rule, op.py_kernels[key])
        # it takes precedence for tensors of symbolic sizes when a program is decomposed
        if op in decomposition_table:
            decomposition_table[op] = _with_rule(rule, decomposition_table[op])
        op._dispatch_cache.clear()


def _with_rule(rule: Callable[..., Any], torchs: Callable[..., Any]) -> Callable[..., Any]:
    def select(*args: Any, **kwargs: Any) -> Any:
        return (rule if whole_recurrences.on else torchs)(*args, **kwargs)

    return select


# within it, tracing records recurrent ops whole; eager execution is unaffected
whole_recurrences = Switch("ingot_whole_recurrences", _install)


def _by_factors(op: Any) -> Callable[..., Tensor]:
    """The overload that takes scale factors, as a call of the one that takes sizes and scales."""

    def resize(x: Tensor, size: Sequence[int] | None, *corners_and_factors: Any) -> Tensor:
        *corners, factors = corners_and_factors
        sizes = upsample_compute_output_size(x.size(), size, factors)
        assert sizes is not None
        return op.default(x, sizes, *corners, *(factors or [None] * len(sizes)))

    return resize


def _by_sizes(op: Any) -> Callable[..., Tensor]:
    """The op by torch's autograd kernel instead of its Python decomposition."""

    def resize(*args: Any, **kwargs: Any) -> Tensor:
        with torch._C._DisablePythonDispatcher():
            return op.default(*args, **kwargs)

    return resize


def _install_resizes() -> None:
    for op in _RESIZES:
        for overload, resize in ((op.vec, _by_factors(op)), (op.default, _by_sizes(op))):
            for key in (k for k in _KEYS if k in overload.py_kernels):
                overload.py_kernels[key] = _whole_or(resize, overload.py_kernels[key])
            overload._dispatch_cache.clear()


def _whole_or(whole_op: Callable[..., Tensor], composed: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def select(x: Tensor, size: Sequence[int] | None, *args: Any, **kwargs: Any) -> Tensor:
        is_static = all(isinstance(n, int) for n in (*x.shape[2:], *(size or ())))
        return (whole_op if whole_resizes.on and is_static else composed)(x, size, *args, **kwargs)

    return select


# within it, tracing records resizes of images of static sizes whole
whole_resizes = Switch("ingot_whole_resizes", _install_resizes)


def _install_attention() -> None:
    _attention.py_impl(_COMPOSITE)(_with_contiguous_mask)


def _with_contiguous_mask(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *args: Any, **kwargs: Any
) -> Tensor:
    if whole_attention.on and attn_mask is not None and query.device.type in _NEED_CONTIGUOUS_MASKS:
        attn_mask = attn_mask if attn_mask.stride(-1) == 1 else attn_mask.contiguous()
    return _attention._op_dk(_COMPOSITE, query, key, value, attn_mask, *args, **kwargs)


# within it, traced attention with an expanded mask on a GPU stays one op
whole_attention = Switch("ingot_whole_attention", _install_attention)
