"""ONNX ops on symbolic values: the ops that are evaluated at import when all their inputs are known.

A rule takes the call and its inputs' known elements and returns the results' elements. `Shape`, `Size` and the sequence
ops need only types and lengths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ingot.frontends.onnx.call import Call, Value, attribute_value, normal_axes, normal_axis
from ingot.frontends.onnx.symbolic import (
    ARITHMETIC,
    COMPARISON,
    MAX_ELEMENTS,
    UNARY,
    Element,
    Sym,
    UnknownSize,
    arange,
    cast,
    elementwise,
    rounded,
)
from ingot.frontends.onnx.symbolic import fold as reduce_elements
from ingot.frontends.onnx.tensors import dtype_from_code
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir import types as T
from ingot.ir.dims import Dim, floordiv, product
from ingot.ir.types import dtype_of

Rule = Callable[[Call, Sequence[Sym]], Sym | list[Sym]]
RULES: dict[str, Rule] = {}


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def add(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return add


def fold_node(c: Call) -> list[Sym | Value] | None:
    """The results of a node where they are known at import; returns None or raises Unknown where it must be a node."""
    kind = c.proto.op_type
    if kind == "Constant":
        return [_constant(c)]
    if kind in ("Shape", "Size"):
        return [_shape(c)]
    rule = RULES.get(kind)
    if rule is None or not c.inputs:
        return None
    operands: list[Sym] = []
    for v in c.inputs:
        if v is None:
            continue
        # the size is checked first: `sym` of a weight would read the weight
        if not isinstance(v, Value) or not _small(v) or v.sym is None:
            return None
        operands.append(v.sym)
    try:
        symbolic = rule(c, operands)
    except (IndexError, ValueError):
        # malformed: the node's own row reports it
        return None
    results = symbolic if isinstance(symbolic, list) else [symbolic]
    if any(s.items.size > MAX_ELEMENTS for s in results):
        return None
    return list(results)


def _small(v: Value) -> bool:
    size = v.type.size
    return isinstance(size, int) and size <= MAX_ELEMENTS


def _constant(c: Call) -> Value:
    if len(c.proto.attribute) != 1:
        raise Unsupported(f"a constant of {len(c.proto.attribute)} attributes")
    (a,) = c.proto.attribute
    if a.ref_attr_name:
        a = c.outer[a.ref_attr_name]
    value = attribute_value(a, c.importer.external)
    if isinstance(value, np.ndarray):
        return Value(load=lambda: value)
    return Value(load=lambda: np.asarray(value, np.float32 if _is_float(value) else np.int64))


def _is_float(v: object) -> bool:
    return isinstance(v, float) or (isinstance(v, tuple) and any(isinstance(e, float) for e in v))


def _shape(c: Call) -> Sym:
    shape = c.shape(0)
    if c.proto.op_type == "Size":
        return Sym.of(T.i64, np.array(product(shape), dtype=object))
    start, end = c.int("start", 0), c.int("end", len(shape))
    items = np.empty(len(shape), object)
    items[:] = shape
    lo, hi = (min(max(v + len(shape) if v < 0 else v, 0), len(shape)) for v in (start, end))
    return Sym(T.i64, items[lo:hi])


def _arithmetic(c: Call, xs: Sequence[Sym]) -> Sym:
    fn = ARITHMETIC[c.proto.op_type]
    dtype = xs[0].dtype
    if c.proto.op_type == "Mod" and c.int("fmod", 0):
        raise UnknownSize
    if c.proto.op_type == "Div" and dtype.is_integer:
        return Sym(dtype, rounded(dtype, elementwise(lambda a, b: _quotient(c, a, b), xs[0].items, xs[1].items)))
    items = xs[0].items
    for x in xs[1:]:
        items = rounded(dtype, elementwise(lambda a, b: fn(dtype.is_float, a, b), items, x.items))
    return Sym(dtype, items)


def _quotient(c: Call, a: Element, b: Element) -> Element:
    """a / b of integers. A difference of sizes may be negative, where truncation and floor differ: a model that divides
    one is taken to be meant for sizes where it is not negative."""
    if isinstance(a, Dim) and isinstance(b, int) and b > 0 and c.importer.assume(a):
        return floordiv(a, b)
    return ARITHMETIC["Div"](False, a, b)


for _name in ARITHMETIC:
    RULES[_name] = _arithmetic


def _compare(c: Call, xs: Sequence[Sym]) -> Sym:
    return Sym(T.boolean, elementwise(COMPARISON[c.proto.op_type], xs[0].items, xs[1].items))


for _name in COMPARISON:
    RULES[_name] = _compare


def _unary(c: Call, xs: Sequence[Sym]) -> Sym:
    return Sym(xs[0].dtype, rounded(xs[0].dtype, elementwise(UNARY[c.proto.op_type], xs[0].items)))


for _name in UNARY:
    RULES[_name] = _unary


@_rule("And", "Or")
def _logic(c: Call, xs: Sequence[Sym]) -> Sym:
    is_and = c.proto.op_type == "And"
    return Sym(T.boolean, elementwise(lambda a, b: a and b if is_and else a or b, xs[0].items, xs[1].items))


@_rule("Cast")
def _cast(c: Call, xs: Sequence[Sym]) -> Sym:
    return cast(xs[0], dtype_from_code(c.int("to")))


@_rule("CastLike")
def _cast_like(c: Call, xs: Sequence[Sym]) -> Sym:
    return cast(xs[0], xs[1].dtype)


@_rule("Where")
def _where(c: Call, xs: Sequence[Sym]) -> Sym:
    return Sym(xs[1].dtype, elementwise(lambda p, a, b: a if p else b, *(x.items for x in xs)))


def _numbers(x: Sym) -> tuple[int, ...]:
    dims = x.dims()
    if any(isinstance(d, Dim) for d in dims):
        raise UnknownSize
    return tuple(int(d) for d in dims)


@_rule("Gather")
def _gather(c: Call, xs: Sequence[Sym]) -> Sym:
    if not xs[1].is_constant:
        raise UnknownSize
    axis = normal_axis(c.int("axis", 0), len(xs[0].shape))
    return Sym.of(xs[0].dtype, np.asarray(np.take(xs[0].items, xs[1].to_array(), axis=axis), dtype=object))


@_rule("Concat")
def _concat(c: Call, xs: Sequence[Sym]) -> Sym:
    return Sym.of(xs[0].dtype, np.concatenate([x.items for x in xs], axis=c.int("axis", 1)))


def _axes(c: Call, xs: Sequence[Sym], default: Sequence[int] | None = None) -> tuple[int, ...] | None:
    if c.has(1):
        return _numbers(xs[1])
    return c.int_list("axes") if c.has_attr("axes") else None if default is None else tuple(default)


@_rule("Unsqueeze")
def _unsqueeze(c: Call, xs: Sequence[Sym]) -> Sym:
    axes = _axes(c, xs) or ()
    return Sym(xs[0].dtype, np.expand_dims(xs[0].items, normal_axes(axes, len(xs[0].shape) + len(axes))))


@_rule("Squeeze")
def _squeeze(c: Call, xs: Sequence[Sym]) -> Sym:
    axes = _axes(c, xs)
    items = xs[0].items
    shape = [d for d in items.shape if d != 1] if axes is None else _drop(items, axes)
    return Sym(xs[0].dtype, np.reshape(items, shape))


def _drop(items: np.ndarray, axes: Sequence[int]) -> list[int]:
    removed = normal_axes(axes, items.ndim)
    if any(items.shape[a] != 1 for a in removed):
        raise UnknownSize
    return [d for i, d in enumerate(items.shape) if i not in removed]


@_rule("Slice")
def _slice(c: Call, xs: Sequence[Sym]) -> Sym:
    x = xs[0]
    if c.version < 10:
        starts, ends = c.int_list("starts"), c.int_list("ends")
        axes, steps = c.int_list("axes", range(len(starts))), (1,) * len(starts)
    else:
        bounds_and_steps = [_numbers(c.sym(i)) if c.has(i) else None for i in range(1, 5)]
        starts, ends = bounds_and_steps[0] or (), bounds_and_steps[1] or ()
        axes = bounds_and_steps[2] if bounds_and_steps[2] is not None else tuple(range(len(starts)))
        steps = bounds_and_steps[3] if bounds_and_steps[3] is not None else (1,) * len(starts)
    cut = [slice(None)] * len(x.shape)
    for a, s, e, step in zip(axes, starts, ends, steps, strict=True):
        size = x.shape[normal_axis(a, len(x.shape))]
        # with a negative step, ONNX writes "to the end" as a number below -size
        stop = None if step < 0 and e < -size else e
        start = None if step < 0 and s >= size else s
        cut[normal_axis(a, len(x.shape))] = slice(start, stop, step)
    return Sym(x.dtype, x.items[tuple(cut)])


@_rule("Reshape")
def _reshape(c: Call, xs: Sequence[Sym]) -> Sym:
    shape = list(_numbers(xs[1]))
    if not c.int("allowzero", 0):
        shape = [xs[0].shape[i] if d == 0 else d for i, d in enumerate(shape)]
    return Sym(xs[0].dtype, xs[0].items.reshape(shape))


@_rule("Flatten")
def _flatten(c: Call, xs: Sequence[Sym]) -> Sym:
    shape = xs[0].shape
    axis = c.int("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    return Sym(xs[0].dtype, xs[0].items.reshape(math.prod(shape[:axis]), math.prod(shape[axis:])))


@_rule("Transpose")
def _transpose(c: Call, xs: Sequence[Sym]) -> Sym:
    rank = len(xs[0].shape)
    return Sym(xs[0].dtype, xs[0].items.transpose(c.int_list("perm", range(rank - 1, -1, -1))))


@_rule("Expand")
def _expand(c: Call, xs: Sequence[Sym]) -> Sym:
    shape = np.broadcast_shapes(xs[0].shape, _numbers(xs[1]))
    if math.prod(shape) > MAX_ELEMENTS:
        raise UnknownSize
    return Sym(xs[0].dtype, np.broadcast_to(xs[0].items, shape).copy())


@_rule("Tile")
def _tile(c: Call, xs: Sequence[Sym]) -> Sym:
    repeats = _numbers(xs[1])
    if math.prod(repeats) * xs[0].items.size > MAX_ELEMENTS:
        raise UnknownSize
    return Sym(xs[0].dtype, np.tile(xs[0].items, repeats))


@_rule("ConstantOfShape")
def _constant_of_shape(c: Call, xs: Sequence[Sym]) -> Sym:
    shape = _numbers(xs[0])
    if math.prod(shape) > MAX_ELEMENTS or any(d < 0 for d in shape):
        raise UnknownSize
    value = c.attr("value")
    array = value if isinstance(value, np.ndarray) else np.zeros(1, np.float32)
    if array.size != 1:
        raise UnknownSize
    items = np.empty(shape, object)
    items[...] = Sym.of_array(array.reshape(-1)[:1]).items[0]
    return Sym(dtype_of(array), items)


@_rule("Range")
def _range(c: Call, xs: Sequence[Sym]) -> Sym:
    start, limit, delta = (x.items.reshape(-1)[0] for x in xs)
    return arange(start, limit, delta, xs[0].dtype)


@_rule("Split")
def _split(c: Call, xs: Sequence[Sym]) -> list[Sym]:
    x = xs[0]
    axis = c.axis("axis", 0, len(x.shape))
    sizes = _numbers(xs[1]) if c.has(1) else c.int_list("split", ())
    if not sizes:
        count = c.int("num_outputs", c.result_count)
        part_size = -(-x.shape[axis] // count)
        sizes = tuple(min(part_size, x.shape[axis] - i * part_size) for i in range(count))
    if sum(sizes) != x.shape[axis]:
        raise UnknownSize
    return [Sym(x.dtype, part) for part in np.split(x.items, np.cumsum(sizes)[:-1], axis=axis)]


_REDUCTIONS = {"ReduceSum": "Add", "ReduceProd": "Mul", "ReduceMax": "Max", "ReduceMin": "Min"}


@_rule(*_REDUCTIONS)
def _reduce(c: Call, xs: Sequence[Sym]) -> Sym:
    x = xs[0]
    axes = _axes(c, xs)
    if not axes and c.int("noop_with_empty_axes", 0):
        return x
    which = normal_axes(axes, len(x.shape)) if axes else tuple(range(len(x.shape)))
    if x.items.size == 0:
        raise UnknownSize
    kept_axes = [i for i in range(len(x.shape)) if i not in which]
    lines = x.items.transpose(*kept_axes, *which).reshape([x.shape[i] for i in kept_axes] + [-1])
    results = np.empty(lines.shape[:-1], object)
    step = ARITHMETIC[_REDUCTIONS[c.proto.op_type]]
    floats = x.dtype.is_float
    for index in np.ndindex(*results.shape):
        line = list(lines[index])
        results[index] = reduce_elements(line[1:], lambda a, b: step(floats, a, b), line[0])
    if c.int("keepdims", 1):
        results = np.expand_dims(results, which)
    return Sym(x.dtype, rounded(x.dtype, results))


@_rule("NonZero")
def _nonzero(c: Call, xs: Sequence[Sym]) -> Sym:
    if not xs[0].is_constant:
        raise UnknownSize
    return Sym.of_array(np.asarray(np.nonzero(xs[0].to_array()), np.int64))


@_rule("Compress")
def _compress(c: Call, xs: Sequence[Sym]) -> Sym:
    if not xs[1].is_constant:
        raise UnknownSize
    axis = c.int("axis") if c.has_attr("axis") else None
    return Sym(xs[0].dtype, np.compress(xs[1].to_array(), xs[0].items, axis=axis))
