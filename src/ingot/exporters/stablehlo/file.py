"""A graph as a file, for XLA, TPUs and every compiler that reads StableHLO."""

from __future__ import annotations

from pathlib import Path

from ingot.exporters.stablehlo.emitter import emit
from ingot.frontends.stablehlo.printer import show
from ingot.ir.node import Graph
from ingot.ops import with_random_state
from ingot.passes.model.lower import lower_model_ops
from ingot.runtime.state import RANDOM
from ingot.support import progress, safetensors
from ingot.support.files import atomic_write


def write(graph: Graph, path: Path, inline: bool = False) -> Path | None:
    """Write `graph` as text to `path`. Returns the path of its weights, in the same folder; None if it has none. A
    graph with random numbers gets their state, (seed, calls), as an additional input and output."""
    progress.report("lower")
    emitted = emit(lower_model_ops(with_random_state(graph, RANDOM)), inline)
    progress.report("print")
    atomic_write(path, [show(emitted.module).encode()])
    if not emitted.weights:
        return None
    weights_path = path.with_suffix(".safetensors")
    safetensors.write(weights_path, emitted.weights)
    return weights_path
