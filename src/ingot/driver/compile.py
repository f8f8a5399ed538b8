"""Compile a user's model: choose the frontend, look in the cache, run the pipeline.

A cached model needs neither frontend nor compiler, so both are imported where they are first needed.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ingot.driver.open import (
    FRONTENDS,
    Frontend,
    NeedsHost,
    Opened,
    Request,
    frontend_for,
    onnx_graph,
    recognize,
    script_program,
)
from ingot.driver.recognize import files_of
from ingot.driver.script_states import script_model
from ingot.driver.specialize import ValueSpecialization
from ingot.driver.stages import StagedExecution
from ingot.pipeline import tuning
from ingot.runtime import artifact
from ingot.runtime.arguments import UNPACKED
from ingot.runtime.device import refusal, refusal_of
from ingot.runtime.executable import LoadedProgram, UnloadedProgram
from ingot.runtime.executor import CompiledModel, Convention
from ingot.runtime.other_sizes import OtherSizes
from ingot.runtime.program import Program
from ingot.runtime.tensors import host_array
from ingot.support import flags, limits, progress, sources
from ingot.support.cache import DiskCache, cache_key, sharing
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError, NeedsValues, SizesError
from ingot.support.native import host

if TYPE_CHECKING:
    import onnx

    from ingot.ir.node import Graph
    from ingot.pipeline.build import Measure, Trace


_LARGE_BYTES = 64 << 20  # of a file whose digest takes longer than to look for it
_SETTLED_SECONDS = 5
_HEAD_BYTES = 8 << 20  # of the file of a program, in front of its weights; a hole, where they are fewer
ACTIVATIONS = ("float32", "int8")


def compile_model(model: Any, request: Request, options: Options) -> CompiledModel:
    """See `ingot.compile`."""
    kind, source = recognize(model)
    frontend = frontend_for(kind, request)
    if sizes := file_sizes(model, request, options.target):
        request = replace(request, dynamic={**(request.dynamic or {}), **sizes})
    if kind == "onnx":
        return _compile_onnx(source, request, options)
    progress.report("read")
    if kind == "torchscript":
        return _compile_script(source, request, options)
    if kind in ("torch", "jax"):
        return compile_opened(frontend.open(source, request), options)

    def build(request: Request) -> CompiledModel:
        is_known = frontend.is_content_addressed and isinstance(source, Path) and not _has_registered_ops()
        if is_known and options.cache:
            return _compile_content(frontend, source, request, options)
        return compile_opened(frontend.open(source, request), options)

    return _with_other_sizes(source, request, build, dict)


def file_sizes(model: Any, request: Request, target: str) -> Mapping[str, int]:
    """The sizes that a target without open ones takes from the model's file, by symbol: those of its tensors' shapes
    that the file leaves open and the request does not speak of."""
    if target.partition(":")[0] in ("native", "cpu", "cuda", "hip"):  # without the compiler, for programs in the cache
        return {}
    from ingot.pipeline.target import parse_target

    kind, source = recognize(model)
    sizes = FRONTENDS[kind].file_sizes if kind in FRONTENDS and parse_target(target)[0].has_fixed_sizes else None
    return sizes(source, request) if sizes is not None else {}


def compile_opened(opened: Opened, options: Options) -> CompiledModel:
    model = to_model(compiled_program(opened.graph, options).with_state(opened.state), options, opened.convention)
    reopen = opened.reopen_for_sizes
    if reopen is not None and opened.graph.symbols():

        def build(refused: SizesError) -> Any:
            other = None if refused.fixed else reopen(refused)
            return None if other is None else compile_opened(other, options)

        model._other_sizes = OtherSizes(limits.with_current_limits(build))
    return model


def _with_other_sizes(
    source: Any,
    request: Request,
    build: Callable[[Request], CompiledModel],
    open_axes: Callable[[], Mapping[str, Collection[int]]],
) -> CompiledModel:
    """The model that `build` returns; calls with sizes beyond its bounds compile and run one for these sizes.

    open_axes: by input, the axes that the source leaves open; the program may know their sizes.
    """
    model = build(request)
    if model.refused is not None:
        return model
    shapes = {spec.name: spec.shape for spec in model.inputs}
    stamps = _stamps(source)

    def recompile(refused: SizesError) -> Any:
        from ingot.frontends.shared.dynamic import with_axes, with_shapes, with_sizes

        if _stamps(source) != stamps:
            raise InputError(
                "the model's files",
                expected="no changes since they were compiled",
                got="changed files",
                fix="compile the model again",
            )
        if refused.fixed:
            dynamic = with_axes(request.dynamic, refused.fixed, open_axes())
        elif refused.out_of_range:
            dynamic = with_sizes(request.dynamic, refused.out_of_range, shapes)
        else:
            dynamic = with_shapes(request.dynamic, shapes, refused.shapes)
        return None if dynamic is None else build(replace(request, dynamic=dynamic))

    model._other_sizes = OtherSizes(limits.with_current_limits(recompile))
    return model


def _stamps(source: Any) -> list[tuple[int, int]]:
    """The modification times and sizes of a model's files."""
    return [(p.stat().st_mtime_ns, p.stat().st_size) for p in files_of(source)] if isinstance(source, Path) else []


