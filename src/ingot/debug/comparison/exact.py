"""The results of a model in float64, and the elements that rounding alone decides.

Two correct programs may round differently. If a model takes `floor` of a computed 3, or the difference of two nearly
equal numbers, their results may differ widely although both are right. So the graph is interpreted in float64, and
several times in its own types with random rounding of each inexact result (Parker, Pierce, Eggert, "Monte Carlo
Arithmetic", 2000). Elements that random rounding does not change are called settled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import count, repeat
from typing import Literal, Self

import numpy as np

from ingot.debug.comparison.tolerance import TOLERANCE, Agreement, agree, worst
from ingot.ir.dims import Dim
from ingot.ir.interp import interpret
from ingot.ir.node import Const, Graph, Input, Node, Op, Project, const, rebuild
from ingot.ir.types import DType, TensorType, bf16, f16, f32, f64
from ingot.ops.core.base import Category, category
from ingot.support import progress
from ingot.support.dataclass import dataclass
from ingot.support.errors import ShapeError

_FLOATS_UP_TO_F32 = (f32, f16, bf16)
_ROUNDING_RUNS = 16  # with random rounding: what it decides by the toss of a coin is missed once in 2^16
_NOISE_ULPS = 2  # how far one result is rounded, either way

# Who is right where two results are apart. unsettled: both, as they agree on every settled element.
Verdict = Literal["unsettled", "ours", "theirs", "neither"]


def _wide(dtype: DType) -> DType:
    return f64 if dtype in _FLOATS_UP_TO_F32 else dtype


def _widened(value: object, seed: int) -> object:
    """The attribute of an op, with its float types widened to f64."""
    if isinstance(value, DType):
        return _wide(value)
    if isinstance(value, TensorType):
        return TensorType(_wide(value.dtype), value.shape)
    if isinstance(value, tuple):
        return tuple(_widened(v, seed) for v in value)
    return _twin(value, seed) if isinstance(value, Graph) else value


def _twin(graph: Graph, seed: int) -> Graph:
    """`graph` in f64. seed: of the random rounding; 0 for none."""
    # each node rounds by numbers of its own: in a chain, equal ones would take each other back
    seeds = count(seed << 32) if seed else repeat(0)

    def image(n: Node, xs: Sequence[Node]) -> Node:
        op = n.op
        if isinstance(op, Const):
            return const(op.value.astype(np.float64)) if n.dtype in _FLOATS_UP_TO_F32 else n
        if isinstance(op, Project):
            return op(*xs)
        wide = type(op)(**{k: _widened(v, seed) for k, v in op.attributes().items()})
        if isinstance(op, Input):
            return wide(loc=n.loc)
        types = tuple(TensorType(_wide(t.dtype), t.shape) for t in n.types)
        try:
            new = wide(*xs, loc=n.loc)
        except ShapeError:
            new = None
        if new is None or new.types != types:  # bits of a float, levels: an op that has no form in f64
            operand_dtypes = tuple(i.dtype for i in n.inputs for _ in i.types)
            return Node.make(_Step(op, operand_dtypes, tuple(t.dtype for t in n.types), next(seeds)), xs, n.loc, types)
        if not seed or op.bodies or not any(t.dtype in _FLOATS_UP_TO_F32 for t in n.types):
            return new
        return Node.make(_Step(wide, (), tuple(t.dtype for t in n.types), next(seeds)), xs, n.loc, types)

    rebuilt = rebuild((*graph.inputs, *graph.outputs), rule=image)
    inputs = len(graph.inputs)
    return Graph(rebuilt[:inputs], rebuilt[inputs:], graph.output_names, graph.bounds, graph.conditions, graph.sizes)


@dataclass(frozen=True)
class _Step(Op):
    """`op` on values in f64. It has no name, as it occurs only in twins.

    operand_dtypes: the types to which operands are rounded, if the op does not support f64. result_dtypes: the types of
    the results in the model. seed: of the random rounding to these types; 0 for none.
    """

    op: Op
    operand_dtypes: tuple[DType, ...]
    result_dtypes: tuple[DType, ...]
    seed: int

    def substitute(self, values: Mapping[str, int | Dim]) -> Self:
        return type(self)(self.op.substitute(values), self.operand_dtypes, self.result_dtypes, self.seed)

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        if self.operand_dtypes:
            inputs = tuple(TensorType(t, x.shape) for x, t in zip(inputs, self.operand_dtypes, strict=True))
        inferred = self.op.infer(*inputs)
        results = inferred if isinstance(inferred, tuple) else (inferred,)
        return tuple(TensorType(_wide(t), r.shape) for r, t in zip(results, self.result_dtypes, strict=True))

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        if self.operand_dtypes:
            inputs = tuple(x.astype(t.numpy) for x, t in zip(inputs, self.operand_dtypes, strict=True))
        exact = self._results(inputs)
        if not self.seed:
            return exact
        random = np.random.default_rng(self.seed)
        perturbed = exact
        if not self.operand_dtypes and category(self.op) is not Category.ELEMENTWISE:
            # sums may cancel: perturb their terms
            perturbed = self._results(tuple(_jittered(x, f32, random) if x.dtype == np.float64 else x for x in inputs))
        return tuple(
            np.where(_is_representable(x, t), x, _jittered(y, t, random)) if t in _FLOATS_UP_TO_F32 else x
            for x, y, t in zip(exact, perturbed, self.result_dtypes, strict=True)
        )

    def _results(self, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        outputs = self.op.reference(*inputs)
        results = outputs if isinstance(outputs, tuple) else (outputs,)
        return tuple(np.asarray(r).astype(_wide(t).numpy) for r, t in zip(results, self.result_dtypes, strict=True))


def _is_representable(x: np.ndarray, dtype: DType) -> np.ndarray:
    return (x.astype(dtype.numpy).astype(np.float64) == x) | np.isnan(x)


def _jittered(x: np.ndarray, dtype: DType, random: np.random.Generator) -> np.ndarray:
    """Random neighbors of x in `dtype`."""
    epsilon = float(np.finfo(dtype.numpy).eps) if dtype is not bf16 else 2.0**-7
    perturbed = x * (1 + random.uniform(-_NOISE_ULPS, _NOISE_ULPS, x.shape) * epsilon)
    return perturbed.astype(dtype.numpy).astype(np.float64)


@dataclass(frozen=True)
class Exact:
    """values: the results in f64. is_settled: bool, the elements that rounding does not decide."""

    values: tuple[np.ndarray, ...]
    is_settled: tuple[np.ndarray, ...]

    def judge(self, i: int, got: np.ndarray, want: np.ndarray, tolerance: float | None = None) -> Verdict:
        """Whether Ingot or the other program is right about result i."""
        ours, theirs = self.compare(i, got, tolerance).ok, self.compare(i, want, tolerance).ok
        return "unsettled" if ours and theirs else "ours" if ours else "theirs" if theirs else "neither"

    def excused(
        self, i: int, got: np.ndarray, want: np.ndarray, difference: Agreement, tolerance: float | None = None
    ) -> Agreement:
        """`difference` of result i from another program's, or the agreement that rounding alone decides it."""
        if self.judge(i, got, want, tolerance) != "unsettled":
            return difference
        loose = int((~self.is_settled[i]).sum())
        return replace(difference, ok=True, note=f"rounding alone decides {loose} of {got.size} values ({difference})")

    def compare(self, i: int, got: np.ndarray, tolerance: float | None = None) -> Agreement:
        """The error of the settled elements of a program's result i."""
        with np.errstate(over="ignore"):
            exact = self.values[i].astype(got.dtype)
        if got.shape != exact.shape:
            return agree(got, exact) if self.is_settled[i].any() else agree(exact, exact)  # of a size that data gives
        return agree(np.where(self.is_settled[i], got, exact), exact, tolerance)


