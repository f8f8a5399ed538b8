"""Gradient ops: formulas of elementwise ones, the reverse of their forward rows for those of windows and places."""

from __future__ import annotations

from collections.abc import Callable

from ingot import ops
from ingot.autodiff import pullback
from ingot.frontends.shared.composites.windows import static_sizes
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tensorflow.rows import image, index, norm, pool, shape, windows
from ingot.frontends.tensorflow.rows.algebra import contraction
from ingot.frontends.tensorflow.values import Call, Result, Table
from ingot.ir.dims import DimLike
from ingot.ir.node import Node, const
from ingot.ir.types import i32

row = Table()


def _is_positive(x: Node) -> Node:
    return ops.compare("GT", x, 0.0)


_SELU, _SELU_ALPHA = 1.0507009873554804934193349852946, 1.7580993408473768599402175208123
# of the gradient and of what the op's own gradient keeps: its operand (features) or its result
_SLOPES_BY_OPERAND: dict[str, Callable[[Node, Node], Node]] = {
    "ReluGrad": lambda g, x: ops.where(_is_positive(x), g, 0.0),
    "Relu6Grad": lambda g, x: ops.where(ops.and_(_is_positive(x), ops.compare("LT", x, 6.0)), g, 0.0),
    "EluGrad": lambda g, y: ops.where(ops.compare("LT", y, 0.0), ops.mul(ops.add(y, 1.0), g), g),
    "SeluGrad": lambda g, y: ops.where(
        ops.compare("LT", y, 0.0), ops.mul(ops.add(y, _SELU_ALPHA), g), ops.mul(g, _SELU)
    ),
    "SoftplusGrad": lambda g, x: ops.mul(g, ops.Logistic()(x)),
    "SoftsignGrad": lambda g, x: ops.div(g, _square(ops.add(ops.Abs()(x), 1.0))),
}
_SLOPES_BY_RESULT: dict[str, Callable[[Node, Node], Node]] = {
    "TanhGrad": lambda y, g: ops.mul(g, ops.sub(1.0, _square(y))),
    "SigmoidGrad": lambda y, g: ops.mul(g, ops.mul(y, ops.sub(1.0, y))),
    "SqrtGrad": lambda y, g: ops.div(ops.mul(g, 0.5), y),
    "RsqrtGrad": lambda y, g: ops.mul(ops.mul(g, -0.5), ops.mul(y, _square(y))),
    "ReciprocalGrad": lambda y, g: ops.Neg()(ops.mul(g, _square(y))),
    "InvGrad": lambda y, g: ops.Neg()(ops.mul(g, _square(y))),
}


def _square(x: Node) -> Node:
    return ops.mul(x, x)


@row(*_SLOPES_BY_OPERAND, *_SLOPES_BY_RESULT)
def elementwise(c: Call, a: Node, b: Node) -> Node:
    return (_SLOPES_BY_OPERAND.get(c.op) or _SLOPES_BY_RESULT[c.op])(a, b)


@row("LeakyReluGrad")
def leaky_relu(c: Call, g: Node, x: Node) -> Node:
    return ops.where(_is_positive(x), g, ops.mul(g, c.float("alpha", 0.2)))


@row("BiasAddGrad")
def bias(c: Call, g: Node) -> Node:
    return ops.reduce_sum(windows.channels_first(c, g), tuple(i for i in range(g.type.rank) if i != 1))


@row("BroadcastGradientArgs", results=("r0", "r1"))
def broadcast_arguments(c: Call, a: Node, b: Node) -> Result:
    """The axes along which each of two shapes is repeated."""
    shapes = [c.sizes(v) for v in (a, b)]
    rank = max(map(len, shapes))
    wide: list[tuple[DimLike, ...]] = [((1,) * (rank - len(s)) + s) for s in shapes]
    out: list[Node] = []
    for mine, other in (wide, wide[::-1]):
        axes = [i for i, (d, e) in enumerate(zip(mine, other, strict=True)) if d == 1 and (d, e) != (1, None)]
        out.append(const(axes, a.dtype.numpy))
    return out


@row("ConcatOffset")
def concat_offset(c: Call, axis: Node, *shapes: Node) -> Result:
    dim, total, out = c.axis(axis, len(c.sizes(shapes[0]))), ops.scalar(0, i32), list[Node]()
    for s in shapes:
        places = [total if i == dim else ops.scalar(0, i32) for i in range(len(c.sizes(s)))]
        out.append(ops.cast(ops.stack(places), s.dtype))
        total = ops.add(total, ops.scalar(c.sizes(s)[dim], i32))
    return out


@row("SoftmaxCrossEntropyWithLogits", results=("loss", "backprop"))
def cross_entropy(c: Call, x: Node, labels: Node) -> Result:
    logs = ops.LogSoftmax(1)(x)
    shape = ops.broadcast_shapes(x.shape, labels.shape)
    logs, labels = (ops.broadcast_to(v, shape) for v in (logs, labels))
    return [ops.Neg()(ops.reduce_sum(ops.mul(labels, logs), 1)), ops.sub(ops.Exp()(logs), labels)]


@row("SparseSoftmaxCrossEntropyWithLogits", results=("loss", "backprop"))
def sparse_cross_entropy(c: Call, x: Node, labels: Node) -> Result:
    """A label that there is not gives NaN."""
    classes = x.shape[1]
    logs, wide = ops.LogSoftmax(1)(x), ops.expand_dims(labels, 1)
    is_label = ops.compare("EQ", wide, ops.expand_dims(ops.arange(classes, labels.dtype), 0))
    is_valid = ops.and_(ops.compare("GE", wide, 0), ops.compare("LT", wide, ops.scalar(classes, labels.dtype)))
    loss = ops.Neg()(ops.reduce_sum(ops.where(is_label, logs, 0.0), 1))
    slope = ops.sub(ops.Exp()(logs), ops.cast(is_label, x.dtype))
    nan = float("nan")
    return [ops.where(ops.reshape(is_valid, labels.shape), loss, nan), ops.where(is_valid, slope, nan)]


