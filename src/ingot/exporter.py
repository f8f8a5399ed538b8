"""Any model that Ingot reads as a StableHLO program: for XLA, TPUs and every compiler that takes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ingot.frontends.stablehlo.out import emit
from ingot.frontends.stablehlo.printer import show
from ingot.ir.node import Graph
from ingot.opening import Request, open_model
from ingot.ops import seeded
from ingot.passes.model.lower import lower_model_ops
from ingot.runtime.state import RANDOM
from ingot.support import safetensors
from ingot.support.files import atomic_write


def export_model(model: Any, path: Path, example_inputs: Any, dynamic: Any, weights: Any, inline: bool) -> None:
    """See `ingot.export`."""
    write(read(model, example_inputs, dynamic, weights), path, inline)


def write(graph: Graph, path: Path, inline: bool = False) -> Path | None:
    """`graph` as text at `path`; weights beside it, at the path that is returned, if it has any. One that draws random
    numbers takes and gives the state that they come from, (seed, calls)."""
    emitted = emit(lower_model_ops(seeded(graph, RANDOM)), inline)
    atomic_write(path, [show(emitted.module).encode()])
    if not emitted.weights:
        return None
    beside = path.with_suffix(".safetensors")
    safetensors.write(beside, emitted.weights)
    return beside


def read(model: Any, example_inputs: Any = None, dynamic: Any = None, weights: Any = None) -> Graph:
    """The MODEL graph of a model in any form that `ingot.compile` takes."""
    return open_model(model, Request(example_inputs, dynamic, weights)).graph
