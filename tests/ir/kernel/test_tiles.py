"""Kernel values whose lanes form tiles: what the interpreter makes of them, how they print, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from ingot.ir import kernel as k
from ingot.ir.kernel.interp import run_kernel
from ingot.ir.kernel.show import show_kernel
from ingot.ir.kernel.verify import verify_kernel
from ingot.ir.types import boolean, f16, f32, u32
from ingot.support.errors import VerifyError

C = k.var("c")
M, N, DEPTH = 4, 8, 2


def product(c: k.Expr) -> k.Kernel:
    """y = x @ w + c for tiles of 4 rows, with the sums of the rows in s."""
    x, w, y = k.Buffer("x", f32), k.Buffer("w", f32), k.Buffer("y", f32, writable=True)
    sums = k.Buffer("s", f32, writable=True)
    rows = k.add(k.mul(C, k.integer(M)), k.lane_indices(M, 0))
    columns, depth_columns, depth_rows = k.lane_indices(N, 1), k.lane_indices(DEPTH, 1), k.lane_indices(DEPTH, 0)
    a = k.gather(x, k.add(k.mul(rows, k.integer(DEPTH)), depth_columns))
    b = k.gather(w, k.add(k.mul(depth_rows, k.integer(N)), columns))
    total = k.tile_product(a, b, k.spread(c, (M, N)))
    folded = k.reduce_axis("add", total, 1)
    body = (
        k.Store(y, k.add(k.mul(rows, k.integer(N)), columns), total),
        k.Store(sums, rows, folded),
    )
    return k.Kernel("product", (x, w, y, sums), (), C, k.integer(2), body)


def test_a_product_of_tiles_and_the_sums_of_its_rows() -> None:
    kernel = product(k.lit(0.5, f32))
    verify_kernel(kernel)
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(2 * M, DEPTH)).astype(np.float32), rng.normal(size=(DEPTH, N)).astype(np.float32)
    y, s = np.zeros((2 * M, N), np.float32), np.zeros(2 * M, np.float32)
    run_kernel(kernel, {"x": x, "w": w, "y": y, "s": s})
    np.testing.assert_allclose(y, x @ w + 0.5, rtol=1e-6)
    np.testing.assert_allclose(s, y.sum(1), rtol=1e-5)


def test_scans_go_along_rows_or_columns() -> None:
    x, y = k.Buffer("x", f32), k.Buffer("y", f32, writable=True)
    place = k.add(k.mul(k.lane_indices(M, 0), k.integer(N)), k.lane_indices(N, 1))
    for axis in (0, 1):
        scanned = k.scan_axis("max", k.gather(x, place), axis)
        kernel = k.Kernel("scan", (x, y), (), C, k.integer(1), (k.Store(y, place, scanned),))
        verify_kernel(kernel)
        assert f"scan{axis}.max(" in show_kernel(kernel)
        values = np.random.default_rng(0).normal(size=(M, N)).astype(np.float32)
        result = np.zeros((M, N), np.float32)
        run_kernel(kernel, {"x": values, "y": result})
        np.testing.assert_array_equal(result, np.maximum.accumulate(values, axis))


def test_tiles_print_their_rows_and_columns() -> None:
    text = show_kernel(product(k.lit(0.5, f32)))
    assert "product(x[spread(4, 2)(" in text
    assert "reduce1.add(" in text
    assert "0.5:f32x(4, 8)" in text


def test_columns_and_rows_meet_in_a_tile() -> None:
    column, row = k.lane_indices(M, 0), k.lane_indices(N, 1)
    assert k.add(column, row).tile == (M, N)
    assert k.binary("lt", column, k.integer(3)).tile == (M, 1)
    value, mask = k.broadcast(k.lit(1.0, f32), k.binary("lt", row, column))
    assert value.tile == mask.tile == (M, N)
    assert k.transposed(k.add(column, row)).tile == (N, M)


def test_what_all_lanes_agree_on_is_not_asked_of_tiles() -> None:
    """Where both values are right for all lanes, the general one is taken: asking them all costs more there."""
    a, b = k.spread(k.lit(1.0, f32), (M, N)), k.spread(k.lit(2.0, f32), (M, N))
    assert k.select_uniform(k.spread(k.lit(True, boolean), (M, N)), a, b) is b


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (k.lane_indices(M, 0), k.lane_indices(N, 1), "rows of b"),
        (k.cast(k.lane_indices(M, 0), f32), k.lane_indices(N, 1), "rows of b"),
    ],
)
def test_operands_of_a_product_fit(a: k.Expr, b: k.Expr, message: str) -> None:
    y = k.Buffer("y", f32, writable=True)
    tile = k.spread(k.lit(0.0, f32), (M, N))
    bad = k.TileProduct(f32, M * N, a, k.transposed(b), tile, tile=(M, N))
    kernel = k.Kernel(
        "bad", (y,), (), C, k.integer(1), (k.Store(y, k.add(k.lane_indices(M, 0), k.lane_indices(N, 1)), bad),)
    )
    with pytest.raises(VerifyError, match=message):
        verify_kernel(kernel)


def test_quads_and_sums_of_lanes():
    """Levels and terms of two warps, quad by quad."""
    rng = np.random.default_rng(0)
    levels, terms = rng.integers(0, 16, (2, 8, 4, 8)), rng.integers(-9, 9, (2, 8, 4, 8)).astype(np.float32)
    words = (levels.astype(np.uint32) << np.arange(0, 32, 4, dtype=np.uint32)).sum(-1, dtype=np.uint32).reshape(-1)
    pairs = np.ascontiguousarray(terms.astype(np.float16).reshape(2, 8, 4, 2, 4).swapaxes(3, 4)).view(np.uint32)
    lanes = k.lane_indices(64, 1)
    a, x, y, z = (k.Buffer(n, d, writable=n in "yz") for n, d in (("a", u32), ("x", u32), ("y", f32), ("z", f32)))
    word = k.gather(a, lanes)
    packed = [k.gather(x, k.add(k.mul(lanes, k.integer(4)), k.integer(p))) for p in range(4)]
    zeros = k.lit(0, u32, 64, (1, 64))
    first, second = (k.quad_product((word, other), (*packed,), f16, 8, 1) for other in (word, zeros))
    body = (k.Store(y, lanes, first), k.Store(z, k.lane_indices(2, 1), k.lane_sums((first, second))))
    kernel = k.Kernel("quads", (a, x, y, z), (), C, k.integer(1), body)
    verify_kernel(kernel)
    products, sums = np.zeros(64, np.float32), np.zeros(2, np.float32)
    run_kernel(kernel, {"a": words, "x": pairs.reshape(-1), "y": products, "z": sums})
    want = np.einsum("wivn,wjvn->wij", levels - 8.0, terms)
    expected = [[want[w, i, 2 * j + i % 2] for i in range(8) for j in range(4)] for w in range(2)]
    np.testing.assert_array_equal(products, np.ravel(expected))
    np.testing.assert_allclose(sums, [np.sum(expected), -8 * 4 * terms.sum()], rtol=1e-6)
