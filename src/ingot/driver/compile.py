"""The way from a user's model to a compiled one: choose the frontend, ask the cache, run the pipeline.

A model that is in the cache needs neither frontend nor compiler, so both are imported where they are first needed.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Callable, Mapping, Sequence
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
    recognized,
    script_program,
)
from ingot.driver.recognize import files_of
from ingot.driver.script_states import script_model
from ingot.driver.specialize import ValueSpecialization
from ingot.driver.stages import StagedExecution
from ingot.pipeline import tuning
from ingot.runtime import artifact
from ingot.runtime.device import refusal, refusal_of
from ingot.runtime.executable import UnloadedProgram
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


def compile_model(model: Any, request: Request, options: Options) -> CompiledModel:
    """See `ingot.compile`."""
    kind, source = recognized(model)
    frontend = frontend_for(kind, request)
    if kind == "onnx":
        return _compile_onnx(source, request, options)
    progress.report("read")
    if kind == "torchscript":
        return _compile_script(source, request, options)
    if kind in ("torch", "jax"):
        return finished(frontend.open(source, request), options)

    def build(asked: Request) -> CompiledModel:
        if frontend.by_content and isinstance(source, Path) and options.cache:
            return _compile_content(frontend, source, asked, options)
        return finished(frontend.open(source, asked), options)

    return _with_sizes(source, request, build)


def finished(opened: Opened, options: Options) -> CompiledModel:
    model = compiled(_program(opened.graph, options).with_state(opened.state), options, opened.convention)
    again = opened.for_sizes
    if again is not None and opened.graph.symbols():

        def build(refused: SizesError) -> Any:
            other = again(refused)
            return None if other is None else finished(other, options)

        model._other_sizes = OtherSizes(limits.kept(build))
    return model


def _with_sizes(source: Any, request: Request, build: Callable[[Request], CompiledModel]) -> CompiledModel:
    """What `build` gives; where a call brings sizes beyond its bounds, one with these sizes is called."""
    model = build(request)
    if model.refused is not None or not model.program.symbols:
        return model
    shapes = {spec.name: spec.shape for spec in model.inputs}
    stamps = _stamps(source)

    def again(refused: SizesError) -> Any:
        from ingot.frontends.shared.dynamic import with_shapes, with_sizes

        if _stamps(source) != stamps:
            raise InputError(
                "the model's files", expected="those that were compiled", got="others", fix="compile again"
            )
        if refused.outside:
            dynamic = with_sizes(request.dynamic, refused.outside, shapes)
        else:
            dynamic = with_shapes(request.dynamic, shapes, refused.told)
        return None if dynamic is None else build(replace(request, dynamic=dynamic))

    model._other_sizes = OtherSizes(limits.kept(again))
    return model


def _stamps(source: Any) -> list[tuple[int, int]]:
    """When a model's files were written, and how large they are."""
    return [(p.stat().st_mtime_ns, p.stat().st_size) for p in files_of(source)] if isinstance(source, Path) else []


@dataclass(frozen=True)
class Options:
    """How a model is compiled, whatever it is. See `ingot.compile`."""

    target: str = "native"
    threads: int = 1
    cache: bool = True
    fast_math: bool = False
    precision: str = "float32"

    def __post_init__(self) -> None:
        for name in ("cache", "fast_math"):
            if not isinstance(value := getattr(self, name), bool):
                raise InputError(name, expected="True or False", got=repr(value))


def _compile_content(frontend: Frontend, path: Path, request: Request, options: Options) -> CompiledModel:
    """A file whose content says what the program is: the cache is asked before the file is read."""

    def build() -> Program:
        opened = frontend.open(path, request)
        return built(lambda: opened.graph, options).with_state(opened.state)

    digests = [_digest(p) or b"" for p in files_of(path)]
    return compiled(_cached(_key(options, *digests, *_told(request)), build), options)


def _told(request: Request) -> list[bytes]:
    """What is asked of a model, for a key."""
    weights = request.weights
    arrays: list[bytes] = []
    if isinstance(weights, str | os.PathLike):
        arrays = [_digest(Path(weights)) or b""]
    elif isinstance(weights, Mapping):
        known = {str(name): host_array(value, str(name)) for name, value in weights.items()}
        arrays = [repr((name, str(a.dtype), a.shape, a.tobytes())).encode() for name, a in sorted(known.items())]
    told = request.dynamic, request.signature, request.inputs, request.outputs, request.state
    return [repr(told).encode(), *arrays]


def _compile_onnx(source: Any, request: Request, options: Options) -> CompiledModel:
    """The compiled model; where the values of inputs decide what it is, a model that compiles for those it meets; where
    it takes turns with the host, one of several programs."""
    weights = {name: host_array(value, str(name)) for name, value in (request.weights or {}).items()}

    def build(values: Mapping[str, np.ndarray], example: _Example) -> CompiledModel:
        def found(asked: Request) -> CompiledModel:
            if isinstance(source, Path):
                return _compile_file(source, asked, example, options)
            progress.report("read")
            return compiled(_program(onnx_graph(source, asked, example), options), options)

        return _with_sizes(source, replace(request, weights={**weights, **values}), found)

    try:
        return build({}, None)
    except NeedsValues as needs:
        if request.state:
            raise InputError("state", expected="one program", got="one for each value of inputs") from needs
        return CompiledModel(ValueSpecialization(needs, limits.kept(build), options.threads))
    except NeedsHost as needs:
        from ingot.frontends.onnx import stages_of

        def part(model: onnx.ModelProto) -> CompiledModel:
            return _compile_onnx(model, Request(dynamic=request.dynamic), options)

        for word in ("outputs", "state"):
            if word in request.asked:
                raise InputError(word, expected="one program", got="one that takes turns with the host") from needs
        return CompiledModel(StagedExecution(stages_of(needs.model), limits.kept(part), weights, options.threads))


