"""Python floats computed from sizes (`x.shape[0] ** 0.5`): torch's sympy expressions as f64[] nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import sympy

from ingot import ops
from ingot.frontends.torch.convert import Sizes
from ingot.frontends.torch.values import Number, cast, f64
from ingot.ir.node import Node, const
from ingot.support.errors import ImportModelError

Known = Mapping[sympy.Basic, Node]


def number_of(e: sympy.Basic, sizes: Sizes, known: Known) -> float | Number:
    """`e` as a float where it is constant, else computed at run time. Raises ImportModelError for unknown functions.

    known: the f64[] values of symbols that are no sizes (`x.item()`).
    """
    if e.is_number:
        return float(e)  # type: ignore[arg-type]
    return Number(_node(e, sizes, known))


def _node(e: sympy.Basic, sizes: Sizes, values: Known) -> Node:
    node = values.get(e)
    if node is not None:
        return node
    if e.is_number:
        return const(float(e), np.float64)  # type: ignore[arg-type]
    if getattr(e, "is_integer", False):
        size = sizes.expression(e)
        return const(float(size), np.float64) if isinstance(size, int) else cast(ops.DimValue(size)(), f64)
    name = type(e).__name__
    arguments = [_node(a, sizes, values) for a in e.args]
    if name in _FOLDS:
        folded = arguments[0]
        for a in arguments[1:]:
            folded = _FOLDS[name](folded, a)
        return folded
    if name in _UNARY:
        return _UNARY[name](arguments[0])
    raise ImportModelError(f"the number {e}: {name} is no operation on sizes that Ingot has")


_FOLDS: dict[str, Callable[[Node, Node], Node]] = {
    "Add": lambda a, b: ops.Add()(a, b),
    "Mul": lambda a, b: ops.Mul()(a, b),
    "Pow": lambda a, b: ops.Pow()(a, b),
    "FloatPow": lambda a, b: ops.Pow()(a, b),
    "FloatTrueDiv": lambda a, b: ops.Div()(a, b),
    "IntTrueDiv": lambda a, b: ops.Div()(a, b),
    "Max": lambda a, b: ops.Max()(a, b),
    "Min": lambda a, b: ops.Min()(a, b),
}
_UNARY: dict[str, Callable[[Node], Node]] = {
    "ToFloat": lambda x: x,
    "Identity": lambda x: x,
    "OpaqueUnaryFn_sqrt": lambda x: ops.Sqrt()(x),
    "OpaqueUnaryFn_exp": lambda x: ops.Exp()(x),
    "OpaqueUnaryFn_log": lambda x: ops.Log()(x),
    "OpaqueUnaryFn_sin": lambda x: ops.Sin()(x),
    "OpaqueUnaryFn_cos": lambda x: ops.Cos()(x),
    "OpaqueUnaryFn_tanh": lambda x: ops.Tanh()(x),
    "OpaqueUnaryFn_log2": lambda x: ops.Mul()(ops.Log()(x), const(1 / math.log(2), np.float64)),
}
