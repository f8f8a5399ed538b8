"""A model file, whatever it holds: ONNX, an ExportedProgram, StableHLO, TFLite, Keras, or a compiled artifact."""

from __future__ import annotations

import json
import logging
import pickle
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ingot import compiler
from ingot.debug.feeds import read_array
from ingot.hosted import HostedModel
from ingot.ir.node import Graph
from ingot.model_file import Kind, kind_of
from ingot.runtime import artifact
from ingot.runtime.executor import CompiledModel, CompiledProgram
from ingot.specialized import SpecializedModel
from ingot.support import progress
from ingot.support.dataclass import dataclass
from ingot.support.errors import ArtifactError, ImportModelError, InputError
from ingot.support.formats import Format

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from ingot.frontends.torch import ImportedModel

Bound = int | tuple[int, int | None]
Dims = Mapping[str, Bound | Mapping[int, Bound]]

# What torch.export.load raises on archives that are damaged or hold something else.
_UNREADABLE = (
    RuntimeError, ValueError, TypeError, LookupError, AssertionError, OSError, EOFError,
    zipfile.BadZipFile, pickle.UnpicklingError,
)  # fmt: skip


@dataclass(frozen=True)
class Source:
    """A readable model file and what was asked of its sizes, by symbol and by input and axis. constants: inputs that
    always have these values."""

    path: Path
    kind: Kind
    dims: Mapping[str, Bound]
    axes: Mapping[str, Mapping[int, Bound]] = field(default_factory=dict)
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def dynamic(self) -> dict[str, Bound | Mapping[int, Bound]] | None:
        """What was asked of the sizes, as frontends take it."""
        return {**self.dims, **self.axes} or None

    @property
    def name(self) -> str:
        return self.path.stem


def open_source(path: Path, dims: Dims | None = None, constants: Sequence[str] = ()) -> Source:
    """constants: as in `read_constants`. Raises ImportModelError for a path that is no readable file, InputError for
    sizes or values that cannot be asked of its kind."""
    try:
        kind = kind_of(path)
    except OSError as error:
        raise ImportModelError(f"cannot read the model: {error.strerror}", where=str(path)) from error
    if kind == "torchscript":
        fix = "ingot.compile(path, example_inputs) in Python"
        raise InputError(f"model {path}", expected="example inputs", got="a TorchScript archive alone", fix=fix)
    if isinstance(kind, Format):
        known = "an ONNX, .pt2, StableHLO, TensorFlow, TFLite, Keras or .ingot file"
        raise ImportModelError(f"model {path}", expected=known, got=kind.name, fix=kind.fix)
    if kind == "artifact" and dims:
        raise InputError(f"{path} is compiled: its sizes are settled", fix="compile the model again with --dim")
    if constants and kind != "onnx":
        raise InputError("--constant", expected="an ONNX file", got=str(path), fix="close over the values, and export")
    sizes = {name: bound for name, bound in (dims or {}).items() if not isinstance(bound, Mapping)}
    axes = {name: bound for name, bound in (dims or {}).items() if isinstance(bound, Mapping)}
    if axes and kind not in ("onnx", "tensorflow"):
        known = "the name of a size, which ingot compile --json tells"
        raise InputError("--dim", expected=known, got=[f"{name}:{axis}" for name, own in axes.items() for axis in own])
    return Source(path, kind, sizes, axes, read_constants(path, constants) if constants else {})


def parse_dims(texts: Sequence[str]) -> dict[str, Bound | Mapping[int, Bound]]:
    """["batch=1", "length=1:512", "frames=4:", "x:2=48"] -> sizes and inclusive bounds, by symbol, or by input and
    axis. Raises InputError."""
    dims: dict[str, Bound | Mapping[int, Bound]] = {}
    for text in texts:
        match = re.fullmatch(r"([^=]+?)(?::(-?\d+))?=(\d+)(?:(:)(\d*))?", text.strip())
        if match is None:
            wanted = "NAME=SIZE or NAME=LOW:HIGH, with a size's name or INPUT:AXIS"
            raise InputError("--dim", expected=wanted, got=repr(text), fix="as in --dim batch=1 or --dim x:2=1:512")
        name, axis, low, ranged, high = match.groups()
        bound = (int(low), int(high) if high else None) if ranged else int(low)
        if axis is None:
            dims[name] = bound
            continue
        axes = dims.get(name, {})
        dims[name] = {**(axes if isinstance(axes, Mapping) else {}), int(axis): bound}
    return dims


def read_constants(path: Path, texts: Sequence[str]) -> dict[str, np.ndarray]:
    """["axes=[1]", "rate=16000", "table=table.npy"] -> arrays in the types of an ONNX file's inputs. Raises InputError
    for what is no such input, no value, or a value that the type does not hold."""
    import onnx  # an extra; reading the file has asked for it

    try:
        graph = onnx.load(path, load_external_data=False).graph
    except Exception as error:  # protobuf's errors have no other base
        raise ImportModelError(f"not a readable ONNX file: {error}", where=str(path)) from error
    types = {i.name: i.type.tensor_type.elem_type for i in graph.input}
    out: dict[str, np.ndarray] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name not in types:
            raise InputError("--constant", expected=f"NAME=VALUE with a name of {list(types)}", got=repr(text))
        out[name] = _typed(name, value, onnx.helper.tensor_dtype_to_np_dtype(types[name]))
    return out


