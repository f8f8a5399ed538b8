"""Constants that several kernels read: packed once where the kernels can read one form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ingot import ops
from ingot.driver.compile import Options, compiled_program
from ingot.ir.node import Graph, Input, const
from ingot.ir.types import TensorType, f32
from ingot.pipeline.build import build_native
from ingot.plan import weights
from ingot.runtime import artifact
from ingot.runtime.executor import CompiledModel


def _run(k: int, n: int, rows: tuple[int, int], transposed: bool) -> int:
    """Run x w and z w (z w^T) in one program, compare with numpy, and return the bytes of the program's weights."""
    rng = np.random.default_rng(k + n)
    w = rng.normal(size=(k, n)).astype(np.float32)
    x = rng.normal(size=(rows[0], k)).astype(np.float32)
    z = rng.normal(size=(rows[1], n if transposed else k)).astype(np.float32)
    a, b = (Input(name, TensorType(f32, v.shape))() for name, v in (("x", x), ("z", z)))
    first = ops.DotGeneral(contract=((1,), (0,)))(a, const(w))
    second = ops.DotGeneral(contract=((1,), (1 if transposed else 0,)))(b, const(w))
    program = build_native(Graph((a, b), (first, second)), 1)
    got = CompiledModel(program, threads=1)(x, z)
    for g, want in zip(got, (x @ w, z @ (w.T if transposed else w)), strict=True):
        np.testing.assert_allclose(g, want, rtol=1e-4, atol=1e-4)
    return program.weights.nbytes


@pytest.mark.parametrize("rows", [(3, 3), (1, 5), (70, 2)])
@pytest.mark.parametrize(("k", "n"), [(48, 16), (16, 48), (7, 130), (130, 7), (1, 64), (64, 1), (200, 200)])
def test_products_along_both_axes(k: int, n: int, rows: tuple[int, int]) -> None:
    """Panels that are wider than a product are not its own."""
    _run(k, n, rows, transposed=True)


def test_rows_of_any_number_share_one_form() -> None:
    assert _run(256, 512, (64, 1), transposed=False) < 1.1 * 256 * 512 * 4


def test_large_weights_are_written_to_the_cache_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the same as in memory, and are a mapping of the entry's file."""
    monkeypatch.setenv("INGOT_CACHE_DIR", str(tmp_path))
    rng = np.random.default_rng(0)
    x = Input("x", TensorType(f32, (3, 70)))()
    w, bias = (const(rng.normal(size=shape).astype(np.float32)) for shape in ((70, 130), (130,)))
    graph = Graph((x,), (ops.add(ops.DotGeneral(contract=((1,), (0,)))(x, w), ops.broadcast_to(bias, (3, 130))),))
    in_memory = build_native(graph, 1)
    monkeypatch.setattr(weights, "_DRAFT_BYTES", 1)
    program = compiled_program(graph, Options())
    assert in_memory.weights.flags.writeable and not program.weights.flags.writeable
    loaded = compiled_program(graph, Options())
    assert loaded is not program and not [*tmp_path.rglob("*.tmp")]
    for other in (program, loaded):
        assert np.array_equal(other.weights, in_memory.weights) and other.code == in_memory.code
        with (tmp_path / "saved.ingot").open("wb") as file:
            file.writelines(artifact.content(other))
        assert (tmp_path / "saved.ingot").stat().st_size < 1 << 20, "what is saved has no gap"
        assert np.array_equal(artifact.load(tmp_path / "saved.ingot").weights, in_memory.weights)
