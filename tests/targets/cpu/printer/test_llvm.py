"""The printer against numpy: every operation on every type and odd lane counts, memory, loops, branches, registers."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.kernel import Buffer, Expr, For, If, Kernel, Let, Lit, Store, integer
from ingot.ir.kernel.interp import run_kernel
from ingot.ir.kernel.verify import verify_kernel
from ingot.ir.types import (
    DTYPES,
    FLOAT_FORMATS,
    DType,
    bf16,
    boolean,
    dtype_of,
    f16,
    f32,
    f64,
    i2,
    i4,
    i8,
    i16,
    i32,
    i64,
    u2,
    u4,
    u8,
    u32,
    u64,
)  # fmt: skip
from ingot.schedule.block import Block
from ingot.support.errors import CompileError
from ingot.support.native import Features
from ingot.targets.cpu.printer.llvm import print_module
from ingot.targets.cpu.workers import host_features
from tests.targets.cpu.native import Native, place, without

pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
CHUNK = k.var("chunk")
_AVX512 = [name for name in host_features().features if name.startswith("avx512")]
FLOATS, INTS = [f64, f32, f16, bf16], [i64, i32, i16, i8, u8, u32]
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 1e-30, 3.7, -7.2, np.inf, -np.inf, np.nan, 65504.0, 300.0, 1e5]


def evaluate(
    result_dtype: DType,
    make: Callable[..., Expr],
    *arrays: np.ndarray,
    lanes: int | None = None,
    features: Features | None = None,
) -> np.ndarray:
    """make(one value per array) on all elements at once, as one vector of `lanes` (default: all of them)."""
    n = arrays[0].size
    lanes = lanes or n
    ins = tuple(Buffer(f"x{i}", _dtype(a)) for i, a in enumerate(arrays))
    result = Buffer("out", result_dtype, writable=True)
    body = []
    for at in range(0, n, lanes):
        value = make(*(k.load(b, integer(at), min(lanes, n - at)) for b in ins))
        body.append(Store(result, integer(at), value))
    kernel = Kernel("k", (*ins, result), (), CHUNK, integer(1), tuple(body))
    buffer = place(np.zeros(n, result_dtype.numpy))
    Native(kernel, features)([*(place(a) for a in arrays), buffer])
    return buffer


def _dtype(a: np.ndarray) -> DType:
    return next(t for t in DTYPES.values() if t.numpy == a.dtype)


def assert_same(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))


def floats(dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of special values."""
    with np.errstate(over="ignore"):
        v = np.array(SPECIAL).astype(dtype.numpy)
    return np.repeat(v, v.size), np.tile(v, v.size)