@dataclass(frozen=True)
class Options:
    """The options of compiling any kind of model. See `ingot.compile`."""

    target: str = "native"
    threads: int = 1
    cache: bool = True
    fast_math: bool = False
    precision: str = "float32"
    device_memory: int | None = None
    activations: str = "float32"

    def __post_init__(self) -> None:
        for name in ("cache", "fast_math"):
            if not isinstance(value := getattr(self, name), bool):
                raise InputError(name, expected="True or False", got=repr(value))
        if self.activations not in ACTIVATIONS:
            raise InputError("activations", expected=" or ".join(ACTIVATIONS), got=repr(self.activations))


def _compile_content(frontend: Frontend, path: Path, request: Request, options: Options) -> CompiledModel:
    """Compile a file whose content determines the program: look in the cache before importing the file."""

    def build() -> Program:
        opened = frontend.open(path, request)
        return build_graph(lambda: opened.graph, options).with_state(opened.state)

    digests = [digest_of(p) or b"" for p in files_of(path)]
    return to_model(_load_or_build(_key(options, *digests, *_request_key(request)), build), options)


def _request_key(request: Request) -> list[bytes]:
    """The request as parts of a cache key."""
    weights = request.weights
    arrays: list[bytes] = []
    if isinstance(weights, str | os.PathLike):
        arrays = [digest_of(Path(weights)) or b""]
    elif isinstance(weights, Mapping):
        weights_by_name = {str(name): host_array(value, str(name)) for name, value in weights.items()}
        arrays = [
            repr((name, str(a.dtype), a.shape, a.tobytes())).encode() for name, a in sorted(weights_by_name.items())
        ]
    settings = request.dynamic, request.signature, request.inputs, request.outputs, request.state
    return [repr(settings).encode(), *arrays]


def _compile_onnx(source: Any, request: Request, options: Options) -> CompiledModel:
    """The compiled model. If values of inputs decide the program, it compiles for each value that a call brings; if
    the host computes a part of the model, it is executed in stages."""
    weights = {name: host_array(value, str(name)) for name, value in (request.weights or {}).items()}

    def build(values: Mapping[str, np.ndarray], example: _Example) -> CompiledModel:
        def compile_request(request_of_values: Request) -> CompiledModel:
            if isinstance(source, Path):
                return _compile_file(source, request_of_values, example, options)
            progress.report("read")
            return to_model(compiled_program(onnx_graph(source, request_of_values, example), options), options)

        def open_axes() -> Mapping[str, Collection[int]]:
            from ingot.frontends.onnx import open_axes

            return open_axes(source)

        return _with_other_sizes(source, replace(request, weights={**weights, **values}), compile_request, open_axes)

    try:
        return build({}, None)
    except NeedsValues as needs:
        if request.state:
            raise InputError("state", expected="a single program", got="one for each value of inputs") from needs
        return CompiledModel(ValueSpecialization(needs, limits.with_current_limits(build), options.threads))
    except NeedsHost as needs:
        from ingot.frontends.onnx import stages_of

        def compile_part(model: onnx.ModelProto) -> CompiledModel:
            return _compile_onnx(model, Request(dynamic=request.dynamic), options)

        for option in ("outputs", "state"):
            if option in request.set_options:
                raise InputError(
                    option, expected="a single program", got="a model that the host computes in part"
                ) from needs
        return CompiledModel(
            StagedExecution(stages_of(needs.model), limits.with_current_limits(compile_part), weights, options.threads)
        )


