"""Floats of 8 bits as bytes: kernels that are printed compute what those before them mean, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.interp import interpret
from ingot.ir.kernel.interp import run_kernel
from ingot.ir.kernel.verify import verify_kernel
from ingot.ir.node import Graph, Input, const
from ingot.ir.types import DType, TensorType, dtype_of, f8e4m3fn, f8e5m2, f16, f32, f64, u8
from ingot.targets.cuda.narrow import NARROW, in_bytes
from ingot.targets.cuda.triton import print_kernel
from tests.conformance.checked import planned, run_checked
from tests.conformance.targets import H100

KINDS = list(NARROW)


def converted(values: np.ndarray, dtype: DType) -> np.ndarray:
    """By the kernel of bytes; narrow values as their codes."""
    source = dtype_of(values)
    x, y = k.Buffer("x", source, align=1), k.Buffer("y", dtype, writable=True, align=1)
    at = k.positions(values.size, 1)
    body = (k.Store(y, at, k.cast(k.gather(x, at), dtype)),)
    kernel = in_bytes(k.Kernel("convert", (x, y), (), k.var("chunk"), k.integer(1), body))
    verify_kernel(kernel, "narrow")
    stored = {name: np.uint8 if d in NARROW else d.numpy for name, d in (("x", source), ("y", dtype))}
    out = np.zeros(values.size, stored["y"])
    run_kernel(kernel, {"x": values.view(stored["x"]), "y": out}, {})
    return out


@pytest.mark.parametrize("dtype", KINDS)
def test_every_code_is_the_number_that_it_stands_for(dtype: DType) -> None:
    codes = np.arange(1 << dtype.bits, dtype=np.uint8).view(dtype.numpy)
    got = converted(codes, f32)
    want = codes.astype(np.float32)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got[want == want]), np.signbit(want[want == want]))


@pytest.mark.parametrize("dtype", [d for d in KINDS if d.bits == 8])
def test_bits_are_taken_as_they_are(dtype: DType) -> None:
    """Bytes that become narrow floats, and bytes again, on the way into narrow floats."""
    x, y = k.Buffer("x", u8, align=1), k.Buffer("y", dtype, writable=True, align=1)
    at = k.positions(256, 1)
    value = k.bitcast(k.bitcast(k.bitcast(k.gather(x, at), dtype), u8), dtype)
    body = (k.Store(y, at, value),)
    kernel = in_bytes(k.Kernel("bits", (x, y), (), k.var("chunk"), k.integer(1), body))
    verify_kernel(kernel, "narrow")
    codes, out = np.arange(256, dtype=np.uint8), np.zeros(256, np.uint8)
    run_kernel(kernel, {"x": codes, "y": out}, {})
    np.testing.assert_array_equal(out, codes)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("source", [f16, f32, f64])
def test_numbers_are_rounded_once(dtype: DType, source: DType) -> None:
    """Those half between two, those beside them, and those beyond."""
    codes = np.arange(1 << dtype.bits, dtype=np.uint8).view(dtype.numpy).astype(np.float64)
    exact = np.sort(codes[np.isfinite(codes)])
    middle = (exact[1:] + exact[:-1]) / 2
    most = [
        exact[-1] * 1.01,
        exact[-1] * 1.0625,
        exact[-1] * 1.07,
        exact[-1] * 2,
        1e30,
        np.inf,
        -np.inf,
        np.nan,
        -0.0,
        1e-30,
    ]
    with np.errstate(all="ignore"):
        values = np.concatenate([exact, middle, most]).astype(source.numpy)
        values = np.concatenate([values, *(np.nextafter(values, source.numpy.type(d)) for d in (-np.inf, np.inf))])
        want = values.astype(dtype.numpy)
    got = converted(values, dtype).view(dtype.numpy)
    nan = np.isnan(want.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), nan)
    np.testing.assert_array_equal(got.view(np.uint8)[~nan], want.view(np.uint8)[~nan])


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("kinds", [(f8e4m3fn, f8e4m3fn), (f8e4m3fn, f8e5m2)])
def test_products_of_bytes_are_exact_in_f16(rows: int, kinds: tuple[DType, DType]) -> None:
    rng = np.random.default_rng(4)
    x, w = (rng.normal(size=s).astype(d.numpy) for s, d in zip(((rows, 96), (96, 24)), kinds, strict=True))
    given = Input("x", TensorType(kinds[0], x.shape))()
    dot = ops.DotGeneral(((), ()), ((1,), (0,)), dtype=f32)
    graph = Graph((given,), (ops.Relu()(dot(given, const(w))),))
    (got,), (want,) = run_checked(graph, [x], H100), interpret(graph, [x])
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    text = "".join(print_kernel(kernel).text for kernel in planned(graph, H100)[1].values())
    assert ("tl.dot(" in text) is (rows > 1)
    assert "float8" not in text
