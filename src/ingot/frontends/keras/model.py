"""Keras models as graphs: `.keras` and `.h5` files, and models in memory.

A file is read by `worker`, in a process with Keras on JAX, which writes a program that does not need Keras. A model in
memory is exported in this process if its backend is JAX; else it is saved, and its file is read.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ingot.frontends.shared.subprocesses import run_in_subprocess
from ingot.frontends.stablehlo import import_stablehlo
from ingot.ir.dims import parse_dim
from ingot.ir.node import Graph
from ingot.support import errors, safetensors
from ingot.support.errors import UnsupportedOp, UnsupportedOpError

_WORKER_CODE = "from ingot.frontends.keras.worker import run; run()"


def is_keras(model: Any) -> bool:
    """Whether it is a Keras model in memory."""
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(model, keras.Model)


def in_jax(model: Any) -> bool:
    """Whether it is a Keras model in memory that computes by JAX."""
    return is_keras(model) and sys.modules["keras"].backend.backend() == "jax"


def import_keras(source: Any, *, dynamic: Any = None, example_inputs: Any = None) -> Graph:
    """A Keras model in inference as a graph with the model's inputs, in its order and by its names.

    source: the path of a `.keras` file or of an HDF5 file, or a `keras.Model`.
    dynamic: of the sizes that the model leaves open, which are `batch` and `<input>_<axis>`: a size or bounds by symbol
        ({"batch": 1}, {"batch": (1, 64)}), a size or a name by axis ({"tokens": {1: "length"}}); False: there are none.
    example_inputs: of a `keras.Model` that declares no inputs, arrays.

    Raises UnsupportedOpError naming the layers that are code, strings or not of Keras, ImportModelError for files that
    cannot be read, InputError for sizes that do not fit, LimitError where time is up.
    """
    if not is_keras(source):
        return _read(Path(source), dynamic)
    if in_jax(source):
        from ingot.frontends.keras.program import program_of

        examples = example_inputs
        if examples is not None:
            examples = list(examples) if isinstance(examples, tuple | list) else [examples]
        program = program_of(source, dynamic, examples)
        return graph_of(
            program.text, program.names, program.shapes, program.outputs, program.bounds, program.weights, source.name
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.keras")
        source.save(path)
        return _read(path, dynamic)


def _read(path: Path, dynamic: Any) -> Graph:
    env = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    with tempfile.TemporaryDirectory() as folder_path:
        folder = Path(folder_path)
        dynamic_json, arguments = json.dumps(dynamic).encode(), [str(path.absolute()), folder_path]
        run_in_subprocess(
            _WORKER_CODE, arguments, "Keras cannot read the model", str(path), stdin=dynamic_json, env=env
        )
        if (error_file := folder / "error.json").is_file():
            raise _error(json.loads(error_file.read_text()), str(path))
        form = json.loads((folder / "form.json").read_text())
        text = (folder / "program.mlir").read_text()
        # copied to memory, as the folder is removed
        weights = {k: np.array(v) for k, v in safetensors.read(folder / "weights.safetensors").items()}
    return graph_of(text, form["names"], form["shapes"], form["outputs"], form["bounds"], weights, str(path))


def _error(error: Mapping[str, Any], path: str) -> Exception:
    if "unsupported" in error:
        return UnsupportedOpError([UnsupportedOp(*op) for op in error["unsupported"]], model=path, fix=error["fix"])
    return getattr(errors, error["kind"])(error["text"], where=None if path in error["text"] else path)


def graph_of(
    text: str, names: Sequence[str], shapes: Sequence[Sequence[str]], outputs: Sequence[str],
    bounds: Mapping[str, Any], weights: Mapping[str, np.ndarray], where: str,
) -> Graph:  # fmt: skip
    sizes = [tuple(int(d) if d.isdigit() else parse_dim(d) for d in shape) for shape in shapes]
    spans = {name: tuple(span) for name, span in bounds.items()}
    graph = import_stablehlo(text, names=names, shapes=sizes, weights=weights, dynamic=spans, where=where).graph
    return replace(graph, output_names=tuple(outputs))
