"""Sizes that the program computes: integer tensors whose elements are known at import, as numbers or as symbolic sizes.

    concatenate(reshape(get_dimension_size(x, 0) * 2), [5])   ->   (2*s0, 5)

Shapes of dynamic ops are tensors. A shape stays an expression over the inputs' sizes where every op that computes it
has a rule here; where one has none, the shape is known only at run time.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from string import digits
from typing import Any

import numpy as np

from ingot import ops
from ingot.frontends.shared.quotients import Quotient, check_signs, computed, require_positive, towards_zero
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir.dims import (
    Dim,
    DimLike,
    bounds,
    dim_max,
    dim_min,
    exact_quotient,
    floordiv,
    is_computed,
    mod,
    sign_bit,
    substitute,
    symbol,
    symbols_of,
    zero_bit,
)
from ingot.ir.node import Const, Input, Node, Project, topological
from ingot.ir.types import boolean, f32, f64
from ingot.support.errors import ShapeError

MAX_ELEMENTS = 1024  # larger tensors are data, not shapes
_MAX_INPUT_ELEMENTS = 16  # and larger inputs


def name_of(label: str) -> str:
    """`label`, with the characters that a symbol's name may not hold replaced."""
    word = re.sub(r"\W", "_", label)
    return word if re.match(r"[A-Za-z_]", word) else f"arg_{word}"


def symbol_of(label: str, axis: int) -> DimLike:
    """A symbol for an open size of an argument: <label>_<axis>."""
    return symbol(f"{name_of(label)}_{axis}")


def require_equal(a: Sequence[DimLike], b: Sequence[DimLike], what: str) -> None:
    """Raise ShapeError for the first two sizes that must be equal and are not: the importer tries again with them
    equated."""
    if len(a) != len(b):
        raise ShapeError(f"{what}: numbers of axes differ", expected=len(a), got=len(b))
    for x, y in zip(a, b, strict=True):
        if x != y:
            raise ShapeError(f"{what}: sizes differ", expected=x, got=y).between((x, y))


def require_one_shape(nodes: Sequence[Node], what: str) -> None:
    """As `require_equal`, for the shapes of tensors of one rank."""
    for n in nodes[1:]:
        if n.shape != nodes[0].shape and len(n.shape) == len(nodes[0].shape):
            require_equal(nodes[0].shape, n.shape, what)


def solved(a: DimLike, b: DimLike) -> tuple[str, DimLike] | None:
    """(a symbol, its value) that solve a = b, if it is linear in one symbol; None if it is not, or has no solution. If
    several symbols are computed sizes, it is solved for the last of them."""
    difference = a - b
    names = symbols_of(difference)
    if run_time_names := [s for s in names if is_computed(s)]:
        names = [
            max(run_time_names, key=lambda s: int(s[len(s.rstrip(digits)) :] or 0))
        ]  # names end in a running number
    # prefer an element of an input (a dot in its name) to an input's size
    for name in sorted(names, key=lambda s: ("." in s, s), reverse=True):
        values = [substitute(difference, {name: n}) for n in range(3)]
        slope = values[1] - values[0]
        if isinstance(slope, int) and slope != 0 and values[2] - values[1] == slope:
            value = exact_quotient(-values[0], slope) if slope > 0 else exact_quotient(values[0], -slope)
            if value is not None:
                return name, value
    return None


class SizeInput(Exception):
    """A size is an element of an input: `label` names it."""

    def __init__(self, label: str) -> None:
        self.label = label
        super().__init__(label)