def _typed(name: str, value: str, dtype: np.dtype) -> np.ndarray:
    if value.endswith(".npy"):
        return read_array(Path(value))
    try:
        array = np.asarray(json.loads(value))
    except ValueError as error:
        wanted = "a number, true, false, nested lists of them, or a file FILE.npy"
        raise InputError(f"--constant {name}", expected=wanted, got=repr(value)) from error
    held = array.astype(dtype) if array.dtype.kind in "bif" else array
    rounds = array.dtype.kind == "f" and dtype.kind not in "biu"
    if array.dtype.kind not in "bif" or not (rounds or np.array_equal(held, array)):
        raise InputError(f"--constant {name}", expected=f"what {dtype} holds", got=repr(value))
    return held


def read_graph(source: Source) -> Graph:
    """The MODEL graph of an ONNX file, an exported program, a StableHLO program, a TensorFlow or TFLite model.

    Raises what the frontends raise, and InputError for an artifact.
    """
    if source.kind == "artifact":
        raise InputError(
            f"{source.path} is compiled: the model's graph is not in it",
            expected="an ONNX, .pt2, StableHLO, TensorFlow or TFLite file",
            fix="name the model that it was compiled from",
        )
    if source.kind == "torch":
        return read_torch(source)[1].graph
    progress.report("read")
    if source.kind == "stablehlo":
        from ingot.frontends.stablehlo import import_stablehlo

        return import_stablehlo(source.path, dynamic=dict(source.dims) or None).graph
    if source.kind == "tensorflow":
        from ingot.frontends.tensorflow import import_tensorflow

        return import_tensorflow(source.path, dynamic=source.dynamic).graph
    if source.kind == "tflite":
        from ingot.frontends.tflite import import_tflite

        return import_tflite(source.path, dynamic=dict(source.dims) or None).graph
    if source.kind == "keras":
        from ingot.frontends.keras import import_keras

        return import_keras(source.path, dynamic=dict(source.dims) or None)
    from ingot.frontends.onnx import import_onnx  # an extra; without it the import says what to install

    return import_onnx(source.path, dynamic=source.dynamic, constants=source.constants)


def read_torch(source: Source) -> tuple[ExportedProgram, ImportedModel]:
    """The program in a .pt2 file, and its import with the sizes that were asked for."""
    _check_archive(source.path)
    try:
        import torch  # an extra

        from ingot.frontends.torch import import_exported
    except ImportError as error:
        raise ImportModelError("reading .pt2 files needs PyTorch", fix="pip install 'ingot-compiler[torch]'") from error
    progress.report("read")
    log = logging.getLogger("torch.export")
    log.disabled = True  # what matters is in the raised error
    try:
        program = torch.export.load(source.path)
    except _UNREADABLE as error:
        raise ImportModelError(
            f"not a readable exported program: {error}", where=str(source.path), fix="write it with torch.export.save"
        ) from error
    finally:
        log.disabled = False
    imported = import_exported(program)
    return program, replace(imported, graph=_sized(imported.graph, source.dims))


def _check_archive(path: Path) -> None:
    """Raise ImportModelError for what torch.save or torch.jit.save wrote: pickled at the archive's top, no program."""
    try:
        with zipfile.ZipFile(path) as archive:
            pickled = any(name.count("/") == 1 and name.endswith("/data.pkl") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile) as error:
        raise ImportModelError(
            f"not a readable exported program: {error}", where=str(path), fix="write it with torch.export.save"
        ) from error
    if pickled:
        raise ImportModelError(
            "a module or its weights, not a program", expected="what torch.export.save writes", where=str(path),
            fix="torch.export.save(torch.export.export(net.eval(), (x,)), 'net.pt2')",
        )  # fmt: skip


def _sized(graph: Graph, dims: Mapping[str, Bound]) -> Graph:
    known = graph.symbols()
    if unknown := [name for name in dims if name not in known]:
        raise InputError("--dim", expected=f"one of the model's symbols {list(known)}", got=unknown)
    bounds = {name: (low, high) for name, low, high in graph.bounds}
    bounds |= {name: bound for name, bound in dims.items() if isinstance(bound, tuple)}
    graph = replace(graph, bounds=tuple((name, low, high) for name, (low, high) in sorted(bounds.items())))
    return graph.substitute({name: size for name, size in dims.items() if isinstance(size, int)})


def compile_source(
    source: Source,
    *,
    threads: int | None,
    cache: bool,
    fast_math: bool = False,
    target: str = "native",
    precision: str = "float32",
) -> CompiledProgram:
    """The compiled model; for an artifact the loaded one. Raises what `ingot.compile` and `ingot.load` raise."""
    if source.kind == "artifact":
        return CompiledModel(artifact.load(source.path), threads=threads)
    model = read_torch(source)[1] if source.kind == "torch" else source.path
    dims = source.dynamic if source.kind != "torch" else None
    compiled = compiler.compile_model(
        model, None, target=target, dynamic=dims, precision=precision, threads=threads, cache=cache,
        fast_math=fast_math, constants=source.constants,
    )  # fmt: skip
    if isinstance(compiled, SpecializedModel):
        values = [f"--constant {name}=VALUE" for name in compiled.deciding]
        raise InputError(
            f"{source.path} is a program for each value or size that decides ranks, axes or branches: {compiled}",
            fix=" ".join(values) or "fix the sizes with --dim",
        )
    if isinstance(compiled, HostedModel):
        raise InputError(
            f"{source.path} has strings, images or sequences, which no one program holds", fix="ingot.compile in Python"
        )
    return compiled if isinstance(compiled, CompiledProgram) else compiled.compiled


def runnable(compiled: CompiledProgram) -> CompiledModel:
    """The same model, to be run. Raises ArtifactError where this machine is not the one that it was compiled for."""
    if isinstance(compiled, CompiledModel):
        return compiled
    raise compiled.refused or ArtifactError("a program", expected="a device to run it", got="none")
