"""In which order a tensor's axes lie in memory, where torch lets the backend choose it or has it already.

An image, or what has an image's shape, that forward keeps for backward lies with its channels last, as Ingot's kernels
make and read it; one that is given so is read so. Results lie as PyTorch's do, gradients as what they are gradients of,
which autograd would else copy.

    f32[8,64,56,56] of strides (200704, 1, 3584, 64)   ->   an input f32[8,56,56,64], transposed
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat

import torch
from torch import fx
from torch._guards import TracingContext

Order = tuple[int, ...]  # the tensor's axes, from the outermost in memory on

_aten = torch.ops.aten
_OF_IMAGES = frozenset(
    (
        _aten.convolution,
        _aten._native_batch_norm_legit_functional,
        _aten._batch_norm_with_update_functional,
        _aten.max_pool2d_with_indices,
        _aten.avg_pool2d,
    )
)


def order_of(value: object) -> Order | None:
    """The order of a dense tensor of known size that does not lie row by row; None for all else."""
    if not isinstance(value, torch.Tensor) or value.is_complex() or not _known(value):
        return None
    strides = value.stride()
    order = tuple(sorted(range(value.dim()), key=lambda axis: (-strides[axis], axis)))
    step = 1
    for axis in reversed(order):
        if value.shape[axis] != 1 and strides[axis] != step:
            return None
        step *= value.shape[axis]
    return None if value.is_contiguous() or step == 0 else order


def result_orders(graph: fx.Graph) -> list[Order | None]:
    """Of each result: as PyTorch has it."""
    return [_own(result) for result in _results(graph)]


def kept_orders(graph: fx.Graph) -> list[Order | None]:
    """Of each result of a forward graph: channels last for images that only the backward graph reads, else as PyTorch
    has it.

    Tells AOTAutograd, which traced other strides.
    """
    results, context = _results(graph), TracingContext.try_get()
    if context is None or context.fw_metadata is None or context.output_strides is None:
        return result_orders(graph)
    kept, images = range(len(results))[context.fw_metadata.tensors_saved_for_backwards_slice], _images(graph)
    orders = [_last(r) if i in kept and r in images else _own(r) for i, r in enumerate(results)]
    context.output_strides += [_strides(r, o) for r, o in zip(results, orders, strict=True)]
    return orders


def gradient_orders(graph: fx.Graph, inputs: Sequence[object]) -> list[Order | None]:
    """Of each result of a backward graph: as the forward graph's input of its place lies."""
    pairs = zip(_results(graph), chain(inputs, repeat(None)), strict=False)
    return [order_of(x) if _alike(_value(result), x) else _own(result) for result, x in pairs]


def _alike(a: object, b: object) -> bool:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    return _known(a) and _known(b) and a.shape == b.shape


def _results(graph: fx.Graph) -> Sequence[object]:
    (end,) = graph.find_nodes(op="output")
    return end.args[0]


def _value(result: object) -> object:
    return result.meta.get("val") if isinstance(result, fx.Node) else None


def _own(result: object) -> Order | None:
    """None for inputs, which are passed on as they are."""
    return None if isinstance(result, fx.Node) and result.op == "placeholder" else order_of(_value(result))


def _last(node: object) -> Order:
    assert isinstance(node, fx.Node)
    return 0, *range(2, node.meta["val"].dim()), 1


def _strides(node: object, order: Order | None) -> tuple[int, ...] | None:
    if order is None or not isinstance(node, fx.Node):
        return None
    shape, steps, step = node.meta["val"].shape, dict[int, int](), 1
    for axis in reversed(order):
        steps[axis] = step
        step *= shape[axis]
    return tuple(steps[axis] for axis in range(len(order)))


def _images(graph: fx.Graph) -> set[object]:
    """Values of the shapes that convolutions, pools and batch norms make or read."""
    images = [n for n in graph.nodes if _is_image(n.meta.get("val"))]
    layers = [n for n in graph.nodes if getattr(n.target, "overloadpacket", None) in _OF_IMAGES]
    near = {n for layer in layers for n in (layer, layer.args[0], *layer.users)}
    shapes = {n.meta["val"].shape for n in images if n in near}
    return {n for n in images if n.op != "placeholder" and n.meta["val"].shape in shapes}


def _is_image(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() >= 3 and not value.is_complex() and _known(value)


def _known(value: torch.Tensor) -> bool:
    return all(isinstance(n, int) for n in (*value.shape, *value.stride()))