class Sizes:
    """inputs: labels of the program's inputs whose elements may be sizes."""

    def __init__(self, inputs: frozenset[str] = frozenset()) -> None:
        self.inputs = inputs
        self._known: dict[Node, np.ndarray] = {}
        self._is_closed: dict[Node, bool] = {}

    def dims(self, node: Node) -> tuple[DimLike, ...]:
        """The elements in order. Raises Unsupported where one is known only at run time."""
        return tuple(d if isinstance(d, Dim) else int(d) for d in self.elements(node).reshape(-1))

    def elements(self, root: Node) -> np.ndarray:
        """An object array of int, bool and Dim; of float, or Quotient where computed from sizes. A bool that depends on
        sizes is a Dim of 0 or 1."""
        stack = [root]
        while stack:
            node = stack[-1]
            if node in self._known:
                stack.pop()
                continue
            missing = [i for i in _evaluated_inputs(node) if i not in self._known]
            if missing:
                stack += missing
                continue
            self._known[node] = self._evaluate(node)
            stack.pop()
        return self._known[root]

    def size_of(self, node: Node) -> DimLike | None:
        """The value of a node of one element as a size, None where it is known only at run time."""
        try:
            (only,) = self.dims(node)
        except Unsupported:
            return None
        return only

    def with_size(self, node: Node, size: DimLike) -> Sizes:
        """A copy in which a node of one element, and the nodes that it copies or converts, have the value `size`."""
        copy = Sizes(self.inputs)
        copy._known.update(self._known)
        while True:
            copy._known[node] = np.full(node.shape, size, object)
            is_moved = node.op.rearranges or isinstance(node.op, ops.Convert)
            if not is_moved or not node.inputs[0].dtype.is_integer or node.inputs[0].type.size != 1:
                return copy
            (node,) = node.inputs

    def decided(self, node: Node) -> bool | None:
        """The value of a bool scalar, where it is the same for all sizes."""
        try:
            value = self.elements(node).reshape(-1)[0]
        except (Unsupported, SizeInput):
            return None
        return None if isinstance(value, Dim) else bool(value)

    def closed_form(self, node: Node) -> Node | None:
        """`node`, or an equal one, in a form that any graph may hold: reads no input, or computed from sizes. None for
        others."""
        if self.is_closed(node):
            return node
        if (
            not node.dtype.is_integer
            or not isinstance(node.type.size, int)
            or not 0 < node.type.size <= _MAX_INPUT_ELEMENTS
        ):
            return None
        try:
            dims = self.dims(node)
        except (Unsupported, SizeInput):
            return None
        return ops.reshape(ops.stack([ops.scalar(d, node.dtype) for d in dims]), node.shape)

    def is_closed(self, node: Node) -> bool:
        """Whether `node` reads no input and draws nothing: any graph may hold it as it is."""
        for n in topological((node,), lambda n: () if n in self._is_closed else n.inputs):
            if n not in self._is_closed:
                is_open = isinstance(n.op, Input) or n.op.draws
                self._is_closed[n] = not is_open and all(self._is_closed[i] for i in n.inputs)
        return self._is_closed[node]

    def _evaluate(self, node: Node) -> np.ndarray:
        op, inputs = node.op, [self._known[i] for i in _evaluated_inputs(node)]
        if _is_empty(node):
            return np.empty(node.shape, object)
        if (floor := _floor(node)) is not None:
            return _elementwise(floor[0], *inputs)
        if len(node.types) != 1 or isinstance(op, Project):
            raise _unknown(node)
        if not isinstance(node.type.size, int) or node.type.size > MAX_ELEMENTS:
            raise _unknown(node)
        if isinstance(op, Input) and op.elements:
            return np.array([*op.elements, None], object)[:-1].reshape(op.type.shape)
        if (
            isinstance(op, Input)
            and op.label in self.inputs
            and node.dtype.is_integer
            and node.type.size <= _MAX_INPUT_ELEMENTS
        ):
            raise SizeInput(op.label)
        if isinstance(op, Const):
            return _objects(op.value)
        if isinstance(op, ops.DimValue):
            return np.array(op.dim, object)
        if isinstance(op, ops.Iota):
            return _objects(op.reference())
        if op.rearranges or isinstance(op, ops.Concat):
            value = op.reference(*inputs)
            assert isinstance(value, np.ndarray)
            return value
        if isinstance(op, ops.Take):
            x, index = inputs
            return np.asarray(op.reference(x, _indices(index, node)), object)
        if any(isinstance(v, Quotient) for x in inputs for v in x.reshape(-1)):
            return _of_quotients(node, inputs)
        if isinstance(op, ops.Convert):
            return _converted(node, inputs[0])
        if isinstance(op, ops.Reduce) and op.kind in _FOLDS:
            rule = _FOLDS[op.kind]
            results = np.empty(tuple(d for i, d in enumerate(inputs[0].shape) if i not in op.dims), object)
            flat = np.moveaxis(inputs[0], op.dims, range(len(op.dims))).reshape(-1, results.size)
            for i in range(results.size):
                total = _FOLDS_START[op.kind]
                for v in flat[:, i]:
                    total = rule(total, v)
                results.reshape(-1)[i] = total
            return results
        if isinstance(op, ops.Compare):
            return _elementwise(lambda a, b: _compare(op.direction, a, b, node), *inputs)
        if not (node.dtype.is_integer or node.dtype == boolean):
            return _computed(node, inputs)
        rule = _RULES.get(type(op))
        if rule is None:
            return _computed(node, inputs)
        try:
            return _elementwise(rule, *inputs)
        except (ZeroDivisionError, TypeError):
            raise _unknown(node) from None


