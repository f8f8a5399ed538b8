"""Open a model: recognize its kind, choose the frontend, check the options, import it.

model, Request  ->  Opened: its graph, its state, its calling convention
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ingot.driver.recognize import kind_of
from ingot.runtime.arguments import Packing
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
    """The options of opening a model; None: not set. See `ingot.compile`. gradients: whether the model is to be
    differentiated, so that its graph must mark values without a gradient."""

    example_inputs: Any = None
    dynamic: Any = None
    weights: Any = None
    signature: str | None = None
    inputs: Any = None
    outputs: Any = None
    state: Mapping[str, str] | None = None
    gradients: bool = False

    @property
    def set_options(self) -> list[str]:
        """The names of the options that are set."""
        return [f.name for f in fields(self) if f.name != "gradients" and getattr(self, f.name) is not None]


@dataclass(frozen=True)
class Opened:
    """A model as a graph.

    convention: its calling convention; None: it is called with the graph's inputs. state: the names and initial values
    of its state, which are the graph's last inputs and first outputs. reopen_for_sizes: opens the model again for sizes
    that its program refused; its result is None if the model would stay the same. The field is None if `dynamic` can
    express such sizes.
    """

    graph: Graph
    convention: Convention | None = None
    state: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    is_onnx: bool = False
    reopen_for_sizes: Callable[[SizesError], Opened | None] | None = None

    @property
    def flatten(self) -> Callable[[Sequence[Any], Mapping[str, Any]], Sequence[Any]] | None:
        """A function from the model's own arguments to the graph's inputs; None if they are the same."""
        return None if self.convention is None else self.convention.flatten

    def stateless(self) -> Opened:
        """This model. Raises InputError if it has state."""
        if self.state:
            raise InputError("the model", expected="no state that lasts from call to call", got=list(self.state))
        return self


@dataclass(frozen=True)
class Frontend:
    """A frontend. name: what its models are called in messages. options: the options that it supports besides
    `dynamic`. is_content_addressed: whether the bytes of a model's files and the options determine the program, so that
    the cache is searched before the file is read. file_sizes: what a file holds for the sizes that it leaves open and
    the request does not speak of, by symbol; None if its files hold no such sizes."""

    name: str
    open: Callable[[Any, Request], Opened]
    options: frozenset[str]
    is_content_addressed: bool = False
    file_sizes: Callable[[Any, Request], Mapping[str, int]] | None = None

    def check(self, request: Request) -> None:
        """Raise InputError for an option that its models do not support."""
        for option in request.set_options:
            if option != "dynamic" and option not in self.options:
                owners = " or ".join(f.name for f in FRONTENDS.values() if option in f.options)
                raise InputError(option, expected=f"none for {self.name}; {owners} takes it", got="a value")


class NeedsHost(Exception):
    """An ONNX model is not a single program: the host computes a part of it."""

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__("the host computes a part of the model")
        self.model = model


def recognize(model: Any) -> tuple[str, Any]:
    """The key in FRONTENDS of the model's frontend, or "artifact"; and the model, with paths as Path. Raises InputError
    for a file that no frontend reads."""
    if isinstance(model, str) and "\n" in model:
        return "stablehlo", model
    if isinstance(model, str | os.PathLike):
        path = Path(model)
        kind = file_kind(path)
        if isinstance(kind, Format):
            raise InputError(f"model {path}", expected="a model's file", got=kind.name, fix=kind.fix)
        return kind, path
    package = type(model).__module__.split(".")[0]
    torch_ = sys.modules.get("torch")
    if package == "onnx" or type(model).__name__ == "ModelProto":
        return "onnx", model
    if package == "tensorflow":
        return "tensorflow", model
    if (keras := sys.modules.get("keras")) is not None and isinstance(model, keras.Model):
        return "keras", model
    is_torch = hasattr(model, "graph_signature") or (torch_ is not None and isinstance(model, torch_.nn.Module))
    if package in ("jax", "jaxlib") or (callable(model) and not is_torch and "jax" in sys.modules):
        return "jax", model
    is_script = torch_ is not None and isinstance(model, torch_.jit.ScriptModule)
    return "torchscript" if is_script else "torch", model


def file_kind(path: Path) -> str | Format:
    """`kind_of`. Raises InputError if the path is not a readable file."""
    try:
        return kind_of(path)
    except OSError as error:
        raise InputError(f"model {path}", expected="a file", got=error.strerror or str(error)) from error


def frontend_for(kind: str, request: Request) -> Frontend:
    """The frontend of a kind of model. Raises InputError for a compiled program, and for options that the frontend does
    not support."""
    if kind == "artifact":
        raise InputError("the model", expected="a model to compile", got="a compiled program", fix="ingot.load(path)")
    frontend = FRONTENDS[kind]
    frontend.check(request)
    return frontend


def open_model(model: Any, request: Request) -> Opened:
    """Open a model, in any form that `ingot.compile` takes, as one graph.

    Raises what its frontend raises, and InputError for unsupported options or a model of several programs.
    """
    if isinstance(opened := getattr(model, "opened", None), Opened):  # a pruned model
        return opened
    kind, source = recognize(model)
    frontend = frontend_for(kind, request)
    progress.report("read")
    try:
        return frontend.open(source, request)
    except NeedsHost as needs:
        got = "one that the host computes in part (strings, images, or sequences as inputs or outputs)"
        fix = "use ingot.compile and call its result, or select numeric outputs (outputs=, --outputs)"
        raise InputError("the model", expected="a single program", got=got, fix=fix) from needs


def with_fitting_example(model: Any, request: Request) -> Request:
    """The request, without its example inputs if they are but values of the inputs that the model declares."""
    if request.example_inputs is None or isinstance(getattr(model, "opened", None), Opened):
        return request
    kind, source = recognize(model)
    takes_examples = kind not in FRONTENDS or "example_inputs" in FRONTENDS[kind].options
    declares = isinstance(source, Path) and kind in ("tensorflow", "keras")
    return request if takes_examples and not declares else replace(request, example_inputs=None)


# --- the frontends


def _onnx(source: Any, request: Request) -> Opened:
    return Opened(onnx_graph(source, request), is_onnx=True)


def onnx_graph(source: Any, request: Request, example: Mapping[str, tuple[int, ...]] | None = None) -> Graph:
    """Import an ONNX model. example: the shapes of a call's inputs. Raises NeedsHost."""
    from ingot.frontends.onnx import hosted, import_onnx

    model = hosted(source, request.outputs)
    if model is not None:
        raise NeedsHost(model)
    weights = {k: host_array(v, k) for k, v in (request.weights or {}).items()}
    outputs = [request.outputs] if isinstance(request.outputs, str) else request.outputs
    graph = import_onnx(source, dynamic=request.dynamic, weights=weights, example=example, outputs=outputs)
    return _select_outputs(graph, request, "`ingot compare --all-values FILE.npz` prints the names of inner values")


