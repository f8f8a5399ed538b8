"""The way from a user's model to a compiled one: choose the frontend, ask the cache, run the pipeline.

A model that is in the cache needs neither frontend nor compiler, so both are imported where they are first needed.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ingot import tuned
from ingot.hosted import HostedModel
from ingot.model_file import kind_of
from ingot.runtime import artifact
from ingot.runtime.cpu.pool import thread_count
from ingot.runtime.device import refusal
from ingot.runtime.executor import CompiledModel, CompiledProgram
from ingot.runtime.program import Program
from ingot.specialized import SpecializedModel
from ingot.support import flags, progress
from ingot.support.cache import DiskCache, cache_key, sharing
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError, NeedsValues
from ingot.support.formats import Format
from ingot.support.native import host

if TYPE_CHECKING:
    import onnx
    import torch

    from ingot.frontends.torch import ImportedModel
    from ingot.ir.node import Graph

    Model = str | os.PathLike[str] | onnx.ModelProto | torch.nn.Module | torch.export.ExportedProgram


def compile_model(
    model: Any,
    example_inputs: Any,
    *,
    target: str,
    dynamic: Any,
    constants: Mapping[str, Any] | None = None,
    precision: str,
    threads: int | None,
    cache: bool,
    fast_math: bool,
    weights: Any = None,
    signature: str | None = None,
    inputs: Any = None,
    outputs: Any = None,
) -> Any:
    """See `ingot.compile`."""
    options = _Options(target, thread_count(threads), cache, fast_math, precision)
    text = isinstance(model, str) and "\n" in model
    path = Path(model) if isinstance(model, str | os.PathLike) and not text else None
    of_onnx = type(model).__module__.startswith("onnx") or type(model).__name__ == "ModelProto"
    kind = "stablehlo" if text else "" if path is None else _kind(path) if path.exists() else "onnx"
    if path and kind == "torchscript":
        return _compile_archive(path, example_inputs, dynamic, options)
    if (path or text or of_onnx) and example_inputs is not None:
        raise InputError("example_inputs", expected="none for an ONNX model: its file declares its inputs", got="some")
    if kind == "tensorflow" or _is_tensorflow(model):
        return _compile_tensorflow(path or model, example_inputs, dynamic, (signature, inputs, outputs), options)
    if inputs is not None or outputs is not None:
        raise InputError("inputs and outputs", expected="a TensorFlow model, which has them", got="another")
    if path and kind == "tflite":
        return _compile_tflite(path, dynamic, signature, options)
    if signature is not None:
        raise InputError("signature", expected="a TensorFlow or TFLite model, which has them", got="another")
    if kind == "keras" or _is_keras(model):
        if weights is not None or constants:
            raise InputError("weights and constants", expected="none: a Keras model holds its own", got="some")
        return _compile_keras(path or model, example_inputs, dynamic, options)
    if kind == "stablehlo":
        return _compile_stablehlo(model, dynamic, weights, options)
    if _is_jax(model):
        args, kwargs = ((), example_inputs) if isinstance(example_inputs, Mapping) else (example_inputs, None)
        return _compile_jax(model, args, kwargs, dynamic, weights, options)
    if weights is not None:
        raise InputError("weights", expected="none: this model holds its own", got="some")
    if path or of_onnx:
        known = {name: np.asarray(value) for name, value in (constants or {}).items()}
        return _compile_onnx(path or model, dynamic, known, options)
    if _is_script(model):
        return _compile_module(model, example_inputs, dynamic, options)
    if constants:
        raise InputError("constants", expected="none for a PyTorch model: close over them", got=list(constants))
    return _compile_torch(model, example_inputs, dynamic, options)


@dataclass(frozen=True)
class Opened:
    """A model as a graph, and the way back. wrap: what users call, of a compiled model with the graph's signature.
    flatten: the model's own arguments to the graph's inputs; None where these are its arguments. of_onnx: what it came
    as."""

    graph: Graph
    wrap: Callable[[CompiledProgram], Any]
    flatten: Callable[[Sequence[Any], Mapping[str, Any]], Sequence[Any]] | None = None
    of_onnx: bool = False


def opened(model: Any, example_inputs: Any = None, dynamic: Any = None, weights: Any = None) -> Opened:
    """A model in any form that `compile_model` takes, to be rewritten before it is compiled.

    Raises what that raises, and InputError for a model that is several programs or keeps a state.
    """
    path = Path(model) if isinstance(model, str | os.PathLike) and "\n" not in str(model) else None
    kind = _kind(path) if path else "stablehlo" if isinstance(model, str) else ""
    if kind == "onnx" or type(model).__module__.startswith("onnx") or type(model).__name__ == "ModelProto":
        try:
            return Opened(_import_onnx(path or model, dynamic, {}, None), lambda compiled: compiled, of_onnx=True)
        except _NeedsHost as needs:
            raise InputError("the model", expected="one program", got="one that takes turns with the host") from needs
    if isinstance(kind, Format) or kind in _OTHERS:
        found = kind if isinstance(kind, Format) else _OTHERS[kind]
        raise InputError(f"model {path}", expected="an ONNX or StableHLO file", got=found.name, fix=found.fix)
    if kind == "stablehlo":
        from ingot.frontends.stablehlo import import_stablehlo

        return _opened(import_stablehlo(path or model, dynamic=dynamic, weights=weights))
    if kind == "tensorflow" or _is_tensorflow(model):
        from ingot.frontends.tensorflow import import_tensorflow, of_function

        if path:
            return _stateless(import_tensorflow(path, dynamic=dynamic))
        function = of_function(model, example_inputs)
        return _stateless(import_tensorflow(function.program, dynamic=dynamic), function)
    if path and kind == "tflite":
        from ingot.frontends.tflite import import_tflite

        return _stateless(import_tflite(path, dynamic=dynamic))
    if kind == "keras" or _is_keras(model):
        from ingot.frontends.keras import import_keras

        graph = import_keras(path or model, dynamic=dynamic, example_inputs=example_inputs)
        return Opened(graph, lambda compiled: compiled)
    if _is_jax(model):
        from ingot.frontends.jax import import_jax

        args, kwargs = ((), example_inputs) if isinstance(example_inputs, Mapping) else (example_inputs, {})
        args = () if args is None else args if isinstance(args, tuple | list) else (args,)
        return _opened(import_jax(model, args, kwargs, dynamic=dynamic, weights=weights))
    imported = _imported(model, example_inputs, dynamic)
    _check_stateless(imported.state)
    return Opened(imported.graph, partial(_torch_model, imported), imported.inputs.flatten)


def _stateless(imported: Any, function: Any = None) -> Opened:
    """Of an imported model that is called with arrays, or as the function that it was made of."""
    _check_stateless(imported.state)
    if function is None:
        return Opened(imported.graph, lambda compiled: compiled)

    def wrap(compiled: CompiledProgram) -> Any:
        return FrameworkModel(compiled, function.flatten, function.unflatten)

    return Opened(imported.graph, wrap, function.flatten)


def _check_stateless(state: Mapping[str, Any]) -> None:
    if state:
        raise InputError("the model", expected="no state that lasts from call to call", got=list(state))


def _opened(imported: Any) -> Opened:
    """Of an imported JAX or StableHLO program."""

    def wrap(compiled: CompiledProgram) -> Any:
        plain = getattr(imported, "plain", False)
        return compiled if plain else FrameworkModel(compiled, imported.flatten, imported.unflatten)

    return Opened(imported.graph, wrap, imported.flatten)


@dataclass(frozen=True)
class _Options:
    target: str
    threads: int
    cache: bool
    fast_math: bool
    precision: str


# what files hold that ONNX is not in, and who takes them
_OTHERS = {
    "artifact": Format("a compiled program", "ingot.load(path)"),
    "torch": Format("an exported program", "ingot.compile(torch.export.load(path))"),
    "torchscript": Format("a TorchScript archive", "ingot.compile(path, example_inputs)"),
}


class _NeedsHost(Exception):
    """An ONNX model turns out not to be one program."""

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__("the model takes turns with the host")
        self.model = model


_Example = Mapping[str, tuple[int, ...]] | None  # shapes of inputs in a call


def _import_onnx(source: Any, dynamic: Any, constants: Mapping[str, np.ndarray], example: _Example) -> Graph:
    from ingot.frontends.onnx import hosted, import_onnx

    progress.report("read")
    model = hosted(source)
    if model is not None:
        raise _NeedsHost(model)
    return import_onnx(source, dynamic=dynamic, constants=constants, example=example)


def _kind(path: Path) -> str | Format:
    try:
        return kind_of(path)
    except OSError as error:
        raise InputError(f"model {path}", expected="a file", got=error.strerror or str(error)) from error


def _compile_stablehlo(source: Any, dynamic: Any, weights: Any, options: _Options) -> Any:
    from ingot.frontends.stablehlo import import_stablehlo

    progress.report("read")
    imported = import_stablehlo(source, dynamic=dynamic, weights=weights)
    compiled = _compiled(_program(imported.graph, options), options)
    return compiled if imported.plain else FrameworkModel(compiled, imported.flatten, imported.unflatten)


def _is_tensorflow(model: Any) -> bool:
    return type(model).__module__.split(".")[0] == "tensorflow"


def _compile_tensorflow(
    source: Any, example_inputs: Any, dynamic: Any, cut: tuple[str | None, Any, Any], options: _Options
) -> Any:
    from ingot.frontends.tensorflow import import_tensorflow, of_function

    progress.report("read")
    signature, inputs, outputs = cut
    function = None if isinstance(source, Path) else of_function(source, example_inputs)
    program = source if function is None else function.program
    imported = import_tensorflow(program, signature=signature, inputs=inputs, outputs=outputs, dynamic=dynamic)
    compiled = _compiled(_program(imported.graph, options).with_state(imported.state), options)
    if function is None or inputs is not None or outputs is not None:
        return compiled
    return FrameworkModel(compiled, function.flatten, function.unflatten)


def _compile_tflite(path: Path, dynamic: Any, signature: str | None, options: _Options) -> CompiledProgram:
    from ingot.frontends.tflite import import_tflite

    progress.report("read")
    imported = import_tflite(path, dynamic=dynamic, signature=signature)
    return _compiled(_program(imported.graph, options).with_state(imported.state), options)


def _is_keras(model: Any) -> bool:
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(model, keras.Model)


def _compile_keras(source: Any, example_inputs: Any, dynamic: Any, options: _Options) -> CompiledProgram:
    from ingot.frontends.keras import import_keras

    def graph() -> Graph:
        progress.report("read")
        return import_keras(source, dynamic=dynamic, example_inputs=example_inputs)

    digest = _digest(source) if isinstance(source, Path) and options.cache else None
    if digest is None:
        return _compiled(_program(graph(), options), options)
    return _compiled(_cached(_key(options, digest, repr(dynamic).encode()), lambda: _build(graph, options)), options)


def _is_jax(model: Any) -> bool:
    """Whether JAX takes it: an object of JAX's own, or a function, as other frameworks have modules."""
    if type(model).__module__.split(".")[0] in ("jax", "jaxlib"):
        return True
    torch_ = sys.modules.get("torch")
    of_torch = hasattr(model, "graph_signature") or (torch_ is not None and isinstance(model, torch_.nn.Module))
    return callable(model) and not of_torch and "jax" in sys.modules


