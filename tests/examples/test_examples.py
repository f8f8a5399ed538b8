"""The programs of examples/ that people copy, run."""

from __future__ import annotations

import importlib.util
import json
import shutil
import threading
import urllib.error
import urllib.request
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import ingot

onnx = pytest.importorskip("onnx")

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"examples.{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Ten scores of images [n, 1, 8, 8] by a convolution and a product."""
    text = '<ir_version: 10, opset_import: ["" : 18]> m (float[n,1,8,8] x) => (float[n,10] y)'
    body = "{ c = Conv <kernel_shape = [3, 3]> (x, k) r = Relu (c) f = Flatten (r) y = MatMul (f, w) }"
    parsed = onnx.parser.parse_model(text + body)
    rng = np.random.default_rng(0)
    weights = {"k": rng.standard_normal((4, 1, 3, 3), np.float32), "w": rng.standard_normal((144, 10), np.float32)}
    parsed.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in weights.items())
    onnx.save(parsed, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def post(url: str, body: bytes) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=30) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_service(model: Path) -> None:
    server = example("service").serve(str(model), 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        x = np.random.default_rng(1).standard_normal((2, 1, 8, 8), np.float32)
        status, reply = post(url, json.dumps({"x": x.tolist()}).encode())
        assert status == 200
        np.testing.assert_allclose(reply["y"], ingot.compile(model)(x), rtol=1e-5, atol=1e-5)
        for body in (b"no", b"{}", json.dumps({"x": [[1.0]]}).encode()):
            status, reply = post(url, body)
            assert status == 400 and reply["error"]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_torch_training() -> None:
    torch = pytest.importorskip("torch")
    torch._dynamo.reset()
    first, last = example("torch_training").train(60)
    assert last < 0.7 * first


def test_quantize_with_metric(model: Path) -> None:
    pytest.importorskip("sklearn")
    module = example("quantize_with_metric")
    setattr(module, "accuracy", lambda outputs, labels: float(np.mean([np.std(y) for y in outputs])))  # noqa: B010
    quantized = module.quantize(str(model), count=200, seconds=2)
    assert quantized.report.scores[1] >= 0.99 * quantized.report.float_scores[1]


@pytest.mark.slow
def test_microcontroller(model: Path, tmp_path: Path) -> None:
    for tool in ("arm-none-eabi-gcc", "qemu-system-arm", "make"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}")
    text = example("microcontroller").build(model, tmp_path / "net")
    assert "instructions" in text or "ok" in text.lower()


def test_custom_op() -> None:
    torch = pytest.importorskip("torch")
    from ingot.ops import custom

    try:
        torch.testing.assert_close(*example("custom_op").run())
    finally:
        custom.REGISTERED.clear()
        custom.NAMES.clear()


def test_explain(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    fixed = onnx.load(model)
    fixed.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    fixed.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 2
    onnx.save(fixed, tmp_path / "fixed.onnx")
    text = example("explain").explain(str(tmp_path / "fixed.onnx"), tmp_path / "pages")
    assert "dot_general" in text or "convolution" in text
    assert (tmp_path / "pages" / "attributions.html").read_text().count("heat-layer") >= 4
