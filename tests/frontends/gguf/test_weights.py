"""Tensors of a GGUF file as nodes: products and rows, as the dequantized weights give them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ingot import ops
from ingot.frontends.gguf import FORMATS, GGUFFile, GGUFWeights
from ingot.ir.dims import symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input
from ingot.ir.types import TensorType, f32, i64
from ingot.pipeline.build import build_program
from ingot.runtime.executor import CompiledModel
from ingot.support.errors import ImportModelError
from ingot.targets.cpu.workers import host_features
from tests.frontends.gguf import builder as b

NAMES = [f.name for f in FORMATS.values()]
ROWS, COLUMNS = 6, 512


def weights(tmp_path: Path, name: str, shape: Sequence[int] = (ROWS, COLUMNS)) -> GGUFWeights:
    format = FORMATS[b.CODES[name]]
    raw = b.random_blocks(name, int(np.prod(shape)) // format.elements)
    path = tmp_path / "model.gguf"
    path.write_bytes(b.of_tensors({"w": (name, shape, raw)}))
    return GGUFWeights(GGUFFile(path))


@pytest.mark.parametrize("name", NAMES)
def test_matrix_and_rows(name: str, tmp_path: Path) -> None:
    w = weights(tmp_path, name)
    assert w.shape("w") == (ROWS, COLUMNS) and list(w.names) == ["w"] and "w" in w
    assert w.matrix("w") is w.matrix("w") and w.vector("w") is w.vector("w")  # programs share what they read
    expected = w.file.tensors["w"].dequantized()
    x = Input("x", TensorType(f32, (2, COLUMNS)))()
    ids = Input("ids", TensorType(i64, (1, 3)))()
    graph = Graph((x, ids), (ops.linear(x, w.matrix("w")), w.rows("w", ids), w.vector("w")))
    at = np.array([[5, 0, 2]])
    data = np.random.default_rng(0).normal(size=(2, COLUMNS)).astype(np.float32)
    y, rows, matrix = interpret(graph, [data, at])
    largest = np.abs(expected).max()
    np.testing.assert_allclose(rows, expected[at], rtol=1e-6, atol=1e-6 * largest)
    np.testing.assert_allclose(y, data @ expected.T, rtol=1e-4, atol=1e-3 * largest)
    np.testing.assert_array_equal(matrix, expected)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_K", "Q6_K", "F16"])
def test_compiled(name: str, tmp_path: Path) -> None:
    w = weights(tmp_path, name)
    expected = w.file.tensors["w"].dequantized()
    x = Input("x", TensorType(f32, (1, COLUMNS)))()
    ids = Input("ids", TensorType(i64, (2,)))()
    model = CompiledModel(
        build_program(Graph((x, ids), (ops.linear(x, w.matrix("w")), w.rows("w", ids))), host_features(), 1)
    )
    data = np.random.default_rng(0).normal(size=(1, COLUMNS)).astype(np.float32)
    y, rows = model(data, np.array([3, 1]))
    largest = np.abs(expected).max()
    np.testing.assert_allclose(rows, expected[[3, 1]], rtol=1e-6, atol=1e-6 * largest)
    np.testing.assert_allclose(y, data @ expected.T, rtol=1e-4, atol=1e-3 * largest)


SIZES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "TQ2_0"]


@pytest.mark.parametrize("name", SIZES)
def test_a_program_stores_no_more_than_the_file(name: str, tmp_path: Path) -> None:
    """A weight that products of one row and of many and a lookup read is there once, in the file's bits; rows are
    exact."""
    w = weights(tmp_path, name, (128, COLUMNS))
    one, batch = (Input(n, TensorType(f32, (m, COLUMNS)))() for n, m in (("one", 1), ("many", symbol("m"))))
    ids, matrix = Input("ids", TensorType(i64, (2,)))(), w.matrix("w")
    outputs = (ops.linear(batch, matrix), ops.linear(one, matrix), w.rows("w", ids))
    program = build_program(Graph((one, batch, ids), outputs), host_features(), 1)
    assert program.weights.nbytes <= 1.05 * w.file.tensors["w"].data.nbytes
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=(m, COLUMNS)).astype(np.float32) for m in (1, 19)]
    y_many, y_one, rows = CompiledModel(program, threads=1)(*xs, np.array([127, 3]))
    expected = w.file.tensors["w"].dequantized()
    np.testing.assert_array_equal(rows, expected[[127, 3]])
    largest = np.abs(expected).max()
    np.testing.assert_allclose(y_one, xs[0] @ expected.T, rtol=1e-4, atol=1e-3 * largest)
    np.testing.assert_allclose(y_many, xs[1] @ expected.T, rtol=1e-4, atol=1e-3 * largest)


@pytest.mark.parametrize("name", ["F32", "Q8_0"])
def test_a_matrix_of_one_row_without_its_dimension(name: str, tmp_path: Path) -> None:
    """llama.cpp's quantizer leaves it out: of the router of Qwen's shared expert, for example."""
    w = weights(tmp_path, name, (COLUMNS,))
    (matrix,) = interpret(Graph((), (w.matrix("w"),)), [])
    np.testing.assert_allclose(matrix, w.file.tensors["w"].dequantized()[None], rtol=1e-6)


@pytest.mark.parametrize("name", ["Q8_0", "Q5_K", "BF16"])
def test_experts_of_a_layer_in_one_tensor(name: str, tmp_path: Path) -> None:
    w = weights(tmp_path, name, (3, 4, 256))
    (experts,) = interpret(Graph((), (w.matrix("w"),)), [])
    expected = w.file.tensors["w"].dequantized()
    assert expected.shape == (3, 4, 256)
    np.testing.assert_allclose(experts, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())


def test_an_unknown_name(tmp_path: Path) -> None:
    w = weights(tmp_path, "F32")
    for method in (w.shape, w.matrix, w.vector):
        with pytest.raises(
            ImportModelError, match=r"no tensor 'w2': expected a tensor of the file, got \['w'\] at .*model.gguf"
        ):
            method("w2")