_Example = Mapping[str, tuple[int, ...]] | None  # the shapes of a call's inputs


def _compile_file(path: Path, request: Request, example: _Example, options: Options) -> CompiledModel:
    """Compile an ONNX file: look in the cache by the file's content before parsing it."""

    def graph() -> Graph:
        progress.report("read")
        return onnx_graph(path, request, example)

    if not options.cache:
        return to_model(build_graph(graph, options), options)
    digest = digest_of(path)
    if digest is None or _names_files(path) or _has_registered_ops():
        return to_model(compiled_program(graph(), options), options)
    key = _key(options, digest, *_request_key(request), repr(sorted((example or {}).items())).encode())
    return to_model(_load_or_build(key, lambda: build_graph(graph, options)), options)


def digest_of(path: Path) -> bytes | None:
    """The digest of the file's content; None for an empty or missing file. A large file's is kept on disk, by what
    changes with each write to it."""
    if not path.is_file() or path.stat().st_size == 0:
        return None
    with path.open("rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as data:
        s = os.fstat(f.fileno())
        # the clock of a file system is coarse: a write soon after another may not show
        if s.st_size < _LARGE_BYTES or abs(time.time() - s.st_ctime) < _SETTLED_SECONDS:
            return _hash()(data).digest()
        stamp = (str(path.resolve()), s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns)
        disk, key = DiskCache(), cache_key("the digest of a file", repr(stamp))
        digest = disk.load(key, bytes)
        if digest is None or len(digest) != _hash()().digest_size:
            digest = _hash()(data).digest()
            disk.store(key, [digest])
        return digest


@cache
def _hash() -> Callable[..., Any]:
    """The faster cryptographic hash: processors with instructions for SHA-256 take 0.5 s per GB; others take twice as
    long as for BLAKE2b."""
    with suppress(OSError):
        if re.search(r"\bsha(_ni|2)\b", Path("/proc/cpuinfo").read_text()):
            return hashlib.sha256
    return hashlib.blake2b


def _names_files(path: Path) -> bool:
    """Whether an ONNX file may refer to other files with weights, so that its bytes alone do not identify the model."""
    with path.open("rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data.find(b"location") >= 0  # a key of every external tensor


def _has_registered_ops() -> bool:
    """Whether `ingot.register_op` was called: what such an op means is in no file."""
    custom = sys.modules.get("ingot.ops.custom")  # whoever registers one imports it
    return custom is not None and bool(custom.NAMES)


def _key(options: Options, *parts: bytes) -> str:
    # a named target is the same everywhere; only the native target depends on this machine
    machine = host() if options.target in ("native", "cpu") else options.target
    options = replace(options, cache=True, device_memory=None)  # what the program is does not depend on these
    settings = f"{fingerprint()} {machine!r} {options} {flags.winograd()} {limits.cache_key_text()}"
    return cache_key(settings, tuning.digest(), *parts)


def to_model(program: Program, options: Options, convention: Convention | None = None) -> CompiledModel:
    """A model that runs the program; for another machine's program, one that can only be saved and inspected."""
    unloaded = unloaded_program(program, options.threads)
    if unloaded is not None:
        return CompiledModel(unloaded, convention=convention)
    packing = UNPACKED if convention is None else convention.packing
    loaded = LoadedProgram(program, options.threads, options.device_memory, export_library, packing)
    return CompiledModel(loaded, convention=convention)


def export_library(program: Program, path: Path, weights: Path | None) -> None:
    """Write a program for a CPU as a native library. Raises InputError for one of another target."""
    from ingot.pipeline.target import target_of

    if (export := target_of(program.features).export) is None:
        what = program.features.target_name
        raise InputError("a native library", expected="a program for a CPU", got=f"one for {what}")
    export(program, path, weights)


def unloaded_program(program: Program, threads: int) -> UnloadedProgram | None:
    """The executable of a program for another machine; None if it runs here."""
    refused = refusal(program)
    if refused is None:
        return None
    from ingot.pipeline.target import target_of

    return UnloadedProgram(program, threads, refused, target_of(program.features).export)


def cached_program(
    parts: Sequence[bytes], build: Callable[[], tuple[Graph, Mapping[str, str]]], options: Options
) -> Program:
    """The program of a graph, with notes for its `meta`. parts: of the cache key, besides the options."""

    def compiled() -> Program:
        graph, meta = build()
        program = build_graph(lambda: graph, options)
        return replace(program, meta={**program.meta, **meta})

    return _load_or_build(_key(options, *parts), compiled) if options.cache else compiled()


def _load_or_build(key: str, build: Callable[[], Program]) -> Program:
    disk = DiskCache()
    program = disk.load(key, lambda content: artifact.read(content, "a cached program"))
    if program is None:
        with disk.drafting(key, _HEAD_BYTES) as draft:
            program = build()
            weights = program.weights
            *head, padding, blob = artifact.content(program, _HEAD_BYTES if weights is draft.array else 0)
            if not draft.store(head, weights):
                disk.store(key, [*head, padding, blob])
    return program


def check_runs(target: str) -> None:
    """Raise ArtifactError if this machine cannot run code for a target. For use before compiling."""
    if target == "native":
        return
    from ingot.pipeline.target import features_of

    if (refused := refusal_of(features_of(target))) is not None:
        raise refused


def build_graph(
    read: Callable[[], Graph], options: Options, *, memory: float | None = None,
    sparing: Callable[[], Graph] | None = None, measure: Measure | None = None, trace: Trace | None = None,
) -> Program:  # fmt: skip
    """Compile a graph for the target of `options`. Uses cached kernels, but no cached program. memory, sparing,
    measure, trace: see `build_program`."""
    from ingot.pipeline.build import build_program
    from ingot.pipeline.target import parse_target

    target, request = parse_target(options.target)
    target.prepare(0)
    graph = read()
    target.prepare(len(graph.nodes()))
    features = target.features(request)  # after reading: a worker reports them
    with sharing(DiskCache() if options.cache else None):
        return build_program(
            graph, features, options.threads, fast_math=options.fast_math, precision=options.precision,
            activations=options.activations, memory=memory, smaller_graph=sparing, measure=measure, trace=trace,
        )  # fmt: skip


def compiled_program(graph: Graph, options: Options) -> Program:
    """The program of a graph, from the cache if it is there."""
    if not options.cache:
        return build_graph(lambda: graph, options)
    from ingot.pipeline.build import identity

    return _load_or_build(_key(options, *identity(graph)), lambda: build_graph(lambda: graph, options))


@cache
def fingerprint() -> str:
    """A digest of the compiler's sources, so that a cached program is never older than the compiler."""
    return sources.digest(Path(__file__).parents[1])


def _compile_script(source: Any, request: Request, options: Options) -> CompiledModel:
    """Compile a TorchScript program to one program, or to one for each state if its attributes decide the program."""
    from ingot.frontends.torch.script import Evaluator

    program, inputs, dynamic = script_program(source, request)

    def build(evaluator: Any, arguments: Sequence[Any]) -> CompiledModel:
        example_request = Request(tuple(arguments), dynamic)
        return compile_opened(FRONTENDS["torch"].open(evaluator, example_request), options)

    plain = Evaluator(program, program.attributes)
    if not program.written_paths:
        return build(plain, inputs)
    if plain.is_steady(inputs):
        return build(Evaluator(program, program.attributes, buffers=True), inputs)
    model = script_model(program, limits.with_current_limits(build), options.threads)
    model.for_inputs(*inputs)
    return model
