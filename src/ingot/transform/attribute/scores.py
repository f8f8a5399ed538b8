"""A model as a function from points to scores: the values to attribute to, the batch axis, batches of several points.

ids -> take(table, ids) -> ... -> logits[b, 10]   ->   point[b * c, L, E] -> ... -> logits[b * c, 10]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ingot import ops
from ingot.autodiff import differentiable, gradients
from ingot.ir.dims import Dim, DimLike, product, symbols_of
from ingot.ir.node import Graph, Input, Node, rebuild, size_elements
from ingot.ir.types import Shape, boolean, i64
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError, check_number, check_once

_LOOKUPS = (ops.Take, ops.Gather, ops.GatherND, ops.EmbeddingLookup)


@dataclass(frozen=True)
class Variable:
    """An input to attribute to. values: the varied values: the input itself, or the rows that its indices select."""

    input: Node
    values: tuple[Node, ...]

    @property
    def name(self) -> str:
        return self.input.op.label  # type: ignore[attr-defined]

    @property
    def has_indices(self) -> bool:
        return self.values != (self.input,)


def find_variables(graph: Graph, wrt: Sequence[str] | None) -> tuple[Variable, ...]:
    """The inputs named `wrt`; by default all float inputs, and the integer inputs that select rows of constant tables.

    Raises InputError for unknown names, for other integer inputs, and for a model without inputs of these kinds.
    """
    variables = {v.name: v for x in graph.inputs if (v := _variable(graph, x)) is not None}
    labels = [x.op.label for x in graph.inputs]  # type: ignore[attr-defined]
    expected = f"some of {', '.join(variables) or 'none'}: inputs of floats, or of indices into tables"
    if not variables:
        raise InputError("the model", expected="inputs of floats, or of indices into tables", got=labels)
    if wrt is None:
        return tuple(variables.values())
    if isinstance(wrt, str):
        raise InputError("wrt", expected=f"a list of names: [{wrt!r}]", got=repr(wrt))
    check_once("wrt", list(wrt))
    unknown = [name for name in wrt if name not in variables]
    if not wrt or unknown:
        raise InputError("wrt", expected=expected, got=unknown or "none")
    return tuple(variables[name] for name in wrt)


def _variable(graph: Graph, x: Node) -> Variable | None:
    if x.dtype.is_float:
        return Variable(x, (x,))
    if not x.dtype.is_integer or size_elements(x):
        return None
    reads: dict[Node, frozenset[Node]] = {n: frozenset((n,)) for n in graph.inputs}
    rows: list[Node] = []
    for n in graph.nodes():
        reads.setdefault(n, frozenset().union(*(reads[i] for i in n.inputs)))
        if not isinstance(n.op, _LOOKUPS) or not n.dtype.is_float or reads[n] != {x}:
            continue
        is_table = not any(reads[i] for i in n.inputs if i.dtype.is_float)
        if is_table and n.shape[: x.type.rank] == x.shape:
            rows.append(n)
    return Variable(x, tuple(rows)) if rows else None


@dataclass(frozen=True)
class Scores:
    """A model with one result, cut at the values of its variables.

    graph: its inputs are those of the model, followed by the values of variables that are not inputs themselves.
    values: the inputs of `graph` that are varied, in the order of the variables. batch: the size of the batch axis, if
    points can be added along it: each value and the result then have exactly one axis of this size. The examples of a
    batch must be independent.
    """

    graph: Graph
    values: tuple[Node, ...]
    batch: Dim | None

    @property
    def result(self) -> Node:
        return self.graph.outputs[0]

    @property
    def fixed_inputs(self) -> tuple[Node, ...]:
        """The inputs that are not varied."""
        return tuple(x for x in self.graph.inputs if x not in self.values)

    @property
    def batch_axis(self) -> int | None:
        """The batch axis of the result, if it has one."""
        shape = self.result.shape
        if self.batch is not None:
            return self.axis_of(self.result)
        leading = next((v.shape[:1] for v in self.values if v.shape), ())
        return 0 if shape and leading == shape[:1] else None

    @property
    def class_axes(self) -> tuple[int, ...]:
        return tuple(d for d in range(len(self.result.shape)) if d != self.batch_axis)

    def axis_of(self, x: Node) -> int:
        """The axis of `x` along which points can be added."""
        return x.shape.index(self.batch)

    def example_axis(self, x: Node) -> int | None:
        """The batch axis of an input; None for one that all examples share."""
        if self.batch is not None:
            return self.axis_of(x) if self.batch in x.shape else None
        return 0 if self.batch_axis is not None and x.shape[:1] == self.result.shape[:1] else None

    def target_shape(self) -> Shape | None:
        """The shape of the indices of the explained scores; None if each example has only one score."""
        axes = self.class_axes
        if not axes:
            return None
        examples = () if self.batch_axis is None else (self.result.shape[self.batch_axis],)
        return examples if len(axes) == 1 else (*examples, len(axes))

    def with_points(self, count: int) -> Scores:
        """The model for batches with `count` points of each example."""
        if count == 1:
            return self
        assert self.batch is not None
        (name,) = symbols_of(self.batch)
        graph = self.graph.substitute({name: self.batch * count})
        images = dict(zip(self.graph.inputs, graph.inputs, strict=True))
        return Scores(graph, tuple(images[v] for v in self.values), None)

    def call(self, values: Mapping[Node, Node]) -> Node:
        """The result for the given values of the graph's inputs."""
        return rebuild(self.graph.outputs[:1], dict(values))[0]

    def gradients(self) -> tuple[Graph, Node]:
        """(a graph of the result and the cotangents of `values`; its last input, the cotangent of the result)."""
        core = differentiable(self.graph)
        variables = [core.inputs[self.graph.inputs.index(v)] for v in self.values]
        seed = Input("cotangent of the result", core.outputs[0].type)()
        inputs = (*core.inputs, seed)
        return replace(
            core, inputs=inputs, outputs=(core.outputs[0], *gradients(core.outputs[0], variables, seed))
        ), seed


