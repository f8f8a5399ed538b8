"""The TFLite operators of each op."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ingot import ops
from ingot.exporters.tflite import resize
from ingot.exporters.tflite.emitter import CHANNELS_LAST, PLAIN, TO_FIRST, TO_LAST, Emitter, in_order, row, shape_of
from ingot.exporters.tflite.numbers import constant_of, grid_of, moved_levels
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir.node import Const, Node, Op, const
from ingot.runtime.dtypes import numpy_dtype

VALID_PADDING, SAME_PADDING = 1, 0
_UNARY: dict[type[Op], str] = {
    ops.Abs: "ABS", ops.Neg: "NEG", ops.Exp: "EXP", ops.Log: "LOG", ops.Sqrt: "SQRT", ops.Rsqrt: "RSQRT",
    ops.Sin: "SIN", ops.Cos: "COS", ops.Tanh: "TANH", ops.Logistic: "LOGISTIC", ops.Floor: "FLOOR", ops.Ceil: "CEIL",
    ops.RoundEven: "ROUND", ops.Sign: "SIGN", ops.Elu: "ELU", ops.Relu: "RELU", ops.HardSwish: "HARD_SWISH",
}  # fmt: skip
_BINARY: dict[type[Op], tuple[str, str]] = {
    ops.Add: ("ADD", "Add"), ops.Sub: ("SUB", "Sub"), ops.Mul: ("MUL", "Mul"), ops.Div: ("DIV", "Div"),
    ops.Max: ("MAXIMUM", ""), ops.Min: ("MINIMUM", ""), ops.Pow: ("POW", ""), ops.Atan2: ("ATAN2", ""),
}  # fmt: skip
_COMPARISONS = {
    "EQ": "EQUAL", "NE": "NOT_EQUAL", "LT": "LESS", "LE": "LESS_EQUAL", "GT": "GREATER", "GE": "GREATER_EQUAL",
}  # fmt: skip
_REDUCTIONS = {"sum": "SUM", "max": "REDUCE_MAX", "min": "REDUCE_MIN", "prod": "REDUCE_PROD"}


def _like(e: Emitter, n: Node, name: str, table: str = "", **options: object) -> tuple[int, str]:
    """A pointwise operator over all operands, with broadcasting."""
    plain = [x for x in n.inputs if not isinstance(x.op, Const | ops.BroadcastInDim)]
    order = e.order(*plain)
    inputs = [e.operand(x, order) for x in n.inputs]
    shape = in_order(order, shape_of(n))
    if all(e.model.tensors[i].shape != shape for i in inputs):  # all are broadcast: materialize one
        inputs[0] = e.get(n.inputs[0], order)
    return e.add(name, inputs, shape, table, node=n, dtype=str(n.dtype), options=options), order


@row(*_UNARY)
def unary(e: Emitter, n: Node) -> tuple[int, str]:
    return _like(e, n, _UNARY[type(n.op)])


@row(ops.LeakyRelu)
def leaky_relu(e: Emitter, n: Node) -> tuple[int, str]:
    assert isinstance(n.op, ops.LeakyRelu)
    return _like(e, n, "LEAKY_RELU", "LeakyRelu", alpha=n.op.alpha)


@row(ops.Gelu)
def gelu(e: Emitter, n: Node) -> tuple[int, str]:
    assert isinstance(n.op, ops.Gelu)
    return _like(e, n, "GELU", "Gelu", approximate=n.op.approximate == "tanh")


@row(*_BINARY)
def binary(e: Emitter, n: Node) -> tuple[int, str]:
    if n.dtype.kind == "b":
        raise Unsupported(f"of {n.dtype}")
    name, table = _BINARY[type(n.op)]
    if isinstance(n.op, ops.Max) and (operand := _bounded_operand(n, 0)) is not None:
        return _like_one(e, n, operand, "RELU")
    if isinstance(n.op, ops.Min) and (operand := _bounded_operand(n, 6)) is not None:
        x = operand.inputs[0] if isinstance(operand.op, ops.Relu) else _bounded_operand(operand, 0)
        if x is not None and isinstance(operand.op, ops.Relu | ops.Max):
            return _like_one(e, n, x, "RELU6")
    return _like(e, n, name, table)


def _bounded_operand(n: Node, bound: float) -> Node | None:
    """x of max(x, bound) or min(x, bound); None for another bound."""
    for x, other in (n.inputs, n.inputs[::-1]) if len(n.inputs) == 2 else ():
        if (value := _splat(other)) is not None and value == bound and n.dtype.is_float:
            return x
    return None


def _splat(n: Node) -> float | None:
    """The number that all elements of a constant equal; None for another node."""
    while isinstance(n.op, ops.BroadcastInDim):
        (n,) = n.inputs
    if not isinstance(n.op, Const) or not n.op.value.size:
        return None
    first = n.op.value.reshape(-1)[0]
    return float(first) if (n.op.value == first).all() else None


def _like_one(e: Emitter, n: Node, x: Node, name: str) -> tuple[int, str]:
    order = e.order(x)
    return e.add(name, [e.get(x, order)], in_order(order, shape_of(n)), node=n), order


@row(ops.Clamp)
def clamp(e: Emitter, n: Node) -> Node | tuple[int, str]:
    low, x, high = n.inputs
    bounds = _splat(low), _splat(high)
    if n.dtype.is_float and bounds == (0.0, 6.0):
        return _like_one(e, n, x, "RELU6")
    return ops.Min()(ops.Max()(x, low), high)


@row(ops.And, ops.Or)
def logical(e: Emitter, n: Node) -> tuple[int, str]:
    if str(n.dtype) != "bool":
        raise Unsupported(f"of {n.dtype}")
    return _like(e, n, "LOGICAL_AND" if isinstance(n.op, ops.And) else "LOGICAL_OR")


@row(ops.Not)
def logical_not(e: Emitter, n: Node) -> tuple[int, str]:
    if str(n.dtype) != "bool":
        raise Unsupported(f"of {n.dtype}")
    return _like(e, n, "LOGICAL_NOT")


@row(ops.Compare)
def compare(e: Emitter, n: Node) -> tuple[int, str]:
    assert isinstance(n.op, ops.Compare)
    return _like(e, n, _COMPARISONS[n.op.direction])


@row(ops.Select)
def select(e: Emitter, n: Node) -> tuple[int, str]:
    return _like(e, n, "SELECT_V2")


@row(ops.Convert)
def convert(e: Emitter, n: Node) -> tuple[int, str]:
    return _like(e, n, "CAST")


# --- shapes


@row(ops.Reshape)
def reshape(e: Emitter, n: Node) -> int:
    return e.reshape(e.get(n.inputs[0]), shape_of(n), n)


@row(ops.Transpose)
def transpose(e: Emitter, n: Node) -> int | tuple[int, str]:
    assert isinstance(n.op, ops.Transpose)
    permutation, (x,) = tuple(n.op.permutation), n.inputs
    # the result may exist already: a tensor in one order is the transpose of the other
    if permutation == TO_LAST:
        return e.get(x, CHANNELS_LAST)
    if permutation == TO_FIRST:
        return e.get(x), CHANNELS_LAST
    return e.transpose(e.get(x), permutation, n)


@row(ops.Concat)
def concat(e: Emitter, n: Node) -> tuple[int, str]:
    assert isinstance(n.op, ops.Concat)
    order = e.order(*n.inputs)
    axis = TO_LAST.index(n.op.dimension) if order else n.op.dimension
    inputs = [e.get(x, order) for x in n.inputs]
    return e.add("CONCATENATION", inputs, in_order(order, shape_of(n)), "Concatenation", {"axis": axis}, node=n), order


@row(ops.Slice)
def strided_slice(e: Emitter, n: Node) -> tuple[int, str]:
    assert isinstance(n.op, ops.Slice)
    order = e.order(n.inputs[0])
    parts = [in_order(order, tuple(int(str(v)) for v in values)) for values in (n.op.start, n.op.limit, n.op.strides)]
    inputs = [e.get(n.inputs[0], order), *(e.ints(*values) for values in parts)]
    return e.add("STRIDED_SLICE", inputs, in_order(order, shape_of(n)), "StridedSlice", node=n), order


@row(ops.Pad)
def pad(e: Emitter, n: Node) -> tuple[int, str]:
    assert isinstance(n.op, ops.Pad)
    low, high = (tuple(int(str(v)) for v in values) for values in (n.op.low, n.op.high))
    value = _splat(n.inputs[1])
    if any(n.op.interior) or min(*low, *high, 0) < 0 or value is None:
        raise Unsupported("with interior or negative padding")
    order = e.order(n.inputs[0])
    pairs = list(zip(in_order(order, low), in_order(order, high), strict=True))
    return _padded(e, e.get(n.inputs[0], order), pairs, value, n), order


def _padded(e: Emitter, i: int, pairs: Sequence[tuple[int, int]], value: float, n: Node | None = None) -> int:
    t = e.model.tensors[i]
    shape = tuple(size + low + high for size, (low, high) in zip(t.shape, pairs, strict=True))
    amounts = e.model.constant(np.array(pairs, np.int32).reshape(-1, 2))
    if value == 0:
        return e.add("PAD", [i, amounts], shape, node=n)
    return e.add("PADV2", [i, amounts, e.model.constant(np.array([value], numpy_dtype(t.dtype)))], shape, node=n)


@row(ops.Reverse)
def reverse(e: Emitter, n: Node) -> int:
    assert isinstance(n.op, ops.Reverse)
    i = e.get(n.inputs[0])
    for dim in n.op.dims:
        i = e.add("REVERSE_V2", [i, e.ints(dim)], shape_of(n))
    return i


@row(ops.Iota)
def iota(e: Emitter, n: Node) -> Node:
    return _constant(n)


def _constant(n: Node) -> Node:
    """The value of a node without operands, as a constant that an operator copies."""
    return ops.Reshape(n.type.shape)(const(n.op.reference()))


def places_within(e: Emitter, indices: Node, sizes: np.ndarray) -> int:
    """Indices; constant ones are made non-negative and clamped, as TFLite's kernels require."""
    value = constant_of(indices)
    if value is None:
        return e.get(indices)
    return e.model.constant(
        np.clip(np.where(value < 0, value + sizes, value), 0, sizes - 1).astype(value.dtype), indices.loc
    )


