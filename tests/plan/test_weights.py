"""Constants that several kernels read: packed once where the kernels can read one form."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.node import Graph, Input, const
from ingot.ir.types import TensorType, f32
from ingot.pipeline.build import build_native
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