def scores_of(graph: Graph, variables: Sequence[Variable], output: int | str) -> Scores:
    """The scores of one result of a MODEL graph. Raises InputError if the result does not exist or is not float."""
    result = graph.results[_output_index(graph, output)]
    if not result.dtype.is_float:
        raise InputError(
            "the result to explain", expected="floats", got=str(result.type), fix="choose another: output="
        )
    if graph.sizes:
        raise InputError("the model", expected="sizes that follow from its inputs'", got="sizes that values decide")
    placeholders = {
        v: Input(f"rows {n} of {variable.name}", v.type)()
        for variable in variables
        if variable.has_indices
        for n, v in enumerate(variable.values)
    }
    values = tuple(placeholders.get(v, v) for variable in variables for v in variable.values)
    (cut,) = rebuild([result], dict(placeholders))
    inputs = (*graph.inputs, *placeholders.values())
    cut_graph = replace(graph, inputs=inputs, outputs=(cut,), output_names=())
    return Scores(cut_graph, values, _batch(cut_graph, values))


def _output_index(graph: Graph, output: int | str) -> int:
    names = graph.output_names
    if isinstance(output, str):
        if output not in names:
            raise InputError("output", expected=f"one of {', '.join(names)}", got=repr(output))
        return names.index(output)
    count = len(graph.results)
    check_number("output", output, f"0 to {count - 1}, or a name", lambda n: 0 <= n < count, whole=True)
    return output


def _batch(graph: Graph, values: Sequence[Node]) -> Dim | None:
    """The size of the batch, which is the first axis of the first value, if points can be added along it."""
    size: DimLike = values[0].shape[0] if values[0].shape else 1
    if not isinstance(size, Dim) or len(symbols_of(size)) != 1:
        return None
    (name,) = symbols_of(size)
    limited = any(symbol == name and high is not None for symbol, _, high in graph.bounds)
    if limited or any(name in symbols_of(c) for c in graph.conditions):
        return None
    for x in (*graph.inputs, *graph.outputs):
        axes = [d for d, n in enumerate(x.shape) if name in symbols_of(n)]
        if size_elements(x) or any(x.shape[d] != size for d in axes) or len(axes) > 1:
            return None
        if not axes and (x in values or x in graph.outputs):
            return None
    return size


def targets(scores: Scores, result: Node, target: Node | None) -> tuple[Node, Node | None]:
    """(bool: the elements of the result to explain; bool: the examples whose indices are in range, None if all are).

    result: at the inputs. target: indices of `Scores.target_shape`; -1 selects the largest score of a single axis.
    """
    axes = scores.class_axes
    if target is None or not axes:
        return ops.full(result.shape, True, boolean), None
    if len(axes) == 1:
        indices = [ops.where(ops.compare("LT", target, 0), ops.arg_reduce("max", result, axes[0]), target)]
    else:
        last = target.type.rank - 1
        indices = [ops.index_axis(target, last, n) for n in range(len(axes))]
    chosen = are_valid = None
    for axis, index in zip(axes, indices, strict=True):
        size = result.shape[axis]
        inside = ops.and_(ops.compare("GE", index, 0), ops.compare("LT", index, ops.scalar(size, i64)))
        are_valid = inside if are_valid is None else ops.and_(are_valid, inside)
        position = ops.iota(result.shape, axis)
        equal = ops.compare("EQ", position, along_axis(index, result.shape, scores.batch_axis))
        chosen = equal if chosen is None else ops.and_(chosen, equal)
    assert chosen is not None
    return chosen, are_valid


def along_axis(x: Node, shape: Shape, axis: int | None) -> Node:
    """A vector along `axis`, or a scalar (axis None), broadcast to `shape`."""
    if axis is None:
        return ops.broadcast_to(ops.reshape(x, ()), shape)
    return ops.broadcast_to(ops.reshape(x, (*(1,) * axis, *x.shape, *(1,) * (len(shape) - axis - 1))), shape)


def of_examples(kind: str, x: Node, axis: int | None, shape: Shape) -> Node:
    """A value of each example, [batch] or a scalar, broadcast to an input's `shape`. axis: the input's batch axis; None
    if all examples share it: their values are reduced by `kind`."""
    return along_axis(ops.reduce(kind, x) if axis is None else x, shape, axis)


def repeat_examples(x: Node, axis: int, count: int) -> Node:
    """Repeat each example `count` times: [.., b, ..] -> [.., b * count, ..]."""
    if count == 1:
        return x
    return merge_axes(ops.broadcast_to(ops.expand_dims(x, axis + 1), points_shape(x.shape, axis, count)), axis)


def points_shape(shape: Shape, axis: int, count: int) -> Shape:
    return shape if count == 1 else (*shape[: axis + 1], count, *shape[axis + 1 :])


def merge_axes(x: Node, axis: int) -> Node:
    """[.., b, c, ..] -> [.., b * c, ..]."""
    shape = x.shape
    return ops.reshape(x, (*shape[:axis], product(shape[axis : axis + 2]), *shape[axis + 2 :]))
