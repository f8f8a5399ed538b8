"""Ranges of a graph's values over samples, by which it is written as a TFLite file of levels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ingot import ops
from ingot.driver.compile import Options, build_graph
from ingot.exporters.tflite.file import Measure, content
from ingot.exporters.tflite.ranges import Range
from ingot.ir.node import Graph, Node
from ingot.runtime.executor import CompiledModel
from ingot.support import progress
from ingot.support.files import atomic_write


def write_levels(
    graph: Graph,
    calls: Sequence[Sequence[np.ndarray]],
    path: Path,
    float_edges: bool = False,
    activations: str = "int8",
) -> None:
    """Write a graph as a TFLite file of int8 operators, or with activations of int16. Raises what `content` raises."""
    atomic_write(path, [content(graph, measure_over(calls), float_edges, activations)])


def sizes_of(graph: Graph, arrays: Sequence[np.ndarray]) -> dict[str, int]:
    """The sizes that a graph leaves open, as its inputs have them."""
    pairs = [
        (d, n) for node, x in zip(graph.inputs, arrays, strict=False) for d, n in zip(node.shape, x.shape, strict=False)
    ]
    return {str(d): n for d, n in pairs if str(d).isidentifier()}


def measure_over(calls: Sequence[Sequence[np.ndarray]]) -> Measure:
    """The least and the largest value that each node has in these calls."""

    def measure(graph: Graph, nodes: Sequence[Node]) -> list[Range]:
        distinct = list(dict.fromkeys(nodes))
        ends = [ops.Reduce(kind, tuple(range(n.type.rank)))(n) for n in distinct for kind in ("min", "max")]
        probe = Graph(graph.inputs, tuple(ends), bounds=graph.bounds)
        model = CompiledModel(build_graph(lambda: probe, Options()), threads=1)
        rows: list[list[float]] = []
        for i, call in enumerate(calls):
            progress.report("calibrate", i, len(calls))
            rows.append([float(value) for value in model.run(list(call))])
        extremes = np.array(rows)
        low, high = extremes[:, ::2].min(0).tolist(), extremes[:, 1::2].max(0).tolist()
        ranges = dict(zip(distinct, zip(low, high, strict=True), strict=True))
        return [ranges[node] for node in nodes]

    return measure
