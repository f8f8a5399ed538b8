"""From a model's graph and a method to the graph of its bounds.

inputs: lower x, upper x of each perturbed input, the others as they are   ->   lower y, upper y of each result
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ingot import ops
from ingot.ir.dims import is_static, product
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType, f64
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term
from ingot.passes.model.lower import lower_model_ops
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError, UnsupportedOpError
from ingot.transform.bounds.canonical import canonical
from ingot.transform.bounds.crown import Walk, bounds_of, depths, is_product, is_relaxed, lower_bounds
from ingot.transform.bounds.intervals import Interval, Intervals
from ingot.transform.bounds.rounding import Rounding, absolute_value, from_f64
from ingot.transform.vectorize import vectorize

METHODS = ("crown", "crown-ibp", "ibp")
_MAX_COEFFICIENT_BYTES = 4 << 30  # of the largest coefficients of a walk: rows times elements of a value


@dataclass(frozen=True)
class Question:
    """What is to be bounded. perturbed: for each input of the graph whether it lies in a box. method: one of METHODS.
    spec: rows of factors of the elements of the only result, whose sums are bounded instead; None: each element.
    rounding: see `Rounding`."""

    perturbed: tuple[bool, ...]
    method: str
    spec: np.ndarray | None
    rounding: Rounding


def bound_graph(graph: Graph, question: Question) -> Graph:
    """See the module's docstring. Raises UnsupportedOpError, which names all ops without bounds, InputError for open
    sizes, results that have no bounds, and walks that take too much memory."""
    _check(graph, question)
    core = canonical(with_spec(graph, question.spec))
    walk, inputs = _walk(core, question)
    c = walk.intervals
    results: list[Node] = []
    for y in core.results:
        found = c.of(y)
        if question.method != "ibp" and not c.is_exact(y):
            _check_memory(core, y)
            found = bounds_of(walk, y)
        results += [b.node for b in from_f64(found.lower, found.upper, y.dtype)]
    names = [f"{side} {name}" for name in _names(core) for side in ("lower", "upper")]
    return lower_model_ops(Graph(tuple(inputs), tuple(results), tuple(names)))


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
    if len(graph.results) != 1:
        raise InputError("spec", expected="a model of one result", got=f"{len(graph.results)} results")
    (y,) = graph.results
    size = product(y.shape)
    if spec.ndim != 2 or spec.shape[1] != size:
        raise InputError(
            "spec", expected=f"rows of {size} factors, one for each element of {y.type}", got=list(spec.shape)
        )
    rows = const(spec.astype(y.dtype.numpy))
    sums = ops.DotGeneral(((), ()), ((1,), (0,)))(rows, ops.reshape(y, (size,)))
    return Graph(graph.inputs, (sums,), tuple(_names(graph)))


def search_graph(graph: Graph, question: Question, count: int) -> Graph:
    """Lower bounds for `count` boxes at once, of a graph of one input, whose rows are all of interest.

    lower, upper [count, *x] -> lower y [count, rows] in f64, influence [count, *x]: how far each element of the input
    moves the rows within its box, summed over them.
    """
    _check(graph, question)
    core = canonical(with_spec(graph, question.spec))
    walk, inputs = _walk(core, question)
    (x,), (y,) = core.inputs, core.results
    if question.method == "ibp":
        lower, influence = walk.intervals.of(y).lower, t.full(x.shape, 1.0, f64)
    else:
        lower, coefficients = lower_bounds(walk, y, {})
        found = coefficients.get(x)
        influence = t.full(x.shape, 0.0, f64) if found is None else absolute_value(found).sum((0,), False)
    box = walk.intervals.of(x)
    results = (lower.node, (influence * (box.upper - box.lower)).node)
    single = lower_model_ops(Graph(tuple(inputs), results))
    ends = zip(single.inputs, ("lower", "upper"), strict=True)
    mapped = {v: Input(label, TensorType(v.dtype, (count, *v.shape)))() for v, label in ends}
    return Graph(tuple(mapped.values()), tuple(vectorize(single.outputs, mapped)), ("lower bounds", "influence"))


def _walk(core: Graph, question: Question) -> tuple[Walk, list[Node]]:
    inputs: list[Node] = []
    boxes: dict[Node, Interval] = {}
    for x, is_perturbed in zip(core.inputs, question.perturbed, strict=True):
        if not is_perturbed:
            inputs.append(x)
            continue
        label = getattr(x.op, "label", "x")
        low, high = (Input(f"{side} {label}", x.type)() for side in ("lower", "upper"))
        inputs += [low, high]
        boxes[x] = Interval(Term(low).cast(f64), Term(high).cast(f64))
    c = Intervals(boxes, question.rounding)
    walk = Walk(c)
    nodes = core.nodes()
    needed = _needed(nodes, c) if question.method == "crown" else set[Node]()
    depth = depths(nodes, c.is_exact)
    for node in nodes:
        c.add([node])
        if node in needed and depth[node] > 1 and not c.missing:
            _check_memory(core, node)
            c.values[node] = bounds_of(walk, node)
    if c.missing:
        raise UnsupportedOpError(list(dict.fromkeys(c.missing)), model="the bounds")
    return walk, inputs


def _needed(nodes: Sequence[Node], c: Intervals) -> set[Node]:
    """The values of which relaxations need bounds."""
    found: set[Node] = set()
    for node in nodes:
        perturbed = [x for x in node.inputs if not c.is_exact(x)]
        if is_relaxed(node) and (len(perturbed) > 1 or not is_product(node)):
            found.update(perturbed)
    return found


def _check_memory(core: Graph, target: Node) -> None:
    rows = 2 * int(product(target.shape))
    widest = max(int(product(n.shape)) for n in core.nodes() if len(n.types) == 1 and not n.is_leaf)
    if rows * widest * 8 > _MAX_COEFFICIENT_BYTES:
        raise InputError(
            "method crown",
            expected=f"at most {_MAX_COEFFICIENT_BYTES >> 30} GiB of coefficients",
            got=f"{rows} rows of {widest} elements",
            where=target.loc or None,
            fix='use method="crown-ibp"',
        )
