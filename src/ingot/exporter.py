"""Any model that Ingot reads as a StableHLO program: for XLA, TPUs and every compiler that takes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ingot.frontends.stablehlo.out import emit
from ingot.frontends.stablehlo.printer import show
from ingot.ir.node import Graph
from ingot.model_file import kind_of
from ingot.ops import seeded
from ingot.passes.model.lower import lower_model_ops
from ingot.runtime.state import RANDOM
from ingot.support import safetensors
from ingot.support.errors import InputError


def export_model(model: Any, path: Path, example_inputs: Any, dynamic: Any, weights: Any, inline: bool) -> None:
    """See `ingot.export`."""
    write(read(model, example_inputs, dynamic, weights), path, inline)


def write(graph: Graph, path: Path, inline: bool = False) -> Path | None:
    """`graph` as text at `path`; weights beside it, at the path that is returned, if it has any. One that draws random
    numbers takes and gives the state that they come from, (seed, calls)."""
    emitted = emit(lower_model_ops(seeded(graph, RANDOM)), inline)
    path.write_text(show(emitted.module))
    if not emitted.weights:
        return None
    beside = path.with_suffix(".safetensors")
    safetensors.write(beside, emitted.weights)
    return beside


def read(model: Any, example_inputs: Any, dynamic: Any, weights: Any) -> Graph:
    """The MODEL graph of a model in any form that `ingot.compile` takes."""
    path = isinstance(model, str | Path)
    kind = kind_of(Path(model)) if path else ""
    if kind == "stablehlo":
        from ingot.frontends.stablehlo import import_stablehlo

        return import_stablehlo(model, dynamic=dynamic, weights=weights).graph
    if kind == "tflite":
        from ingot.frontends.tflite import import_tflite

        return import_tflite(model, dynamic=dynamic).graph
    if kind == "keras":
        from ingot.frontends.keras import import_keras

        return import_keras(model, dynamic=dynamic)
    if kind == "onnx" or type(model).__module__.startswith("onnx"):
        from ingot.frontends.onnx import import_onnx

        return import_onnx(model, dynamic=dynamic)
    if kind == "tensorflow":
        from ingot.frontends.tensorflow import import_tensorflow

        return import_tensorflow(model, dynamic=dynamic).graph
    if kind:
        raise InputError(f"model {model}", expected="an ONNX, StableHLO, TensorFlow or TFLite model", got=kind)
    if hasattr(model, "graph_signature") or hasattr(model, "state_dict"):
        from ingot.frontends import torch as frontend

        ready = hasattr(model, "graph_signature")
        exported = model if ready else frontend.export_module(model, example_inputs, dynamic)
        return frontend.import_exported(exported).graph
    from ingot.frontends.jax import import_jax

    args, kwargs = ((), example_inputs) if isinstance(example_inputs, Mapping) else (example_inputs or (), None)
    return import_jax(model, args, kwargs, dynamic=dynamic, weights=weights).graph