def compile_jax(
    model: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    target: str = "native",
    dynamic: Any = None,
    weights: Any = None,
    threads: int | None = None,
    cache: bool = True,
    fast_math: bool = False,
    precision: str = "float32",
) -> FrameworkModel:
    """A JAX function for arguments by position and by name; see `ingot.compile`."""
    options = _Options(target, thread_count(threads), cache, fast_math, precision)
    return _compile_jax(model, args, kwargs, dynamic, weights, options)


def jit(fn: Callable[..., Any] | None = None, **options: Any) -> Callable[..., Any]:
    """See `ingot.jit`."""
    if fn is None:
        return partial(jit, **options)
    from ingot.frontends.jax import jit as cached

    return cached(fn, partial(compile_jax, **options))


def _compile_jax(model: Any, args: Any, kwargs: Any, dynamic: Any, weights: Any, options: _Options) -> FrameworkModel:
    from ingot.frontends.jax import import_jax

    progress.report("read")
    args = () if args is None else args if isinstance(args, tuple | list) else (args,)
    imported = import_jax(model, args, kwargs, dynamic=dynamic, weights=weights)
    compiled = _compiled(_program(imported.graph, options), options)
    return FrameworkModel(compiled, imported.flatten, imported.unflatten)


def _compile_onnx(
    source: Any, dynamic: Any, constants: Mapping[str, np.ndarray], options: _Options
) -> CompiledProgram | SpecializedModel | HostedModel:
    """The compiled model; where the values of inputs decide what it is, a model that compiles for those it meets; where
    it takes turns with the host, one of several programs."""

    def build(values: Mapping[str, np.ndarray], example: _Example) -> CompiledProgram:
        known = {**constants, **values}
        if isinstance(source, Path):
            return _compile_file(source, dynamic, known, example, options)
        return _compiled(_program(_import_onnx(source, dynamic, known, example), options), options)

    try:
        return build({}, None)
    except NeedsValues as needs:
        return SpecializedModel(needs, build)
    except _NeedsHost as needs:
        from ingot.frontends.onnx import stages_of

        def part(model: onnx.ModelProto) -> CompiledProgram | SpecializedModel:
            compiled = _compile_onnx(model, dynamic, {}, options)
            assert not isinstance(compiled, HostedModel)  # a part's nodes are all numeric
            return compiled

        return HostedModel(stages_of(needs.model), part, constants)


