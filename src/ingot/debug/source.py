"""A model file of any kind: ONNX, an ExportedProgram, StableHLO, TFLite, Keras, or a compiled artifact."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ingot.debug.feeds import read_array
from ingot.driver import compile as compiler
from ingot.driver.open import Request, frontend_for, open_model
from ingot.driver.recognize import Kind, kind_of
from ingot.frontends.shared.weights import arrays_of
from ingot.ir.node import Graph, Input
from ingot.runtime import artifact
from ingot.runtime.cpu.pool import thread_count
from ingot.runtime.executor import CompiledModel
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError, InputError, check_once
from ingot.support.formats import Format

Bound = int | tuple[int, int | None]


@dataclass(frozen=True)
class Source:
    """A readable model file and the user's requests: for its sizes, by symbol or by input and axis, and for the other
    arguments of `ingot.compile`, by their names."""

    path: Path
    kind: Kind
    dims: Mapping[str, Bound]
    axes: Mapping[str, Mapping[int, Bound]] = field(default_factory=dict)
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)
    signature: str | None = None
    inputs: Mapping[str, Any] | None = None
    outputs: tuple[str, ...] | None = None

    @property
    def request(self) -> Request:
        weights, outputs = dict(self.weights) or None, list(self.outputs) if self.outputs else None
        return Request(None, self.dynamic, weights, self.signature, self.inputs, outputs)

    @property
    def dynamic(self) -> dict[str, Bound | Mapping[int, Bound]] | None:
        """The requests for sizes, in the form that frontends take."""
        return {**self.dims, **self.axes} or None

    @property
    def name(self) -> str:
        return self.path.stem


@dataclass(frozen=True)
class Words:
    """The command line's words about a model, unparsed. weights: as in `read_weights`. inputs: NAME, or
    NAME=[TYPE:]SIZES, with ? for open sizes."""

    dims: Sequence[str] = ()
    weights: Sequence[str] = ()
    signature: str | None = None
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()


def open_source(path: Path, words: Words | None = None) -> Source:
    """Raises ImportModelError if the path is not a readable file, InputError for requests that its format does not
    support."""
    words = words or Words()
    try:
        kind = kind_of(path)
    except OSError as error:
        raise ImportModelError(f"cannot read the model: {error.strerror}", where=str(path)) from error
    if kind == "torchscript" and not words.inputs:
        fix = "--inputs x=f32:1,? and --constant rate=16000, or ingot.compile(path, example_inputs) in Python"
        raise InputError(f"model {path}", expected="what goes in", got="a TorchScript archive alone", fix=fix)
    if isinstance(kind, Format):
        expected = "an ONNX, .pt2, TorchScript, StableHLO, jax.export, TensorFlow, TFLite, Keras, GGUF or .ingot file"
        raise ImportModelError(f"model {path}", expected=expected, got=kind.name, fix=kind.fix)
    dims = parse_dims(words.dims)
    if kind == "artifact" and dims:
        raise InputError(f"{path} is compiled: its sizes are settled", fix="compile the model again with --dim")
    sizes = {name: bound for name, bound in dims.items() if not isinstance(bound, Mapping)}
    axes = {name: bound for name, bound in dims.items() if isinstance(bound, Mapping)}
    if axes and kind in ("torch", "artifact"):
        expected = "the name of a size, which ingot compile --json tells"
        got = [f"{name}:{axis}" for name, bounds in axes.items() for axis in bounds]
        raise InputError("--dim", expected=expected, got=got)
    inputs = parse_inputs(words.inputs) if words.inputs else None
    source = Source(path, kind, sizes, axes, {}, words.signature, inputs, tuple(words.outputs) or None)
    if words.weights or source.request.set_options:
        frontend_for(kind, replace(source.request, weights=list(words.weights) or None))
    return replace(source, weights=read_weights(source, words.weights)) if words.weights else source


def with_all_values(source: Source) -> Source:
    """The source with every tensor inside of an ONNX model as an output. Raises InputError for other kinds."""
    if source.kind != "onnx" or source.outputs is not None:
        got = source.kind if source.kind != "onnx" else "--outputs"
        raise InputError("--all-values", expected="an ONNX model, without --outputs", got=got)
    from ingot.frontends.onnx import inner_values  # an extra

    return replace(source, outputs=tuple(inner_values(source.path)))


def with_dims(source: Source, texts: Sequence[str]) -> Source:
    """The source with these sizes ("batch=4,x:2=48") in place of open ones."""
    dims = parse_dims([part for text in texts for part in text.split(",")])
    axes = {name: bound for name, bound in dims.items() if isinstance(bound, Mapping)}
    sizes = {name: bound for name, bound in dims.items() if not isinstance(bound, Mapping)}
    return replace(source, dims={**source.dims, **sizes}, axes={**source.axes, **axes})


def parse_dims(texts: Sequence[str]) -> dict[str, Bound | Mapping[int, Bound]]:
    """["batch=1", "length=1:512", "frames=4:", "x:2=48"] -> sizes and inclusive bounds, by symbol, or by input and
    axis. Raises InputError."""
    dims: dict[str, Bound | Mapping[int, Bound]] = {}
    check_once("--dim", [text.partition("=")[0].strip() for text in texts])
    for text in texts:
        match = re.fullmatch(r"([^=]+?)(?::(-?\d+))?=(\d+)(?:(:)(\d*))?", text.strip())
        if match is None:
            expected = "NAME=SIZE or NAME=LOW:HIGH, with a size's name or INPUT:AXIS"
            raise InputError("--dim", expected=expected, got=repr(text), fix="as in --dim batch=1 or --dim x:2=1:512")
        name, axis, low, ranged, high = match.groups()
        bound = (int(low), int(high) if high else None) if ranged else int(low)
        if axis is None:
            dims[name] = bound
            continue
        axes = dims.get(name, {})
        dims[name] = {**(axes if isinstance(axes, Mapping) else {}), int(axis): bound}
    return dims


def parse_inputs(texts: Sequence[str]) -> dict[str, Any]:
    """["x", "image=?,224,224,3", "h=f32:?,64"] -> tensors by name, with their shapes, or types and shapes."""
    inputs: dict[str, Any] = {}
    check_once("--inputs", [text.partition("=")[0].strip() for text in texts])
    for text in texts:
        match = re.fullmatch(r"([^=]+)(?:=(?:(\w+):)?((?:\?|\d+)(?:,(?:\?|\d+))*)?)?", text.strip())
        if match is None:
            raise InputError("--inputs", expected="NAME, NAME=?,224,224,3 or NAME=f32:?,64", got=repr(text))
        name, kind, sizes = match.groups()
        shape = [None if d == "?" else int(d) for d in sizes.split(",")] if sizes else []
        inputs[name] = None if "=" not in text else (kind, shape) if kind else shape
    return inputs


def read_weights(source: Source, texts: Sequence[str]) -> dict[str, np.ndarray]:
    """["axes=[1]", "rate=16000", "table=table.npy", "model.safetensors"] -> arrays in the types of the model's inputs.
    Raises InputError for unknown inputs, malformed values, and values out of the range of the type."""
    check_once("--constant", [text.partition("=")[0] for text in texts])
    if source.kind == "torchscript":  # its arguments have no types before they are given
        return {name: _number(name, value) for name, _, value in (text.partition("=") for text in texts)}
    types = _input_types(source)
    weights: dict[str, np.ndarray] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals and name.endswith(".safetensors"):
            weights |= arrays_of(name, list(types))
        elif not equals or name not in types:
            expected = f"NAME=VALUE with a name of {list(types)}, or FILE.safetensors"
            raise InputError("--constant", expected=expected, got=repr(text))
        else:
            weights[name] = _typed(name, value, types[name])
    return weights


def _input_types(source: Source) -> dict[str, np.dtype]:
    if source.kind != "onnx":
        graph = open_model(source.path, source.request).graph
        return {n.op.label: np.dtype(n.dtype.numpy) for n in graph.inputs if isinstance(n.op, Input)}
    import onnx  # an extra; reading the file has asked for it

    try:
        graph = onnx.load(source.path, load_external_data=False).graph
    except Exception as error:  # protobuf's errors have no other base
        raise ImportModelError(f"not a readable ONNX file: {error}", where=str(source.path)) from error
    types = {i.name: i.type.tensor_type.elem_type for i in graph.input}
    return {name: onnx.helper.tensor_dtype_to_np_dtype(code) for name, code in types.items()}


def _number(name: str, value: str) -> np.ndarray:
    if value.endswith(".npy"):
        return read_array(Path(value))
    try:
        return np.asarray(json.loads(value))
    except ValueError as error:
        expected = "a number, true, false, nested lists of them, or a file FILE.npy"
        raise InputError(f"--constant {name}", expected=expected, got=repr(value)) from error


def _typed(name: str, value: str, dtype: np.dtype) -> np.ndarray:
    array = _number(name, value)
    if value.endswith(".npy"):
        return array
    converted = array.astype(dtype) if array.dtype.kind in "bif" else array
    rounds = array.dtype.kind == "f" and dtype.kind not in "biu"
    if array.dtype.kind not in "bif" or not (rounds or np.array_equal(converted, array)):
        raise InputError(f"--constant {name}", expected=f"what {dtype} holds", got=repr(value))
    return converted


def read_graph(source: Source) -> Graph:
    """The MODEL graph of a model file.

    Raises the errors of the frontends, and InputError for an artifact.
    """
    if source.kind == "artifact":
        raise InputError(
            f"{source.path} is compiled: the model's graph is not in it",
            expected="the file of a model",
            fix="name the model that it was compiled from",
        )
    return open_model(source.path, source.request).graph


def compile_source(
    source: Source,
    *,
    threads: int | None,
    cache: bool,
    fast_math: bool = False,
    target: str = "native",
    precision: str = "float32",
    activations: str = "float32",
) -> CompiledModel:
    """The compiled model, called with flat inputs; an artifact is loaded instead.

    Raises what `ingot.compile` and `ingot.load` raise.
    """
    if source.kind == "artifact":
        program = artifact.load(source.path)
        is_default = precision == activations == "float32" and not fast_math
        if target.partition(":")[0] not in ("native", program.features.target) or not is_default:
            raise InputError(
                f"{source.path} is compiled: its target, precision and arithmetic are settled",
                fix="compile the model again with these options",
            )
        return compiler.to_model(program, compiler.Options(threads=thread_count(threads)))
    options = compiler.Options(target, thread_count(threads), cache, fast_math, precision, activations=activations)
    return compiler.compile_model(source.path, source.request, options).flat()


def runnable(compiled: CompiledModel) -> CompiledModel:
    """The same model. Raises ArtifactError if it was compiled for another machine."""
    if compiled.refused is not None:
        raise compiled.refused
    return compiled