def _stablehlo(source: Any, request: Request) -> Opened:
    from ingot.frontends.stablehlo import import_stablehlo

    imported = import_stablehlo(source, dynamic=request.dynamic, weights=request.weights)
    if imported.plain:
        return Opened(_select_outputs(imported.graph, request))
    for option in {"outputs", "state"}.intersection(request.set_options):
        raise InputError(option, expected="none for a program with complex numbers", got="a value")
    return _with_convention(imported.graph, imported)


def _with_convention(graph: Graph, imported: Any, state: Mapping[str, np.ndarray] | None = None) -> Opened:
    """A model that is called with the arguments of the framework program that it comes from."""
    return Opened(graph, tree_convention(imported.flatten, imported.unflatten), state or {})


def _jax(source: Any, request: Request) -> Opened:
    from ingot.frontends.jax import gradient_marks, import_jax, is_function, resized

    example = request.example_inputs
    args, kwargs = ((), example) if isinstance(example, Mapping) else (example, None)
    args = () if args is None else args if isinstance(args, tuple | list) else (args,)
    with gradient_marks() if request.gradients else nullcontext():
        imported = import_jax(source, args, kwargs, dynamic=request.dynamic, weights=request.weights)
    opened = _with_convention(imported.graph, imported)
    if not is_function(source) or not isinstance(request.dynamic, Mapping):
        return opened
    call, dynamic = (tuple(args), dict(kwargs or {})), request.dynamic

    def for_sizes(refused: SizesError) -> Opened | None:
        resized_call = resized(source, imported, call, dynamic, refused)
        if resized_call is None:
            return None
        arguments, resized_dynamic = resized_call
        resized_import = import_jax(source, *arguments, dynamic=resized_dynamic, weights=request.weights)
        return _with_convention(resized_import.graph, resized_import)

    return replace(opened, reopen_for_sizes=for_sizes)


