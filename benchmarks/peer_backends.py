"""One class per peer, each at its documented best for latency on a CPU, behind one face.

A constructor only imports its engine (and builds the Python model where there is one); `compile` does what a user
waits for, `save` writes what a user would deploy and `restore` starts from that file alone, as a deployment does. Every
engine is imported only by its own backend, so that a worker's memory and start-up are that engine's.
"""

import importlib
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Task:
    """One model at one shape.

    Attributes:
        name: the zoo's name of the model; onnx: its exported file, with dynamic axes.
        inputs: by the model's input names, in its order.
        symbols: size of every dynamic axis at this shape, by the symbol that the zoo gives it.
    """

    name: str
    onnx: Path
    inputs: Mapping[str, np.ndarray]
    symbols: Mapping[str, int]
    threads: int

    def declared(self, names: list[str]) -> Arrays:
        """The inputs that a compiled model still has: exporters drop those that no output depends on."""
        return {name: array for name, array in self.inputs.items() if name in names}


class Backend(ABC):
    """One engine with one task. `compile` or `restore` comes first, then `run` any number of times."""

    def __init__(self, task: Task) -> None:
        self.task = task

    @abstractmethod
    def compile(self) -> None: ...

    @abstractmethod
    def run(self) -> list[np.ndarray]:
        """One inference on the task's inputs."""

    def save(self, path: Path) -> Path | None:
        """Write the deployable artifact near `path`; None where the peer has none that runs without Python source."""
        return None

    def restore(self, path: Path) -> None:
        """Start from the artifact alone."""
        raise NotImplementedError(f"{type(self).__name__} saves no artifact")


class Ingot(Backend):
    """`ingot.compile` of the ONNX file as it is: batch and length stay dynamic."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.ingot: Any = importlib.import_module("ingot")

    def compile(self) -> None:
        self._bind(self.ingot.compile(str(self.task.onnx), threads=self.task.threads, cache=False))

    def restore(self, path: Path) -> None:
        self._bind(self.ingot.load(str(path), threads=self.task.threads))

    def _bind(self, model: Any) -> None:
        self.model = model
        self.inputs = self.task.declared([tensor.name for tensor in model.inputs])

    def run(self) -> list[np.ndarray]:
        result = self.model(**self.inputs)
        return list(result) if isinstance(result, tuple) else [result]

    def save(self, path: Path) -> Path:
        target = path.with_suffix(".ingot")
        self.model.save(str(target))
        return target


class OnnxRuntime(Backend):
    """All graph optimizations, sequential execution, free dimensions fixed at the task's shape.

    The artifact is the optimized model, saved as its documentation advises for fast start (offline mode).
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.ort: Any = importlib.import_module("onnxruntime")

    def _options(self, level: str) -> Any:
        options = self.ort.SessionOptions()
        options.intra_op_num_threads = self.task.threads
        options.inter_op_num_threads = 1
        options.execution_mode = self.ort.ExecutionMode.ORT_SEQUENTIAL
        options.graph_optimization_level = getattr(self.ort.GraphOptimizationLevel, level)
        options.log_severity_level = 4
        for symbol, size in self.task.symbols.items():
            options.add_free_dimension_override_by_name(symbol, size)
        return options

    def _session(self, path: Path, options: Any) -> Any:
        return self.ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def _bind(self, path: Path, level: str) -> None:
        self.session = self._session(path, self._options(level))
        self.inputs = self.task.declared([value.name for value in self.session.get_inputs()])

    def compile(self) -> None:
        self._bind(self.task.onnx, "ORT_ENABLE_ALL")

    def restore(self, path: Path) -> None:
        self._bind(path, "ORT_DISABLE_ALL")

    def run(self) -> list[np.ndarray]:
        return self.session.run(None, self.inputs)

    def save(self, path: Path) -> Path:
        target = path.with_suffix(".ort.onnx")
        options = self._options("ORT_ENABLE_ALL")
        options.optimized_model_filepath = str(target)
        self._session(self.task.onnx, options)
        return target


class OpenVino(Backend):
    """Latency hint, f32 execution, static shapes; inputs and outputs shared with numpy. The artifact is the blob."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.core: Any = importlib.import_module("openvino").Core()
        self.settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": task.threads,
            "INFERENCE_PRECISION_HINT": "f32",
        }

    def compile(self) -> None:
        graph = self.core.read_model(str(self.task.onnx))
        graph.reshape({port.any_name: list(self.task.inputs[port.any_name].shape) for port in graph.inputs})
        self._bind(self.core.compile_model(graph, "CPU", self.settings))

    def restore(self, path: Path) -> None:
        self._bind(self.core.import_model(io.BytesIO(path.read_bytes()), "CPU", self.settings))

    def _bind(self, model: Any) -> None:
        self.model = model
        self.request = model.create_infer_request()
        self.inputs = self.task.declared([port.any_name for port in model.inputs])
        self.count = len(model.outputs)

    def run(self) -> list[np.ndarray]:
        results = self.request.infer(self.inputs, share_inputs=True, share_outputs=True)
        return [results[i] for i in range(self.count)]

    def save(self, path: Path) -> Path:
        target = path.with_suffix(".blob")
        stream = io.BytesIO()
        self.model.export_model(stream)
        target.write_bytes(stream.getvalue())
        return target


class Eager(Backend):
    """PyTorch as it is, in inference mode; image networks in channels_last, as its tuning guide advises."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.torch: Any = importlib.import_module("torch")
        self.torch.set_num_threads(task.threads)
        self.module = importlib.import_module("benchmarks.zoo").get(task.name).to_torch()
        self.inputs = [self.torch.from_numpy(array) for array in task.inputs.values()]
        if self.inputs[0].dim() == 4:
            self.module = self.module.to(memory_format=self.torch.channels_last)
            self.inputs = [tensor.contiguous(memory_format=self.torch.channels_last) for tensor in self.inputs]
        self.mode: Callable[[], Any] = self.torch.inference_mode
        self.call: Callable[..., Any] = self.module

    def compile(self) -> None:
        """Nothing to do: eager mode starts at once."""

    def run(self) -> list[np.ndarray]:
        with self.mode():
            result = self.call(*self.inputs)
        results = result if isinstance(result, tuple) else (result,)
        return [tensor.numpy() for tensor in results]


class Inductor(Eager):
    """torch.compile with freezing and static shapes; the caller makes its cache cold with TORCHINDUCTOR_CACHE_DIR."""

    def compile(self) -> None:
        config: Any = importlib.import_module("torch._inductor.config")
        config.freezing = True
        self.mode = self.torch.no_grad  # freezing asks for no_grad
        self.call = self.torch.compile(self.module, dynamic=False)
        self.run()  # the first call compiles


class InductorAutotuned(Inductor):
    """Inductor with freezing and max-autotune, which adds its packed-GEMM templates: minutes of compile time."""

    def compile(self) -> None:
        config: Any = importlib.import_module("torch._inductor.config")
        config.max_autotune = True
        super().compile()


BACKENDS: dict[str, type[Backend]] = {
    "ingot": Ingot,
    "onnxruntime": OnnxRuntime,
    "openvino": OpenVino,
    "inductor": Inductor,
    "inductor-autotuned": InductorAutotuned,
    "eager": Eager,
}
