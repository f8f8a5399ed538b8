"""The page of examples/web in a headless Chromium: its network gives what the reference interpreter gives."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot.driver.open import Request, open_model
from ingot.ir.interp import interpret

PAGE = Path(__file__).parents[3] / "examples" / "web"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Of a server on loopback with the page and a network of random weights."""
    for name in ("index.html", "app.js"):
        shutil.copy(PAGE / name, tmp_path)
    _write_network(tmp_path / "digits.onnx")
    ingot.compile(tmp_path / "digits.onnx", target="wasm", cache=False).save(tmp_path / "digits")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(tmp_path))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/index.html"
        server.shutdown()
        thread.join()


def _write_network(path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    weights = {
        "k": rng.normal(size=(4, 1, 3, 3)).astype(np.float32),
        "w": rng.normal(0, 0.1, (256, 10)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["image", "k"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["l"]),
        helper.make_node("Softmax", ["l"], ["probability"], axis=1),
    ]
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])
    probability = helper.make_tensor_value_info("probability", TensorProto.FLOAT, ["batch", 10])
    initializers = [numpy_helper.from_array(v, k) for k, v in weights.items()]
    graph = helper.make_graph(nodes, "digits", [image], [probability], initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.mark.slow
def test_the_page_classifies_as_the_interpreter(address: str, tmp_path: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api")
    image = np.random.default_rng(1).random(64).astype(np.float32)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(address)
        page.wait_for_selector("body[data-ready]", state="attached", timeout=30_000)
        got = page.evaluate("image => window.classify(image)", image.tolist())
        browser.close()
    assert not errors
    graph = open_model(tmp_path / "digits.onnx", Request()).graph
    (want,) = interpret(graph, [image.reshape(1, 1, 8, 8)])
    np.testing.assert_allclose(got, want[0], rtol=1e-5, atol=1e-7)