def open_jax(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic: Any, weights: Any) -> Opened:
    """Open a JAX function for positional and keyword arguments; see `ingot.jit`."""
    from ingot.frontends.jax import import_jax

    imported = import_jax(fn, args, kwargs, dynamic=dynamic, weights=weights)
    return _with_convention(imported.graph, imported)


def _tensorflow(source: Any, request: Request) -> Opened:
    from ingot.frontends.shared.weights import bind_weights
    from ingot.frontends.tensorflow import import_tensorflow, of_function

    function = None if isinstance(source, Path) else of_function(source, request.example_inputs)
    if function is None and request.example_inputs is not None:
        raise InputError("example_inputs", expected="none: the file declares its inputs", got="a value")
    program = source if function is None else function.program
    imported = import_tensorflow(
        program, signature=request.signature, inputs=request.inputs, outputs=request.outputs, dynamic=request.dynamic
    )
    graph = _add_state(bind_weights(imported.graph, request.weights), request)
    if function is None or {"inputs", "outputs", "weights", "state"}.intersection(request.set_options):
        return Opened(graph, state=imported.state)
    return _with_convention(graph, function, imported.state)


def _tflite(source: Any, request: Request) -> Opened:
    from ingot.frontends.shared.weights import bind_weights
    from ingot.frontends.tflite import import_tflite

    imported = import_tflite(source, dynamic=request.dynamic, signature=request.signature)
    graph = _select_outputs(bind_weights(imported.graph, request.weights), request)
    return Opened(graph, state=imported.state)


def _tflite_sizes(source: Any, request: Request) -> Mapping[str, int]:
    from ingot.frontends.tflite import sizes_in_file

    return sizes_in_file(source, request.signature, request.dynamic)


def _language(kind: Literal["gguf", "huggingface"]) -> Callable[[Any, Request], Opened]:
    def open_(source: Any, request: Request) -> Opened:
        from ingot.frontends.language import chunk_graph

        if request.dynamic is not None:
            fix = "ingot.LanguageModel(path, context=TOKENS)"
            raise InputError("sizes", expected="tokens within the context of a language model", got="others", fix=fix)
        return Opened(chunk_graph(source, kind))

    return open_


def _keras(source: Any, request: Request) -> Opened:
    from ingot.frontends.keras import import_keras
    from ingot.frontends.shared.weights import bind_weights

    graph = import_keras(source, dynamic=request.dynamic, example_inputs=request.example_inputs)
    return Opened(_select_outputs(bind_weights(graph, request.weights), request))


def _torch(source: Any, request: Request) -> Opened:
    from ingot.frontends.torch.retrace import Retrace

    imported = import_torch(source, request.example_inputs, request.dynamic, request.gradients)
    retrace = Retrace(source, imported, request.example_inputs, request.dynamic)

    def for_sizes(refused: SizesError) -> Opened | None:
        retraced = retrace(refused)
        return None if retraced is None else open_imported_torch(retraced)

    return replace(open_imported_torch(imported), reopen_for_sizes=for_sizes)


def open_imported_torch(imported: ImportedModel) -> Opened:
    from ingot.frontends.torch import to_torch

    def bind(executable: Executable) -> Callable[..., Any]:
        # a run returns tensors if an input is one, so a model without inputs has to request them
        executable.returns_tensors = not executable.inputs
        return imported.caller(executable.run)

    packing = Packing(*imported.packed, is_private=imported.saves)
    return Opened(imported.graph, Convention(imported.inputs.flatten, bind, to_torch, packing), imported.state)


def _torchscript(source: Any, request: Request) -> Opened:
    return _torch(*script_evaluator(source, request))