@row(ops.Take)
def take(e: Emitter, n: Node) -> int:
    assert isinstance(n.op, ops.Take)
    x, indices = n.inputs
    sizes = np.array(shape_of(x)[n.op.axis])
    return e.add(
        "GATHER", [e.get(x), places_within(e, indices, sizes)], shape_of(n), "Gather", {"axis": n.op.axis}, node=n
    )


# --- levels


@row(ops.Quantize)
def quantize(e: Emitter, n: Node) -> tuple[int, str]:
    x, grid = n.inputs[0], grid_of(n.inputs[2], n.inputs[1], n.dtype)
    if grid is None:
        raise Unsupported("by scales that are no constants, or several")
    order = e.order(x)
    i = e.add("QUANTIZE", [e.get(x, order)], in_order(order, shape_of(n)), node=n, dtype=str(n.dtype))
    e.model.tensors[i].quantization = grid
    return i, order


@row(ops.Dequantize)
def dequantize(e: Emitter, n: Node) -> tuple[int, str]:
    q, zero, scale = n.inputs
    grid = grid_of(zero, scale, q.dtype)
    if grid is None or str(q.dtype) not in ("i8", "u8", "i16", "u16"):
        raise Unsupported(f"of {q.type} by scales that are no constants, or several")
    order = e.order(q)
    i = e.get(q, order)
    quantization = e.model.tensors[i].quantization
    if quantization is not None and quantization != grid:
        raise Unsupported("by another scale than the levels were made with")
    e.model.tensors[i].quantization = grid
    return e.add("DEQUANTIZE", [i], in_order(order, shape_of(n)), node=n, dtype="f32"), order


