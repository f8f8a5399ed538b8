"""A graph as a TFLite file."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ingot.exporters.tflite import composites, writer
from ingot.exporters.tflite.core_rows import ARITHMETIC
from ingot.exporters.tflite.emitter import emit
from ingot.exporters.tflite.fold import fold
from ingot.exporters.tflite.given import is_quantized, to_given_levels
from ingot.exporters.tflite.numbers import as_numbers
from ingot.exporters.tflite.ranges import Range, measured, to_levels
from ingot.exporters.tflite.records import Model
from ingot.exporters.tflite.rows import BUILTIN_OPS, serves
from ingot.ir.node import Graph, Node
from ingot.ir.rewrite import rewrite
from ingot.passes.core.fold_constants import fold_constants
from ingot.passes.core.gelu import GELU
from ingot.passes.core.simplify import simplify
from ingot.passes.model.fold_batch_norm import fold_batch_norm
from ingot.passes.model.lower import lower_model_ops
from ingot.support.errors import InputError

assert composites  # its rows

ACTIVATIONS = {"int8": "i8", "int16": "i16"}

Measure = Callable[[Graph, Sequence[Node]], Sequence[Range]]
"""The range of values of each of a graph's nodes, over samples."""


def records(graph: Graph) -> tuple[Model, Graph]:
    """The model of a graph in floats, and the lowered graph whose nodes its tensors refer to. Raises what `emit`
    raises."""
    graph = fold_batch_norm(fold_constants(as_numbers(graph)))
    graph = simplify(fold_constants(lower_model_ops(graph, BUILTIN_OPS, serves)))
    graph = rewrite(graph, GELU + ARITHMETIC)
    model = emit(graph)
    for part in (model, *model.subgraphs):
        fold(part)
    return model, graph


def content(
    graph: Graph, measure: Measure | None = None, float_edges: bool = False, activations: str = "int8"
) -> bytes:
    """The file of a graph: quantized by the graph's own QDQ nodes, or by the ranges that `measure` returns, or in
    floats.

    float_edges: keep inputs and outputs in floats when quantizing by ranges. activations: the type of values then,
    "int8" or "int16"; weights are int8. Raises InputError for open sizes, for state, and for samples of a graph that is
    quantized already; UnsupportedOpError naming every op that TFLite has no operator for.
    """
    if activations not in ACTIVATIONS:
        raise InputError("activations", expected=" or ".join(ACTIVATIONS), got=activations)
    model, graph = records(graph)
    if is_quantized(model):
        if measure is not None:
            fix = "leave the samples out: the model's own scales are written"
            raise InputError("samples", expected="a model in floats", got="one that is quantized", fix=fix)
        to_given_levels(model)
    elif measure is not None:
        numbers = measured(model)
        nodes = [node for i in numbers if (node := model.tensors[i].node) is not None]
        ranges = dict(zip(numbers, measure(graph, nodes), strict=True))
        to_levels(model, ranges, float_edges, ACTIVATIONS[activations])
    return writer.content(model)