def exactly(graph: Graph, arrays: Sequence[np.ndarray]) -> Exact:
    """The results of `graph` in f64. Raises what `interpret` raises."""
    wide_arrays = [a.astype(_wide(n.dtype).numpy) for n, a in zip(graph.inputs, arrays, strict=True)]
    values = interpret(_twin(graph, 0), wide_arrays)
    limits = [TOLERANCE.get(n.dtype.numpy.name, 0.0) / 4 for n in graph.results]
    settled = [np.ones(value.shape, bool) for value in values]
    for seed in range(1, _ROUNDING_RUNS + 1):
        run = interpret(_twin(graph, seed), wide_arrays)
        settled = [s & _near(x, v, limit) for s, x, v, limit in zip(settled, run, values, limits, strict=True)]
    return Exact(values, tuple(settled))


class Judge:
    """Compares results of `graph` on `arrays`. Float64 results are computed when the first difference is found."""

    def __init__(self, graph: Graph, arrays: Sequence[np.ndarray], tolerance: float | None = None) -> None:
        self._graph, self._arrays, self._tolerance = graph, arrays, tolerance

    @cached_property
    def exact(self) -> Exact:
        progress.report("interpret in float64")
        return exactly(self._graph, self._arrays)

    def difference(self, i: int, got: np.ndarray, want: np.ndarray) -> Agreement:
        """The difference of two programs' results i, except for elements that rounding alone decides."""
        agreement = agree(got, want, self._tolerance)
        return agreement if agreement.ok else self.exact.excused(i, got, want, agreement, self._tolerance)

    def worst(self, got: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> Agreement:
        """The largest `difference` of all results."""
        return worst([self.difference(i, np.asarray(a), b) for i, (a, b) in enumerate(zip(got, want, strict=True))])


def _near(x: np.ndarray, exact: np.ndarray, limit: float) -> np.ndarray:
    """The elements of x that equal those of `exact` up to `limit` times its largest magnitude."""
    if x.shape != exact.shape:
        return np.zeros(exact.shape, bool)
    is_equal = x == exact
    if exact.dtype.kind != "f":
        return is_equal
    finite = np.isfinite(exact)
    largest = float(np.abs(exact[finite]).max(initial=0.0)) or 1.0
    with np.errstate(invalid="ignore"):
        return is_equal | (np.isnan(x) & np.isnan(exact)) | (finite & (np.abs(x - exact) <= limit * largest))
