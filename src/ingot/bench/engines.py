"""Ingot and other engines on one model, each in a process of its own, driven by JSON lines.

    python -m ingot.bench.engines ENGINE MODEL FEEDS.npz THREADS PRECISION TARGET

Commands come on stdin then: {"seconds": 0.2}.

The first answer tells how starting went, each further one the median seconds of a burst of calls, and
their number with that which warms up.
"""

from __future__ import annotations

import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  gives numpy the names of its types
import numpy as np

from ingot.debug.source import Source, compile_source, open_source, runnable
from ingot.support import timing
from ingot.support.errors import ImportModelError, IngotError, InputError

Feeds = Mapping[str, np.ndarray]


class Engine(ABC):
    """One engine with its model ready to run on fixed inputs, for the machine that Ingot's `target` names. An engine
    that has no `precision` but f32 runs that."""

    @abstractmethod
    def __init__(
        self, source: Source, feeds: Feeds, threads: int, precision: str = "float32", target: str = "native"
    ) -> None: ...

    @abstractmethod
    def run(self) -> list[np.ndarray]: ...

    def call(self) -> object:
        """What is timed: a run until its results are there, on the GPU if it is one's."""
        return self.run()


class Ingot(Engine):
    """Compiled without the disk cache, sizes as the model has them. On a GPU inputs are PyTorch's, and lie there."""

    def __init__(
        self, source: Source, feeds: Feeds, threads: int, precision: str = "float32", target: str = "native"
    ) -> None:
        compiled = compile_source(source, threads=threads, cache=False, precision=precision, target=target)
        self.model = runnable(compiled)
        self.torch = _extra("torch", "ingot") if _is_gpu(target) else None
        self.feeds: dict[str, Any] = dict(feeds)
        if self.torch is not None:
            from ingot.frontends.torch.convert import to_torch

            self.feeds = {name: to_torch(x).cuda() for name, x in feeds.items()}

    def run(self) -> list[np.ndarray]:
        out = self.model(**self.feeds)
        results: tuple[Any, ...] = out if isinstance(out, tuple) else (out,)
        if self.torch is None:
            return [np.asarray(o) for o in results]
        from ingot.frontends.torch.convert import to_numpy

        return [to_numpy(o) for o in results]

    def call(self) -> object:
        out = self.model(**self.feeds)
        if self.torch is not None:
            self.torch.cuda.synchronize()
        return out


class OnnxRuntime(Engine):
    """All optimizations, one pool of `threads` threads, sizes fixed at the inputs' as its tuning guide advises."""

    def __init__(
        self, source: Source, feeds: Feeds, threads: int, precision: str = "float32", target: str = "native"
    ) -> None:
        _needs_cpu(target, "ort")
        _needs_onnx(source, "ort")
        onnxruntime = _extra("onnxruntime", "ort")
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        for name, size in _symbols(source, feeds).items():
            options.add_free_dimension_override_by_name(name, size)
        self.session: Any = onnxruntime.InferenceSession(str(source.path), options, providers=["CPUExecutionProvider"])
        self.feeds = dict(feeds)

    def run(self) -> list[np.ndarray]:
        return [np.asarray(out) for out in self.session.run(None, self.feeds)]


class OpenVino(Engine):
    """Latency hint, static shapes, tensors shared with numpy."""

    def __init__(
        self, source: Source, feeds: Feeds, threads: int, precision: str = "float32", target: str = "native"
    ) -> None:
        _needs_cpu(target, "openvino")
        _needs_onnx(source, "openvino")
        core: Any = _extra("openvino", "openvino").Core()
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": {"bfloat16": "bf16", "float16": "f16"}.get(precision, "f32"),
        }
        graph = core.read_model(str(source.path))
        graph.reshape({port.any_name: list(feeds[port.any_name].shape) for port in graph.inputs})
        model = core.compile_model(graph, "CPU", settings)
        self.request: Any = model.create_infer_request()
        self.inputs = [feeds[port.any_name] for port in model.inputs]
        self.count = len(model.outputs)

    def run(self) -> list[np.ndarray]:
        results = self.request.infer(self.inputs, share_inputs=True, share_outputs=True)
        return [results[i] for i in range(self.count)]


