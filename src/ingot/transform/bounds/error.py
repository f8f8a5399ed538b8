"""The distance of a program's results from those over the real numbers, with sums rounded in any order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ingot.driver.compile import Options, compiled_program
from ingot.ir.node import Graph
from ingot.runtime.executor import CompiledModel
from ingot.transform.bounds.graph import Question, bound_graph
from ingot.transform.bounds.narrow import in_parts
from ingot.transform.bounds.rounding import Rounding
from ingot.transform.bounds.run import as_compiled, rounding_of, static_graph


def rounding_errors(graph: Graph, inputs: Sequence[np.ndarray], options: Options) -> dict[str, float]:
    """For each result an upper bound of the distance between the program's elements and the real ones, for these
    inputs; infinity where intervals are unbounded. inputs: of the graph's types. Raises as `ingot.bounds` does."""
    graph = static_graph(graph, inputs)
    perturbed = tuple(x.dtype.is_float for x in graph.inputs)
    arguments = [v for x, is_float in zip(inputs, perturbed, strict=True) for v in ((x, x) if is_float else (x,))]
    bounds: list[list[np.ndarray]] = []
    float32_options = replace(options, precision="float32", activations="float32")
    for rounding in (Rounding(), rounding_of(graph, True, options)):
        of_program = in_parts(as_compiled(graph, options)) if rounding.unit else graph
        program = compiled_program(
            bound_graph(of_program, Question(perturbed, "crown-ibp", None, rounding)), float32_options
        )
        results = CompiledModel(program, threads=options.threads).run(arguments)
        bounds.append([np.asarray(v, np.float64) for v in results])
    names = graph.output_names or [f"y{i}" for i in range(len(graph.results))]
    real_bounds, rounded_bounds = ([*zip(v[::2], v[1::2], strict=True)] for v in bounds)
    return {
        name: max(float(np.max(upper - real_lower, initial=0.0)), float(np.max(real_upper - lower, initial=0.0)))
        for name, (real_lower, real_upper), (lower, upper) in zip(names, real_bounds, rounded_bounds, strict=True)
    }


def rounding_text(errors: dict[str, float]) -> str:
    """A line of a report."""
    distances = ", ".join(f"{name} by at most {error:.1e}" for name, error in errors.items())
    return f"rounding, in any order of sums, moves {distances}"
