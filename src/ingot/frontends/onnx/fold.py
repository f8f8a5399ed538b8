"""ONNX ops on symbolic values: the ops that are evaluated at import when all their inputs are known.

A rule takes the call and its inputs' known elements and returns the results' elements. Ops that move elements are
those of `movement`. `Shape`, `Size` and the sequence ops need only types and lengths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce

import numpy as np

from ingot.frontends.onnx.call import Call, Value, attribute_value, normal_axes
from ingot.frontends.onnx.movement import MOVEMENTS
from ingot.frontends.onnx.symbolic import (
    ARITHMETIC,
    COMPARISON,
    UNARY,
    Element,
    Sym,
    UnknownSize,
    arange,
    cast,
    compared,
    elementwise,
    rounded,
)
from ingot.frontends.onnx.tensors import dtype_from_code
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.shared.sizes import MAX_ELEMENTS
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
    """The results of a node where they are known at import; None where it must be a node."""
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
    except (ArithmeticError, IndexError, TypeError, Unsupported, ValueError):
        # known only at run time, or malformed, which the node's own row reports
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
    return Sym(T.boolean, elementwise(partial(compared, COMPARISON[c.proto.op_type]), xs[0].items, xs[1].items))


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


@_rule(*MOVEMENTS)
def _moved_elements(c: Call, xs: Sequence[Sym]) -> list[Sym]:
    """The first operand's elements, or those of all, moved as numbers say."""
    kind = c.proto.op_type
    count = len(xs) if kind == "Concat" else 1
    if c.inputs[0] is None or not all(x.is_constant for x in xs[count:]):
        raise UnknownSize
    numbers = [x.to_array() for x in xs[count:]]
    shape = xs[0].shape
    if kind == "Expand":
        shape = np.broadcast_shapes(shape, tuple(numbers[0].tolist()))
    elif kind == "Tile":
        shape = (*shape, *numbers[0].tolist())
    if math.prod(shape) > MAX_ELEMENTS:
        raise UnknownSize
    arrays = iter([*(x.items for x in xs[:count]), *numbers])
    results = MOVEMENTS[kind](c, *(None if v is None else next(arrays) for v in c.inputs))
    return [Sym.of(xs[0].dtype, part) for part in (results if isinstance(results, tuple) else (results,))]


@_rule("ConstantOfShape")
def _constant_of_shape(c: Call, xs: Sequence[Sym]) -> Sym:
    if not xs[0].is_constant:
        raise UnknownSize
    shape = tuple(xs[0].to_array().reshape(-1).tolist())
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


_REDUCTIONS = {"ReduceSum": "Add", "ReduceProd": "Mul", "ReduceMax": "Max", "ReduceMin": "Min"}


@_rule(*_REDUCTIONS)
def _reduce(c: Call, xs: Sequence[Sym]) -> Sym:
    x = xs[0]
    axes = c.ints(1) if c.has(1) else c.int_list("axes", ())
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
        results[index] = reduce(partial(step, floats), lines[index])
    if c.int("keepdims", 1):
        results = np.expand_dims(results, which)
    return Sym(x.dtype, rounded(x.dtype, results))


@_rule("NonZero")
def _nonzero(c: Call, xs: Sequence[Sym]) -> Sym:
    if not xs[0].is_constant:
        raise UnknownSize
    return Sym.of_array(np.asarray(np.nonzero(xs[0].to_array()), np.int64))
