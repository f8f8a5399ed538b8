"""A graph as a file: for XLA, TPUs and every compiler that takes StableHLO."""

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
    """`graph` as text at `path`; weights beside it, at the path that is returned, if it has any. One that draws random
    numbers takes and gives the state that they come from, (seed, calls)."""
    progress.report("lower")
    emitted = emit(lower_model_ops(with_random_state(graph, RANDOM)), inline)
    progress.report("print")
    atomic_write(path, [show(emitted.module).encode()])
    if not emitted.weights:
        return None
    weights_path = path.with_suffix(".safetensors")
    safetensors.write(weights_path, emitted.weights)
    return weights_path