class Eager(Engine):
    """PyTorch as it is."""

    def __init__(
        self, source: Source, feeds: Feeds, threads: int, precision: str = "float32", target: str = "native"
    ) -> None:
        if source.kind != "torch":
            raise InputError(
                "engines eager and inductor run PyTorch programs",
                expected="a .pt2 file, as torch.export.save writes it",
                got=str(source.path),
            )
        torch = _extra("torch", "eager")
        from ingot.frontends.torch import import_sized, load_exported
        from ingot.frontends.torch.convert import to_torch

        torch.set_num_threads(threads)
        program = load_exported(source.path)
        imported = import_sized(program, source.dynamic)
        leaves = imported.inputs.leaves
        if any(leaf.kind != "tensor" for leaf in leaves):
            raise InputError("engines eager and inductor", expected="a model whose arguments are all tensors")
        self.gpu = _is_gpu(target)
        values = [to_torch(feeds[leaf.name]) for leaf in leaves]
        if self.gpu:
            values = [value.cuda() for value in values]
            program = _extra("torch.export.passes", "eager").move_to_device_pass(program, "cuda")
        self.args, self.kwargs = torch.utils._pytree.tree_unflatten(values, imported.inputs.spec)
        self.torch = torch
        self.module: Any = program.module()

    def run(self) -> list[np.ndarray]:
        from ingot.frontends.torch.convert import to_numpy

        leaves = self.torch.utils._pytree.tree_leaves(self.call())
        return [to_numpy(leaf) for leaf in leaves if isinstance(leaf, self.torch.Tensor)]

    def call(self) -> object:
        with self.torch.no_grad():
            out = self.module(*self.args, **self.kwargs)
        if self.gpu:
            self.torch.cuda.synchronize()
        return out


class Inductor(Eager):
    """torch.compile with freezing and static shapes, which needs a C++ compiler; on GPUs with CUDA graphs."""

    def __init__(
        self, source: Source, feeds: Feeds, threads: int, precision: str = "float32", target: str = "native"
    ) -> None:
        super().__init__(source, feeds, threads, precision, target)
        config = _extra("torch._inductor.config", "inductor")
        config.freezing = True
        mode = "reduce-overhead" if self.gpu else None
        self.module = self.torch.compile(self.module, dynamic=False, mode=mode)


ENGINES: dict[str, type[Engine]] = {
    "ingot": Ingot,
    "ort": OnnxRuntime,
    "openvino": OpenVino,
    "eager": Eager,
    "inductor": Inductor,
}


def _is_gpu(target: str) -> bool:
    return target.partition(":")[0] == "cuda"


def _needs_cpu(target: str, engine: str) -> None:
    if _is_gpu(target):
        raise InputError(f"engine {engine} runs on CPUs here", expected="eager or inductor beside a GPU", got=target)


def _extra(module: str, engine: str) -> Any:
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportModelError(f"engine {engine} needs the package {package}", fix=f"pip install {package}") from error


def _needs_onnx(source: Source, engine: str) -> None:
    if source.kind != "onnx":
        raise InputError(f"engine {engine} reads ONNX files", expected="an ONNX file", got=str(source.path))


def _symbols(source: Source, feeds: Feeds) -> dict[str, int]:
    """The sizes of the model's named dimensions in these inputs."""
    onnx = _extra("onnx", "ort")
    sizes: dict[str, int] = {}
    for value in onnx.load(source.path, load_external_data=False).graph.input:
        if value.name in feeds:
            for dim, size in zip(value.type.tensor_type.shape.dim, feeds[value.name].shape, strict=False):
                if dim.dim_param:
                    sizes[dim.dim_param] = int(size)
    return sizes


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """In an .npz file; of types that numpy knows by name alone, such as bfloat16, the bits."""
    np.savez(path, **{f"{a.dtype.name}:{name}": _bits(a) for name, a in arrays.items()})  # type: ignore[arg-type]


def _bits(array: np.ndarray) -> np.ndarray:
    return array if array.dtype.isbuiltin == 1 else array.view(f"u{array.itemsize}")


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """What `write_arrays` wrote, in its order."""
    found: dict[str, np.ndarray] = {}
    with np.load(path) as stored:
        for key in stored.files:
            dtype, _, name = key.partition(":")
            found[name] = stored[key].view(dtype)
    return found


def serve(name: str, model: Path, feeds: Path, threads: int, precision: str, target: str) -> None:
    """Answer on what is standard output now; whatever engines print goes to standard error instead."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**values: object) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    try:
        arrays = read_arrays(feeds)
        began = time.perf_counter()
        engine = ENGINES[name](open_source(model), arrays, threads, precision, target)
        ready = time.perf_counter()
        outputs = {f"{i}": np.array(o) for i, o in enumerate(engine.run())}
        first = time.perf_counter()
        write_arrays(feeds.with_name(f"{name}.npz"), outputs)
        answer(compile_s=ready - began, first_s=first - ready)
        for line in sys.stdin:
            times = timing.burst(engine.call, float(json.loads(line)["seconds"]))
            answer(seconds=float(np.median(times)), calls=len(times) + 1)
    except (IngotError, RuntimeError, ValueError, TypeError, OSError) as error:
        answer(failed=str(error) if isinstance(error, IngotError) else f"{type(error).__name__}: {error}"[:500])
        sys.exit(1)


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), sys.argv[5], sys.argv[6])
