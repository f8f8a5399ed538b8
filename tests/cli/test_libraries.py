"""Commands that write for other languages and machines: native libraries, libingot, TFLite."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from ingot import cli

onnx = pytest.importorskip("onnx")
TEXT = """<ir_version: 8, opset_import: ["" : 17]> g (float[N, 3, 8, 8] x) => (float[N, 4] y) {
  c = Conv <pads = [1, 1, 1, 1]> (x, w) r = Relu (c) p = GlobalAveragePool (r) y = Flatten (p) }"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INGOT_CACHE_DIR", str(tmp_path / "cache"))
    parsed, rng = onnx.parser.parse_model(TEXT), np.random.default_rng(0)
    parsed.graph.initializer.append(onnx.numpy_helper.from_array(rng.standard_normal((4, 3, 3, 3), np.float32), "w"))
    np.savez(tmp_path / "data.npz", x=rng.standard_normal((16, 3, 8, 8), np.float32))
    onnx.save(parsed, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def call(*args: object) -> Result:
    return CliRunner().invoke(cli.app, [str(a) for a in args])


def test_compile_to_a_native_library(model: Path) -> None:
    path = model.with_suffix(".so")
    refused = call("compile", model, "-o", path)
    assert refused.exit_code and "--dim" in refused.stderr and not path.exists()
    assert call("compile", model, "-o", path, "--dim", "N=1", "--threads", 2).exit_code == 2
    facts = json.loads(call("compile", model, "-o", path, "--dim", "N=1", "--json").stdout)
    assert facts["threads"] == 1 and path.read_bytes()[:4] == b"\x7fELF"
    assert "int m_run(const float *t_x, float *t_y);" in path.with_suffix(".h").read_text()


def test_where_libingot_is(tmp_path: Path) -> None:
    words = call("libingot", "--cflags", "--libs").stdout.split()
    assert (Path(words[0].removeprefix("-I")) / "ingot.h").exists() and Path(words[1]).exists()
    assert call("libingot", "--pc", tmp_path / "libingot.pc").exit_code == 0
    assert words[0] in (tmp_path / "libingot.pc").read_text()
    assert call("libingot").exit_code == 2


def test_export_to_tflite(model: Path) -> None:
    pytest.importorskip("flatbuffers")
    path = model.with_suffix(".tflite")
    sizes = [0, 0]
    for i, samples in enumerate(((), ("--samples", model.with_name("data.npz")))):
        done = call("export", model, "-o", path, "--dim", "N=1", *samples, "--json")
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout) == {"output": [str(path)]} and path.read_bytes()[4:8] == b"TFL3"
        sizes[i] = path.stat().st_size
    assert all(sizes)
    assert call("export", model, "--samples", model.with_name("data.npz")).exit_code == 2
