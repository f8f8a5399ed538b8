"""The engine tensorrt, with a TensorRT that doubles its input on the host."""

from __future__ import annotations

import ctypes
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ingot.bench.engines import TensorRt
from ingot.debug.source import Words, open_source
from ingot.support.errors import ImportModelError, InputError

onnx = pytest.importorskip("onnx")
torch = pytest.importorskip("torch")

TEXT = '<ir_version: 10, opset_import: ["" : 18]> m (float[n, 3] x) => (float[n, 3] y) { y = Add(x, x) }'


class Library(SimpleNamespace):
    """What the engine asks of TensorRT 10. log: settings and profiles. refuses: the stage that fails."""

    Logger: Any = type("Logger", (), {"ERROR": 1, "__init__": lambda self, level: None})
    TensorIOMode = SimpleNamespace(INPUT="in", OUTPUT="out")
    BuilderFlag = SimpleNamespace(TF32="tf32", FP16="fp16", BF16="bf16")

    def __init__(self, refuses: str = "") -> None:
        super().__init__(log=[], refuses=refuses, __spec__=ModuleSpec("tensorrt", None))  # PyTorch asks for it

    def Builder(self, logger: object) -> Any:
        config = SimpleNamespace(
            clear_flag=lambda flag: self.log.append(("clear", flag)),
            set_flag=lambda flag: self.log.append(("set", flag)),
            add_optimization_profile=lambda profile: self.log.append(("profile",)),
        )  # fmt: skip
        tensor = SimpleNamespace(name="x", shape=(-1, 3))
        return SimpleNamespace(
            create_network=lambda flags: SimpleNamespace(num_inputs=1, get_input=lambda i: tensor),
            create_builder_config=lambda: config,
            create_optimization_profile=lambda: SimpleNamespace(set_shape=lambda *shapes: self.log.append(shapes)),
            build_serialized_network=lambda network, config: None if self.refuses == "build" else b"plan",
        )

    def OnnxParser(self, network: object, logger: object) -> Any:
        error = SimpleNamespace(desc=lambda: "no such op: Frobnicate")
        return SimpleNamespace(
            parse_from_file=lambda path: self.refuses != "parse" and Path(path).exists(),
            num_errors=1, get_error=lambda i: error,
        )  # fmt: skip

    def Runtime(self, logger: object) -> Any:
        assert logger is not None
        engine = SimpleNamespace(
            num_io_tensors=2, get_tensor_name="xy".__getitem__,
            get_tensor_mode=lambda name: "in" if name == "x" else "out",
            get_tensor_dtype=lambda name: SimpleNamespace(name="FLOAT"), create_execution_context=self.context,
        )  # fmt: skip
        return SimpleNamespace(deserialize_cuda_engine=lambda plan: engine)

    def context(self) -> Any:
        calls: dict[str, Any] = {}

        def run(stream: int) -> bool:
            count = int(np.prod(calls["shape"]))
            x, y = ((ctypes.c_float * count).from_address(calls[name]) for name in "xy")
            y[:] = [2 * value for value in x]
            return self.refuses != "run"

        return SimpleNamespace(
            set_input_shape=lambda name, shape: calls.update(shape=shape), set_tensor_address=calls.__setitem__,
            get_tensor_shape=lambda name: (-1, 3) if self.refuses == "shape" else calls["shape"], execute_async_v3=run,
        )  # fmt: skip


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that is the host."""
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: SimpleNamespace(cuda_stream=7, synchronize=lambda: None))


def engine(path: Path, library: Library, monkeypatch: pytest.MonkeyPatch, precision: str = "float32") -> TensorRt:
    monkeypatch.setitem(sys.modules, "tensorrt", library)  # type: ignore[arg-type]
    onnx.save(onnx.parser.parse_model(TEXT), path)
    return TensorRt(open_source(path, Words()), {"x": X}, 1, precision, "cuda:sm_90a")


X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.usefixtures("host")
def test_it_runs_at_the_sizes_of_the_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    runner = engine(tmp_path / "m.onnx", library, monkeypatch)
    np.testing.assert_array_equal(runner.run(), [2 * X])
    assert library.log == [("clear", "tf32"), ("x", (2, 3), (2, 3), (2, 3)), ("profile",)]
    runner.call()
    assert runner.stream() is not runner.stream()
    library.log.clear()
    engine(tmp_path / "m.onnx", library, monkeypatch, "tf32")
    assert library.log == [("x", (2, 3), (2, 3), (2, 3)), ("profile",)]
    library.log.clear()
    engine(tmp_path / "m.onnx", library, monkeypatch, "bfloat16")
    assert ("set", "bf16") in library.log


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(
    ("stage", "message"),
    [
        ("parse", "no such op: Frobnicate"),
        ("build", "could not build"),
        ("run", "could not run"),
        ("shape", r"y \[-1, 3\]"),
    ],
)
def test_what_it_refuses_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, message: str) -> None:
    with pytest.raises((RuntimeError, InputError), match=message):
        engine(tmp_path / "m.onnx", Library(stage), monkeypatch).run()


def test_it_needs_a_gpu_and_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), path)
    source = open_source(path, Words())
    with pytest.raises(InputError, match="a target of NVIDIA GPUs, got native"):
        TensorRt(source, {"x": X}, 1)
    monkeypatch.setitem(sys.modules, "tensorrt", None)  # type: ignore[arg-type]
    with pytest.raises(ImportModelError, match="pip install tensorrt"):
        TensorRt(source, {"x": X}, 1, "float32", "cuda:sm_90a")
