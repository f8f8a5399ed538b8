"""StableHLO for ops with a region: reductions, windows, scatters, sorts and control flow."""

from __future__ import annotations

import numpy as np

from ingot import ops
from ingot.exporters.stablehlo.emitter import Emitter, row, type_of
from ingot.exporters.stablehlo.rows import fields, pairs, sliced
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.stablehlo.syntax import Attribute, Block, Ints, Number
from ingot.frontends.stablehlo.types import show
from ingot.ir.node import Node
from ingot.ir.types import DType, boolean, f32, i32, i64

_COMBINES = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum", "and": "and", "or": "or",
             "add": "add", "mul": "multiply"}  # fmt: skip


def combiner(e: Emitter, kind: str, dtype: DType) -> Block:
    """The region that combines two elements."""
    a, b, type = e.fresh(), e.fresh(), show(dtype, ())

    def body(r: Emitter) -> list[str]:
        return [b] if kind == "set" else [r.one(_COMBINES[kind], [a, b], type)]

    return e.region([(a, type), (b, type)], body)


def _summed(dtype: DType) -> DType:
    """The type in which a fold accumulates: f32 for narrow floats."""
    return f32 if dtype.is_float and dtype.bits < 32 else dtype


def _fold(e: Emitter, name: str, n: Node, x: str, kind: str, attributes: dict[str, Attribute]) -> str:
    source = n.inputs[0]
    dtype = _summed(n.dtype)
    if dtype != n.dtype:
        x = e.convert(x, dtype, source.shape)
    start = e.scalar(ops.identity_of(kind, dtype), dtype)
    (y,) = e.add(name, [x, start], [show(dtype, n.shape)], attributes, [combiner(e, kind, dtype)])
    return y if dtype == n.dtype else e.convert(y, n.dtype, n.shape)


@row(ops.Reduce)
def reduce(e: Emitter, n: Node, xs: list[str]) -> str:
    assert isinstance(n.op, ops.Reduce)
    return _fold(e, "reduce", n, xs[0], n.op.kind, {"dimensions": Ints(n.op.dims)})


@row(ops.ReduceWindow)
def reduce_window(e: Emitter, n: Node, xs: list[str]) -> str:
    w = n.op
    assert isinstance(w, ops.ReduceWindow)
    return _fold(e, "reduce_window", n, xs[0], w.kind, {
        "window_dimensions": Ints(w.window), "window_strides": Ints(w.strides),
        "base_dilations": Ints(w.base_dilation), "window_dilations": Ints(w.dilation), "padding": pairs(w.padding),
    })  # fmt: skip


@row(ops.CumReduce)
def cum_reduce(e: Emitter, n: Node, xs: list[str]) -> str:
    """A window over all preceding elements, or all following ones if reversed. An exclusive one is shifted by one."""
    c = n.op
    assert isinstance(c, ops.CumReduce)
    size = n.shape[c.dim]
    if not isinstance(size, int):
        raise Unsupported(f"along an axis of size {size}: a window's size is a number")
    if size == 0:
        return xs[0]
    ones = (1,) * n.type.rank
    near, far = (-1, size) if c.exclusive else (0, size - 1)
    axis_padding = (near, far) if c.reverse else (far, near)
    padding = tuple(axis_padding if d == c.dim else (0, 0) for d in range(n.type.rank))
    window = tuple(size if d == c.dim else 1 for d in range(n.type.rank))
    attributes: dict[str, Attribute] = {"window_dimensions": Ints(window), "window_strides": Ints(ones)}
    return _fold(e, "reduce_window", n, xs[0], c.kind, attributes | {"padding": pairs(padding)})


@row(ops.ArgReduce)
def arg_reduce(e: Emitter, n: Node, xs: list[str]) -> str:
    """A fold of pairs (value, place)."""
    a = n.op
    assert isinstance(a, ops.ArgReduce)
    (x,) = n.inputs
    places = e.value(ops.Iota(x.type.with_dtype(i64), a.dim)())
    first = e.scalar(ops.identity_of(a.kind, x.dtype), x.dtype)
    # the initial place loses against every element that equals the initial value
    initial_place = e.scalar(-1 if a.last else np.iinfo(np.int64).max, i64)
    value, place = show(x.dtype, ()), show(i64, ())
    names = [e.fresh() for _ in range(4)]
    v, p, w, q = names

    def body(r: Emitter) -> list[str]:
        bit = show(boolean, ())
        better = r.compare("GT" if a.kind == "max" else "LT", v, w, x.dtype, ())
        equal = r.compare("EQ", v, w, x.dtype, ())
        if x.dtype.is_float:
            is_nan, other_is_nan = (r.compare("NE", s, s, x.dtype, ()) for s in (v, w))
            other_is_number = r.one("not", [other_is_nan], bit)
            better = r.one("or", [better, r.one("and", [is_nan, other_is_number], bit)], bit)
            equal = r.one("or", [equal, r.one("and", [is_nan, other_is_nan], bit)], bit)
        earlier = r.compare("GT" if a.last else "LT", p, q, i64, ())
        keeps_first = r.one("or", [better, r.one("and", [equal, earlier], bit)], bit)
        return [r.one("select", [keeps_first, v, w], value), r.one("select", [keeps_first, p, q], place)]

    block = e.region([(v, value), (p, place), (w, value), (q, place)], body)
    types = [show(x.dtype, n.shape), type_of(n)]
    return e.add("reduce", [xs[0], places, first, initial_place], types, {"dimensions": Ints((a.dim,))}, [block])[1]