# --- sums and products


@row(ops.Reduce)
def reduce(e: Emitter, n: Node) -> int:
    assert isinstance(n.op, ops.Reduce)
    kind = _REDUCTIONS.get(n.op.kind)
    if kind is None:
        raise Unsupported(f"of kind {n.op.kind}")
    return _reduced(e, n, n.inputs[0], n.op.dims, kind)


def _reduced(e: Emitter, n: Node, x: Node, dims: Sequence[int], kind: str) -> int:
    order = e.order(x)
    axes = sorted(TO_LAST.index(d) if order else d for d in dims)
    kept_axes = [d for d in range(x.type.rank) if d not in axes]
    if order and [TO_LAST[d] for d in kept_axes] != sorted(TO_LAST[d] for d in kept_axes):
        order, axes = PLAIN, sorted(dims)
    return e.add(kind, [e.get(x, order), e.ints(*axes)], shape_of(n), "Reducer", {"keep_dims": False}, node=n)


@row(ops.ArgReduce)
def arg_reduce(e: Emitter, n: Node) -> int:
    assert isinstance(n.op, ops.ArgReduce)
    if n.op.last or str(n.dtype) not in ("i32", "i64"):
        raise Unsupported("the last of equal elements")
    name, table = ("ARG_MAX", "ArgMax") if n.op.kind == "max" else ("ARG_MIN", "ArgMin")
    number = {"i32": 2, "i64": 4}[str(n.dtype)]
    inputs = [e.get(n.inputs[0]), e.ints(n.op.dim)]
    return e.add(name, inputs, shape_of(n), table, {"output_type": number}, node=n, dtype=str(n.dtype))