@row("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3",
     results=("x_backprop", "scale_backprop", "offset_backprop", "reserve_space_3", "reserve_space_4"))  # fmt: skip
def batch_norm(c: Call, dy: Node, x: Node, scale: Node, mean: Node, variance: Node, *rest: Node) -> Result:
    """mean, variance: those that the forward op used."""
    dy, x = windows.channels_first(c, dy), ops.cast(windows.channels_first(c, x), scale.dtype)
    axes = tuple(i for i in range(x.type.rank) if i != 1)

    def wide(v: Node) -> Node:
        return ops.reshape(v, (-1, *(1,) * (x.type.rank - 2)))

    g = ops.cast(dy, scale.dtype)
    inverse = ops.Rsqrt()(ops.add(variance, c.float("epsilon", 1e-4)))
    normed = ops.mul(ops.sub(x, wide(mean)), wide(inverse))
    by_offset, by_scale = ops.reduce_sum(g, axes), ops.reduce_sum(ops.mul(g, normed), axes)
    if c.flag("is_training") or not c.has("is_training"):
        mean_g, mean_gx = (wide(ops.mean(v, axes)) for v in (g, ops.mul(g, normed)))
        g = ops.sub(ops.sub(g, mean_g), ops.mul(normed, mean_gx))
    by_x = windows.channels_as_given(c, ops.cast(ops.mul(g, wide(ops.mul(scale, inverse))), dy.dtype))
    empty = ops.full((0,), 0, scale.dtype)
    return [by_x, by_scale, by_offset, empty, empty]


# the reverse of forward rows


def _zeros_of(c: Call, sizes: Node, g: Node) -> Node:
    """Zeros of these sizes, for what a gradient does not depend on."""
    return ops.full(c.sizes(sizes), 0, g.dtype)


@row("Conv2DBackpropFilter", "Conv3DBackpropFilterV2", "DepthwiseConv2dNativeBackpropFilter")
def kernel(c: Call, x: Node, sizes: Node, g: Node) -> Node:
    of = contraction.depthwise if c.op.startswith("Depthwise") else contraction.conv
    return pullback(lambda w: of(c, x, w), _zeros_of(c, sizes, g), g)


@row("DepthwiseConv2dNativeBackpropInput")
def depthwise_operand(c: Call, sizes: Node, w: Node, g: Node) -> Node:
    return pullback(lambda x: contraction.depthwise(c, x, w), _zeros_of(c, sizes, g), g)


@row("MaxPoolGrad", "MaxPool3DGrad")
def max_pool(c: Call, x: Node, y: Node, g: Node) -> Node:
    return pullback(lambda v: pool.max_pool(c, v), x, g)


@row("AvgPoolGrad", "AvgPool3DGrad")
def avg_pool(c: Call, sizes: Node, g: Node) -> Node:
    return pullback(lambda v: pool.avg_pool(c, v), _zeros_of(c, sizes, g), g)


@row("ResizeBilinearGrad")
def resize_bilinear(c: Call, g: Node, x: Node) -> Node:
    size = const(static_sizes(g.shape[1:3], "an image"), i32.numpy)
    return pullback(lambda v: image.bilinear(c, v, size), ops.full(x.shape, 0, g.dtype), g)


@row("ResizeNearestNeighborGrad")
def resize_nearest(c: Call, g: Node, sizes: Node) -> Node:
    size = const(static_sizes(g.shape[1:3], "an image"), i32.numpy)
    x = ops.full((g.shape[0], *c.sizes(sizes), g.shape[3]), 0, g.dtype)
    return pullback(lambda v: image.nearest(c, v, size), x, g)


@row("MirrorPadGrad")
def mirror_pad(c: Call, g: Node, paddings: Node) -> Node:
    pairs = c.numbers(paddings)
    sizes = tuple(d - pairs[2 * i] - pairs[2 * i + 1] for i, d in enumerate(g.shape))
    return pullback(lambda v: shape.mirror_pad(c, v, paddings), ops.full(sizes, 0, g.dtype), g)


@row("StridedSliceGrad")
def strided_slice(c: Call, sizes: Node, begin: Node, end: Node, strides: Node, g: Node) -> Node:
    return pullback(lambda v: index.strided_slice(c, v, begin, end, strides), _zeros_of(c, sizes, g), g)


@row("LRNGrad")
def local_response(c: Call, g: Node, x: Node, y: Node) -> Node:
    return pullback(lambda v: norm.local_response(c, v), x, g)


@row("MaxPoolGradWithArgmax")
def max_pool_with_places(c: Call, x: Node, g: Node, places: Node) -> Node:
    """Adds each gradient at its place in the image, or in the batch."""
    batch = x.shape[0]
    if not c.flag("include_batch_in_index"):
        per = ops.scalar(x.type.size // batch if isinstance(batch, int) and batch else 1, places.dtype)
        if not isinstance(batch, int):
            raise Unsupported("of an open batch")
        first = ops.mul(ops.arange(batch, places.dtype), per)
        places = ops.add(places, ops.reshape(first, (-1, 1, 1, 1)))
    flat = ops.full((x.type.size,), 0, x.dtype)
    at, values = ops.reshape(places, (-1, 1)), ops.reshape(g, (-1,))
    return ops.reshape(ops.ScatterND("add")(flat, at, values), x.shape)