_Example = Mapping[str, tuple[int, ...]] | None  # shapes of inputs in a call


def _compile_file(path: Path, request: Request, example: _Example, options: Options) -> CompiledModel:
    """An ONNX file: the cache is asked by the file's content before anything is parsed."""

    def graph() -> Graph:
        progress.report("read")
        return onnx_graph(path, request, example)

    if not options.cache:
        return compiled(built(graph, options), options)
    digest = _digest(path)
    if digest is None or _names_files(path):
        return compiled(_program(graph(), options), options)
    key = _key(options, digest, *_told(request), repr(sorted((example or {}).items())).encode())
    return compiled(_cached(key, lambda: built(graph, options)), options)


def _digest(path: Path) -> bytes | None:
    """Of the file's content; None for an empty one, or none."""
    if not path.is_file() or path.stat().st_size == 0:
        return None
    with path.open("rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return hashlib.blake2b(data).digest()


def _names_files(path: Path) -> bool:
    """Whether an ONNX file may name others that hold weights: its bytes do not identify it then."""
    with path.open("rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data.find(b"location") >= 0  # the key that every external tensor has among its entries


def _key(options: Options, *parts: bytes) -> str:
    # a named target is the same everywhere; only this machine's own has to be looked at
    machine = host() if options.target in ("native", "cpu") else options.target
    settings = f"{fingerprint()} {machine!r} {replace(options, cache=True)} {flags.winograd()} {limits.named()}"
    return cache_key(settings, tuning.digest(), *parts)


def compiled(program: Program, options: Options, convention: Convention | None = None) -> CompiledModel:
    """Ready to run; a program for another machine, only to be saved and looked at."""
    other = foreign(program, options.threads)
    return CompiledModel(other or program, threads=options.threads, convention=convention)


def foreign(program: Program, threads: int) -> UnloadedProgram | None:
    """A program for another machine; None for one that runs here."""
    refused = refusal(program)
    if refused is None:
        return None
    from ingot.pipeline.target import target_of

    return UnloadedProgram(program, threads, refused, target_of(program.features).export)


def _cached(key: str, build: Callable[[], Program]) -> Program:
    disk = DiskCache()
    program = disk.load(key, lambda content: artifact.read(content, "a cached program"))
    if program is None:
        program = build()
        disk.store(key, artifact.content(program))
    return program


def check_runs(target: str) -> None:
    """Raise ArtifactError, before anything is compiled, where this machine cannot run what is compiled for a target."""
    if target == "native":
        return
    from ingot.pipeline.target import features_of

    if (refused := refusal_of(features_of(target))) is not None:
        raise refused


def built(
    read: Callable[[], Graph], options: Options, *, memory: float | None = None,
    sparing: Callable[[], Graph] | None = None, measure: Measure | None = None, trace: Trace | None = None,
) -> Program:  # fmt: skip
    """A graph compiled for the target of `options`; kernels that the cache has are taken from there, programs are not.
    memory, sparing, measure, trace: see `build_program`."""
    from ingot.pipeline.build import build_program
    from ingot.pipeline.target import named

    target, asked = named(options.target)
    target.prepare(0)
    graph = read()
    target.prepare(len(graph.nodes()))
    features = target.features(asked)  # behind reading: this machine's are told by a worker, once it has started
    with sharing(DiskCache() if options.cache else None):
        return build_program(
            graph, features, options.threads, fast_math=options.fast_math, precision=options.precision, memory=memory,
            sparing=sparing, measure=measure, trace=trace,
        )  # fmt: skip


def _program(graph: Graph, options: Options) -> Program:
    if not options.cache:
        return built(lambda: graph, options)
    from ingot.pipeline.build import identity

    return _cached(_key(options, *identity(graph)), lambda: built(lambda: graph, options))


@cache
def fingerprint() -> str:
    """Names this version of the compiler, so that a cached program is never older than it."""
    return sources.digest(Path(__file__).parents[1])


def _compile_script(source: Any, request: Request, options: Options) -> CompiledModel:
    """A TorchScript program: one compiled program, or, where its attributes decide what it is, one for each state."""
    from ingot.frontends.torch.script import Evaluator

    program, inputs, dynamic = script_program(source, request)

    def build(evaluator: Any, arguments: Sequence[Any]) -> CompiledModel:
        asked = Request(tuple(arguments), dynamic)
        return finished(FRONTENDS["torch"].open(evaluator, asked), options)

    plain = Evaluator(program, program.attributes)
    if not program.written:
        return build(plain, inputs)
    if plain.is_steady(inputs):
        return build(Evaluator(program, program.attributes, buffers=True), inputs)
    model = script_model(program, limits.kept(build), options.threads)
    model.for_inputs(*inputs)
    return model
