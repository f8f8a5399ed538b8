"""The interpreter of graphs: evaluates node by node with numpy.

    interpret(graph, {"x": array})  ->  (result, ...)

It is the reference for every pass and target: slow, simple and strict. Each result is checked against its inferred
type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ingot.ir.dims import (
    MAX_INTEGER,
    Dim,
    DimLike,
    Symbol,
    default_bounds,
    exact_quotient,
    is_negative,
    substitute,
    symbols_of,
)
from ingot.ir.node import Const, Graph, Input, Node, Project, size_elements
from ingot.ir.types import TensorType, dtype_of
from ingot.support.errors import InputError, VerifyError

Observer = Callable[[Node, tuple[np.ndarray, ...]], None]
Values = tuple[np.ndarray, ...]


def interpret(
    graph: Graph,
    inputs: Mapping[str, np.ndarray] | Sequence[np.ndarray],
    *,
    observe: Observer | None = None,
) -> tuple[np.ndarray, ...]:
    """Return the results of `graph` for `inputs`, in order or by label. `observe(node, results)` is called for each
    node.

    Raises InputError where the inputs do not match the graph's (count, label, dtype, shape, symbol bounds), VerifyError
    where the result of an op's reference differs from the type that its type rule infers.
    """
    arrays = _arrays_in_order(graph, inputs)
    elements = [a.reshape(-1).tolist() for n, a in zip(graph.inputs, arrays, strict=True) if size_elements(n)]
    sizes = bind_symbols(graph, [a.shape for a in arrays], elements)
    order, computed_sizes = graph.nodes(), _ComputedSizes(graph)
    remaining_uses = _use_counts(graph, order)
    values: dict[Node, Values] = {}
    for node, array in zip(graph.inputs, arrays, strict=True):
        values[node] = (array,)
    with np.errstate(all="ignore"):
        for node in order:
            if node not in values:
                values[node] = _evaluate(node, [values[i] for i in node.inputs], sizes)
            if node in computed_sizes.names:
                computed_sizes.bind(node, int(values[node][0]), sizes)
            if observe is not None:
                observe(node, values[node])
            for i in node.inputs:
                remaining_uses[i] -= 1
                if not remaining_uses[i]:
                    del values[i]
    return tuple(values[n][0] for n in graph.results)


class _ComputedSizes:
    """The computed sizes of a graph, and the conditions on them."""

    def __init__(self, graph: Graph):
        self.names: dict[Node, list[str]] = {}
        for name, node in graph.size_nodes.items():
            self.names.setdefault(node, []).append(name)
        self.max_sizes = dict(graph.sizes)
        self.bounds = {name: (low, high) for name, low, high in graph.bounds}
        self.conditions: list[DimLike] = [
            c for c in graph.conditions if not self.max_sizes.keys().isdisjoint(symbols_of(c))
        ]

    def bind(self, node: Node, value: int, sizes: dict[str, int]) -> None:
        """Set the sizes that `node` computes in `sizes`. Raises InputError outside of bounds or against a condition."""
        for name in self.names[node]:
            low, high = self.bounds.get(name) or default_bounds(name)
            low = -MAX_INTEGER if low is None else low
            max_size = substitute(self.max_sizes[name], sizes)
            if isinstance(max_size, Dim):  # depends on a size that is computed later: checked then, as a condition
                self.conditions.append(max_size - value)
                max_size = MAX_INTEGER
            max_size = max_size if high is None else min(max_size, high)
            if not low <= value <= max_size:
                raise InputError(f"size {name} of {_location(node)}", expected=f"{low} to {max_size}", got=value)
            sizes[name] = value
        for condition in self.conditions:
            if is_negative(got := substitute(condition, sizes)):
                raise InputError(f"sizes {sizes}", expected=f"{condition} >= 0", got=got)


def _use_counts(graph: Graph, order: Sequence[Node]) -> dict[Node, int]:
    counts = dict.fromkeys(order, 0)
    for node in order:
        for i in node.inputs:
            counts[i] += 1
    for node in graph.outputs:
        counts[node] += 1
    return counts


def _evaluate(node: Node, operands: Sequence[Values], sizes: Mapping[str, int]) -> Values:
    op = node.op
    if isinstance(op, Project):
        return (operands[0][op.index],)
    if isinstance(op, Const):
        return (op.value,)
    if isinstance(op, Input):
        raise VerifyError(f"input {op.label!r} is read but is none of the graph's inputs")
    if sizes:
        op = op.substitute(sizes)
        input_types = [TensorType(dtype_of(v[0]), v[0].shape) for v in operands]
        if any(is_negative(size) for size, _ in op.constraints(*input_types)):
            raise InputError(
                _location(node), expected="sizes that hold what it reads", got=", ".join(map(str, input_types))
            )
    try:
        output = op.reference(*(v[0] for v in operands))
    except Exception as e:
        e.add_note(f"in the reference of {_location(node)} on {', '.join(str(i.types[0]) for i in node.inputs)}")
        raise
    results = output if isinstance(output, tuple) else (output,)
    if len(results) != len(node.types):
        raise VerifyError(_location(node), expected=f"{len(node.types)} results", got=len(results))
    return tuple(_checked_result(node, i, r, sizes) for i, r in enumerate(results))


def _checked_result(node: Node, index: int, result: object, sizes: Mapping[str, int]) -> np.ndarray:
    if not isinstance(result, np.ndarray | np.generic):
        raise VerifyError(f"result {index} of {_location(node)}", expected="a numpy array", got=type(result).__name__)
    array = np.asarray(result)
    expected = node.types[index]
    shape = tuple(substitute(d, sizes) for d in expected.shape)
    if array.dtype != expected.dtype.numpy or array.shape != shape:
        raise VerifyError(
            f"result {index} of {_location(node)}: the reference and the type rule differ",
            expected=TensorType(expected.dtype, shape),
            got=f"{array.dtype}{list(array.shape)}",
        )
    return array


def _location(node: Node) -> str:
    return f"{node.op.name} at {node.loc}" if node.loc else node.op.name


def _arrays_in_order(graph: Graph, inputs: Mapping[str, np.ndarray] | Sequence[np.ndarray]) -> list[np.ndarray]:
    labels = [_input_op(n).label for n in graph.inputs]
    if isinstance(inputs, Mapping):
        missing = [k for k in labels if k not in inputs]
        unknown = [k for k in inputs if k not in labels]
        if missing or unknown:
            raise InputError("inputs", expected=labels, got=list(inputs), fix="pass each input once, by its label")
        values = [inputs[k] for k in labels]
    else:
        values = list(inputs)
    if len(values) != len(labels):
        raise InputError("inputs", expected=f"{len(labels)} {labels}", got=len(values))
    arrays = [np.asarray(a) for a in values]
    for node, label, array in zip(graph.inputs, labels, arrays, strict=True):
        if array.dtype != node.type.dtype.numpy:
            fix = f"convert it with .astype({node.type.dtype.numpy})"
            raise InputError(f"input {label!r}", expected=node.type.dtype, got=_dtype_name(array), fix=fix)
    return arrays


def _dtype_name(array: np.ndarray) -> str:
    try:
        return str(dtype_of(array))
    except TypeError:
        return str(array.dtype)


def _input_op(node: Node) -> Input:
    if not isinstance(node.op, Input):
        raise VerifyError("a graph input", expected="an input node", got=node)
    return node.op


def bind_symbols(
    graph: Graph, shapes: Sequence[tuple[int, ...]], elements: Sequence[Sequence[int]] = ()
) -> dict[str, int]:
    """Return the value of every symbol, from the shapes of the inputs and the elements of those with `elements`.

    A dimension that is an expression determines a symbol that it is linear in, if no other does (2*s0+1 = 9).
    Raises InputError for a wrong rank or size, contradicting sizes, and sizes that violate bounds or conditions.
    """
    values: dict[str, int] = {}
    source: dict[str, str] = {}
    pending: list[tuple[str, DimLike, int]] = []
    for node, shape in zip(graph.inputs, shapes, strict=True):
        label = _input_op(node).label
        if len(shape) != len(node.shape):
            raise InputError(f"input {label!r}", expected=node.type, got=f"shape {list(shape)}")
        axes = enumerate(zip(node.shape, shape, strict=True))
        pending += [(f"axis {i} of input {label!r}", dim, size) for i, (dim, size) in axes]
    with_elements = [n for n in graph.inputs if size_elements(n)]
    for node, values_ in zip(with_elements, elements, strict=True):
        numbered = enumerate(zip(size_elements(node), values_, strict=True))
        pending += [(f"element {i} of input {_input_op(node).label!r}", dim, value) for i, (dim, value) in numbered]
    while pending:
        unsolved: list[tuple[str, DimLike, int]] = []
        for where, dim, size in pending:
            expected = substitute(dim, values)
            if isinstance(expected, int):
                _check_equal(where, dim, expected, size, source)
            elif (solved := _solve(expected, size)) is not None:
                values[solved[0]] = solved[1]
                source[solved[0]] = where
            else:
                unsolved.append((where, dim, size))
        if len(unsolved) == len(pending):
            where, dim, size = unsolved[0]
            what = f"{where} is {size} and does not settle {dim}"
            raise InputError(what, fix="give the graph an input of plain size")
        pending = unsolved
    _check_bounds(graph, values, source)
    for condition in graph.conditions:
        if is_negative(value := substitute(condition, values)):
            raise InputError(f"sizes {values}", expected=f"{condition} >= 0", got=value)
    return values


def _check_equal(where: str, dim: DimLike, computed: int, size: int, source: Mapping[str, str]) -> None:
    if computed == size:
        return
    why = ", ".join(f"{s} from {source[s]}" for s in sorted(symbols_of(dim)))
    expected = f"{computed} (= {dim}; {why})" if why else computed
    raise InputError(where, expected=expected, got=size)


def _solve(dim: Dim, size: int) -> tuple[str, int] | None:
    """The symbol and its value where `dim` is coefficient * symbol + constant and the value an integer; else None."""
    slopes = [(mono[0].name, c) for mono, c in dim.terms if len(mono) == 1 and isinstance(mono[0], Symbol)]
    constant = sum(c for mono, c in dim.terms if not mono)
    if len(slopes) != 1 or len(dim.terms) > 2 or (len(dim.terms) == 2 and not constant):
        return None
    name, slope = slopes[0]
    value = exact_quotient(size - constant, slope)
    return (name, value) if isinstance(value, int) else None


def _check_bounds(graph: Graph, values: Mapping[str, int], source: Mapping[str, str]) -> None:
    declared = {name: (lo, hi) for name, lo, hi in graph.bounds}
    for name, value in values.items():
        lo, hi = declared.get(name) or default_bounds(name)
        if (lo is not None and value < lo) or (hi is not None and value > hi):
            expected = f"{name} in [{'-inf' if lo is None else lo}, {'inf' if hi is None else hi}]"
            raise InputError(source[name], expected=expected, got=value, fix="declare wider bounds when compiling")
