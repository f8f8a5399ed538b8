"""Floats of 8 bits as bytes: kernels that are printed compute what those before them mean, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.interp import interpret
from ingot.ir.kernel.interp import run_kernel
from ingot.ir.kernel.verify import verify_kernel
from ingot.ir.node import Const, Graph, Input, const
from ingot.ir.types import (
    DType,
    TensorType,
    dtype_of,
    f8e4m3fn,
    f8e4m3fnuz,
    f8e5m2,
    f8e5m2fnuz,
    f16,
    f32,
    f64,
    u8,
)
from ingot.schedule.gpu.contraction.tiling import F8_RUN_TERMS
from ingot.targets.cuda.narrow import NARROW_FORMATS, lower_narrow_floats
from ingot.targets.cuda.triton import print_kernel
from tests.conformance.checked import planned, run_checked
from tests.conformance.targets import H100

KINDS = list(NARROW_FORMATS)


def converted(values: np.ndarray, dtype: DType) -> np.ndarray:
    """By the kernel of bytes; narrow values as their codes."""
    source = dtype_of(values)
    x, y = k.Buffer("x", source, align=1), k.Buffer("y", dtype, writable=True, align=1)
    at = k.lane_indices(values.size, 1)
    body = (k.Store(y, at, k.cast(k.gather(x, at), dtype)),)
    kernel = lower_narrow_floats(k.Kernel("convert", (x, y), (), k.var("chunk"), k.integer(1), body))
    verify_kernel(kernel, "narrow")
    stored = {name: np.uint8 if d in NARROW_FORMATS else d.numpy for name, d in (("x", source), ("y", dtype))}
    result = np.zeros(values.size, stored["y"])
    run_kernel(kernel, {"x": values.view(stored["x"]), "y": result}, {})
    return result


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
    at = k.lane_indices(256, 1)
    value = k.bitcast(k.bitcast(k.bitcast(k.gather(x, at), dtype), u8), dtype)
    body = (k.Store(y, at, value),)
    kernel = lower_narrow_floats(k.Kernel("bits", (x, y), (), k.var("chunk"), k.integer(1), body))
    verify_kernel(kernel, "narrow")
    codes, result = np.arange(256, dtype=np.uint8), np.zeros(256, np.uint8)
    run_kernel(kernel, {"x": codes, "y": result}, {})
    np.testing.assert_array_equal(result, codes)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("source", [f16, f32, f64])
def test_numbers_are_rounded_once(dtype: DType, source: DType) -> None:
    """Those half between two, those beside them, and those beyond."""
    codes = np.arange(1 << dtype.bits, dtype=np.uint8).view(dtype.numpy).astype(np.float64)
    exact = np.sort(codes[np.isfinite(codes)])
    middle = (exact[1:] + exact[:-1]) / 2
    limits = [
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
        values = np.concatenate([exact, middle, limits]).astype(source.numpy)
        values = np.concatenate([values, *(np.nextafter(values, source.numpy.type(d)) for d in (-np.inf, np.inf))])
        want = values.astype(dtype.numpy)
    got = converted(values, dtype).view(dtype.numpy)
    nan = np.isnan(want.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), nan)
    np.testing.assert_array_equal(got.view(np.uint8)[~nan], want.view(np.uint8)[~nan])


KIND_PAIRS = [(f8e4m3fn, f8e4m3fn), (f8e4m3fn, f8e5m2), (f8e4m3fnuz, f8e5m2fnuz)]


def product_of(
    rows: int, depth: int, kinds: tuple[DType, DType], result_dtype: DType = f32
) -> tuple[Graph, list[np.ndarray]]:
    """relu(x @ w)."""
    rng = np.random.default_rng(4)
    x, w = (rng.normal(size=s).astype(d.numpy) for s, d in zip(((rows, depth), (depth, 24)), kinds, strict=True))
    data = Input("x", TensorType(kinds[0], x.shape))()
    dot = ops.DotGeneral(((), ()), ((1,), (0,)), dtype=f32)
    return Graph((data,), (ops.cast(ops.Relu()(dot(data, const(w))), result_dtype),)), [x]


def text_of(graph: Graph, target: str) -> str:
    return "".join(print_kernel(kernel).text for kernel in planned(graph, target)[1].values())


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_89", H100])
@pytest.mark.parametrize(("rows", "depth"), [(1, 96), (40, 96), (600, 400), (40, 0)])
@pytest.mark.parametrize("kinds", KIND_PAIRS)
def test_products_are_of_8_bits_where_the_gpu_has_them(
    kinds: tuple[DType, DType], rows: int, depth: int, target: str
) -> None:
    """Elsewhere, and of types that it has not, exactly in f16; single rows are no tensor cores' business."""
    graph, data = product_of(rows, depth, kinds)
    (got,), (want,) = run_checked(graph, data, target), interpret(graph, data)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    text, has_them = text_of(graph, target), target != "cuda:sm_80" and kinds != KIND_PAIRS[2]
    assert ("tl.dot(" in text) is (rows > 1 and depth > 0)
    assert ("max_num_imprecise_acc=" in text) is ("tl.dot(" in text and has_them)


