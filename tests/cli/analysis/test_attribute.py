"""`ingot attribute`: files in, attributions as text, JSON, arrays, a page, a program."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import ingot
from ingot import cli

onnx = pytest.importorskip("onnx")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """y[:, 0] is the mean of the red channel times 3, y[:, 1] that of the green one."""
    text = '<ir_version: 10, opset_import: ["" : 18]> m (float[n,3,4,4] x) => (float[n,2] y)'
    parsed = onnx.parser.parse_model(text + "{ s = ReduceMean <keepdims = 0> (x, axes) y = MatMul(s, w) }")
    weights = {"axes": np.asarray([2, 3]), "w": np.asarray([[3, 0], [0, 1], [0, 0]], np.float32)}
    parsed.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in weights.items())
    onnx.save(parsed, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def call(*args: object) -> Result:
    return CliRunner().invoke(cli.app, ["attribute", *map(str, args)])


def test_an_image_to_a_page_arrays_and_a_program(model: Path, tmp_path: Path) -> None:
    pixels = np.zeros((4, 4, 3), np.uint8)
    pixels[1, 2], pixels[3, 3] = (255, 0, 0), (0, 255, 255)
    pytest.importorskip("PIL.Image").fromarray(pixels).save(tmp_path / "x.png")
    result = call(
        model, "--input", tmp_path / "x.png", "--html", tmp_path / "a.html", "--output-dir", tmp_path / "out",
        "--save", tmp_path / "a.ingot", "--json", "--threads", 1,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    (example,) = json.loads(result.stdout)["examples"]
    assert example["target"] == 0 and example["score"] == pytest.approx(3 / 16)
    assert example["inputs"]["x"]["largest"][0] == {"index": [0, 1, 2], "attribution": pytest.approx(3 / 16)}
    array = np.load(tmp_path / "out" / "x.npy")
    assert array.shape == (1, 3, 4, 4) and np.count_nonzero(array) == 1
    assert "heat-layer" in (tmp_path / "a.html").read_text()
    x = np.ones((2, 3, 4, 4), np.float32)
    got = ingot.load(tmp_path / "a.ingot", threads=1)(x, np.asarray([0, 1]))
    np.testing.assert_allclose(got.sum((2, 3)), [[3, 0, 0], [0, 1, 0]], rtol=1e-5)


def test_text_and_errors(model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((1, 3, 4, 4), np.float32))
    result = call(model, "-i", f"x={tmp_path / 'x.npy'}", "--target", "1", "--baseline", "2", "--top", 1)
    assert result.exit_code == 0, result.output
    assert "score 1: 1" in result.output and "-0.0625" in result.output and "-1" in result.output
    for options, message in (
        (["--target", "5"], "target: expected an index below 2"),
        (["--target", "x"], "--target: expected an index"),
        (["--method", "lime"], "method: expected one of"),
        (["--baseline", "nan"], "expected finite numbers"),
        (["--baseline", "z=1"], "--baseline"),
        (["--output", "z"], "output: expected one of y"),
        (["--mean", "a"], "--mean"),
        (["--html", tmp_path / "none" / "a.html"], "an existing folder"),
    ):
        result = call(model, "-i", tmp_path / "x.npy", *options)
        assert result.exit_code == 2 and message in " ".join(result.stderr.split()), result.output
    result = call(model)
    assert result.exit_code == 2 and "pass --input" in " ".join(result.stderr.split())
