"""One door: what a model is, which frontend reads it, and what may be asked of it, in the same words for all.

model, Request  ->  Opened: its graph, its state, the way between a caller's arguments and the graph
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ingot.driver.recognize import kind_of
from ingot.runtime.executable import Executable
from ingot.runtime.executor import Convention, tree_convention
from ingot.runtime.tensors import host_array
from ingot.support import progress
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError, SizesError
from ingot.support.formats import Format

if TYPE_CHECKING:
    import onnx

    from ingot.frontends.torch import ImportedModel
    from ingot.ir.node import Graph


@dataclass(frozen=True)
class Request:
    """What is asked of a model beside itself; None: nothing. See `ingot.compile`. gradients: whether it is to be
    differentiated, so that its graph has to tell what has no gradient."""

    example_inputs: Any = None
    dynamic: Any = None
    weights: Any = None
    signature: str | None = None
    inputs: Any = None
    outputs: Any = None
    state: Mapping[str, str] | None = None
    gradients: bool = False

    @property
    def asked(self) -> list[str]:
        """The words that something was said for."""
        return [f.name for f in fields(self) if f.name != "gradients" and getattr(self, f.name) is not None]


@dataclass(frozen=True)
class Opened:
    """A model as a graph. convention: how it is called; None: with the graph's inputs. state: names and first values of
    what it keeps from call to call: the graph's last inputs and first outputs. for_sizes: from sizes that its program
    refuses to the model once more, for these, and to None where it stays the same; None where `dynamic` can say the
    same.
    """

    graph: Graph
    convention: Convention | None = None
    state: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    of_onnx: bool = False
    for_sizes: Callable[[SizesError], Opened | None] | None = None

    @property
    def flatten(self) -> Callable[[Sequence[Any], Mapping[str, Any]], Sequence[Any]] | None:
        """The model's own arguments to the graph's inputs; None where these are its arguments."""
        return None if self.convention is None else self.convention.flatten

    def stateless(self) -> Opened:
        """Raises InputError for a model that keeps a state."""
        if self.state:
            raise InputError("the model", expected="no state that lasts from call to call", got=list(self.state))
        return self


@dataclass(frozen=True)
class Frontend:
    """name: of its models. takes: what may be asked beside `dynamic`. by_content: a file's bytes, those beside it and
    what is asked say what the program is, so that it is found in the cache before it is read."""

    name: str
    open: Callable[[Any, Request], Opened]
    takes: frozenset[str]
    by_content: bool = False

    def check(self, request: Request) -> None:
        """Raises InputError for what makes no sense for its models."""
        for word in request.asked:
            if word != "dynamic" and word not in self.takes:
                others = " or ".join(f.name for f in FRONTENDS.values() if word in f.takes)
                raise InputError(word, expected=f"none for {self.name}; it is of {others}", got="some")


class NeedsHost(Exception):
    """An ONNX model turns out not to be one program."""

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__("the model takes turns with the host")
        self.model = model


def recognized(model: Any) -> tuple[str, Any]:
    """Which of FRONTENDS reads the model, or "artifact"; and the model, a path as a Path. Raises InputError for what
    no frontend reads."""
    if isinstance(model, str) and "\n" in model:
        return "stablehlo", model
    if isinstance(model, str | os.PathLike):
        path = Path(model)
        kind = file_kind(path)
        if isinstance(kind, Format):
            raise InputError(f"model {path}", expected="a model's file", got=kind.name, fix=kind.fix)
        return kind, path
    home = type(model).__module__.split(".")[0]
    torch_ = sys.modules.get("torch")
    if home == "onnx" or type(model).__name__ == "ModelProto":
        return "onnx", model
    if home == "tensorflow":
        return "tensorflow", model
    if (keras := sys.modules.get("keras")) is not None and isinstance(model, keras.Model):
        return "keras", model
    of_torch = hasattr(model, "graph_signature") or (torch_ is not None and isinstance(model, torch_.nn.Module))
    if home in ("jax", "jaxlib") or (callable(model) and not of_torch and "jax" in sys.modules):
        return "jax", model
    scripted = torch_ is not None and isinstance(model, torch_.jit.ScriptModule)
    return "torchscript" if scripted else "torch", model


def file_kind(path: Path) -> str | Format:
    """`kind_of`; raises InputError for what is no file."""
    try:
        return kind_of(path)
    except OSError as error:
        raise InputError(f"model {path}", expected="a file", got=error.strerror or str(error)) from error


def frontend_for(kind: str, request: Request) -> Frontend:
    """Raises InputError for a compiled program, and for what makes no sense to ask of such models."""
    if kind == "artifact":
        raise InputError("the model", expected="no compiled program", got="one", fix="ingot.load(path)")
    frontend = FRONTENDS[kind]
    frontend.check(request)
    return frontend


def open_model(model: Any, request: Request) -> Opened:
    """A model in any form that `ingot.compile` takes, as one graph.

    Raises what its frontend raises, and InputError for what cannot be asked of it, or is several programs.
    """
    if isinstance(own := getattr(model, "opened", None), Opened):  # a pruned model
        return own
    kind, source = recognized(model)
    frontend = frontend_for(kind, request)
    progress.report("read")
    try:
        return frontend.open(source, request)
    except NeedsHost as needs:
        got = "one that takes turns with the host (strings, images, or sequences at its border)"
        fix = "compile it with ingot.compile and call that, or ask for outputs that are numbers (outputs=, --outputs)"
        raise InputError("the model", expected="one program", got=got, fix=fix) from needs


# --- what each frontend gives


def _onnx(source: Any, request: Request) -> Opened:
    return Opened(onnx_graph(source, request), of_onnx=True)


def onnx_graph(source: Any, request: Request, example: Mapping[str, tuple[int, ...]] | None = None) -> Graph:
    """example: shapes of inputs in a call. Raises NeedsHost."""
    from ingot.frontends.onnx import hosted, import_onnx

    model = hosted(source, request.outputs)
    if model is not None:
        raise NeedsHost(model)
    weights = {k: host_array(v, k) for k, v in (request.weights or {}).items()}
    graph = import_onnx(source, dynamic=request.dynamic, weights=weights, example=example)
    return _chosen(graph, request)


def _stablehlo(source: Any, request: Request) -> Opened:
    from ingot.frontends.stablehlo import import_stablehlo

    imported = import_stablehlo(source, dynamic=request.dynamic, weights=request.weights)
    if imported.plain:
        return Opened(_chosen(imported.graph, request))
    for word in {"outputs", "state"}.intersection(request.asked):
        raise InputError(word, expected="none for a program of complex numbers", got="some")
    return _framework(imported.graph, imported)


def _framework(graph: Graph, imported: Any, state: Mapping[str, np.ndarray] | None = None) -> Opened:
    """Of what is called with the arguments of the program that it comes from."""

    return Opened(graph, tree_convention(imported.flatten, imported.unflatten), state or {})


def _jax(source: Any, request: Request) -> Opened:
    from ingot.frontends.jax import gradients_told, import_jax, is_function, resized

    given = request.example_inputs
    args, kwargs = ((), given) if isinstance(given, Mapping) else (given, None)
    args = () if args is None else args if isinstance(args, tuple | list) else (args,)
    with gradients_told() if request.gradients else nullcontext():
        imported = import_jax(source, args, kwargs, dynamic=request.dynamic, weights=request.weights)
    opened = _framework(imported.graph, imported)
    if not is_function(source) or not isinstance(request.dynamic, Mapping):
        return opened
    call, dynamic = (tuple(args), dict(kwargs or {})), request.dynamic

    def for_sizes(refused: SizesError) -> Opened | None:
        found = resized(source, imported, call, dynamic, refused)
        if found is None:
            return None
        given, left = found
        other = import_jax(source, *given, dynamic=left, weights=request.weights)
        return _framework(other.graph, other)

    return replace(opened, for_sizes=for_sizes)


def opened_jax(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic: Any, weights: Any) -> Opened:
    """A JAX function for arguments by position and by name; see `ingot.jit`."""
    from ingot.frontends.jax import import_jax

    imported = import_jax(fn, args, kwargs, dynamic=dynamic, weights=weights)
    return _framework(imported.graph, imported)


def _tensorflow(source: Any, request: Request) -> Opened:
    from ingot.frontends.shared.weights import bound
    from ingot.frontends.tensorflow import import_tensorflow, of_function

    function = None if isinstance(source, Path) else of_function(source, request.example_inputs)
    if function is None and request.example_inputs is not None:
        raise InputError("example_inputs", expected="none: the file declares its inputs", got="some")
    program = source if function is None else function.program
    imported = import_tensorflow(
        program, signature=request.signature, inputs=request.inputs, outputs=request.outputs, dynamic=request.dynamic
    )
    graph = _keeping(bound(imported.graph, request.weights), request)
    if function is None or {"inputs", "outputs", "weights", "state"}.intersection(request.asked):
        return Opened(graph, state=imported.state)
    return _framework(graph, function, imported.state)


def _tflite(source: Any, request: Request) -> Opened:
    from ingot.frontends.shared.weights import bound
    from ingot.frontends.tflite import import_tflite

    imported = import_tflite(source, dynamic=request.dynamic, signature=request.signature)
    graph = _chosen(bound(imported.graph, request.weights), request)
    return Opened(graph, state=imported.state)


def _keras(source: Any, request: Request) -> Opened:
    from ingot.frontends.keras import import_keras
    from ingot.frontends.shared.weights import bound

    graph = import_keras(source, dynamic=request.dynamic, example_inputs=request.example_inputs)
    return Opened(_chosen(bound(graph, request.weights), request))


def _torch(source: Any, request: Request) -> Opened:
    from ingot.frontends.torch.retrace import Retrace

    imported = imported_torch(source, request.example_inputs, request.dynamic, request.gradients)
    again = Retrace(source, imported, request.example_inputs, request.dynamic)

    def for_sizes(refused: SizesError) -> Opened | None:
        other = again(refused)
        return None if other is None else opened_torch(other)

    return replace(opened_torch(imported), for_sizes=for_sizes)


def opened_torch(imported: ImportedModel) -> Opened:
    from ingot.frontends.torch import to_torch

    def bind(executable: Executable) -> Callable[..., Any]:
        # a program returns what its inputs are, and arrays where it has none
        executable.returns_tensors = not executable.inputs
        return imported.caller(executable.run)

    return Opened(imported.graph, Convention(imported.inputs.flatten, bind, to_torch), imported.state)


def _torchscript(source: Any, request: Request) -> Opened:
    return _torch(*script_evaluator(source, request))


def script_evaluator(source: Any, request: Request) -> tuple[Any, Request]:
    """A TorchScript model that is one program as a module, and what is asked of that."""
    from ingot.frontends.torch.script import Evaluator

    program, inputs, dynamic = script_program(source, request)
    plain = Evaluator(program, program.attributes)
    if program.written and not plain.is_steady(inputs):
        raise InputError("the model", expected="one program", got="one for each state of its attributes")
    evaluator = Evaluator(program, program.attributes, buffers=True) if program.written else plain
    return evaluator, Request(inputs, dynamic)


def script_program(source: Any, request: Request) -> tuple[Any, tuple[Any, ...], Any]:
    """A TorchScript model's program, arguments to trace it with, and which of their sizes vary."""
    from ingot.frontends.torch.script import examples, extract, load

    program = load(source) if isinstance(source, Path) else extract(source)
    given = request.example_inputs, request.inputs, request.weights, request.dynamic
    return program, *examples(program, *given)


