"""`InferenceSession`: a compiled model with the methods of ONNX Runtime's sessions."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ingot.api.compile import compile
from ingot.integrations.onnxruntime.options import CPU, SessionOptions, check_terminate, ignored, settings
from ingot.integrations.onnxruntime.values import ELEMENTS, IOBinding, OrtValue
from ingot.runtime import artifact
from ingot.runtime.cpu.run_context import ended_by
from ingot.runtime.dtypes import NAMES, numpy_dtype
from ingot.runtime.executor import CompiledModel
from ingot.runtime.expr import show
from ingot.runtime.program import TensorSpec
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError, InputError

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from onnx import ModelProto, ValueInfoProto

_ASYNC_THREADS = 4  # of `run_async`, each for one call at a time


class FeedError(InputError, ValueError):
    """An input that is missing, of an unknown name or of the wrong type: ONNX Runtime raises a ValueError."""


@dataclass(frozen=True)
class NodeArg:
    """An input or output. type: such as "tensor(float)". shape: sizes; of open ones the names, or None."""

    name: str
    type: str
    shape: list[int | str | None]


@dataclass(frozen=True)
class ModelMetadata:
    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0
    custom_metadata_map: Mapping[str, str] = field(default_factory=dict)


class InferenceSession:
    """A drop-in replacement for `onnxruntime.InferenceSession`, which compiles or loads the model when it is created.

    path_or_bytes: an ONNX model or a saved program (.ingot), as a path or as bytes. sess_options: those of this package
    or ONNX Runtime's own; threads and overridden dimensions have an effect. providers: all run on the CPU, or on the
    `target`. options: those of `ingot.compile`. Ignored options are logged once, in the log `ingot.onnxruntime`.

    Raises what `ingot.compile` and `ingot.load` raise.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
        *,
        disabled_optimizers: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        self._options = sess_options if sess_options is not None else SessionOptions()
        threads, sizes = settings(self._options, None if "target" in options else providers)
        if disabled_optimizers:
            ignored("disabled_optimizers")
        self._model, proto = _open(path_or_bytes, {"threads": threads, "dynamic": sizes or None, **options})
        self._inputs = [_node_arg(spec) for spec in self._model.inputs]
        self._outputs = [_node_arg(spec) for spec in self._model.outputs]
        self._metadata = ModelMetadata()
        if proto is not None:
            initial = {tensor.name for tensor in proto.graph.initializer}
            inputs = [info for info in proto.graph.input if info.name not in initial]
            self._inputs = _declared_args(inputs, self._inputs)
            self._outputs = _declared_args(proto.graph.output, self._outputs)
            self._metadata = _metadata(proto)
        self._specs = {spec.name: spec for spec in self._model.inputs}
        self._positions = {spec.name: index for index, spec in enumerate(self._model.outputs)}
        self._executor: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    # --- properties

    @property
    def model(self) -> CompiledModel:
        """The compiled model, with Ingot's own methods."""
        return self._model

    def get_inputs(self) -> list[NodeArg]:
        return self._inputs

    def get_outputs(self) -> list[NodeArg]:
        return self._outputs

    def get_overridable_initializers(self) -> list[NodeArg]:
        """An empty list: initializers are constants of the program."""
        return []

    def get_modelmeta(self) -> ModelMetadata:
        return self._metadata

    def get_session_options(self) -> Any:
        return self._options

    def get_providers(self) -> list[str]:
        return [CPU]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {CPU: {}}

    def set_providers(self, providers: Sequence[Any] | None = None, provider_options: Any = None) -> None:
        settings(None, providers)

    def end_profiling(self) -> str:
        """The path of the profile: "", as none is written. `ingot explain` and `model.profile` measure kernels."""
        return ""

    def disable_fallback(self) -> None:
        """No effect: there is no fallback."""

    def enable_fallback(self) -> None:
        ignored("a fallback to other providers")

    # --- runs

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
        *,
        out: Sequence[np.ndarray | None] | None = None,
    ) -> list[Any]:
        """The outputs with these names, by default all. out: for each an array to write it into, or None.

        run_options: `RunOptions`, whose `terminate` another thread may set to end the run.

        Raises FeedError for invalid inputs, InputError for invalid names and arrays of outputs, RunTerminated.
        """
        positions = self._positions_of(output_names)
        out_by_position: dict[int, np.ndarray | None] | None = None
        if out is not None:
            if len(out) != len(positions):
                raise InputError("out", expected=f"{len(positions)} arrays, or None for some", got=len(out))
            out_by_position = dict(zip(positions, out, strict=True))
        arrays = None if out_by_position is None else [out_by_position.get(i) for i in range(len(self._positions))]
        results = self._run(self._feeds(input_feed), arrays, run_options)
        return [results[position] for position in positions]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[Any, Any, str], object],
        user_data: Any,
        run_options: Any = None,
    ) -> None:
        """Run on another thread, and call `callback(results, user_data, error)` there; error is "" for none."""
        positions, feeds = self._positions_of(output_names), self._feeds(input_feed)
        with self._lock:
            if self._executor is None:
                from concurrent.futures import ThreadPoolExecutor  # imported here, as few sessions need it

                self._executor = ThreadPoolExecutor(_ASYNC_THREADS, "ingot-run-async")

        def work() -> None:
            try:
                results = self._run(feeds, None, run_options)
            except Exception as error:  # of any kind: the callback must receive it
                callback([], user_data, str(error) or type(error).__name__)
                return
            callback([results[position] for position in positions], user_data, "")

        self._executor.submit(work)

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, Any], run_options: Any = None
    ) -> list[OrtValue]:
        return [OrtValue(result) for result in self.run(output_names, input_dict_ort_values, run_options)]

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        inputs, outputs = iobinding.bound
        iobinding.set_results(self.run([*outputs], inputs, run_options, out=[*outputs.values()] or None))

    def _run(self, inputs: list[Any], out: Sequence[np.ndarray | None] | None, options: Any) -> list[Any]:
        if options is None:
            return self._model.run(inputs, out)
        check_terminate(options)  # also for a GPU, which ends a run that it has begun
        with ended_by(partial(check_terminate, options)):
            return self._model.run(inputs, out)

    def _positions_of(self, names: Sequence[str] | None) -> list[int]:
        if not names:
            return [*self._positions.values()]
        if unknown := [name for name in names if name not in self._positions]:
            raise InputError("output names", expected=f"names out of {[*self._positions]}", got=unknown)
        return [self._positions[name] for name in names]

    def _feeds(self, feed: Mapping[str, Any]) -> list[Any]:
        input_names = {arg.name for arg in self._inputs}
        if unknown := [name for name in feed if name not in input_names]:
            raise FeedError("input feed", expected=f"names out of {sorted(input_names)}", got=unknown)
        if missing := [name for name in self._specs if name not in feed]:
            raise FeedError("input feed", expected=", ".join(map(str, self._specs.values())), got=f"none for {missing}")
        return [_value(spec, feed[name]) for name, spec in self._specs.items()]