def script_evaluator(source: Any, request: Request) -> tuple[Any, Request]:
    """A TorchScript model of a single program as a module, and the request for it."""
    from ingot.frontends.torch.script import Evaluator

    program, inputs, dynamic = script_program(source, request)
    plain = Evaluator(program, program.attributes)
    if program.written_paths and not plain.is_steady(inputs):
        raise InputError("the model", expected="a single program", got="one for each state of its attributes")
    evaluator = Evaluator(program, program.attributes, buffers=True) if program.written_paths else plain
    return evaluator, Request(inputs, dynamic)


def script_program(source: Any, request: Request) -> tuple[Any, tuple[Any, ...], Any]:
    """A TorchScript model's program, the arguments to trace it with, and their dynamic sizes."""
    from ingot.frontends.torch.script import examples, extract, load

    program = load(source) if isinstance(source, Path) else extract(source)
    sources = request.example_inputs, request.inputs, request.weights, request.dynamic
    return program, *examples(program, *sources)


def import_torch(model: Any, example_inputs: Any, dynamic: Any, gradients: bool = False) -> ImportedModel:
    """Import a module, an exported program or the path of one; a model that torch.compile has imported stays as it
    is."""
    from ingot.frontends import torch as frontend

    if isinstance(model, frontend.ImportedModel):
        return model
    if isinstance(model, Path):
        model = frontend.load_exported(model)
    if hasattr(model, "graph_signature"):
        return frontend.import_sized(model, dynamic)
    options = {"gradients": gradients, "of_inputs": gradients}
    return frontend.import_exported(frontend.export_module(model, example_inputs, dynamic, **options))


_COMMON_OPTIONS = frozenset(("weights", "outputs", "state"))
FRONTENDS: Mapping[str, Frontend] = {
    "onnx": Frontend("an ONNX model", _onnx, _COMMON_OPTIONS),
    "stablehlo": Frontend("a StableHLO program", _stablehlo, _COMMON_OPTIONS),
    "tensorflow": Frontend(
        "a TensorFlow model",
        _tensorflow,
        _COMMON_OPTIONS | {"signature", "inputs", "example_inputs"},
        is_content_addressed=True,
    ),
    "tflite": Frontend(
        "a TFLite model",
        _tflite,
        _COMMON_OPTIONS | {"signature"},
        is_content_addressed=True,
        file_sizes=_tflite_sizes,
    ),
    "keras": Frontend("a Keras model", _keras, _COMMON_OPTIONS | {"example_inputs"}, is_content_addressed=True),
    "gguf": Frontend("a GGUF file", _language("gguf"), frozenset(), is_content_addressed=True),
    "huggingface": Frontend(
        "a folder of Hugging Face", _language("huggingface"), frozenset(), is_content_addressed=True
    ),
    "jax": Frontend("a JAX function", _jax, frozenset(("weights", "example_inputs"))),
    "torch": Frontend("a PyTorch model", _torch, frozenset(("example_inputs",))),
    "torchscript": Frontend("a TorchScript model", _torchscript, frozenset(("example_inputs", "inputs", "weights"))),
}


def _add_state(graph: Graph, request: Request) -> Graph:
    """The graph with the requested state."""
    from ingot.frontends.shared.state import keep

    return keep(graph, request.state or {})


def _select_outputs(graph: Graph, request: Request, fix: str | None = None) -> Graph:
    """The graph with the requested state, and the requested outputs after the state's new values. fix: for names of
    none."""
    graph = _add_state(graph, request)
    if request.outputs is None:
        return graph
    names, state_count = list(graph.output_names), len(graph.state)
    available = names[state_count:]
    requested = [request.outputs] if isinstance(request.outputs, str) else list(request.outputs)
    if not requested or any(name not in available for name in requested):
        raise InputError("outputs", expected=f"some of {available}", got=requested, fix=fix)
    indices = [*range(state_count), *(names.index(name, state_count) for name in requested)]
    outputs = [graph.outputs[i] for i in indices]
    # the unnamed outputs at the end are sizes that the run computes
    outputs += graph.outputs[len(names) :]
    return replace(graph, outputs=tuple(outputs), output_names=tuple(names[i] for i in indices))