def imported_torch(model: Any, example_inputs: Any, dynamic: Any, gradients: bool = False) -> ImportedModel:
    """A module, an exported program, the path of one, or what torch.compile has imported already."""
    from ingot.frontends import torch as frontend

    if isinstance(model, frontend.ImportedModel):
        return model
    if isinstance(model, Path):
        model = frontend.load_exported(model)
    if hasattr(model, "graph_signature"):
        return frontend.import_sized(model, dynamic)
    how = {"gradients": gradients, "of_inputs": gradients}
    return frontend.import_exported(frontend.export_module(model, example_inputs, dynamic, **how))


_DECLARED = frozenset(("weights", "outputs", "state"))
FRONTENDS: Mapping[str, Frontend] = {
    "onnx": Frontend("an ONNX model", _onnx, _DECLARED),
    "stablehlo": Frontend("a StableHLO program", _stablehlo, _DECLARED),
    "tensorflow": Frontend(
        "a TensorFlow model", _tensorflow, _DECLARED | {"signature", "inputs", "example_inputs"}, by_content=True
    ),
    "tflite": Frontend("a TFLite model", _tflite, _DECLARED | {"signature"}, by_content=True),
    "keras": Frontend("a Keras model", _keras, _DECLARED | {"example_inputs"}, by_content=True),
    "jax": Frontend("a JAX function", _jax, frozenset(("weights", "example_inputs"))),
    "torch": Frontend("a PyTorch model", _torch, frozenset(("example_inputs",))),
    "torchscript": Frontend("a TorchScript model", _torchscript, frozenset(("example_inputs", "inputs", "weights"))),
}


def _keeping(graph: Graph, request: Request) -> Graph:
    """With the state that is asked for."""
    from ingot.frontends.shared.state import keep

    return keep(graph, request.state or {})


def _chosen(graph: Graph, request: Request) -> Graph:
    """With the state and the outputs that are asked for, behind the state's new values."""
    graph = _keeping(graph, request)
    if request.outputs is None:
        return graph
    names, states = list(graph.output_names), len(graph.state)
    own = names[states:]
    asked = [request.outputs] if isinstance(request.outputs, str) else list(request.outputs)
    if not asked or any(name not in own for name in asked):
        raise InputError("outputs", expected=f"some of {own}", got=asked)
    places = [*range(states), *(names.index(name, states) for name in asked)]
    kept = [graph.outputs[i] for i in places]
    # behind the outputs with names: sizes that the run finds
    kept += graph.outputs[len(names) :]
    return replace(graph, outputs=tuple(kept), output_names=tuple(names[i] for i in places))