def _evaluated_inputs(node: Node) -> tuple[Node, ...]:
    """The inputs from which the elements of a node are evaluated."""
    if _is_empty(node):
        return ()
    floor = _floor(node)
    return node.inputs if floor is None else floor[1:]


def _is_empty(node: Node) -> bool:
    """Whether a node has no elements, whatever the sizes."""
    return len(node.types) == 1 and node.type.size == 0


def _floor(node: Node) -> tuple[Callable[[DimLike, DimLike], DimLike], Node, Node] | None:
    """(rule, a, b) of floor(a / b) or its remainder, as JAX builds them from truncating ones; None for others.

    q = a / b;  sign(a) != sign(b) and a % b != 0 ? q - 1 : q
    r = a % b;  (r < 0) != (b < 0) and r != 0 ? r + b : r
    """
    if node.shape or not isinstance(node.op, ops.Select) or not isinstance(node.inputs[2].op, ops.Div | ops.Rem):
        return None
    truncated = node.inputs[2]
    a, b = truncated.inputs
    zero, unequal, less = ops.scalar(0, a.dtype), ops.Compare("NE"), ops.Compare("LT")
    has_remainder = unequal(ops.Rem()(a, b), zero)
    if isinstance(truncated.op, ops.Div):
        signs_differ, adjusted = unequal(ops.Sign()(a), ops.Sign()(b)), ops.Sub()(truncated, ops.scalar(1, a.dtype))
    else:
        signs_differ, adjusted = unequal(less(truncated, zero), less(b, zero)), ops.Add()(truncated, b)
    if node is not ops.Select()(ops.And()(signs_differ, has_remainder), adjusted, truncated):
        return None
    return (
        (_for_positive_divisors(floordiv) if isinstance(truncated.op, ops.Div) else _for_positive_divisors(mod)),
        a,
        b,
    )


def _for_positive_divisors(rule: Callable[[DimLike, DimLike], DimLike]) -> Callable[[DimLike, DimLike], DimLike]:
    """`rule`, which then raises Unsupported for divisors that may not be positive."""

    def checked(a: DimLike, b: DimLike) -> DimLike:
        require_positive(b)
        return rule(a, b)

    return checked