def _compile_file(
    path: Path, dynamic: Any, constants: Mapping[str, np.ndarray], example: _Example, options: _Options
) -> CompiledProgram:
    """An ONNX file: the cache is asked by the file's content before anything is parsed."""
    kind = _kind(path)
    found = kind if isinstance(kind, Format) else _OTHERS.get(kind)
    if found is not None:
        raise InputError(f"model {path}", expected="an ONNX file", got=found.name, fix=found.fix)
    digest = _digest(path) if options.cache else None
    if digest is None:
        return _compiled(_program(_import_onnx(path, dynamic, constants, example), options), options)
    values = [repr((name, str(a.dtype), a.shape, a.tobytes())).encode() for name, a in sorted(constants.items())]
    key = _key(options, digest, repr((dynamic, sorted((example or {}).items()))).encode(), *values)

    def graph() -> Graph:
        return _import_onnx(path, dynamic, constants, example)

    return _compiled(_cached(key, lambda: _build(graph, options)), options)


def _digest(path: Path) -> bytes | None:
    """A digest of the file; None where it may name other files that hold weights: its bytes do not identify it."""
    with path.open("rb") as f:
        if path.stat().st_size == 0:
            return None
        with mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as data:
            # the key that every external tensor has among its entries
            return None if data.find(b"location") >= 0 else hashlib.blake2b(data).digest()