def _value(spec: TensorSpec, value: Any) -> Any:
    """An input for a compiled model: wrapped arrays are unwrapped, lists and numbers get the declared dtype."""
    if isinstance(value, OrtValue) or type(value).__module__.startswith("onnxruntime."):
        value = value.numpy()
    if isinstance(value, np.ndarray) or hasattr(value, "__dlpack__") or spec.dtype not in NAMES:
        return value
    try:
        return np.asarray(value, numpy_dtype(spec.dtype))
    except (ValueError, TypeError, OverflowError) as error:
        raise FeedError(f"input {spec.name!r}", expected=str(spec), got=f"{type(value).__name__}: {error}") from error


# --- models


def _open(
    source: str | os.PathLike[str] | bytes, options: Mapping[str, Any]
) -> tuple[CompiledModel, ModelProto | None]:
    """The model, and its description if it is ONNX."""
    if isinstance(source, bytes | bytearray | memoryview):
        if bytes(source[: len(artifact.MAGIC)]) == artifact.MAGIC:
            return _load_saved(artifact.read(memoryview(source), "the bytes of a model"), options), None
        from ingot.frontends.onnx.importer import parse_model

        proto = parse_model(bytes(source), "the bytes of a model")
        return compile(proto, **options), proto
    path = Path(source)
    try:
        with path.open("rb") as file:
            head = file.read(len(artifact.MAGIC))
    except OSError as error:
        raise ImportModelError(f"cannot read the model: {error.strerror}", where=str(path)) from error
    if head == artifact.MAGIC:
        return _load_saved(artifact.load(path), options), None
    from ingot.frontends.onnx.importer import read_model

    return compile(path, **options), read_model(path)[0]


def _load_saved(program: Any, options: Mapping[str, Any]) -> CompiledModel:
    if rejected := [name for name, value in options.items() if name != "threads" and value is not None]:
        raise InputError(
            "a saved program", expected="no options but threads", got=rejected, fix="compile the model again"
        )
    return CompiledModel(program, threads=options["threads"])


def _node_arg(spec: TensorSpec) -> NodeArg:
    try:
        shape: list[int | str | None] = [dim if isinstance(dim, int) else show(dim) for dim in spec.shape]
    except InputError:  # only a call knows its rank
        shape = []
    type_name, _ = ELEMENTS.get(spec.dtype, (spec.dtype, 0))
    return NodeArg(spec.name, f"tensor({type_name})", shape)


def _declared_args(infos: Sequence[ValueInfoProto], compiled: Sequence[NodeArg]) -> list[NodeArg]:
    """The specs that the model declares, completed by those that the compiler inferred."""
    compiled_by_name = {arg.name: arg for arg in compiled}
    return [_declaration(info.name, info.type, compiled_by_name.get(info.name)) for info in infos]


def _declaration(name: str, type_proto: Any, compiled: NodeArg | None) -> NodeArg:
    kind = type_proto.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        inner = _declaration(name, getattr(type_proto, kind).elem_type, None)
        return NodeArg(name, f"{'seq' if kind == 'sequence_type' else 'optional'}({inner.type})", [])
    if kind != "tensor_type":
        return compiled or NodeArg(name, kind or "", [])
    tensor = type_proto.tensor_type
    type_name = next((type_name for type_name, number in ELEMENTS.values() if number == tensor.elem_type), None)
    if type_name is None and compiled is not None:
        return compiled
    inferred = compiled.shape if compiled is not None else []
    if not tensor.HasField("shape"):
        return NodeArg(name, f"tensor({type_name})", inferred)
    shape: list[int | str | None] = [
        (dim.dim_value if dim.dim_value >= 0 else None) if dim.HasField("dim_value") else dim.dim_param or None
        for dim in tensor.shape.dim
    ]
    if len(inferred) == len(shape):  # replace named sizes that the compiler knows
        shape = [
            inferred_size if isinstance(inferred_size, int) else size
            for inferred_size, size in zip(inferred, shape, strict=True)
        ]
    return NodeArg(name, f"tensor({type_name})", shape)


def _metadata(proto: ModelProto) -> ModelMetadata:
    properties = {entry.key: entry.value for entry in proto.metadata_props}
    graph = proto.graph
    return ModelMetadata(
        proto.producer_name,
        graph.name,
        proto.domain,
        proto.doc_string,
        graph.doc_string,
        proto.model_version,
        properties,
    )