@row(ops.Scatter)
def scatter(e: Emitter, n: Node, xs: list[str]) -> str:
    s = n.op
    assert isinstance(s, ops.Scatter)
    numbers = fields("scatter", {
        "update_window_dims": s.update_window_dims, "inserted_window_dims": s.inserted_window_dims,
        "input_batching_dims": s.input_batching_dims,
        "scatter_indices_batching_dims": s.scatter_indices_batching_dims,
        "scatter_dims_to_operand_dims": s.scatter_dims_to_operand_dims,
    }, s.index_vector_dim)  # fmt: skip
    x, _, updates = n.inputs
    dtype = n.dtype if s.kind in ("set", "max", "min") else _summed(n.dtype)
    operands = list(xs)
    if dtype != n.dtype:
        operands[0], operands[2] = (e.convert(xs[i], dtype, v.shape) for i, v in ((0, x), (2, updates)))
    block = combiner(e, s.kind, dtype)
    (y,) = e.add("scatter", operands, [show(dtype, n.shape)], {"scatter_dimension_numbers": numbers}, [block])
    return y if dtype == n.dtype else e.convert(y, n.dtype, n.shape)


@row(ops.Sort)
def sort(e: Emitter, n: Node, xs: list[str]) -> list[str]:
    """Lexicographic by keys. For floats, -0 equals 0, and NaN of either sign is the greatest."""
    s = n.op
    assert isinstance(s, ops.Sort)
    arguments = [(e.fresh(), show(i.dtype, ())) for i in n.inputs for _ in (0, 1)]

    def body(r: Emitter) -> list[str]:
        bit = show(boolean, ())
        is_before = ""
        for k in reversed(range(s.num_keys)):
            dtype = n.inputs[k].dtype
            a, b = (_key(r, name, dtype) for name, _ in arguments[2 * k : 2 * k + 2])
            key_is_before = r.compare("GT" if s.descending else "LT", a, b, dtype, (), dtype.is_float)
            if is_before:
                equal = r.compare("EQ", a, b, dtype, (), dtype.is_float)
                key_is_before = r.one("or", [key_is_before, r.one("and", [equal, is_before], bit)], bit)
            is_before = key_is_before
        return [is_before]

    attributes: dict[str, Attribute] = {"dimension": Number(str(s.dimension), "i64"), "is_stable": True}
    types = [type_of(i) for i in n.inputs]
    names = e.add("sort", xs, types, attributes, [e.region(arguments, body)])
    if s.count is None:
        return names
    shape = n.inputs[0].shape
    limit = tuple(s.count if d == s.dimension else size for d, size in enumerate(shape))
    start, ones = (0,) * len(shape), (1,) * len(shape)
    kept_types = [show(t.dtype, t.shape) for t in n.types]
    return [sliced(e, v, start, limit, ones, t, shape) for v, t in zip(names, kept_types, strict=True)]


def _key(r: Emitter, x: str, dtype: DType) -> str:
    if not dtype.is_float:
        return x
    type, zero, nan = show(dtype, ()), r.scalar(0.0, dtype), r.scalar(float("nan"), dtype)
    plain = r.one("select", [r.compare("EQ", x, zero, dtype, ()), zero, x], type)
    return r.one("select", [r.compare("NE", x, x, dtype, ()), nan, plain], type)


@row(ops.While)
def while_(e: Emitter, n: Node, xs: list[str]) -> list[str]:
    assert isinstance(n.op, ops.While)
    regions = [e.graph_region(n.op.cond), e.graph_region(n.op.body)]
    return e.add("while", xs, [type_of(i) for i in n.inputs], {}, regions)


@row(ops.Case)
def case(e: Emitter, n: Node, xs: list[str]) -> list[str]:
    assert isinstance(n.op, ops.Case)
    index = xs[0]
    if n.inputs[0].dtype != i32:
        count = len(n.op.branches)
        kind = n.inputs[0].dtype
        low, high = e.scalar(0 if kind.kind == "u" else -1, kind), e.scalar(count, kind)
        inside = e.one("clamp", [low, index, high], show(kind, ()))
        index = e.convert(inside, i32, ())
    regions = [e.graph_region(branch, xs[1:]) for branch in n.op.branches]
    return e.add("case", [index], [show(t.dtype, t.shape) for t in n.types], {}, regions)
