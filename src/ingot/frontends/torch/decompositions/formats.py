"""Memory formats of results as torch's kernels produce them, where its decompositions and meta functions do not.

    avg_pool2d_backward(grad, x)   ->   contiguous(avg_pool2d_backward(grad, x), memory_format=that of x)

Values are the same, but a functional graph's results must have the traced strides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch._prims_common import suggest_memory_format

_aten = torch.ops.aten


def in_format_of(place: int, composition: Callable[..., Any]) -> Callable[..., Any]:
    """`composition`, whose result gets the memory format of the argument at position `place`."""

    def formatted(*args: Any, **kwargs: Any) -> Any:
        result = composition(*args, **kwargs)
        return (
            result if result is NotImplemented else result.contiguous(memory_format=suggest_memory_format(args[place]))
        )

    return formatted


def _in_own_format(op: torch._ops.OpOverload) -> Callable[..., Any]:
    """The op itself, whose result gets the memory format of its first argument."""

    def formatted(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        memory_format = suggest_memory_format(x)
        if memory_format is torch.contiguous_format:
            return NotImplemented
        return op(x.contiguous(), *args, **kwargs).contiguous(memory_format=memory_format)

    return formatted


def _channel_shuffle(x: Tensor, groups: int) -> Any:
    """Channels-last inputs give channels-last results."""
    if suggest_memory_format(x) is torch.contiguous_format:
        return NotImplemented
    shuffled = x.movedim(1, -1).unflatten(-1, (groups, -1)).transpose(-1, -2).flatten(-2)
    return shuffled.movedim(-1, 1)


_roll_in_own_format = _in_own_format(_aten.roll.default)


def _roll(x: Tensor, shifts: Any, dims: Any = ()) -> Any:
    """Along axes in the input's format; of the elements in a row, row by row."""
    if dims or suggest_memory_format(x) is torch.contiguous_format:
        return _roll_in_own_format(x, shifts, dims)
    return _aten.roll.default(x.contiguous(), shifts)


def _unique_consecutive(x: Tensor, inverse: bool = False, counts: bool = False, dim: int | None = None) -> Any:
    """Along an axis counted from the front: torch's own rule for sizes takes no other."""
    if dim is None or dim >= 0:
        return NotImplemented
    return _aten.unique_consecutive.default(x, inverse, counts, dim + x.dim())


def _of_packed(op: torch._ops.OpOverload) -> Callable[..., Any]:
    """The op, which makes its result contiguous or channels-last even for other strides of its first argument."""

    def packed(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        memory_format = suggest_memory_format(x)
        if x.is_contiguous(memory_format=memory_format):
            return NotImplemented
        return op(x.contiguous(memory_format=memory_format), *args, **kwargs)

    return packed


def of_torch(op: torch._ops.OpOverload) -> Callable[..., Any]:
    return get_decompositions([op])[op]


FORMATS: dict[Any, Callable[..., Any]] = {
    _aten.reflection_pad3d.default: _in_own_format(_aten.reflection_pad3d.default),
    _aten.replication_pad3d.default: _in_own_format(_aten.replication_pad3d.default),
    _aten.channel_shuffle.default: _channel_shuffle,
    _aten.roll.default: _roll,
    _aten.unique_consecutive.default: _unique_consecutive,
    _aten._native_batch_norm_legit_no_training.default: _of_packed(_aten._native_batch_norm_legit_no_training.default),
    _aten.max_unpool2d.default: in_format_of(0, of_torch(_aten.max_unpool2d.default)),
    _aten.glu_backward.default: lambda *args: of_torch(_aten.glu_backward.default)(*args).contiguous(),
}