@row(ops.Softmax)
def softmax(e: Emitter, n: Node) -> Node | tuple[int, str]:
    assert isinstance(n.op, ops.Softmax)
    axis, rank, (x,) = n.op.axis % n.type.rank, n.type.rank, n.inputs
    if axis != rank - 1 and (rank, axis) != (4, 1):
        order = tuple(axis if d == rank - 1 else rank - 1 if d == axis else d for d in range(rank))
        return ops.Transpose(order)(ops.Softmax(rank - 1)(ops.Transpose(order)(x)))
    order = PLAIN if axis == rank - 1 else CHANNELS_LAST
    shape = in_order(order, shape_of(n))
    return e.add("SOFTMAX", [e.get(x, order)], shape, "Softmax", {"beta": 1.0}, node=n), order


@row(ops.MatMul)
def matmul(e: Emitter, n: Node) -> int | Node:
    a, b = n.inputs
    if not n.dtype.is_float or min(a.type.rank, b.type.rank) < 2:
        raise Unsupported(f"of {a.type} and {b.type}")
    if (w := constant_of(b)) is not None and b.type.rank == 2:
        return _fully_connected(e, n, a, e.weights(b, w.T, 0))
    return e.add("BATCH_MATMUL", [e.get(a), e.get(b)], shape_of(n), "BatchMatMul", node=n)


def _fully_connected(e: Emitter, n: Node, x: Node, weights: int) -> int:
    inputs = [e.get(x), weights, -1]
    return e.add("FULLY_CONNECTED", inputs, shape_of(n), "FullyConnected", {"keep_num_dims": x.type.rank > 2}, node=n)


@row(ops.DotGeneral)
def dot_general(e: Emitter, n: Node) -> Node:
    """Operands as [batch, free, contracted] and [batch, contracted, free]."""
    assert isinstance(n.op, ops.DotGeneral)
    if n.op.of_signs:
        raise Unsupported("of words of signs")
    a, b = n.inputs
    parts: list[Node] = []
    free: list[int] = []
    for side, x in enumerate((a, b)):
        batch, contract = n.op.batch[side], n.op.contract[side]
        free_axes = [d for d in range(x.type.rank) if d not in (*batch, *contract)]
        shape = shape_of(x)
        order = (*batch, *free_axes, *contract) if side == 0 else (*batch, *contract, *free_axes)
        sizes = [int(np.prod([shape[d] for d in dims], dtype=np.int64)) for dims in (batch, free_axes, contract)]
        flat = (sizes[0], sizes[1], sizes[2]) if side == 0 else (sizes[0], sizes[2], sizes[1])
        y = x if order == tuple(range(x.type.rank)) else ops.Transpose(order)(x)
        if sizes[0] == 1 and not batch:
            flat = flat[1:]
        if y is not x:
            y = moved_levels(ops.Transpose(order), x) or y
        z = ops.Reshape(flat)(y) if flat != shape_of(y) else y
        parts.append(moved_levels(ops.Reshape(flat), y) or _folded(z))
        free.append(sizes[1])
    y = ops.MatMul()(*parts)
    return y if shape_of(y) == shape_of(n) else ops.Reshape(n.type.shape)(y)


def _folded(n: Node) -> Node:
    """A chain of views of a constant, folded to a constant."""
    if isinstance(n.op, ops.Transpose | ops.Reshape) and isinstance((x := _folded(n.inputs[0])).op, Const):
        return const(n.op.reference(x.op.value))
    return n