def test_an_older_gpu_among_several_decides() -> None:
    graph, _ = product_of(40, 96, KIND_PAIRS[0])
    assert "float8" not in text_of(graph, "cuda:sm_90a,sm_80")


@pytest.mark.parametrize("kinds", KIND_PAIRS[:2])
def test_products_in_bytes_mean_the_same(kinds: tuple[DType, DType]) -> None:
    """What is printed, with values of 8 bits as their types and as bytes, in one kernel."""
    graph, inputs = product_of(40, 96, kinds, result_dtype=kinds[0])
    (kernel,) = planned(graph, H100)[1].values()
    printed = lower_narrow_floats(kernel)
    verify_kernel(printed, "narrow")
    w = np.ascontiguousarray(next(n.op.value for n in graph.nodes() if isinstance(n.op, Const)).T)
    results = []
    for one in (kernel, printed):
        y = np.zeros((40, 24), kinds[0].numpy)
        run_kernel(one, {"in0": inputs[0].reshape(-1), "b": w.reshape(-1), "out0": y.reshape(-1)}, {})
        results.append(y.view(np.uint8))
    assert results[0].any()
    np.testing.assert_array_equal(*results)


def hopper(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Rows of 128 products as an H100 adds them: 32 at a time and what is there already, each cut to 13 bits behind
    the largest one's first, and so their sum."""

    def cut(x: np.ndarray, size: np.ndarray) -> np.ndarray:
        unit = np.exp2(np.floor(np.log2(np.maximum(size, 1e-300))) - 13)
        return np.trunc(x / unit) * unit

    terms, total = a.astype(np.float64) * b.astype(np.float64), np.zeros(a.shape[:-1])
    for first in range(0, a.shape[-1], 32):
        addends = np.concatenate([terms[..., first : first + 32], total[..., None]], -1)
        total = cut(addends, np.abs(addends).max(-1, keepdims=True)).sum(-1)
        total = cut(total, np.abs(total))
    return total


def test_sums_of_a_run_are_as_near_as_told() -> None:
    """docs/reference/precision.md: 135 * 2^-13 of the magnitudes at the most, where one product outweighs all others,
    and some 1e-4 of them in general."""
    rng = np.random.default_rng(7)
    a, b = (rng.normal(size=(2000, F8_RUN_TERMS)).astype(f8e4m3fn.numpy) for _ in range(2))
    big, one = np.full((1, F8_RUN_TERMS), 1.0), np.full((1, F8_RUN_TERMS), 1.875)
    big[0, 0] = one[0, 0] = 128.0
    bound = 135 * 2.0**-13
    worst = []
    for x, y in ((a, b), (np.abs(a), np.abs(b)), (big, one)):
        exact, size = ((f(x).astype(np.float64) * f(y).astype(np.float64)).sum(-1) for f in (np.asarray, np.abs))
        worst.append((np.abs(hopper(x, y) - exact) / size).max())
    assert max(worst) <= bound
    assert worst[0] < 5e-4 and worst[2] > bound / 2
