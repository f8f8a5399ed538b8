"""Reduced precision: weights and the values that they multiply are stored in 16 bits; sums are computed in f32.

    y = dot(x, w)      =>      x' = convert<bf16>(x)                      for all readers of x
    z = add(x, y)              y = dot(x', convert<bf16>(w)): f32         the weights are folded afterwards
                               z = add(convert<f32>(x'), y)

- Only products with weights (constants) change: their operands are rounded once, and products and sums are in f32.
  Everything else is computed in f32.
- "bfloat16" stores both operands in 16 bits, so that dot instructions can be used. "float16" stores only the weights:
  values of a model may exceed f16's 65504, and products of f32 with f16 are no slower than those of two f16.
- Tensor cores multiply two operands of the same type (`same_types`). For them "float16" stores both operands too, and
  products of two computed values and the operands of attention are narrow as well.
- A value with other readers is stored narrow once, and all of them read the rounded value. Ops that only move data, and
  maxima, work on narrow values, as rounding commutes with them. The inputs and outputs of the model keep their types,
  and outputs are not rounded.
- "tf32" changes no type: it allows products of f32 that leave the choice open (`tf32` is None, see
  `ops.core.contraction`) to cut their operands to TF32 as they read them. "ieee" does not: these are multiply-adds.
- A weight that is too large for the narrow type stays f32, and so does the product; a warning names it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import ml_dtypes
import numpy as np

from ingot import ops
from ingot.ir.dims import estimate
from ingot.ir.node import Graph, Node, Project, rebuild
from ingot.ir.types import DType, bf16, f16, f32, word_fix
from ingot.ops.core.base import Category, category
from ingot.ops.views import strided_base
from ingot.passes.constants import is_constant, value_of
from ingot.passes.core.dtypes.narrow_products import widened_value
from ingot.support.errors import InputError
from ingot.support.log import Log

_log = Log("ingot.precision")
STORED: dict[str, DType] = {"float32": f32, "bfloat16": bf16, "float16": f16, "tf32": f32, "ieee": f32}
_TF32 = {"tf32": True, "ieee": False}  # of products that leave it open


def lower_precision(graph: Graph, precision: str, same_types: bool = False, pairs_levels: bool = False) -> Graph:
    """Store weights (and, for bfloat16 or `same_types`, the values that they are multiplied with) in `precision` (see
    module). pairs_levels: weights in blocks, which stay in their bits, are multiplied as bfloat16.

    Raises InputError for a precision that does not exist.
    """
    stored = STORED.get(precision)
    if stored is None:
        raise InputError("precision", expected=" or ".join(STORED), got=repr(precision), fix=_fix(precision))
    if precision in _TF32:
        return graph.with_outputs(rebuild(graph.outputs, rule=partial(_with_tf32, tf32=_TF32[precision])))
    return graph if stored == f32 else _Narrowing(graph, stored, same_types, pairs_levels and stored == bf16).run()


def _with_tf32(n: Node, inputs: Sequence[Node], tf32: bool) -> Node:
    is_open = isinstance(n.op, ops.DotGeneral | ops.Convolution | ops.KernelGradient) and n.op.tf32 is None
    return replace(n.op, tf32=tf32)(*inputs, loc=n.loc) if is_open else n.with_inputs(inputs)


def _fix(precision: object) -> str | None:
    is_integer = bool(re.search(r"int|^[iuqw]?[48]$|q[48]", str(precision).lower()))
    return "8 and 4 bits: ingot.quantize, or ingot quantize" if is_integer else word_fix(precision, STORED)


def _narrows(n: Node, same_types: bool, of_levels: bool) -> bool:
    """Whether `n` is a sum of f32 products, with weights unless `same_types`. of_levels: these may be in blocks."""
    floats = (*n.op.stored_weights, *n.op.stored_values)
    return (
        bool(floats if same_types else n.op.stored_weights)
        and all(t.dtype == f32 for t in n.types)
        and all(n.inputs[i].dtype == f32 for i in floats)
        and (same_types or all(is_constant(w) or (of_levels and _widens_to(w)) for w in _weights(n)))
        and not any(isinstance(x.op, ops.RoundToBytes) for x in n.inputs)
    )


def _weights(n: Node) -> list[Node]:
    return [n.inputs[i] for i in n.op.stored_weights]


def _widens_to(w: Node) -> bool:
    """Whether `w` is a weight in blocks whose levels pair up in 16 bits each."""
    return isinstance(w.op, ops.DequantizeBlocks) and estimate(w.shape[-1]) % 2 == 0 and all(map(is_constant, w.inputs))


def excess(values: np.ndarray, stored: DType) -> float | None:
    """The largest magnitude, where it is finite and rounds to an infinity of `stored`; None where none does."""
    extremes = np.fmax.reduce(values, axis=None, initial=0), -np.fmin.reduce(values, axis=None, initial=0)
    largest = float(max(extremes))
    if largest == np.inf:
        largest = float(np.abs(values[np.isfinite(values)]).max(initial=0))
    with np.errstate(over="ignore"):
        return None if np.isfinite(np.array(largest).astype(stored.numpy)) else largest


def _commutes_with_rounding(n: Node) -> bool:
    """Whether rounding commutes with `n`: it moves elements of its first operand, or takes their maximum."""
    if isinstance(n.op, ops.ReduceWindow):
        return n.op.kind in ("max", "min")
    return n.op.rearranges and len(n.inputs) == 1


_ELEMENT_BY_ELEMENT = (Category.ELEMENTWISE, Category.GATHER, Category.REDUCTION)


class _Narrowing:
    def __init__(self, graph: Graph, stored: DType, same_types: bool, of_levels: bool) -> None:
        self.graph, self.stored, self.same_types, self.of_levels = graph, stored, same_types, of_levels
        self.users = graph.uses()
        self.fits: dict[Node, bool] = {}  # by product, whether its weights do
        self.narrow_values: set[Node] = set()  # values that are stored narrow for all readers

    def run(self) -> Graph:
        if self.stored == bf16 or self.same_types:
            for n in self.graph.nodes():
                if self._narrows(n):
                    for i in n.op.stored_values:
                        self._narrow_source(n.inputs[i])
        return self.graph.with_outputs(rebuild(self.graph.outputs, rule=self._image))

    def _narrow_source(self, x: Node) -> None:
        """Store narrow the value from which `x` takes its elements: if it has other readers, if `x` is a view of it
        (else the op that moves the elements rounds them), or if a maximum reduces it.
        """
        candidate = x if len(self.users[x]) > 1 else None
        view = strided_base(x, {})
        while _commutes_with_rounding(x):
            thinned, x = isinstance(x.op, ops.ReduceWindow), x.inputs[0]
            viewed = view is not None and x is view[0]
            candidate = x if thinned or viewed or len(self.users[x]) > 1 else candidate
        if candidate is None or candidate.is_leaf or candidate in self.graph.outputs:
            return
        if self._all_read_narrow(candidate):
            self.narrow_values.add(candidate)

    def _all_read_narrow(self, x: Node) -> bool:
        """Whether all readers of `x` use it narrow or in their own loops, so that none needs it in memory as f32."""
        stack, visited = [x], {x}
        while stack:
            for u in self.users.get(stack.pop(), ()):
                if _commutes_with_rounding(u) and u not in visited:
                    visited.add(u)
                    stack.append(u)
                elif (
                    not _commutes_with_rounding(u)
                    and not self._narrows(u)
                    and category(u.op) not in _ELEMENT_BY_ELEMENT
                ):
                    return False
        return True

    def _image(self, n: Node, inputs: Sequence[Node]) -> Node:
        """`n` of f32 images of its operands."""
        if self._narrows(n):
            inputs = list(inputs)
            weights = self.stored == f16 and not self.same_types
            indices = n.op.stored_weights if weights else (*n.op.stored_weights, *n.op.stored_values)
            for i in indices:
                inputs[i] = self._narrow(inputs[i])
            image = n.op.with_sums(f32)(*inputs, loc=n.loc)
            image = image if all(t.dtype == f32 for t in image.types) else self._wide(image)
        elif isinstance(n.op, Project):
            image = n.op(*inputs, loc=n.loc)
        elif _commutes_with_rounding(n) and (narrow := widened_value(inputs[0], self.stored)) is not None:
            image = self._wide(n.op(narrow, loc=n.loc))
        else:
            image = n.with_inputs(inputs)
        return self._wide(self._narrow(image)) if n in self.narrow_values else image

    def _narrows(self, n: Node) -> bool:
        return _narrows(n, self.same_types, self.of_levels) and self._fits(n)

    def _fits(self, n: Node) -> bool:
        """Whether no weight of a product would become infinite. Warns of one that would."""
        if n not in self.fits:
            weights = [w for w in _weights(n) if w.dtype == f32 and is_constant(w)]
            self.fits[n] = all(self._is_in_range(w, n) for w in weights)
        return self.fits[n]

    def _is_in_range(self, weight: Node, product: Node) -> bool:
        while weight.constant is None:  # moves its elements
            (weight,) = weight.inputs
        largest = excess(value_of(weight), self.stored)
        if largest is not None:
            name, limit = weight.loc or product.loc or "a weight", float(ml_dtypes.finfo(self.stored.numpy).max)
            message = "the weights of %s stay in float32: %g is beyond %s, the largest number of %s"
            _log.warning(message, name, largest, f"{limit:g}", self.stored)
        return largest is None

    def _narrow(self, x: Node) -> Node:
        if self.same_types and isinstance(x.op, ops.Dequantize) and len(x.inputs) == 3 and is_constant(x.inputs[0]):
            q, *parameters = x.inputs  # levels stay
            narrow = [ops.Convert(self.stored)(p) if p.dtype == f32 else p for p in parameters]
            return x.op(q, *narrow, loc=x.loc)
        if isinstance(x.op, ops.DequantizeBlocks) and is_constant(x.inputs[0]):
            return replace(x.op, dtype=self.stored)(*x.inputs, loc=x.loc)
        source = widened_value(x, self.stored)
        return ops.Convert(self.stored)(x, loc=x.loc) if source is None else source

    def _wide(self, x: Node) -> Node:
        return ops.Convert(f32)(x, loc=x.loc)
