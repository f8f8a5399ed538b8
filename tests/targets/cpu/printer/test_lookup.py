"""Tables in registers and in memory, and the functions that look values up, against the interpreters."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.kernel import Buffer, Kernel, Store, integer
from ingot.ir.kernel.interp import run_kernel
from ingot.ir.kernel.math.expand import expanded
from ingot.ir.kernel.verify import verify_kernel
from ingot.ir.types import DTYPES, f32, i32
from ingot.ops.core.elementwise import Elementwise
from ingot.support.native import Features
from ingot.targets.cpu.printer.llvm import print_module
from ingot.targets.cpu.workers import host_features
from tests.ir.kernel.math.test_math import operands
from tests.ops import evaluate
from tests.targets.cpu.native import Native, place, without

NARROW = without(*(f for f in host_features().features if f.startswith("avx512")))
MACHINES = pytest.mark.parametrize("features", [host_features(), NARROW], ids=["host", "without AVX-512"])


@MACHINES
@pytest.mark.parametrize("lanes", [1, 5, 8, 16, 64])
@pytest.mark.parametrize(("dtype", "index", "count"), [
    ("f32", "i32", 16), ("f32", "u32", 32), ("f32", "i32", 4), ("f32", "i64", 16),
    ("f64", "i64", 8), ("f64", "u64", 16), ("f32", "u32", 64), ("f32", "i32", 128),
    ("i32", "i32", 16), ("f32", "i8", 2),
])  # fmt: skip
def test_lookup(features: Features, lanes: int, dtype: str, index: str, count: int) -> None:
    value_type, index_type = DTYPES[dtype], DTYPES[index]
    table = tuple(float(3 * i - 7) for i in range(count))
    places, result = Buffer("i", index_type), Buffer("out", value_type, writable=True)
    body = (Store(result, integer(0), k.lookup(table, k.load(places, integer(0), lanes), value_type)),)
    kernel = Kernel("k", (places, result), (), k.var("chunk"), integer(1), body)
    verify_kernel(kernel)
    at = place((np.arange(lanes) * 7 - 40).astype(index_type.numpy))
    want, got = np.zeros(lanes, value_type.numpy), place(np.zeros(lanes, value_type.numpy))
    run_kernel(kernel, {"i": at, "out": want}, {})
    np.testing.assert_array_equal(want, [table[int(i) % count] for i in at])
    Native(kernel, features)([at, got])
    np.testing.assert_array_equal(got, want)


def test_tables_lie_in_registers() -> None:
    if "avx512f" not in host_features().features:
        pytest.skip("no AVX-512")
    x, result = Buffer("x", i32), Buffer("out", f32, writable=True)
    body = (Store(result, integer(0), k.lookup(tuple(map(float, range(32))), k.load(x, integer(0), 64), f32)),)
    text = print_module([Kernel("k", (x, result), (), k.var("chunk"), integer(1), body)], host_features())
    assert text.count("call <16 x float> @llvm.x86.avx512.vpermi2var.ps.512") == 4
    assert "gather" not in text


@MACHINES
@pytest.mark.parametrize("op", [ops.Pow(), ops.Atan2(), ops.Sinh(), ops.Logistic()], ids=lambda op: op.name)
def test_functions_by_table(op: Elementwise, features: Features) -> None:
    """Bit for bit what the evaluator says, also where only some lanes are ordinary numbers."""
    xs = [x[-6400:] for x in operands(op, f32)]
    lanes, ins, result = 16, [Buffer(n, f32) for n in "xy"[: len(xs)]], Buffer("out", f32, writable=True)
    at = k.var("at")
    value = op.scalar(*(k.load(b, at, lanes) for b in ins))
    loop = k.For(at, integer(0), integer(xs[0].size), lanes, (Store(result, at, value),))
    kernel = Kernel("k", (*ins, result), (), k.var("chunk"), integer(1), (loop,))
    got = place(np.zeros(xs[0].size, np.float32))
    Native(kernel, features)([*map(place, xs), got])
    want = _by_blocks(op, xs, lanes, tables="avx512f" in features)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    is_equal = (got.view(np.int32) == want.view(np.int32)) | np.isnan(want)
    assert is_equal.all(), [(float(a), float(b)) for a, b in zip(got[~is_equal], want[~is_equal], strict=True)][:4]


def _by_blocks(op: Elementwise, xs: list[np.ndarray], lanes: int, tables: bool) -> np.ndarray:
    """What `lanes` elements at a time give: the shorter way where it holds for all of them."""
    expr, env = op.scalar(*(k.var(n, f32) for n in "xy"[: len(xs)])), dict(zip("xy", xs, strict=False))
    (expr,) = expanded([expr])
    if not isinstance(expr, k.Select):
        return evaluate.evaluate(expr, env, tables)
    usual, near, far = (evaluate.evaluate(e, env) for e in (expr.cond, expr.a, expr.b))
    is_block_usual = usual.reshape(-1, lanes).all(1).repeat(lanes)
    return np.where(is_block_usual, near, far)
