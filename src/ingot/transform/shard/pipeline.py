"""Pipelines: each device computes a stage of the model, one micro-batch after another (GPipe, Huang et al. 2019).

    device 0:  m0 m1 m2 m3 .       in each step every device sends its result to the next one
    device 1:  .  m0 m1 m2 m3

A device has only the weights of its stage. All devices take part in the exchange of each step, idle ones with zeros, so
that their programs have the same collectives in the same order: each exchange also carries an element of the one before
it, which orders them by a data dependence.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

import numpy as np

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import DType, static_shape
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError
from ingot.transform.placement.cut import derived_weights
from ingot.transform.shard.graph import collectives, shard
from ingot.transform.shard.mesh import Mesh
from ingot.transform.shard.partition import partition

AXIS = "pp"
_MICRO = "micro-batch"
_BATCHES_PER_STAGE = (
    4,
    2,
    1,
)  # micro-batches per stage, tried in this order: the batch has to be a multiple of their number


@dataclass(frozen=True)
class Pipeline:
    """model: the whole model. micro: the model for one of `count` micro-batches. split: the inputs of `micro` that are
    rows of those of `model`. stages: the nodes of each stage. borders: the values between consecutive stages."""

    model: Graph
    micro: Graph
    count: int
    split: frozenset[Node]
    stages: tuple[tuple[Node, ...], ...]
    borders: tuple[Node, ...]


def pipeline(graph: Graph, stages: int) -> Pipeline:
    """Cut a model with static shapes into stages with about equal weights, at places where a single value is live.

    Raises InputError for state, symbolic sizes, and a model that cannot be cut.
    """
    if graph.state or graph.sizes or graph.symbols():
        got = "state" if graph.state else "open sizes"
        raise InputError(f"mesh axis {AXIS}", expected="a model of fixed sizes, without state", got=got)
    whole_graph, micro, count, split = _micro_batches(graph, stages)
    derived = derived_weights(micro)
    nodes = [n for n in micro.nodes() if n not in derived and not isinstance(n.op, Input)]
    position = {n: i for i, n in enumerate(nodes)}
    last_use = dict(position) | {n: len(nodes) for n in micro.outputs if n in position}
    for n in nodes:
        for i in n.inputs:
            if i in position:
                last_use[i] = max(last_use[i], position[n])
    cuts = _cut_values(nodes, last_use)
    elements = [1 + sum(prod(static_shape(x.shape)) for x in n.inputs if x in derived) for n in nodes]
    weights = np.cumsum(elements, dtype=np.float64)
    chosen = _balanced_cuts({i: float(weights[i]) for i in cuts}, float(weights[-1]) if nodes else 0.0, stages)
    if len(chosen) < stages - 1:
        expected = f"{stages - 1} values of one type that alone lead from a stage to the next"
        raise InputError(f"mesh axis {AXIS}", expected=expected, got=len(chosen), fix="use fewer stages")
    boundaries = [-1, *chosen, len(nodes) - 1]
    stage_nodes = tuple(tuple(nodes[a + 1 : b + 1]) for a, b in pairwise(boundaries))
    return Pipeline(whole_graph, micro, count, split, stage_nodes, tuple(cuts[i] for i in chosen))


def _micro_batches(graph: Graph, stages: int) -> tuple[Graph, Graph, int, frozenset[Node]]:
    """(the model, the model of a micro-batch, the number of micro-batches, the inputs that are split). One micro-batch
    if rows depend on each other."""
    batch = next((n.shape[0] for n in graph.inputs if n.shape), 0)
    rows = [n.op.label for n in graph.inputs if isinstance(n.op, Input) and n.shape and n.shape[0] == batch]
    for count in (stages * k for k in _BATCHES_PER_STAGE):
        if not isinstance(batch, int) or not batch or batch % count or count == 1:
            continue
        sharded = shard(graph, Mesh(((_MICRO, count),)), dict.fromkeys(rows, (_MICRO, 0)), splits_loops=False)
        parts = [partition(sharded, i) for i in range(count)]
        is_split = all(spec and spec[0] == (_MICRO,) for spec in sharded.outputs)
        if is_split and not collectives(parts[0]) and all(_is_equal_graph(parts[0], p) for p in parts[1:]):
            split = frozenset(n for n in parts[0].inputs if isinstance(n.op, Input) and n.op.label in rows)
            return sharded.graph, parts[0], count, split
    return graph, graph, 1, frozenset()


def _is_equal_graph(a: Graph, b: Graph) -> bool:
    """Whether two graphs are equal, where subgraphs of constants may differ if their values are equal."""
    constants = derived_weights(a).keys() | derived_weights(b).keys()
    waiting, visited = [*zip(a.outputs, b.outputs, strict=True)], set[tuple[Node, Node]]()
    while waiting:
        x, y = pair = waiting.pop()
        if x is y or pair in visited:
            continue
        visited.add(pair)
        if x in constants and y in constants:
            if x.types != y.types or not np.array_equal(*interpret(Graph((), (x, y)), []), equal_nan=x.dtype.is_float):
                return False
        elif x.op != y.op or len(x.inputs) != len(y.inputs):
            return False
        else:
            waiting += zip(x.inputs, y.inputs, strict=True)
    return True


def _cut_values(nodes: Sequence[Node], last: dict[Node, int]) -> dict[int, Node]:
    """By the index of a node: the value that alone is live after it, for values of the most frequent dtype."""
    value_at: dict[int, Node] = {}
    live: set[Node] = set()
    for i, n in enumerate(nodes[:-1]):
        live = {v for v in live if last[v] > i} | ({n} if last[n] > i else set())
        if len(live) == 1:
            (value,) = live
            if len(value.types) == 1:
                value_at[i] = value
    dtypes = [v.dtype for v in value_at.values()]
    return {i: v for i, v in value_at.items() if v.dtype == max(dtypes, key=dtypes.count)}


def _balanced_cuts(costs: dict[int, float], total: float, stages: int) -> list[int]:
    """The cuts whose cumulative costs are nearest to equal shares."""
    chosen: list[int] = []
    for k in range(1, stages):
        candidates = [i for i in costs if not chosen or i > chosen[-1]]
        candidates = candidates[: len(candidates) - (stages - 1 - k)]  # reserve a cut for each later stage
        if candidates:
            chosen.append(min(candidates, key=lambda i: abs(costs[i] - total * k / stages)))
    return chosen


def graph_of_rank(p: Pipeline, rank: int) -> Graph:
    """The graph of a device. Every device takes the whole inputs and returns the whole results."""
    count, ring = len(p.stages), ops.Permute((tuple(range(len(p.stages))),), 1)
    dtype = p.borders[0].dtype
    size = max(prod(static_shape(b.shape)) for b in p.borders)
    zeros = const(np.zeros(size, dtype.numpy))
    token = const(np.zeros(1, dtype.numpy))
    received: Node | None = None
    results: list[list[Node]] = []
    for step in range(p.count + count - 1):
        batch = step - rank
        sent = zeros
        if 0 <= batch < p.count:
            images = {
                n: _rows(n, w, batch) if n in p.split else w
                for n, w in zip(p.micro.inputs, p.model.inputs, strict=True)
            }
            if rank:
                assert received is not None
                border = p.borders[rank - 1]
                images[border] = ops.reshape(_part(received, 0, prod(static_shape(border.shape))), border.shape)
            for n in p.stages[rank]:
                images[n] = n.with_inputs([images.get(i, i) for i in n.inputs])
            if rank < count - 1:
                flat = ops.reshape(images[p.borders[rank]], (prod(static_shape(p.borders[rank].shape)),))
                sent = ops.pad(flat, (0,), (size - flat.type.nbytes // dtype.numpy.itemsize,))
            else:
                results.append([images.get(o, o) for o in p.micro.outputs])
        if step < p.count + count - 2:
            received = ring(ops.concat([sent, token]))
            token = _part(received, size, 1)
    outputs = (
        [ops.concat([r[i] for r in results]) if p.count > 1 else results[0][i] for i in range(len(p.micro.outputs))]
        if results
        else None
    )
    return p.model.with_outputs(_gather_results(p.model.outputs, outputs, count, token))


def _gather_results(wholes: Sequence[Node], outputs: Sequence[Node] | None, count: int, token: Node) -> list[Node]:
    """The results of the last device, gathered on all devices. outputs: None on other devices. token: an element of the
    last exchange."""
    gather = ops.AllGather((tuple(range(count)),))
    results: dict[int, Node] = {}
    for dtype in dict.fromkeys(n.dtype for n in wholes):
        indices = [i for i, n in enumerate(wholes) if n.dtype == dtype]
        sizes = [prod(static_shape(wholes[i].shape)) for i in indices]
        flat = [
            _zeros(n, dtype) if outputs is None else ops.reshape(outputs[i], (n,))
            for i, n in zip(indices, sizes, strict=True)
        ]
        total = sum(sizes) + 1
        gathered = gather(ops.concat([*flat, ops.cast(token, dtype)]))
        start = total * (count - 1)
        for i, n in zip(indices, sizes, strict=True):
            results[i] = ops.reshape(_part(gathered, start, n), wholes[i].shape)
            start += n
        token = _part(gathered, start, 1)
    return [results[i] for i in range(len(wholes))]


def _zeros(count: int, dtype: DType) -> Node:
    return const(np.zeros(count, dtype.numpy))


def _part(x: Node, start: int, count: int) -> Node:
    return ops.slice_axis(x, 0, start, start + count)


def _rows(micro: Node, buffer: Node, batch: int) -> Node:
    rows = static_shape(micro.shape)[0]
    return _part(buffer, rows * batch, rows)
