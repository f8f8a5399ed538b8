"""Convolutions of one position go before the resize that enlarges what they read.

    conv1x1(resize(x), w)   ->   resize(conv1x1(x, w))

Both are linear, one along channels and one along positions, so their order matters for rounding alone. Behind the
resize the convolution would run at all positions of the larger image.
"""

from __future__ import annotations

from dataclasses import replace

from ingot import ops
from ingot.ir.dims import estimate, product
from ingot.ir.node import Graph, Node
from ingot.ir.rewrite import Rule, RuleSet, rewrite


def resize_last(graph: Graph) -> Graph:
    """conv1x1(resize(x), w) -> resize(conv1x1(x, w))   where the resize enlarges and nothing else reads its result"""
    users = graph.uses()

    def swap(n: Node) -> Node | None:
        enlarged, w = n.inputs
        resize, conv = enlarged.op, n.op
        if not isinstance(resize, ops.Resize) or not isinstance(conv, ops.Conv) or not _is_pointwise(conv, w):
            return None
        (x,) = enlarged.inputs
        alone = len(users.get(enlarged, ())) == 1 and enlarged not in graph.outputs
        # integers are truncated behind a resize; a crop's outside is a value of its own
        linear = x.dtype.is_float and resize.coordinates != "tf_crop_and_resize"
        inside = _inside_images(resize, x)
        if inside is None or not (alone and linear and _positions(enlarged) > _positions(x)):
            return None
        return inside(conv(x, w, loc=n.loc), loc=enlarged.loc)

    return rewrite(graph, RuleSet((Rule("resize-last", ops.Conv, swap, lambda given: given[0] is ops.Resize),)))


def _is_pointwise(conv: ops.Conv, w: Node) -> bool:
    """Whether each output reads a single position, its own."""
    one = all(d == 1 for d in w.shape[2:]) and all(s == 1 for s in conv.strides)
    return one and not any(map(any, conv.padding))


def _inside_images(resize: ops.Resize, x: Node) -> ops.Resize | None:
    """The resize without batch and channels, if it leaves them as they are."""
    scales = resize.scales or (1.0,) * len(resize.axes)
    axes = list(zip(resize.axes, resize.sizes, scales, strict=True))
    if any(size != x.shape[axis] or scale != 1 for axis, size, scale in axes if axis < 2):
        return None
    kept = [i for i, axis in enumerate(resize.axes) if axis >= 2]
    return replace(
        resize,
        axes=tuple(resize.axes[i] for i in kept),
        sizes=tuple(resize.sizes[i] for i in kept),
        scales=None if resize.scales is None else tuple(resize.scales[i] for i in kept),
        roi=None,
    )


def _positions(x: Node) -> int:
    return estimate(product(x.shape[2:]))


__all__ = ["resize_last"]