def _computed(node: Node, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """The result of an op all of whose operands' elements are numbers."""
    if node.op.draws or isinstance(node.op, Input) or any(isinstance(v, Dim) for x in inputs for v in x.reshape(-1)):
        raise _unknown(node)
    typed = [np.array(x.tolist(), n.dtype.numpy).reshape(x.shape) for x, n in zip(inputs, node.inputs, strict=True)]
    return _objects(np.asarray(node.op.reference(*typed)))


def _unknown(node: Node) -> Unsupported:
    what = f"input {node.op.label!r}" if isinstance(node.op, Input) else node.op.name
    return Unsupported(f"a size that only the run knows: it comes from {what}")


def _objects(array: np.ndarray) -> np.ndarray:
    objects = np.empty(array.shape, object)
    objects.reshape(-1)[:] = array.reshape(-1).tolist()
    return objects


def _indices(x: np.ndarray, node: Node) -> np.ndarray:
    if any(isinstance(v, Dim) for v in x.reshape(-1)):
        raise _unknown(node)
    return np.array(x.tolist(), np.int64)


def _elementwise(rule: Callable[..., object], *inputs: np.ndarray) -> np.ndarray:
    results = np.empty(inputs[0].shape, object)
    flat = results.reshape(-1)
    for i, values in enumerate(zip(*(v.reshape(-1) for v in inputs), strict=True)):
        flat[i] = rule(*values)
    return results


def _converted(node: Node, x: np.ndarray) -> np.ndarray:
    source, dtype = node.inputs[0].dtype, node.dtype
    symbolic = any(isinstance(v, Dim) for v in x.reshape(-1))
    if not symbolic:
        raw = np.array(x.tolist(), None if x.size else np.int64).astype(source.numpy)
        return _objects(ops.Convert(dtype).reference(raw))
    if source.is_integer and dtype in (f32, f64):
        return _elementwise(lambda v: Quotient(v) if isinstance(v, Dim) else float(v), x)
    if not ((source.is_integer or source == boolean) and dtype.is_integer):
        raise _unknown(node)
    return x


def _of_quotients(node: Node, inputs: Sequence[np.ndarray]) -> np.ndarray:
    if any(x.shape != node.shape for x in inputs):
        raise _unknown(node)
    return _elementwise(lambda *v: computed(node, v), *inputs)


def _remainder(a: DimLike, b: DimLike) -> DimLike:
    if isinstance(a, int) and isinstance(b, int):
        return a - b * _as_int(towards_zero(a, b))
    check_signs(a, b)
    return mod(a, b)


def _as_int(d: DimLike) -> int:
    assert isinstance(d, int)
    return d


def _select(pred: object, a: object, b: object) -> object:
    if not isinstance(pred, Dim):
        return a if pred else b
    if not isinstance(a, int | Dim) or not isinstance(b, int | Dim):
        raise Unsupported("a choice by sizes of what are no sizes")
    return b + pred * (a - b)


def _compare(direction: str, a: DimLike, b: DimLike, node: Node) -> bool | Dim:
    if not isinstance(a, Dim) and not isinstance(b, Dim):  # floats, too
        return COMPARISONS[direction](a, b)
    difference = a - b
    is_true = decided(direction, difference)
    if is_true is not None:
        return is_true
    if not (isinstance(a, int | Dim) and isinstance(b, int | Dim)):
        raise _unknown(node)
    complement = _COMPLEMENTS.get(direction)
    bit = _BITS[complement or direction](difference)
    return _as_bool(1 - bit if complement else bit)


def decided(direction: str, difference: DimLike) -> bool | None:
    """Whether a difference is equal to 0, less, ... for all sizes; None where that depends on them."""
    low, high = (difference, difference) if isinstance(difference, int) else bounds(difference)
    always_and_never = {
        "EQ": (low == high == 0, (low is not None and low > 0) or (high is not None and high < 0)),
        "GE": (low is not None and low >= 0, high is not None and high < 0),
        "GT": (low is not None and low > 0, high is not None and high <= 0),
    }
    complement = _COMPLEMENTS.get(direction)
    true, false = always_and_never[complement or direction]
    return bool(true) != bool(complement) if true or false else None


_COMPLEMENTS = {"LT": "GE", "LE": "GT", "NE": "EQ"}
_BITS: dict[str, Callable[[DimLike], DimLike]] = {
    "EQ": zero_bit, "GE": lambda d: 1 - sign_bit(d), "GT": lambda d: sign_bit(-d)
}  # fmt: skip


def _as_bool(d: DimLike) -> bool | Dim:
    return d if isinstance(d, Dim) else bool(d)


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "EQ": operator.eq, "NE": operator.ne, "LT": operator.lt, "LE": operator.le, "GT": operator.gt, "GE": operator.ge,
}  # fmt: skip


def _sign(a: DimLike) -> int:
    low, high = (a, a) if isinstance(a, int) else bounds(a)
    if low is not None and low > 0:
        return 1
    if high is not None and high < 0:
        return -1
    if low == high == 0:
        return 0
    raise Unsupported(f"the sign of a size {a}")


def _bit(v: object) -> DimLike:
    """A bool as 0 or 1."""
    return v if isinstance(v, Dim) else int(bool(v))


_RULES: dict[type, Callable[..., object]] = {
    ops.Add: operator.add, ops.Sub: operator.sub, ops.Mul: operator.mul, ops.Div: towards_zero, ops.Rem: _remainder,
    ops.Max: dim_max, ops.Min: dim_min, ops.Neg: operator.neg,
    ops.Clamp: lambda low, x, high: dim_min(dim_max(x, low), high), ops.Select: _select, ops.Sign: _sign,
    ops.And: lambda a, b: _as_bool(_bit(a) * _bit(b)), ops.Not: lambda a: _as_bool(1 - _bit(a)),
    ops.Or: lambda a, b: _as_bool(_bit(a) + _bit(b) - _bit(a) * _bit(b)),
}  # fmt: skip
_FOLDS: dict[str, Callable[..., object]] = {"sum": operator.add, "prod": operator.mul, "max": dim_max, "min": dim_min}
_FOLDS_START = {"sum": 0, "prod": 1, "max": -(1 << 63), "min": (1 << 63) - 1}