def _key(options: _Options, *parts: bytes) -> str:
    # a named target is the same everywhere; only this machine's own has to be looked at
    machine = host() if options.target in ("native", "cpu") else options.target
    settings = f"{fingerprint()} {machine!r} {replace(options, cache=True)} {flags.winograd()}"
    return cache_key(settings, tuned.digest(), *parts)


def _compiled(program: Program, options: _Options) -> CompiledProgram:
    """Ready to run; a program for another machine, only to be saved and looked at."""
    if refused := refusal(program):
        from ingot.pipeline.target import target_of

        return CompiledProgram(program, options.threads, refused, target_of(program.features).export)
    return CompiledModel(program, threads=options.threads)


def _cached(key: str, build: Callable[[], Program]) -> Program:
    disk = DiskCache()
    program = disk.load(key, artifact.load)
    if program is None:
        with sharing(disk):
            program = build()
        disk.store(key, lambda p: artifact.save(program, p, durable=False))
    return program


def _build(read: Callable[[], Graph], options: _Options) -> Program:
    from ingot.pipeline.build import build_program
    from ingot.pipeline.target import named

    target, asked = named(options.target)
    target.prepare()
    graph = read()
    features = target.features(asked)  # behind reading: this machine's are told by a worker, once it has started
    return build_program(graph, features, options.threads, fast_math=options.fast_math, precision=options.precision)


def _program(graph: Graph, options: _Options) -> Program:
    if not options.cache:
        return _build(lambda: graph, options)
    from ingot.pipeline.build import identity

    return _cached(_key(options, *identity(graph)), lambda: _build(lambda: graph, options))