# --- images


def _same_padding(size: int, window: int, stride: int) -> tuple[int, int]:
    total = max((-(-size // stride) - 1) * stride + window - size, 0)
    return total // 2, total - total // 2


def _windows(
    e: Emitter, n: Node, windows: Sequence[int], strides: Sequence[int], padding: Sequence[tuple[int, int]], fill: float
) -> tuple[int, int]:
    """(x in channels-last order, the schema's number of the padding); explicit padding becomes an operator."""
    x = n.inputs[0]
    sizes = shape_of(x)[2:]
    i = e.get(x, CHANNELS_LAST)
    if all(p == (0, 0) for p in padding):
        return i, VALID_PADDING
    if all(_same_padding(s, w, t) == p for s, w, t, p in zip(sizes, windows, strides, padding, strict=True)):
        return i, SAME_PADDING
    if min(min(p) for p in padding) < 0:
        raise Unsupported("padding below 0")
    return _padded(e, i, [(0, 0), *padding, (0, 0)], fill), VALID_PADDING


@row(ops.Conv)
def conv(e: Emitter, n: Node) -> Node | tuple[int, str]:
    assert isinstance(n.op, ops.Conv)
    op, (x, w) = n.op, n.inputs
    if len(op.strides) == 1:
        image_conv = ops.Conv((1, *op.strides), ((0, 0), *op.padding), (1, *op.dilation), op.groups, op.dtype)
        (b, c, size), (o, i, k) = shape_of(x), shape_of(w)
        kernel = moved_levels(ops.Reshape((o, i, 1, k)), w) or _folded(ops.Reshape((o, i, 1, k))(w))
        return ops.Reshape(n.type.shape)(image_conv(ops.Reshape((b, c, 1, size))(x), kernel))
    if not n.dtype.is_float:
        raise Unsupported(f"of {x.type}, whose scale is not constant")
    value = constant_of(w)
    if len(op.strides) != 2 or value is None:
        raise Unsupported("of constant weights in two dimensions only")
    kernel = value.transpose(0, 2, 3, 1)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel.shape[1:3], op.dilation, strict=True)]
    i, padding = _windows(e, n, spans, op.strides, op.padding, 0.0)
    options = {
        "padding": padding, "stride_h": op.strides[0], "stride_w": op.strides[1], "dilation_h": op.dilation[0],
        "dilation_w": op.dilation[1],
    }  # fmt: skip
    channels = shape_of(x)[1]
    if op.groups > 1 and op.groups == channels:
        # [1, h, w, channels * multiplier]
        weights = e.weights(w, kernel.transpose(3, 1, 2, 0), 3)
        options["depth_multiplier"] = kernel.shape[0] // channels
        name, table = "DEPTHWISE_CONV_2D", "DepthwiseConv2D"
    else:
        weights, name, table = e.weights(w, kernel, 0), "CONV_2D", "Conv2D"
    return e.add(
        name, [i, weights, -1], in_order(CHANNELS_LAST, shape_of(n)), table, options=options, node=n
    ), CHANNELS_LAST


@row(ops.ConvTranspose)
def conv_transpose(e: Emitter, n: Node) -> tuple[int, str]:
    """The full result, cropped by the padding."""
    assert isinstance(n.op, ops.ConvTranspose)
    op, (x, w) = n.op, n.inputs
    value = constant_of(w)
    assert value is not None
    kernel = value.transpose(1, 2, 3, 0)
    shape = in_order(CHANNELS_LAST, shape_of(n))
    full = (shape[0], *(s + low + high for s, (low, high) in zip(shape[1:3], op.padding, strict=True)), shape[3])
    inputs = [e.shape(full), e.weights(w, kernel, 0), e.get(x, CHANNELS_LAST), -1]
    options = {"padding": VALID_PADDING, "stride_h": op.strides[0], "stride_w": op.strides[1]}
    i = e.add("TRANSPOSE_CONV", inputs, full, "TransposeConv", node=n, dtype=str(n.dtype), options=options)
    if full == shape:
        return i, CHANNELS_LAST
    e.model.tensors[i].node = None
    start = (0, *(low for low, _ in op.padding), 0)
    limit = tuple(a + b for a, b in zip(start, shape, strict=True))
    parts = [e.ints(*values) for values in (start, limit, (1, 1, 1, 1))]
    return e.add("STRIDED_SLICE", [i, *parts], shape, "StridedSlice", node=n), CHANNELS_LAST


@row(ops.MaxPool, ops.AvgPool)
def pool(e: Emitter, n: Node) -> Node | tuple[int, str]:
    assert isinstance(n.op, ops.MaxPool | ops.AvgPool)
    op, (x,) = n.op, n.inputs
    is_mean = isinstance(op, ops.AvgPool)
    if len(op.kernel) == 1:
        sizes = ((1, *op.kernel), (1, *op.strides), ((0, 0), *op.padding), (1, *op.dilation), op.ceil_mode)
        image_pool = ops.AvgPool(*sizes, op.count_include_pad, op.divisor) if is_mean else ops.MaxPool(*sizes)
        b, c, size = shape_of(x)
        return ops.Reshape(n.type.shape)(image_pool(ops.Reshape((b, c, 1, size))(x)))
    # no result of relu is less than 0
    fill = 0.0 if is_mean or isinstance(x.op, ops.Relu) else float(np.finfo(np.float32).min)
    i, padding = _windows(e, n, op.kernel, op.strides, op.padding, fill)
    options = {
        "padding": padding, "stride_h": op.strides[0], "stride_w": op.strides[1], "filter_height": op.kernel[0],
        "filter_width": op.kernel[1],
    }  # fmt: skip
    name = "AVERAGE_POOL_2D" if is_mean else "MAX_POOL_2D"
    return e.add(name, [i], in_order(CHANNELS_LAST, shape_of(n)), "Pool2D", options=options, node=n), CHANNELS_LAST


def serves(n: Node) -> bool:
    """Whether a MODEL op has a TFLite operator, and so is not lowered."""
    op = n.op
    if isinstance(op, ops.Conv):
        has_constant_weights = constant_of(n.inputs[1]) is not None and n.dtype.is_float
        return has_constant_weights and len(op.strides) <= 2 and min(min(p) for p in op.padding) >= 0
    if isinstance(op, ops.ConvTranspose):
        is_plain = len(op.strides) == 2 and op.groups == 1 and set(op.dilation) == {1} and not any(op.output_padding)
        has_constant_weights = constant_of(n.inputs[1]) is not None and n.dtype.is_float
        return has_constant_weights and is_plain and min(min(p) for p in op.padding) >= 0
    if isinstance(op, ops.MaxPool | ops.AvgPool):
        return _is_plain_pool(n, op)
    if isinstance(op, ops.MatMul):
        return n.dtype.is_float and min(x.type.rank for x in n.inputs) >= 2
    if isinstance(op, ops.Gelu):
        return op.approximate in ("none", "tanh")
    if isinstance(op, ops.Elu):
        return op.alpha == 1 and n.dtype.is_float
    if isinstance(op, ops.GatherND):
        return op == ops.GatherND()
    if isinstance(op, ops.Take):
        return True
    if isinstance(op, ops.Resize):
        return resize.has_operator(n, op)
    return n.dtype.is_float


def _is_plain_pool(n: Node, op: ops.MaxPool | ops.AvgPool) -> bool:
    is_plain = len(op.kernel) <= 2 and not op.ceil_mode and set(op.dilation) == {1} and n.dtype.is_float
    if not isinstance(op, ops.AvgPool) or not is_plain:
        return is_plain
    sizes = zip(shape_of(n.inputs[0])[2:], op.kernel, op.strides, op.padding, strict=True)
    is_same = all(_same_padding(s, k, t) == p for s, k, t, p in sizes)
    is_unpadded = all(p == (0, 0) for p in op.padding)
    return op.divisor is None and (is_unpadded or (is_same and not op.count_include_pad))


BUILTIN_OPS: frozenset[type[Op]] = frozenset({
    ops.Conv, ops.ConvTranspose, ops.MaxPool, ops.AvgPool, ops.Softmax, ops.MatMul, ops.Relu, ops.HardSwish,
    ops.LeakyRelu, ops.Gelu, ops.Elu, ops.Take, ops.GatherND,
    ops.Resize, ops.Dequantize,
})  # fmt: skip