def ints(dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    info = np.iinfo(dtype.numpy)
    v = np.array([info.min, info.min + 1, 0, 1, 2, 3, 7, info.max - 1, info.max], dtype.numpy)
    return np.repeat(v, v.size), np.tile(v, v.size)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("lanes", [1, 5, 16])
@pytest.mark.parametrize("fn", ["add", "sub", "mul", "div", "min", "max", "copysign"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_float_binary(dtype: DType, fn: str, lanes: int) -> None:
    x, y = floats(dtype)
    numpy = {"sub": "subtract", "mul": "multiply", "div": "divide", "min": "minimum", "max": "maximum"}.get(fn, fn)
    with np.errstate(all="ignore"):
        assert_same(evaluate(dtype, lambda a, b: k.binary(fn, a, b), x, y, lanes=lanes), getattr(np, numpy)(x, y))


@pytest.mark.parametrize("dtype", [f64, f32, f16])
def test_fmod(dtype: DType) -> None:
    x, y = floats(dtype)
    tiny = np.array([1e-310, 5e-324, 1e-40, 1e-45, 6e-8], np.float64).astype(dtype.numpy)
    x, y = np.concatenate([x, np.repeat(tiny, 5)]), np.concatenate([y, np.tile(tiny, 5)])
    with np.errstate(all="ignore"):
        assert_same(evaluate(dtype, lambda a, b: k.binary("rem", a, b), x, y, lanes=4), np.fmod(x, y))


@pytest.mark.parametrize(("features", "lanes"), [(host_features(), 5), (host_features(), 16), (without("fma"), 4)])
@pytest.mark.parametrize("dtype", [f32, f64])
def test_fmod_of_quotients_near_integers(dtype: DType, features: Features, lanes: int) -> None:
    rng, last = np.random.default_rng(0), np.finfo(dtype.numpy).nmant
    y = rng.uniform(0.5, 2, 400).astype(dtype.numpy)
    # multiples whose quotients have one to all bits, and what is next to them
    x = (np.floor(np.exp2(rng.uniform(0, last + 3, y.size))) * y).astype(dtype.numpy)
    x = np.nextafter(x, rng.choice(np.array([0, 1, np.inf]), x.size).astype(dtype.numpy) * x)
    y *= rng.choice([-1, 1], y.size).astype(dtype.numpy)
    assert_same(
        evaluate(dtype, lambda a, b: k.binary("rem", a, b), x, y, lanes=lanes, features=features), np.fmod(x, y)
    )


@pytest.mark.parametrize(
    ("features", "lanes"), [(host_features(), 5), (host_features(), 8), (without("avx512dq", "avx512vl"), 8)]
)
@pytest.mark.parametrize("dtype", INTS)
def test_quotients_of_many_bits(dtype: DType, features: Features, lanes: int) -> None:
    rng, info = np.random.default_rng(0), np.iinfo(dtype.numpy)
    y = np.exp2(rng.uniform(0, dtype.bits - 1, 400)).astype(dtype.numpy)
    near = rng.integers(0, info.max // y, endpoint=True, dtype=dtype.numpy) * y
    x = np.maximum(near, 1) - rng.integers(0, 2, y.size).astype(dtype.numpy)
    x[::5] = info.max
    if dtype.kind == "i":
        x, y = (v * rng.choice([-1, 1], v.size).astype(dtype.numpy) for v in (x, y))
    rest = np.fmod(x, y)
    for fn, want in (("div", (x - rest) // y), ("rem", rest)):
        got = evaluate(dtype, lambda a, b, fn=fn: k.binary(fn, a, b), x, y, lanes=lanes, features=features)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("lanes", [1, 2, 4, 5, 8, 16, 64])
@pytest.mark.parametrize("features", [host_features(), without("avx512f", "avx512vl")], ids=["host", "two factors"])
@pytest.mark.parametrize("dtype", [f32, f64])
def test_ldexp(dtype: DType, features: Features, lanes: int) -> None:
    limit, edge = (252, 150) if dtype == f32 else (2044, 1074)
    n = np.array([0, 2, -2, 128, limit, -limit, *range(-edge - 4, -edge + 12, 2), 20 - edge, 1024 % limit])
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(0.5, 2, n.size), -rng.uniform(0.5, 2, n.size)]).astype(dtype.numpy)
    n = np.tile(n, 2).astype(dtype.numpy)
    x, n = np.append(x, [np.nan, np.inf, -0.0]).astype(dtype.numpy), np.append(n, [np.nan, -8, 8]).astype(dtype.numpy)
    with np.errstate(all="ignore"):
        want = np.ldexp(x, np.nan_to_num(n).astype(np.int32))
    assert_same(evaluate(dtype, k.ldexp, x, n, lanes=lanes, features=features), want)
    shift = 3 * 2.0**23 + 254 if dtype == f32 else 3 * 2.0**52 + 2046  # as rounding by an addition leaves it
    got = evaluate(
        dtype,
        lambda a, s: k.ldexp(a, k.add(s, k.lit(-shift, dtype))),
        x,
        (n + shift).astype(dtype.numpy),
        lanes=lanes,
        features=features,
    )
    assert_same(got, want)


def test_max_with_a_literal_keeps_nan() -> None:
    x = np.array(SPECIAL, np.float32)
    assert_same(evaluate(f32, lambda a: k.binary("max", a, k.lit(0.0, f32, 17)), x), np.maximum(x, 0))
    assert_same(evaluate(f32, lambda a: k.binary("min", k.lit(6.0, f32, 17), a), x), np.minimum(x, 6))


@pytest.mark.parametrize("fn", k.COMPARE)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTS])
def test_compare(dtype: DType, fn: str) -> None:
    x, y = floats(dtype) if dtype.is_float else ints(dtype)
    numpy = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal"}
    got = evaluate(boolean, lambda a, b: k.binary(fn, a, b), x, y, lanes=16)
    assert_same(got, getattr(np, numpy[fn])(x, y))


@pytest.mark.parametrize("fn", ["add", "sub", "mul", "div", "rem", "min", "max", "and", "or", "xor"])
@pytest.mark.parametrize("dtype", INTS)
def test_int_binary(dtype: DType, fn: str) -> None:
    x, y = ints(dtype)
    if fn in ("div", "rem"):
        keep = (y != 0) & ~((x == np.iinfo(dtype.numpy).min) & (y.astype(np.int64) == -1))
        x, y = x[keep], y[keep]
        wide_x, wide_y = x.astype(object), y.astype(object)
        quotient = np.array(
            [abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) for a, b in zip(wide_x, wide_y, strict=True)]
        )
        want = (quotient if fn == "div" else wide_x - quotient * wide_y).astype(dtype.numpy)
    else:
        numpy = {"sub": "subtract", "mul": "multiply", "min": "minimum", "max": "maximum", "and": "bitwise_and",
                 "or": "bitwise_or", "xor": "bitwise_xor"}.get(fn, fn)  # fmt: skip
        want = getattr(np, numpy)(x, y)
    np.testing.assert_array_equal(evaluate(dtype, lambda a, b: k.binary(fn, a, b), x, y, lanes=8), want)


@pytest.mark.parametrize("dtype", [i32, u32, i8])
def test_shifts_and_bits(dtype: DType) -> None:
    x, _ = ints(dtype)
    y = (np.arange(x.size) % dtype.bits).astype(dtype.numpy)
    unsigned = x.astype(f"u{dtype.nbytes}")
    np.testing.assert_array_equal(evaluate(dtype, lambda a, b: k.binary("shl", a, b), x, y), x << y)
    np.testing.assert_array_equal(
        evaluate(dtype, lambda a, b: k.binary("lshr", a, b), x, y),
        (unsigned >> y.astype(unsigned.dtype)).astype(x.dtype),
    )
    if dtype.kind == "i":
        np.testing.assert_array_equal(evaluate(dtype, lambda a, b: k.binary("ashr", a, b), x, y), x >> y)
    np.testing.assert_array_equal(evaluate(dtype, lambda a: k.unary("not", a), x), ~x)
    np.testing.assert_array_equal(evaluate(dtype, lambda a: k.unary("popcnt", a), x), np.bitwise_count(unsigned))
    zeros = [dtype.bits - int(v).bit_length() for v in unsigned]
    np.testing.assert_array_equal(evaluate(dtype, lambda a: k.unary("clz", a), x), np.array(zeros, dtype.numpy))


@pytest.mark.parametrize("fn", ["neg", "abs", "sqrt", "floor", "ceil", "round_even", "trunc"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_float_unary(dtype: DType, fn: str) -> None:
    x = floats(dtype)[1][: len(SPECIAL)]
    numpy = {"neg": "negative", "round_even": "rint"}.get(fn, fn)
    with np.errstate(all="ignore"):
        assert_same(evaluate(dtype, lambda a: k.unary(fn, a), x, lanes=7), getattr(np, numpy)(x))


NARROW_FLOATS = list(FLOAT_FORMATS)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("source", [f64, f32, f16, bf16, *NARROW_FLOATS])
@pytest.mark.parametrize("target", [f64, f32, f16, bf16, *NARROW_FLOATS, boolean])
def test_float_casts(source: DType, target: DType) -> None:
    rng = np.random.default_rng(0)
    with np.errstate(all="ignore"):
        x = np.concatenate([SPECIAL, rng.standard_normal(200) * np.exp2(rng.integers(-30, 20, 200))])
        x = np.concatenate(
            [x, [1 + 2**-11, 1 + 2**-11 + 2**-40, 2**-15, 2**-25, 448.0, 464.0, 465.0, 57344.0, 61440.0]]
        )
        x = x.astype(source.numpy)
        exact = x.astype(np.float32) if source.bits <= 8 else x
        wide, want = evaluate(target, lambda a: k.cast(a, target), x, lanes=64), exact.astype(target.numpy)
        got = evaluate(target, lambda a: k.cast(a, target), x, lanes=16)
    assert_same(got, wide)
    if target == boolean:
        want = x.astype(np.float64) != 0
    assert_same(got, want)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("source", [f64, f32, f16, bf16])
@pytest.mark.parametrize("target", [i64, i32, i16, i8, u8, u32, u64, i4, u4])
def test_float_to_int(source: DType, target: DType) -> None:
    """Vectors, parts of vectors and single elements alike."""
    steps = (0, -0.5, 0.5, -1, 1, -(2.0**40), 2.0**40)
    ends = [s * 2.0**n + d for n in (31, 32, 63, 64) for s in (1, -1) for d in steps]
    with np.errstate(all="ignore"):
        x = np.array([*SPECIAL, 1e30, -1e30, 127.9, -128.9, 255.9, 7.9, -8.9, 15.9, *ends], np.float64)
        x = x.astype(source.numpy)
    half = 1 << (63 if target in (i64, u64, u32) else 31)
    low = target.range[0]

    def truncate(v: float) -> int:
        if target == u64 and v >= half:
            return int(v) if v < 2.0**64 else 0
        return ((int(v) if -half <= v < half else -half) - low) % (1 << target.bits) + low

    want = np.array([truncate(v) for v in x.astype(np.float64)], object)
    for lanes in (1, 4, 7, 8, 16, 32):
        got = evaluate(target, lambda a: k.cast(a, target), x, lanes=lanes)
        np.testing.assert_array_equal(got.astype(object), want)
    np.testing.assert_array_equal(ops.Convert(target).reference(x).astype(object), want)


@pytest.mark.parametrize("dtype", NARROW_FLOATS)
def test_every_code_of_a_narrow_float(dtype: DType) -> None:
    x = np.arange(1 << dtype.bits, dtype=np.uint8).view(dtype.numpy)
    for target in (f32, f64):
        assert_same(evaluate(target, lambda v, to=target: k.cast(v, to), x, lanes=16), x.astype(target.numpy))
    wide = x.astype(np.float32)
    with np.errstate(all="ignore"):
        between = np.concatenate([wide, wide[1:] / 2 + wide[:-1] / 2, wide * np.float32(1.01), wide * np.float32(1.5)])
        assert_same(evaluate(dtype, lambda v: k.cast(v, dtype), between, lanes=16), between.astype(dtype.numpy))


@pytest.mark.parametrize("dtype", [i4, u4, i2, u2])
def test_low_bits_of_a_byte_count(dtype: DType) -> None:
    """Whatever the others are: ml_dtypes writes them as zeros."""
    x = np.arange(256, dtype=np.uint8)
    low, high = dtype.range
    for lanes in (1, 16):
        got = evaluate(i32, lambda v: k.cast(v, i32), x.view(dtype.numpy), lanes=lanes)
        assert_same(got, ((x.astype(np.int64) - low) & (high - low)) + low)


@pytest.mark.parametrize("source", [i64, i32, i16, i8, u8, u32, boolean])
@pytest.mark.parametrize("target", [f64, f32, f16, bf16, i64, i32, i8, u8, i4, u4, boolean])
def test_int_casts(source: DType, target: DType) -> None:
    x = (
        np.array([True, False])
        if source == boolean
        else np.concatenate([ints(source)[1][:9], np.arange(100)]).astype(source.numpy)
    )
    if target.bits == 4:
        want = ((x.astype(np.int64) & 15) ^ 8) - 8 if target == i4 else x.astype(np.int64) & 15
    else:
        with np.errstate(all="ignore"):
            want = x.astype(target.numpy) if target not in (f16, bf16) else x.astype(np.float64).astype(target.numpy)
    assert_same(evaluate(target, lambda a: k.cast(a, target), x, lanes=16), want)


def test_bitcast_select_and_fma() -> None:
    x = np.array(SPECIAL, np.float32)
    np.testing.assert_array_equal(evaluate(i32, lambda a: k.bitcast(a, i32), x), x.view(np.int32))
    with np.errstate(all="ignore"):
        got = evaluate(f32, lambda a: k.select(k.binary("lt", a, k.lit(0.0, f32)), k.lit(5.0, f32), a), x)
    assert_same(got, np.where(x < 0, np.float32(5), x))
    x = np.repeat(np.array([1, 2, 3, 4], np.float32), 8)
    x[9] = -1  # the second of four vectors of eight

    def choice(a: k.Expr) -> k.Expr:
        square = k.mul(a, a)  # of both branches
        chosen = k.select_uniform(k.binary("gt", a, k.lit(0.0, f32)), k.add(square, a), k.sub(square, a))
        return k.add(chosen, square)

    assert_same(evaluate(f32, choice, x, lanes=8), 2 * x * x + np.where(np.arange(32) // 8 == 1, -x, x))
    tiny = np.full(16, 1 + 2**-12, np.float32)
    assert_same(evaluate(f32, lambda a: k.fma(a, a, k.lit(-1.0, f32)), tiny), np.full(16, 2**-11 + 2**-24, np.float32))


@pytest.mark.parametrize("lanes", [1, 2, 3, 7, 16, 64])
@pytest.mark.parametrize("fn", ["add", "mul", "min", "max"])
@pytest.mark.parametrize("dtype", [f32, f64, i32, i8])
def test_reduce(dtype: DType, fn: str, lanes: int) -> None:
    x = (np.arange(lanes) % 3 + 1).astype(dtype.numpy)
    numpy = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}[fn]
    result, source = Buffer("out", dtype, writable=True), Buffer("x", dtype)
    kernel = Kernel(
        "k",
        (source, result),
        (),
        CHUNK,
        integer(1),
        (Store(result, integer(0), k.reduce(fn, k.load(source, integer(0), lanes))),),
    )
    buffer = place(np.zeros(1, dtype.numpy))
    Native(kernel)([place(x), buffer])
    with np.errstate(all="ignore"):
        assert buffer[0] == numpy.reduce(x, dtype=dtype.numpy)


def test_nan_wins_a_reduction() -> None:
    for at in range(16):
        x = np.ones(16, np.float32)
        x[at] = np.nan
        result, source = Buffer("out", f32, writable=True), Buffer("x", f32)
        body = (Store(result, integer(0), k.reduce("max", k.load(source, integer(0), 16))),)
        buffer = place(np.zeros(1, np.float32))
        Native(Kernel("k", (source, result), (), CHUNK, integer(1), body))([place(x), buffer])
        assert np.isnan(buffer[0])


def test_shuffle_extract_ramp_gather_scatter() -> None:
    x = np.arange(100, 116, dtype=np.float32)
    got = evaluate(f32, lambda a: k.Shuffle(f32, 5, a, k.lit(-1.0, f32, 16), (15, 0, 16, 3, 31)), x, lanes=16)[:5]
    assert_same(got, np.array([115, 100, -1, 103, -1], np.float32))
    source, result = Buffer("x", f32), Buffer("out", f32, writable=True)
    index = k.ramp(integer(1), 5, 3)
    mask = k.binary("lt", k.ramp(integer(0), 5), integer(3))
    body = (
        Store(result, integer(0), k.gather(source, index)),
        Store(result, integer(8), k.gather(source, index, mask)),
        Store(result, k.ramp(integer(16), 5, 2), k.load(source, integer(0), 5), mask),
        Store(result, integer(30), k.Extract(f32, 1, k.load(source, integer(0), 16), 9)),
    )
    buffer = place(np.full(32, -1, np.float32))
    Native(Kernel("k", (source, result), (), CHUNK, integer(1), body))([place(x), buffer])
    assert_same(buffer[:5], x[1:16:3])
    assert_same(buffer[8:13], np.array([101, 104, 107, 0, 0], np.float32))
    assert_same(buffer[16:26], np.array([100, -1, 101, -1, 102, -1, -1, -1, -1, -1], np.float32))
    assert buffer[30] == 109


@pytest.mark.parametrize("dtype", [f64, f32, f16, i32], ids=str)
@pytest.mark.parametrize("lanes", [5, 8, 16])
@pytest.mark.parametrize("features", [host_features(), without(*_AVX512)], ids=["host", "narrow"])
def test_long_chains_of_shuffles(dtype: DType, lanes: int, features: Features) -> None:
    """Values that LLVM is not to look through are what they were, NaN among them."""
    x, y = np.arange(2 * lanes).astype(dtype.numpy).reshape(2, lanes)
    if dtype.is_float:
        x[1], y[-1] = np.nan, -0.0
    pick = tuple((3 * i + 1) % (2 * lanes) for i in range(lanes))

    def chain(a: Expr, b: Expr) -> Expr:
        for _ in range(6):
            a, b = k.Shuffle(dtype, lanes, a, b, pick), k.Shuffle(dtype, lanes, b, a, pick[::-1])
        return a

    a, b = x, y
    for _ in range(6):
        pair, swapped = np.concatenate([a, b]), np.concatenate([b, a])
        a, b = pair[list(pick)], swapped[list(pick[::-1])]
    got = evaluate(dtype, chain, x, y, lanes=lanes, features=features)
    assert got.tobytes() == a.tobytes()


def test_colliding_scatter_keeps_the_last_lane() -> None:
    result = Buffer("out", f32, writable=True)
    body = (Store(result, k.lit(0, i64, 8), k.cast(k.ramp(integer(0), 8), f32)),)
    buffer = place(np.zeros(1, np.float32))
    Native(Kernel("k", (result,), (), CHUNK, integer(1), body))([buffer])
    assert buffer[0] == 7


@pytest.mark.parametrize("dtype", [f32, f16, bf16, i8, boolean, f64])
@pytest.mark.parametrize("lanes", [1, 3, 16])
def test_masks_touch_no_memory(dtype: DType, lanes: int) -> None:
    """A masked copy of n elements at the very end of a page-sized array."""
    x = (np.arange(lanes) % 2).astype(dtype.numpy)
    source, result, n = Buffer("x", dtype), Buffer("out", dtype, writable=True), k.var("n")
    mask = k.binary("lt", k.ramp(integer(0), lanes), n) if lanes > 1 else k.binary("lt", integer(0), n)
    body = (Store(result, integer(0), k.load(source, integer(0), lanes, mask), mask),)
    native = Native(Kernel("k", (source, result), (n,), CHUNK, integer(1), body))
    for count in range(lanes + 1):
        buffer = place(np.ones(lanes, dtype.numpy))
        native([place(x), buffer], [count])
        assert_same(buffer, np.concatenate([x[:count], np.ones(lanes - count)]).astype(dtype.numpy))


def test_registers_through_loops_and_branches() -> None:
    """Sums in registers over a dynamic loop with a branch inside; loops that do not run; values from before."""
    source, result, n = Buffer("x", f32), Buffer("out", f32, writable=True), k.var("n")
    top = Block()
    acc = top.alloc("acc", f32, 2)
    for i in range(2):
        top.store(acc, integer(i), k.lit(10.0 * i, f32))

    def body(b: Block, i: Expr) -> None:
        x = b.let(k.load(source, i))
        even = k.binary("eq", k.binary("rem", i, integer(2)), integer(0))
        b.when(
            even,
            lambda c: c.store(acc, integer(0), k.add(k.load(acc, integer(0)), x)),
            lambda c: c.store(acc, integer(1), k.sub(k.load(acc, integer(1)), x)),
        )

    top.loop("i", integer(0), n, 1, body)
    top.loop("i", integer(5), integer(5), 1, lambda b, i: b.store(acc, integer(0), k.lit(-1.0, f32)))
    for i in range(2):
        top.store(result, integer(i), k.load(acc, integer(i)))
    native = Native(Kernel("k", (source, result), (n,), CHUNK, integer(1), top.body))
    x = np.arange(1, 12, dtype=np.float32)
    for count in (0, 1, 2, 11):
        buffer = place(np.zeros(2, np.float32))
        native([place(x), buffer], [count])
        assert_same(buffer, np.array([x[:count:2].sum(), 10 - x[1:count:2].sum()]))


def test_nested_loops_stack_scratch_and_chunks() -> None:
    """Each chunk turns one 4x4 block through stack and scratch memory."""
    source, result = Buffer("x", f32), Buffer("out", f32, writable=True)
    stack = Buffer("s", f32, 16, "stack", writable=True)
    scratch = Buffer("t", f32, 16, "scratch", writable=True, offset=64)
    i, j = k.var("i"), k.var("j")
    at = k.add(k.mul(CHUNK, integer(16)), k.add(k.mul(i, integer(4)), j))
    position = k.add(k.mul(j, integer(4)), i)

    def nest(*body: k.Stmt) -> For:
        return For(i, integer(0), integer(4), 1, (For(j, integer(0), integer(4), 1, body),))

    body = (
        k.Alloc(stack), k.Alloc(scratch),
        nest(Store(stack, position, k.load(source, at))),
        nest(Store(scratch, position, k.load(stack, position))),
        nest(Store(result, at, k.load(scratch, k.add(k.mul(i, integer(4)), j)))),
    )  # fmt: skip
    x = np.arange(48, dtype=np.float32)
    buffer = place(np.zeros(48, np.float32))
    Native(Kernel("k", (source, result), (), CHUNK, integer(3), body, 128))([place(x), buffer], chunks=3)
    assert_same(buffer, x.reshape(3, 4, 4).transpose(0, 2, 1).reshape(-1))


def test_loads_stay_where_they_stand() -> None:
    """An in-place update reads the old value before the store and the new one after it."""
    x, result = Buffer("x", f32, writable=True), Buffer("out", f32, writable=True)
    a, b = k.var("a", f32), k.var("b", f32)
    body = (
        Let(a, k.load(x, integer(0))), Store(x, integer(0), k.add(a, k.lit(1.0, f32))), Let(b, k.load(x, integer(0))),
        Store(result, integer(0), k.mul(a, k.lit(100.0, f32))), Store(result, integer(1), b),
    )  # fmt: skip
    values, buffer = place(np.array([3], np.float32)), place(np.zeros(2, np.float32))
    Native(Kernel("k", (x, result), (), CHUNK, integer(1), body))([values, buffer])
    assert_same(buffer, np.array([300, 4]))


def test_constant_folding_of_indices_and_branches() -> None:
    result, u = Buffer("out", f32, writable=True), k.var("u")
    inside = If(
        k.binary("lt", u, integer(2)), (Store(result, u, k.lit(1.0, f32)),), (Store(result, u, k.lit(2.0, f32)),)
    )
    kernel = Kernel("k", (result,), (), CHUNK, integer(1), (For(u, integer(0), integer(4), 1, (inside,), unroll=True),))
    text = print_module([kernel], host_features())
    assert "br " not in text and "mul" not in text
    buffer = place(np.zeros(4, np.float32))
    Native(kernel)([buffer])
    assert_same(buffer, np.array([1, 1, 2, 2]))


def test_invariants_leave_loops() -> None:
    """The splat of a run-time value is printed before the loop, once."""
    source, result, n, i = Buffer("x", f32), Buffer("out", f32, writable=True), k.var("n"), k.var("i")
    value = k.fma(k.load(source, i, 16), k.splat(k.cast(n, f32), 16), k.lit(1.0, f32, 16))
    kernel = Kernel(
        "k", (source, result), (n,), CHUNK, integer(1), (For(i, integer(0), n, 16, (Store(result, i, value),)),)
    )
    lines = print_module([kernel], host_features()).splitlines()
    loop = next(at for at, line in enumerate(lines) if " phi " in line)
    assert [at < loop for at, line in enumerate(lines) if "shufflevector" in line] == [True]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ((Store(Buffer("r", f32, 4, "register"), integer(0), k.lit(0.0, f32)),), "expected an Alloc"),
        ((Let(k.var("v"), k.var("missing")),), "variable missing"),
        ((For(k.var("i"), integer(0), k.var("n"), 1, (), unroll=True),), "literal bounds"),
    ],
)
def test_errors(body: tuple[k.Stmt, ...], message: str) -> None:
    with pytest.raises(CompileError, match=message):
        print_module([Kernel("k", (), (k.var("n"),), CHUNK, integer(1), body)], host_features())


def test_bfloat_and_ml_dtypes_agree_on_every_f16() -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    result, source, i = Buffer("out", bf16, writable=True), Buffer("x", f16), k.var("i")
    body = (For(i, integer(0), integer(1 << 16), 32, (Store(result, i, k.cast(k.load(source, i, 32), bf16)),)),)
    buffer = place(np.zeros(1 << 16, ml_dtypes.bfloat16))
    Native(Kernel("k", (source, result), (), CHUNK, integer(1), body))([place(x), buffer])
    assert_same(buffer, x.astype(np.float32).astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize("lanes", [1, 8, 16, 32, 64])
@pytest.mark.parametrize("features", [host_features(), without("avx512bf16")], ids=["host", "by bits"])
def test_bfloat_rounds_all_exponents(features: Features, lanes: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 1 << 32, 1 << 16, dtype=np.uint32)
    x[::3] |= 0x8000  # ties and what is next to them
    x[::3] &= 0xFFFF8001
    x[1 << 12 : 1 << 13] &= 0x80FFFFFF  # subnormal, or barely not
    x[1 << 13 : 1 << 14] |= 0x7F800000  # infinite or NaN
    x = x.view(np.float32)
    result, source, i = Buffer("out", bf16, writable=True), Buffer("x", f32), k.var("i")
    body = (For(i, integer(0), integer(x.size), lanes, (Store(result, i, k.cast(k.load(source, i, lanes), bf16)),)),)
    buffer = place(np.zeros(x.size, ml_dtypes.bfloat16))
    Native(Kernel("k", (source, result), (), CHUNK, integer(1), body), features)([place(x), buffer])
    assert_same(buffer, x.astype(ml_dtypes.bfloat16))


def test_literals() -> None:
    for dtype, value in (
        (f32, 0.1),
        (f16, 0.1),
        (bf16, 0.1),
        (f64, 0.1),
        (f32, float("inf")),
        (i8, -5),
        (boolean, True),
    ):
        result = Buffer("out", dtype, writable=True)
        buffer = place(np.zeros(3, dtype.numpy))
        Native(Kernel("k", (result,), (), CHUNK, integer(1), (Store(result, integer(0), Lit(dtype, 3, value)),)))(
            [buffer]
        )
        assert_same(buffer, np.full(3, value).astype(dtype.numpy))


def dots(a: np.ndarray, b: np.ndarray, c: np.ndarray, lanes: int, features: Features, a_max: int | None = None) -> str:
    """Check vectors of sums of a and b against the interpreter; the module's text."""
    x, y, z = (Buffer(name, dtype_of(v), writable=name == "z") for name, v in zip("xyz", (a, b, c), strict=True))
    at, term_count = k.mul(CHUNK, integer(lanes)), a.size // c.size
    wide = k.mul(at, integer(term_count))
    p, q = (k.load(v, wide, term_count * lanes) for v in (x, y))
    sums = k.dot(p, q, k.load(z, at, lanes), a_max)
    chunks = c.size // lanes
    kernel = Kernel("k", (x, y, z), (), CHUNK, integer(chunks), (Store(z, at, sums),))
    verify_kernel(kernel)
    operands = [place(a), place(b)]
    want, got = c.copy(), place(c)
    run_kernel(kernel, {"x": operands[0], "y": operands[1], "z": want})
    Native(kernel, features)([*operands, got], chunks=chunks)
    np.testing.assert_array_equal(got, want)
    return print_module([kernel], features)


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("features", [host_features(), without("avx512bf16")], ids=["host", "without dot"])
def test_pair_dot(features: Features, lanes: int) -> None:
    """The instruction, and what stands for it, as the interpreter has it; infinities and NaN among the operands."""
    rng = np.random.default_rng(lanes)
    a, b = (rng.standard_normal(2 * lanes * 64) * 2.0 ** rng.integers(-9, 9, 2 * lanes * 64) for _ in range(2))
    a[::37], b[::41], a[5::53] = np.inf, 0.0, np.nan
    c = rng.standard_normal(lanes * 64).astype(np.float32)
    text = dots(a.astype(bf16.numpy), b.astype(bf16.numpy), c, lanes, features)
    assert ("dpbf16ps" in text) == ("avx512bf16" in features and lanes >= 4)


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("features", [host_features(), without("avx512vnni", "avxvnni")], ids=["host", "without dot"])
def test_byte_dot(features: Features, lanes: int) -> None:
    """The instruction, and what stands for it, as the interpreter has it."""
    rng = np.random.default_rng(lanes)
    a = rng.integers(0, 256, 4 * lanes * 64).astype(np.uint8)
    b = rng.integers(-128, 128, 4 * lanes * 64).astype(np.int8)
    a[::5], b[::7] = 255, -128
    c = rng.integers(-(2**31), 2**31, lanes * 64).astype(np.int32)
    text = dots(a, b, c, lanes, features)
    assert ("vpdpbusd" in text) == ("avx512vnni" in features and lanes >= 4)
    text = dots(a & 127, b, c, lanes, features, a_max=127)  # products of which two fill 16 bits
    assert ("pmadd.ub" in text or "pmaddubs" in text) == ("avx512vnni" not in features and lanes >= 4)


@pytest.mark.parametrize("lanes", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("without_512", [True, False])
def test_bits_of_words_are_counted_by_bytes(lanes: int, without_512: bool) -> None:
    features = without("avx512vpopcntdq", "avx512bitalg", *(_AVX512 if without_512 else ()))
    x = np.random.default_rng(lanes).integers(0, 1 << 32, 16 * lanes, dtype=np.uint32)
    x[:3] = 0, 2**32 - 1, 1 << 31
    got = evaluate(u32, lambda v: k.unary("popcnt", v), x, lanes=lanes, features=features)
    assert got.tolist() == [v.bit_count() for v in x.tolist()]


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("features", [host_features(), Features("x86_64", ())], ids=["host", "without products"])
def test_dot_of_pairs_of_16_bits(features: Features, lanes: int) -> None:
    """The instruction, and what stands for it, as the interpreter has it, at the ends of the range."""
    rng = np.random.default_rng(lanes)
    a, b = (rng.integers(-(2**15), 2**15, 2 * lanes * 64).astype(np.int16) for _ in range(2))
    a[::5], b[::5], b[3::7] = -(2**15), 2**15 - 1, -(2**15 - 1)
    c = rng.integers(-(2**31), 2**31, lanes * 64).astype(np.int32)
    text = dots(a, b, c, lanes, features)
    assert ("pmadd" in text) == ("avx2" in features and lanes >= 4)


def test_byte_dot_on_arm() -> None:
    x, y, z = Buffer("x", u8), Buffer("y", i8), Buffer("z", i32, writable=True)
    sums = k.dot(k.load(x, integer(0), 16), k.load(y, integer(0), 16), k.load(z, integer(0), 4))
    kernel = Kernel("k", (x, y, z), (), CHUNK, integer(1), (Store(z, integer(0), sums),))
    for features, name in ((("dotprod", "i8mm", "neon"), "neon.usdot"), (("dotprod", "neon"), "neon.sdot")):
        assert name in print_module([kernel], Features("aarch64", features))
    assert "dot" not in print_module([kernel], Features("aarch64", ("neon",)))


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16])
def test_dot_of_signed_bytes(lanes: int) -> None:
    rng = np.random.default_rng(lanes)
    a, b = (rng.integers(-128, 128, 4 * lanes * 64).astype(np.int8) for _ in range(2))
    a[::5], b[::5], b[3::7] = -128, -128, 127
    c = rng.integers(-(2**31), 2**31, lanes * 64).astype(np.int32)
    dots(a, b, c, lanes, host_features())


def test_dot_of_signed_bytes_on_arm() -> None:
    x, y, z = Buffer("x", i8), Buffer("y", i8), Buffer("z", i32, writable=True)
    sums = k.dot(k.load(x, integer(0), 16), k.load(y, integer(0), 16), k.load(z, integer(0), 4))
    kernel = Kernel("k", (x, y, z), (), CHUNK, integer(1), (Store(z, integer(0), sums),))
    for features, has in ((("dotprod", "neon"), True), (("neon",), False)):
        assert ("sdot" in print_module([kernel], Features("aarch64", features))) == has


def test_pair_dot_may_flush_denormals() -> None:
    """A denormal operand counts as itself or as zero: what machines do."""
    tiny = np.array([2.0**-130, 0.0], bf16.numpy)
    big = np.array([2.0**20, 0.0], bf16.numpy)
    x, y, z = Buffer("x", bf16), Buffer("y", bf16), Buffer("z", f32, writable=True)
    sums = k.dot(k.load(x, integer(0), 8), k.load(y, integer(0), 8), k.load(z, integer(0), 4))
    result = place(np.zeros(4, np.float32))
    kernel = Kernel("k", (x, y, z), (), CHUNK, integer(1), (Store(z, integer(0), sums),))
    Native(kernel)([place(np.tile(tiny, 4)), place(np.tile(big, 4)), result])
    assert set(result.tolist()) <= {0.0, 2.0**-110}
