"""Ingot and other engines on one model, each in a process of its own, driven by JSON lines.

    python -m ingot.bench.engines '{"engine": ..., "model": ..., "feeds": ..., "job": {...}}'

It then reads commands from stdin: {"seconds": 0.2}.

The first answer reports whether the engine started. Each further one reports a burst of calls: the median of their
seconds, the nanoseconds of each, and the seconds of the burst; with "count" only their number, including those of the
warm-up.
"""

from __future__ import annotations

import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  gives numpy the names of its types
import numpy as np

from ingot.debug.comparison.foreign import compile_stablehlo
from ingot.debug.source import Source, Words, compile_source, open_source, runnable
from ingot.ir.node import Input
from ingot.support import timing
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError, IngotError, InputError

Feeds = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Job:
    """The task of each engine. threads: of all streams in total. streams: the number of concurrent calls. warm_up:
    seconds of calls before the first burst. words: the requests for the sizes and values of the model."""

    threads: int
    precision: str = "float32"
    target: str = "native"
    streams: int = 1
    warm_up: float = 0.0
    words: Words = Words()

    @property
    def threads_of_call(self) -> int:
        return max(1, self.threads // self.streams)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Job:
        return Job(**{**values, "words": Words(**values["words"])})


class Engine(ABC):
    """An engine with a model that is ready to run on fixed inputs, on the machine of Ingot's `target`. An engine
    without support for `precision` runs in f32."""

    @abstractmethod
    def __init__(
        self, source: Source, feeds: Feeds, threads: int, precision: str = "float32", target: str = "native"
    ) -> None: ...

    @abstractmethod
    def run(self) -> list[np.ndarray]: ...

    def call(self) -> object:
        """The timed call: a run until its results are available (on the GPU, if the target is one)."""
        return self.run()

    def stream(self) -> Callable[[], object]:
        """A call that may run concurrently with those of other streams."""
        return self.call


class Ingot(Engine):
    """Compiled without the disk cache, with the open sizes of the model. On a GPU the inputs are PyTorch tensors in its
    memory."""

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
    """All optimizations, one pool of `threads` threads, and sizes fixed to those of the inputs, as its tuning guide
    advises."""

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
        self.feeds = {**feeds, **source.weights}
        self.outputs = list(source.outputs) if source.outputs else None

    def run(self) -> list[np.ndarray]:
        return [np.asarray(out) for out in self.session.run(self.outputs, self.feeds)]


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
        feeds = {**feeds, **source.weights}
        graph.reshape({port.any_name: list(feeds[port.any_name].shape) for port in graph.inputs})
        self.model: Any = core.compile_model(graph, "CPU", settings)
        self.request: Any = self.model.create_infer_request()
        self.inputs = [feeds[port.any_name] for port in self.model.inputs]
        self.count = len(self.model.outputs)

    def run(self) -> list[np.ndarray]:
        results = self.request.infer(self.inputs, share_inputs=True, share_outputs=True)
        return [results[i] for i in range(self.count)]

    def stream(self) -> Callable[[], object]:
        request: Any = self.model.create_infer_request()
        return lambda: request.infer(self.inputs, share_inputs=True, share_outputs=True)


class Eager(Engine):
    """PyTorch in eager mode."""

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


class LiteRt(Engine):
    """LiteRT with its fast kernels (XNNPACK) and fixed sizes. Each stream has its own interpreter."""

    def __init__(
        self, source: Source, feeds: Feeds, threads: int, precision: str = "float32", target: str = "native"
    ) -> None:
        _needs_cpu(target, "tflite")
        if source.kind != "tflite":
            raise InputError("engine tflite", expected="a TFLite file", got=str(source.path))
        self.library, self.path, self.threads = _extra("ai_edge_litert.interpreter", "tflite"), source.path, threads
        from ingot.frontends.tflite import import_tflite

        inputs = import_tflite(source.path, dynamic=dict(source.dims) or None).graph.inputs
        self.arrays = [feeds[n.op.label] for n in inputs if isinstance(n.op, Input)]
        self.interpreter = self._started()

    def _started(self) -> Any:
        interpreter = self.library.Interpreter(str(self.path), num_threads=self.threads)
        places = [d["index"] for d in interpreter.get_input_details()]
        for place, array in zip(places, self.arrays, strict=True):
            interpreter.resize_tensor_input(place, array.shape)
        interpreter.allocate_tensors()
        return interpreter

    def _called(self, interpreter: Any) -> list[np.ndarray]:
        for detail, array in zip(interpreter.get_input_details(), self.arrays, strict=True):
            interpreter.set_tensor(detail["index"], array)
        interpreter.invoke()
        return [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]

    def run(self) -> list[np.ndarray]:
        return self._called(self.interpreter)

    def stream(self) -> Callable[[], object]:
        interpreter = self._started()
        return lambda: self._called(interpreter)


class Xla(Engine):
    """XLA's CPU client on StableHLO, as JAX calls it, with fixed sizes. It has one thread pool for all cores."""

    def __init__(
        self, source: Source, feeds: Feeds, threads: int, precision: str = "float32", target: str = "native"
    ) -> None:
        _needs_cpu(target, "jax")
        if source.kind != "stablehlo":
            raise InputError("engine jax", expected="a StableHLO file", got=str(source.path))
        jax = _extra("jax", "jax")
        from ingot.frontends.stablehlo import import_stablehlo

        model = import_stablehlo(source.path)
        if any(leaf.kind == "complex" for leaf in model.inputs):
            raise InputError("engine jax", expected="a program without complex arguments", got=str(source.path))
        arrays = [np.ascontiguousarray({**feeds, **source.weights}[leaf.name]) for leaf in model.inputs]
        self.executable, device = compile_stablehlo(source.path.read_bytes(), arrays)
        self.arguments = [jax.device_put(array, device) for array in arrays]

    def run(self) -> list[np.ndarray]:
        return [np.asarray(y) for y in self.executable.execute(self.arguments)]

    def call(self) -> object:
        results = self.executable.execute(self.arguments)
        for y in results:
            y.block_until_ready()
        return results


class TensorRt(Engine):
    """TensorRT on an ONNX file, with sizes fixed to those of the inputs. Products of float32 use TF32 for that
    precision alone, as in Ingot. Inputs and results are PyTorch tensors on the GPU."""

    def __init__(
        self, source: Source, feeds: Feeds, threads: int, precision: str = "float32", target: str = "native"
    ) -> None:
        if not _is_gpu(target):
            fix = "--target cuda:sm_90a, where there is such a GPU"
            raise InputError("engine tensorrt", expected="a target of NVIDIA GPUs", got=target, fix=fix)
        _needs_onnx(source, "tensorrt")
        self.library, self.torch = _extra("tensorrt", "tensorrt"), _extra("torch", "tensorrt")
        from ingot.frontends.torch.convert import to_torch

        arrays = {**feeds, **source.weights}
        logger = self.library.Logger(self.library.Logger.ERROR)
        self.engine = self._built(logger, source.path, arrays, precision)
        names = [self.engine.get_tensor_name(i) for i in range(self.engine.num_io_tensors)]
        is_input = {n: self.engine.get_tensor_mode(n) == self.library.TensorIOMode.INPUT for n in names}
        self.inputs = {n: to_torch(arrays[n]).to(self._dtype(n)).cuda() for n in names if is_input[n]}
        self.outputs = list(source.outputs or [n for n in names if not is_input[n]])
        self.results = [n for n in names if not is_input[n]]
        self.call_own, self.arrays = self._context()

    def _built(self, logger: Any, path: Path, arrays: Feeds, precision: str) -> Any:
        builder = self.library.Builder(logger)
        network = builder.create_network(0)  # version 10: sizes of batches are explicit
        parser = self.library.OnnxParser(network, logger)
        if not parser.parse_from_file(str(path)):
            raise RuntimeError("; ".join(parser.get_error(i).desc() for i in range(parser.num_errors)))
        config, flags = builder.create_builder_config(), self.library.BuilderFlag
        if precision != "tf32":
            config.clear_flag(flags.TF32)
        if precision in ("float16", "bfloat16"):
            config.set_flag({"float16": flags.FP16, "bfloat16": flags.BF16}[precision])
        profile = builder.create_optimization_profile()
        for i in range(network.num_inputs):
            tensor = network.get_input(i)
            if -1 in tensor.shape:
                profile.set_shape(tensor.name, *[tuple(arrays[tensor.name].shape)] * 3)  # least, usual, most
        config.add_optimization_profile(profile)
        plan = builder.build_serialized_network(network, config)
        if plan is None:
            raise RuntimeError("TensorRT could not build the network; its log says why")
        return self.library.Runtime(logger).deserialize_cuda_engine(plan)

    def _dtype(self, name: str) -> Any:
        names = {"FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16"}
        kind: str = self.engine.get_tensor_dtype(name).name
        return getattr(self.torch, names.get(kind, kind.lower()))

    def _context(self) -> tuple[Callable[[], object], dict[str, Any]]:
        """A call with its own memory and CUDA stream, and the tensors that it writes the results to."""
        context, stream = self.engine.create_execution_context(), self.torch.cuda.Stream()
        for name, x in self.inputs.items():
            context.set_input_shape(name, tuple(x.shape))
            context.set_tensor_address(name, x.data_ptr())
        results: dict[str, Any] = {}
        for name in self.results:
            shape = tuple(context.get_tensor_shape(name))
            if -1 in shape:
                raise InputError("engine tensorrt", expected="results of known sizes", got=f"{name} {list(shape)}")
            results[name] = self.torch.empty(shape, dtype=self._dtype(name)).cuda()
            context.set_tensor_address(name, results[name].data_ptr())

        def call() -> None:
            if not context.execute_async_v3(stream.cuda_stream):
                raise RuntimeError("TensorRT could not run the network; its log says why")
            stream.synchronize()

        return call, results

    def run(self) -> list[np.ndarray]:
        from ingot.frontends.torch.convert import to_numpy

        self.call_own()
        return [to_numpy(self.arrays[name]) for name in self.outputs]

    def call(self) -> object:
        return self.call_own()

    def stream(self) -> Callable[[], object]:
        return self._context()[0]


ENGINES: dict[str, type[Engine]] = {
    "ingot": Ingot,
    "ort": OnnxRuntime,
    "openvino": OpenVino,
    "eager": Eager,
    "inductor": Inductor,
    "tflite": LiteRt,
    "jax": Xla,
    "tensorrt": TensorRt,
}


def _is_gpu(target: str) -> bool:
    return target.partition(":")[0] == "cuda"


def _needs_cpu(target: str, engine: str) -> None:
    if _is_gpu(target):
        raise InputError(
            f"engine {engine} runs on CPUs here", expected="eager, inductor or tensorrt beside a GPU", got=target
        )


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
    """The sizes of the named dimensions of the model for these inputs."""
    onnx = _extra("onnx", "ort")
    sizes: dict[str, int] = {}
    for value in onnx.load(source.path, load_external_data=False).graph.input:
        if value.name in feeds:
            for dim, size in zip(value.type.tensor_type.shape.dim, feeds[value.name].shape, strict=False):
                if dim.dim_param:
                    sizes[dim.dim_param] = int(size)
    return sizes


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays to an .npz file; types that numpy knows only by name, such as bfloat16, are written as bits."""
    np.savez(path, **{f"{a.dtype.name}:{name}": _bits(a) for name, a in arrays.items()})  # type: ignore[arg-type]


def _bits(array: np.ndarray) -> np.ndarray:
    return array if array.dtype.isbuiltin == 1 else array.view(f"u{array.itemsize}")


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """What `write_arrays` wrote, in its order."""
    arrays: dict[str, np.ndarray] = {}
    with np.load(path) as stored:
        for key in stored.files:
            dtype, _, name = key.partition(":")
            arrays[name] = stored[key].view(dtype)
    return arrays


def burst(calls: list[Callable[[], object]], seconds: float) -> tuple[np.ndarray, float]:
    """(seconds of each call of all streams, seconds that all of them took)."""
    start = time.perf_counter()
    if len(calls) == 1:
        times = [timing.burst(calls[0], seconds)]
    else:
        with ThreadPoolExecutor(len(calls)) as executor:
            times = [*executor.map(lambda call: timing.burst(call, seconds), calls)]
    times_of_calls = np.concatenate(times)
    # each burst has a call that warms up and is not counted
    return times_of_calls, (time.perf_counter() - start) * len(times_of_calls) / (len(times_of_calls) + len(calls))


def serve(name: str, model: Path, feeds: Path, job: Job) -> None:
    """Answer on the present standard output, and redirect what engines print to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**values: object) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    try:
        arrays = read_arrays(feeds)
        began = time.perf_counter()
        source = open_source(model, job.words)
        engine = ENGINES[name](source, arrays, job.threads_of_call, job.precision, job.target)
        ready = time.perf_counter()
        outputs = {f"{i}": np.array(o) for i, o in enumerate(engine.run())}
        first = time.perf_counter()
        write_arrays(feeds.with_name(f"{name}.npz"), outputs)
        answer(compile_s=ready - began, first_s=first - ready)
        calls = [engine.call] if job.streams == 1 else [engine.stream() for _ in range(job.streams)]
        if job.warm_up:
            burst(calls, job.warm_up)
        for line in sys.stdin:
            command = json.loads(line)
            times, wall = burst(calls, float(command["seconds"]))
            if command.get("count"):
                answer(calls=len(times) + len(calls))
                continue
            answer(seconds=float(np.median(times)), times_ns=(times * 1e9).astype(int).tolist(), wall_s=wall)
    except (IngotError, RuntimeError, ValueError, TypeError, OSError) as error:
        answer(failed=str(error) if isinstance(error, IngotError) else f"{type(error).__name__}: {error}"[:500])
        sys.exit(1)


if __name__ == "__main__":
    request = json.loads(sys.argv[1])
    serve(request["engine"], Path(request["model"]), Path(request["feeds"]), Job.from_json(request["job"]))
