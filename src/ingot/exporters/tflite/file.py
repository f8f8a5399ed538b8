"""A graph as a TFLite file."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ingot.exporters.tflite import writer
from ingot.exporters.tflite.emitter import emit
from ingot.exporters.tflite.fold import fold
from ingot.exporters.tflite.levels import Range, measured, to_int8
from ingot.exporters.tflite.records import Model
from ingot.exporters.tflite.rows import KEPT, serves
from ingot.ir.node import Graph, Node
from ingot.passes.core.fold_constants import fold_constants
from ingot.passes.core.simplify import simplify
from ingot.passes.model.fold_batch_norm import fold_batch_norm
from ingot.passes.model.lower import lower_model_ops

Measure = Callable[[Graph, Sequence[Node]], Sequence[Range]]
"""The least and the largest value of nodes of a graph, over samples."""


def records(graph: Graph) -> tuple[Model, Graph]:
    """The model of a graph in floats, and the graph whose nodes its tensors name. Raises what `emit` raises."""
    graph = fold_batch_norm(fold_constants(graph))
    graph = simplify(fold_constants(lower_model_ops(graph, KEPT, serves)))
    model = emit(graph)
    fold(model)
    return model, graph


def content(graph: Graph, measure: Measure | None = None, float_edges: bool = False) -> bytes:
    """The file of a graph: in floats, or in int8 by what `measure` finds.

    float_edges: keep the inputs and outputs of an int8 model in floats. Raises InputError for open sizes and state,
    and UnsupportedOpError naming every op that TFLite has no operator for.
    """
    model, graph = records(graph)
    if measure is not None:
        numbers = measured(model)
        nodes = [node for i in numbers if (node := model.tensors[i].node) is not None]
        to_int8(model, dict(zip(numbers, measure(graph, nodes), strict=True)), float_edges)
    return writer.content(model)
