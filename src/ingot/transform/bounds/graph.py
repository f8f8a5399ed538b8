"""The graph of a model's bounds, built from the model's graph and a method.

inputs: lower x, upper x of each perturbed input, the others as they are   ->   lower y, upper y of each result
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from ingot import ops
from ingot.ir.dims import is_static, product
from ingot.ir.node import Graph, Input, Node, const, topological
from ingot.ir.types import f64
from ingot.ops.nn.terms import Term
from ingot.passes.model.lower import lower_model_ops
from ingot.support.dataclass import dataclass
from ingot.support.errors import REWRITE, InputError, UnsupportedOpError
from ingot.transform.bounds.canonical import canonical
from ingot.transform.bounds.crown import Walk, depths, is_product, is_relaxed, origin, own_softmax
from ingot.transform.bounds.forms import is_normalizer
from ingot.transform.bounds.forward import Forward
from ingot.transform.bounds.intervals import Intervals
from ingot.transform.bounds.rounding import Interval, Rounding, from_f64
from ingot.transform.bounds.rows import rows_of
from ingot.transform.bounds.walks import bounds_of

_INF = float("inf")
METHODS = ("crown", "auto", "crown-ibp", "forward", "ibp")
_MAX_COEFFICIENT_BYTES = 4 << 30  # of the largest coefficients of a walk: rows times elements of a value
_WALKS_PER_ROW = 12  # "auto": a walk takes at most so many rows for each row of a pass forward
_PART_BYTES, _MIN_ROWS = 1 << 22, 32  # of the coefficients that a walk has at a time
_BATCH_BYTES = 1 << 27  # of those of all boxes of a batch


@dataclass(frozen=True)
class Question:
    """The values to bound and the method. perturbed: for each input of the graph whether it is in a box. method: one of
    METHODS. spec: rows of factors of the elements of the only result, whose sums are bounded instead; None: each
    element. rounding: see `Rounding`."""

    perturbed: tuple[bool, ...]
    method: str
    spec: np.ndarray | None
    rounding: Rounding

    def of(self, graph: Graph) -> Bounded:
        """The canonical graph with this question. Raises UnsupportedOpError, which names all ops without bounds, and
        InputError for symbolic sizes, results that have no bounds, and walks that take too much memory."""
        _check(graph, self)
        has_trees = self.method in ("crown", "auto", "forward")
        core = canonical(with_spec(graph, self.spec), self.rounding, has_trees)
        ends: dict[Node, tuple[Node, Node]] = {}
        for x, is_perturbed in zip(core.inputs, self.perturbed, strict=True):
            if is_perturbed:
                low, high = (Input(f"{side} {getattr(x.op, 'label', 'x')}", x.type)() for side in ("lower", "upper"))
                ends[x] = low, high
        return Bounded(core, self, ends)


@dataclass(frozen=True, eq=False)
class Bounded:
    """A canonical graph and its question. interval_inputs: for each perturbed input the inputs of the graph of
    bounds."""

    core: Graph
    question: Question
    interval_inputs: Mapping[Node, tuple[Node, Node]]

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The inputs of the graph of bounds."""
        return tuple(v for x in self.core.inputs for v in self.interval_inputs.get(x, (x,)))

    def intervals(self) -> Intervals:
        """Intervals of the inputs alone."""
        boxes = {x: Interval(*(Term(v).cast(f64) for v in pair)) for x, pair in self.interval_inputs.items()}
        return Intervals(boxes, self.question.rounding)

    @cached_property
    def relaxed(self) -> tuple[Node, ...]:
        """The values whose bounds relaxations need."""
        operands: dict[Node, None] = {}
        c = self.intervals()
        for node in self.core.nodes():
            perturbed = [x for x in node.inputs if not c.is_exact(x)]
            if is_normalizer(node) or own_softmax(node, c) is not None:  # the planes of a softmax take its scores
                continue
            if is_relaxed(node) and (len(perturbed) > 1 or not is_product(node)):
                operands.update(dict.fromkeys(map(origin, perturbed)))
        return tuple(operands)

    @cached_property
    def deep(self) -> tuple[Node, ...]:
        """The values of `relaxed` whose intervals may be wider than linear bounds."""
        depth = depths(self.core.nodes(), self.intervals().is_exact)
        return tuple(n for n in self.relaxed if depth[n] > 1)

    @cached_property
    def walked(self) -> frozenset[Node]:
        """The values that get tighter bounds than intervals or forms, each from its own backward walk."""
        if self.question.method not in ("crown", "auto"):
            return frozenset()
        return frozenset(n for n in self.deep if self.fits(n) and not self.is_cheaper_forward(n))

    @cached_property
    def groups(self) -> Mapping[Node, Sequence[Node]]:
        """Groups of values that one walk starts from, by the first: those that depend on the same values of `walked`,
        and so not on each other."""
        numbers = {n: i for i, n in enumerate(n for n in self.core.nodes() if n in self.walked)}
        sources: dict[Node, int] = {}  # sets of values of `walked`, as bits
        groups: dict[tuple[int, int | None], list[Node]] = {}
        for node in self.core.nodes():
            sources[node] = 0
            for x in node.inputs:
                sources[node] |= sources[x] | (1 << numbers[x] if x in numbers else 0)
            if node in numbers:
                groups.setdefault((sources[node], self.rows.get(node)), []).append(node)
        return {group[0]: group for group in groups.values()}

    @cached_property
    def is_forward(self) -> bool:
        """Whether values get affine forms: see `forward`."""
        if self.question.method != "auto":
            return self.question.method == "forward"
        targets = (*self.deep, *self.core.results)
        return any(self.is_cheaper_forward(n) or not self.fits(n) for n in targets)

    def is_cheaper_forward(self, target: Node) -> bool:
        """Whether "auto" leaves the value to a pass forward, which costs far less than a walk from it. Elements of rows
        that never meet are walked from together."""
        if self.question.method != "auto" or self._forward_rows * self._widest * 8 > _MAX_COEFFICIENT_BYTES:
            return False
        axis = self.rows.get(target)
        rows = 2 * int(product(target.shape)) // (1 if axis is None else int(target.shape[axis]))
        return rows > _WALKS_PER_ROW * self._forward_rows

    @cached_property
    def _forward_rows(self) -> int:
        return sum(int(product(x.shape)) for x in self.interval_inputs) + 4  # of slopes, centers, radii, magnitudes

    def fits(self, target: Node) -> bool:
        """Whether a walk from the value is within the memory limit. If it is not, raises InputError unless the method
        falls back to intervals."""
        if self.bytes_of(target) <= _MAX_COEFFICIENT_BYTES:
            return True
        if self.question.method == "auto":
            return False
        raise InputError(
            f"method {self.question.method}",
            expected=f"at most {_MAX_COEFFICIENT_BYTES >> 30} GiB of coefficients",
            got=f"{self.bytes_of(target) >> 30} GiB for a value of {list(target.shape)}",
            where=target.loc or None,
            fix='use method="auto", which leaves such values to intervals',
        )

    def bytes_of(self, target: Node) -> int:
        axis = self.rows.get(target)
        return 2 * int(product(target.shape)) * self._widest * 8 // (1 if axis is None else int(target.shape[axis]))

    @cached_property
    def rows(self) -> Mapping[Node, int]:
        """The row axis of each value, if rows are independent: see `rows_of`."""
        return rows_of(self.core, list(self.interval_inputs), self.intervals().is_exact)

    @cached_property
    def _widest(self) -> int:
        return (
            max((int(product(n.shape)) for n in self.core.nodes() if len(n.types) == 1 and not n.is_leaf), default=1)
            or 1
        )

    @property
    def boxes(self) -> int:
        """The number of boxes per batch within the memory limit, at most 128."""
        largest_bytes = max((self.bytes_of(n) for n in (*self.walked, *self.core.results)), default=1)
        return max(1, min(128, _BATCH_BYTES // largest_bytes))

    def walk(
        self,
        slopes: Mapping[Node, Mapping[Node, Node]] | None = None,
        mapped: Mapping[Node, Node] | None = None,
        max_bytes: int = 1 << 62,
    ) -> Walk:
        """Bound all values. slopes: for each value of `walked` the slopes of its walk, by hinge. mapped: slopes with
        a value for each row (see `bounds_of`). max_bytes: of a value's coefficients at a time."""
        c = self.intervals()
        max_rows = max(_MIN_ROWS, max_bytes // (8 * self._widest))
        walk = Walk(c, self.rows if slopes is None else {}, max_rows=max_rows)
        forward = Forward(c, list(self.interval_inputs)) if self.is_forward else None
        for node in self.core.nodes():
            c.add([node])
            if forward is not None and not c.missing:
                forward.add(node)
            if slopes is not None and node in self.walked and not c.missing:
                (c.values[node],) = bounds_of(Walk(c, alphas=slopes[node]), [node], mapped)
            elif slopes is None and node in self.groups and not c.missing:
                group = self.groups[node]
                c.add(topological(group))
                c.values.update(zip(group, bounds_of(walk, group), strict=True))
        if c.missing:
            raise UnsupportedOpError(list(dict.fromkeys(c.missing)), model="the bounds", fix=REWRITE)
        return walk


def bound_graph(graph: Graph, question: Question) -> Graph:
    """See the module's docstring. Raises as `Question.of`."""
    bounded = question.of(graph)
    walk = bounded.walk(max_bytes=_PART_BYTES)
    results: list[Node] = []
    for y in bounded.core.results:
        bounds = walk.intervals.of(y)
        is_walked = question.method not in ("ibp", "forward") and not bounded.is_cheaper_forward(y)
        if is_walked and not walk.intervals.is_exact(y) and bounded.fits(y):
            (bounds,) = bounds_of(walk, [y])
        lower, upper = (walk.intervals.guarded(v, e) for v, e in ((bounds.lower, -_INF), (bounds.upper, _INF)))
        results += [b.node for b in from_f64(lower, upper, y.dtype)]
    names = [f"{side} {name}" for name in _names(bounded.core) for side in ("lower", "upper")]
    return lower_model_ops(Graph(bounded.inputs, tuple(results), tuple(names)))


def _names(graph: Graph) -> Sequence[str]:
    return graph.output_names or [f"y{i}" for i in range(len(graph.results))]


def _check(graph: Graph, question: Question) -> None:
    if question.method not in METHODS:
        raise InputError("method", expected=" or ".join(METHODS), got=repr(question.method))
    if graph.symbols() or not all(is_static(n.shape) for n in (*graph.inputs, *graph.outputs)):
        raise InputError(
            "bounds", expected="static sizes", got=f"open ones: {', '.join(graph.symbols())}", fix="fix them by dynamic"
        )
    if integers := [n for n in graph.results if not n.dtype.is_float]:
        raise InputError("bounds", expected="results of floats", got=", ".join(str(n.type) for n in integers))


def with_spec(graph: Graph, spec: np.ndarray | None) -> Graph:
    """y -> spec @ flatten(y)"""
    if spec is None:
        return graph
    (y,) = graph.results
    with np.errstate(over="ignore"):
        rows = spec.astype(y.dtype.numpy)
    if (rows.astype(np.float64) != spec).any():  # the rows that were asked for, not rounded ones
        y, rows = ops.cast(y, f64), spec
    sums = ops.DotGeneral(((), ()), ((1,), (0,)))(const(rows), ops.reshape(y, (product(y.shape),)))
    return Graph(graph.inputs, (sums,), tuple(_names(graph)))