@cache
def fingerprint() -> str:
    """Names this version of the compiler: a digest of its sources, so that a cached program is never older than it."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class FrameworkModel:
    """A compiled model that is called with the arguments of the program it comes from, and returns its results.

    flatten: (args, kwargs) to the compiled model's inputs; unflatten: its outputs to what the program returns.
    """

    def __init__(
        self,
        compiled: Any,
        flatten: Callable[[Sequence[Any], Mapping[str, Any]], Sequence[Any]],
        unflatten: Callable[[Sequence[Any]], Any],
    ):
        self.compiled = compiled
        self._flatten, self._unflatten = flatten, unflatten

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._unflatten(self.compiled.run(self._flatten(args, kwargs)))

    def explain(self, *args: Any, **kwargs: Any) -> str:
        return self.compiled.explain(*self._flatten(args, kwargs))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.compiled, name)

    def __repr__(self) -> str:
        return repr(self.compiled).replace("CompiledModel", type(self).__name__, 1)

    def __reduce__(self) -> Any:
        return self.compiled.__reduce__()


class TorchModel:
    """A compiled PyTorch model: called with the model's own arguments, it returns the model's own structure."""

    def __init__(self, compiled: Any, call: Callable[..., Any], flatten: Callable[..., Sequence[Any]]):
        self.compiled = compiled
        self._call = call
        self._flatten = flatten

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def state(self) -> dict[str, torch.Tensor]:
        """As `CompiledModel.state`, in tensors."""
        from ingot.frontends.torch import to_torch

        return {name: to_torch(value) for name, value in self.compiled.state().items()}

    def explain(self, *args: Any, **kwargs: Any) -> str:
        return self.compiled.explain(*self._flatten(args, kwargs))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.compiled, name)

    def __repr__(self) -> str:
        return repr(self.compiled).replace("CompiledModel", "TorchModel", 1)

    def __reduce__(self) -> Any:
        return self.compiled.__reduce__()


def _is_script(model: Any) -> bool:
    torch_ = sys.modules.get("torch")
    return torch_ is not None and isinstance(model, torch_.jit.ScriptModule)


def _compile_archive(path: Path, example_inputs: Any, dynamic: Any, options: _Options) -> Any:
    from ingot.frontends.torch.script import load

    progress.report("read")
    return _compile_script(load(path), example_inputs, dynamic, options)


def _compile_module(module: Any, example_inputs: Any, dynamic: Any, options: _Options) -> Any:
    from ingot.frontends.torch.script import extract

    return _compile_script(extract(module), example_inputs, dynamic, options)


def _compile_script(program: Any, example_inputs: Any, dynamic: Any, options: _Options) -> Any:
    """A TorchScript program: one compiled program, or, where its attributes decide what it is, one for each state."""
    from ingot.frontends.torch.script import Evaluator, ScriptedModel, arguments_of

    inputs = arguments_of(program, example_inputs)

    def build(evaluator: Any, arguments: Sequence[Any]) -> TorchModel:
        return _compile_torch(evaluator, tuple(arguments), dynamic, options)

    plain = Evaluator(program, program.attributes)
    if not program.written:
        return build(plain, inputs)
    if plain.is_steady(inputs):
        return build(Evaluator(program, program.attributes, buffers=True), inputs)
    model = ScriptedModel(program, build)
    model.for_inputs(*inputs)
    return model


def _exported(model: Any, example_inputs: Any, dynamic: Any) -> torch.export.ExportedProgram:
    from ingot.frontends import torch as frontend

    if hasattr(model, "graph_signature"):
        return model
    return frontend.export_module(model, example_inputs, dynamic)


def _imported(model: Any, example_inputs: Any, dynamic: Any) -> ImportedModel:
    from ingot.frontends import torch as frontend

    if isinstance(model, frontend.ImportedModel):
        return model
    return frontend.import_exported(_exported(model, example_inputs, dynamic))


def _compile_torch(model: Any, example_inputs: Any, dynamic: Any, options: _Options) -> TorchModel:
    imported = _imported(model, example_inputs, dynamic)
    return _torch_model(imported, _compiled(_program(imported.graph, options).with_state(imported.state), options))


def _torch_model(imported: ImportedModel, compiled: CompiledProgram) -> TorchModel:
    from ingot.frontends.torch import to_torch

    def of_nothing(inputs: Sequence[Any]) -> Sequence[Any]:
        # a program answers in its inputs' kind, and in arrays where it has none
        results: list[Any] = compiled.run(inputs)
        return [to_torch(r) for r in results]

    call = imported.caller(compiled.run if compiled.inputs else of_nothing)
    return TorchModel(compiled, call, imported.inputs.flatten)
