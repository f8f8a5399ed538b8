from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from ingot.ir import kernel as k
from ingot.ir.kernel.interp import run_kernel
from ingot.ir.kernel.show import show_kernel
from ingot.ir.kernel.verify import verify_kernel
from ingot.ir.types import DTYPES, bf16, boolean, f32, f64, i8, i32, i64, u8, u32, u64
from ingot.support.errors import VerifyError

C, S = k.var("c"), k.var("s0")
ZERO, ONE = k.integer(0), k.integer(1)


def kernel(body: list[k.Stmt], params: list[k.Buffer], chunks: k.Expr = ONE, scratch_bytes: int = 0) -> k.Kernel:
    return k.Kernel("t", tuple(params), (S,), C, chunks, tuple(body), scratch_bytes)


def scale(n: k.Expr = S) -> k.Kernel:
    """y[i] = x[i] * 2 + m, eight at a time with a masked tail, m the chunk's first element."""
    x, y = k.Buffer("x", f32), k.Buffer("y", f32, writable=True)
    lane = k.ramp(k.mul(C, k.integer(8)), 8)
    inside = k.var("in", boolean, 8)
    v = k.var("v", f32, 8)
    acc = k.Buffer("acc", f32, 1, "register", True, 8)
    i = k.var("i")
    return kernel(
        [
            k.Comment("tail"),
            k.Let(inside, k.binary("lt", lane, k.splat(n, 8))),
            k.Let(v, k.load(x, k.mul(C, k.integer(8)), 8, inside)),
            k.Alloc(acc),
            k.Store(acc, k.integer(0), k.splat(k.lit(0.0, f32), 8)),
            k.For(
                i,
                k.integer(0),
                k.integer(2),
                1,
                (k.Store(acc, k.mul(i, k.integer(0)), k.add(k.load(acc, k.integer(0)), v)),),
                True,
            ),
            k.Store(
                y,
                k.mul(C, k.integer(8)),
                k.add(k.load(acc, k.integer(0)), k.splat(k.Extract(f32, 1, v, 0), 8)),
                inside,
            ),
        ],
        [x, y],
        k.binary("div", k.add(n, k.integer(7)), k.integer(8)),
    )


GOLDEN = """\
kernel t(x: param f32*, y: param f32* writable; s0) for c in 0..(s0 + 7) / 8:
  # tail
  in: boolx8 = ramp8(c*8, 1) < splat8(s0)
  v: f32x8 = x[c*8 :8 if in]
  acc: register f32x8[1]
  acc[0] = 0.0:f32x8
  for i in 0..2 unroll:
    acc[0] = acc[0] + v
  y[c*8 :8 if in] = acc[0] + splat8(v.0)
"""


def test_runs_shows_and_verifies() -> None:
    t = scale()
    verify_kernel(t)
    assert show_kernel(t) == GOLDEN
    for n in (1, 8, 13):
        x, y = np.arange(1, n + 1, dtype=np.float32), np.zeros(n, np.float32)
        count = (n + 7) // 8
        run_kernel(t, {"x": x, "y": y}, {"s0": n}, order=list(reversed(range(count))))
        assert np.array_equal(y, x * 2 + np.repeat(x[::8], 8)[:n])


def test_shared_expressions_are_printed_once() -> None:
    y = k.Buffer("y", f32, 4, writable=True)
    e = k.cast(k.var("c"), f32)
    for _ in range(40):
        e = k.mul(e, e)
    text = show_kernel(kernel([k.Store(y, C, e)], [y]))
    assert len(text.splitlines()) == 42
    assert "  y[c] = '39*'39\n" in text
    verify_kernel(kernel([k.Store(y, C, e)], [y]))
    run_kernel(kernel([k.Store(y, C, e)], [y]), {"y": np.zeros(4, np.float32)}, {"s0": 1})


def store1(value: k.Expr, index: k.Expr = ZERO) -> k.Kernel:
    y = k.Buffer("y", value.dtype, None, writable=True)
    return kernel([k.Store(y, index, value)], [y])


def value_of(e: k.Expr) -> np.ndarray:
    verify_kernel(store1(e))
    y = np.zeros(e.lanes, e.dtype.numpy)
    run_kernel(store1(e), {"y": y}, {"s0": 1})
    return y


def vec(values: Sequence[float], dtype: str) -> k.Expr:
    """A vector with those lanes, as shuffles of literals."""
    t = DTYPES[dtype]
    vector = k.Shuffle(t, 2, k.lit(values[0], t), k.lit(values[1], t), (0, 1))
    assert len(values) == 2
    return vector


@pytest.mark.parametrize(
    ("fn", "a", "b", "dtype", "expected"),
    [
        ("div", [-7, 7], [2, -2], "i32", [-3, -3]),
        ("rem", [-7, 7], [2, -2], "i32", [-1, 1]),
        ("div", [-128, 127], [-1, 2], "i8", [-128, 63]),
        ("add", [127, -128], [1, -1], "i8", [-128, 127]),
        ("mul", [200, 2], [2, 200], "u8", [144, 144]),
        ("ashr", [-8, 8], [1, 1], "i8", [-4, 4]),
        ("lshr", [-8, 8], [1, 1], "i8", [124, 4]),
        ("shl", [64, 1], [1, 7], "i8", [-128, -128]),
        ("rem", [-7.5, 7.5], [2.0, -2.0], "f32", [-1.5, 1.5]),
        ("min", [float("nan"), 1.0], [1.0, float("nan")], "f32", [np.nan, np.nan]),
        ("minnum", [float("nan"), 1.0], [1.0, float("nan")], "f32", [1, 1]),
        ("copysign", [1.0, -1.0], [-0.0, 0.0], "f32", [-1, 1]),
        ("ldexp", [1.5, -0.0], [252.0, 2.0], "f32", [np.inf, -0.0]),
        ("ldexp", [1.5, float("nan")], [-150.0, float("nan")], "f32", [2.0**-149, np.nan]),
        ("add", [1.0, 1.0], [0.00390625, 2.0], "bf16", [1, 3]),
    ],
)
def test_arithmetic(fn: str, a: list[float], b: list[float], dtype: str, expected: list[float]) -> None:
    got = value_of(k.binary(fn, vec(a, dtype), vec(b, dtype)))
    assert np.array_equal(got.astype(np.float64), expected, equal_nan=True)
    one = [
        value_of(k.Binary(DTYPES[dtype], 1, fn, k.lit(x, DTYPES[dtype]), k.lit(y, DTYPES[dtype])))[0]
        for x, y in zip(a, b, strict=True)
    ]  # type: ignore[arg-type]
    assert np.array_equal(np.array(one).astype(np.float64), expected, equal_nan=True)


@pytest.mark.parametrize(
    ("value", "dtype", "to", "expected"),
    [
        (300.7, f32, u8, 44),
        (-1.5, f32, u8, 255),
        (-1.9, f32, i8, -1),
        (3e9, f32, i32, -(2**31)),
        (3e9, f32, u32, 3000000000),
        (float("nan"), f64, i64, -(2**63)),
        (float("inf"), f32, i64, -(2**63)),
        (float("nan"), f32, u64, 2**63),
        (1e19, f64, u64, 10**19),
        (1e20, f64, u64, 0),
        (300, i32, u8, 44),
        (200, u8, i8, -56),
        (1.00390625, f32, bf16, 1.0),
        (2, i8, boolean, 1),
        (True, boolean, f32, 1.0),
    ],
)
def test_casts(value: float, dtype, to, expected: float) -> None:
    assert value_of(k.Cast(to, 1, k.lit(value, dtype)))[0] == expected
    assert value_of(k.Cast(to, 2, k.splat(k.lit(value, dtype), 2))).tolist() == [expected] * 2


@pytest.mark.parametrize("lanes", [1, 4])
def test_no_unsigned_number_is_negative(lanes: int) -> None:
    x, zero = k.splat(k.var("x", u32), lanes), k.lit(0, u32)
    assert k.binary("lt", x, zero) == k.binary("gt", zero, x) == k.Lit(boolean, lanes, False)
    assert k.binary("ge", x, zero) == k.binary("le", zero, x) == k.Lit(boolean, lanes, True)
    assert isinstance(k.binary("le", x, zero), k.Binary) and isinstance(k.binary("lt", zero, x), k.Binary)


@pytest.mark.parametrize("n", [1.0, 0.5, 254.0, float("inf")])
def test_ldexp_beyond_its_domain(n: float) -> None:
    with pytest.raises(VerifyError, match="even exponents"):
        value_of(k.ldexp(k.lit(1.0, f32), k.lit(n, f32)))


def test_lookup() -> None:
    at = vec([-1, 6], "i32")
    np.testing.assert_array_equal(value_of(k.lookup((1.0, 2.0, 4.0, 8.0), at, f32)), [8, 4])
    assert "[1.0, 2.0][shuffle(" in show_kernel(store1(k.lookup((1.0, 2.0), at, f32)))
    with pytest.raises(VerifyError, match="lookup: expected a power of two of entries, got 3"):
        value_of(k.lookup((1.0, 2.0, 4.0), at, f32))
    with pytest.raises(VerifyError, match="lookup: expected 1 integers, got f32"):
        value_of(k.lookup((1.0, 2.0), k.lit(1.0, f32), f32))


def test_unary_and_bits() -> None:
    assert value_of(k.unary("not", k.lit(True, boolean)))[0] == False  # noqa: E712
    assert value_of(k.unary("not", k.lit(5, u8)))[0] == 250
    assert value_of(k.unary("clz", k.lit(5, u8)))[0] == 5
    assert value_of(k.unary("popcnt", k.lit(-1, i32)))[0] == 32
    assert value_of(k.unary("round_even", k.lit(2.5, f32)))[0] == 2
    assert value_of(k.bitcast(k.lit(1.0, f32), i32))[0] == 0x3F800000


def test_reductions_and_selects() -> None:
    v = k.Cast(f32, 5, k.ramp(k.integer(1), 5, 3))
    assert value_of(k.reduce("add", v))[0] == 35
    assert value_of(k.reduce("max", v))[0] == 13
    odd = k.binary("eq", k.binary("rem", k.ramp(k.integer(0), 4), k.integer(2)), k.integer(1))
    assert value_of(k.select(odd, k.lit(1.0, f32), k.lit(2.0, f32))).tolist() == [2, 1, 2, 1]
    one, two = k.lit(1.0, f32, 4), k.lit(2.0, f32, 4)
    assert value_of(k.select_uniform(odd, one, two)).tolist() == [2, 2, 2, 2]
    assert value_of(k.select_uniform(k.binary("lt", k.ramp(k.integer(0), 4), k.integer(4)), one, two)).tolist() == [
        1,
        1,
        1,
        1,
    ]


def test_fma_rounds_once() -> None:
    r = np.random.default_rng(0)
    for _ in range(300):
        a, b = (float(np.float32(v)) for v in r.standard_normal(2))
        c = float(np.float32(-a * b * (1 + r.integers(-2, 3) * 2.0**-24)))
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        got = value_of(k.fma(k.lit(a, f32), k.lit(b, f32), k.lit(c, f32)))[0]
        ulp = Fraction(float(np.spacing(np.abs(got)))) if got else Fraction(0)
        assert abs(Fraction(float(got)) - exact) * 2 <= ulp
        wide = value_of(k.fma(k.lit(a, f64), k.lit(b, f64), k.lit(c, f64)))[0]
        assert wide == float(exact)


def test_pair_dot_adds_the_odd_product_first() -> None:
    def dot(a: list[float], b: list[float], c: float) -> float:
        return float(value_of(k.dot(vec(list(a), "bf16"), vec(list(b), "bf16"), k.lit(c, f32)))[0])

    # 1 + 2^-24 stays 1, so that the order of the two small products shows
    assert dot([1.0, 2.0**-12], [1.0, 2.0**-12], 0.0) == 1.0
    assert dot([2.0**-12, 1.0], [2.0**-12, 1.0], 2.0**-24) == 1.0
    assert dot([1.0, 2.0**-12], [1.0, 2.0**-12], 2.0**-24) == 1.0 + 2.0**-23
    # products are not rounded on their own: 2^128 is none of f32's, the sum is
    assert dot([2.0, 1.0], [2.0**127, -(2.0**127)], 0.0) == 2.0**127
    assert np.isnan(dot([0.0, 1.0], [np.inf, 1.0], 1.0))


def test_dot_of_bytes() -> None:
    """Unsigned by signed ones, all ends of their ranges; only the sum wraps."""

    def dot(a: list[int], b: list[int], c: int) -> int:
        words = (k.lit(int.from_bytes(bytes(x % 256 for x in v), "little"), u32) for v in (a, b))
        x, y = (k.bitcast(word, t) for word, t in zip(words, (u8, i8), strict=True))
        return int(value_of(k.dot(x, y, k.lit(c, i32)))[0])

    assert dot([255] * 4, [-128] * 4, 5) == 5 - 4 * 255 * 128
    assert dot([0, 1, 2, 255], [127, -1, 3, 127], 7) == 7 - 1 + 6 + 255 * 127
    assert dot([255] * 4, [-128] * 4, -(2**31)) == 2**31 - 4 * 255 * 128
    with pytest.raises(VerifyError, match="at most 3"):
        value_of(k.dot(k.lit(4, u8, 4), k.lit(1, i8, 4), k.lit(0, i32), a_max=3))


def test_dot_of_pairs_of_16_bits() -> None:
    x, y = vec([255, -(2**15)], "i16"), vec([-(2**15), 2**15 - 1], "i16")
    assert value_of(k.dot(x, y, k.lit(7, i32))).tolist() == [7 - 2**15 * (255 + 2**15 - 1)]


def test_dot_of_sixteen_signed_bytes_is_one_sum() -> None:
    a, b = np.arange(-8, 8, dtype=np.int64), np.full(16, -128, np.int64)
    x = k.cast(k.binary("sub", k.ramp(k.integer(0), 16), k.integer(8)), i8)
    assert int(value_of(k.dot(x, k.lit(-128, i8, 16), k.lit(3, i32)))[0]) == 3 + int((a * b).sum())


def test_bits_as_lanes_of_another_size() -> None:
    pair = vec([1.0, -2.0], "bf16")
    word = k.bitcast(pair, u32)
    assert (word.lanes, int(value_of(word)[0])) == (1, 0xC0003F80)
    assert value_of(k.bitcast(k.splat(word, 2), bf16)).tolist() == [1, -2, 1, -2]
    assert show_kernel(store1(word)).endswith("= bits.u32(shuffle(1.0:bf16, -2.0:bf16, [0, 1]))\n")


X, Y = k.Buffer("x", f32, 4), k.Buffer("y", f32, 4, writable=True)
STACK = k.Buffer("t", f32, 4, "stack", True)


@pytest.mark.parametrize(
    ("body", "chunks", "message"),
    [
        ([k.Store(Y, k.integer(4), k.lit(0.0, f32))], 1, r"store y\[4\]: expected elements in \[0, 4\), got \[4\]"),
        ([k.Store(Y, k.integer(1), k.load(X, k.integer(1), 4))], 1, r"load x\[1\]: expected .* got \[1, 2, 3, 4\]"),
        ([k.Store(Y, k.integer(0), k.gather(X, k.ramp(k.integer(-1), 2)))], 1, r"load x\[.*got \[-1, 0\]"),
        ([k.Alloc(STACK), k.Store(Y, k.integer(0), k.load(STACK, k.integer(2)))], 1, r"load t\[2\]: expected defined"),
        ([k.Store(Y, k.integer(0), k.lit(0.0, f32))], 2, r"chunk 1 stores to y what chunk 0 writes"),
        ([k.Store(Y, C, k.load(Y, k.integer(0)))], 2, r"chunk 1 loads from y what chunk 0 writes"),
        ([k.Store(Y, C, k.load(Y, k.add(C, k.integer(1))))], 2, r"chunk 1 stores to y what chunk 0 reads"),
        ([k.Store(X, C, k.lit(0.0, f32))], 1, r"store x\[0\]: expected a writable"),
        ([k.Let(k.var("q"), k.Binary(i64, 1, "div", C, C))], 1, r"an integer division"),
        (
            [k.Let(k.var("q"), k.Binary(i64, 1, "shl", C, k.integer(64)))],
            1,
            r"a shift: expected a distance in \[0, 64\)",
        ),
    ],
)
def test_interpreter_refuses(body: list[k.Stmt], chunks: int, message: str) -> None:
    t = kernel(body, [X, Y], k.integer(chunks))
    with pytest.raises(VerifyError, match=message):
        run_kernel(t, {"x": np.zeros(4, np.float32), "y": np.zeros(4, np.float32)}, {"s0": 1})


REG = k.Buffer("r", f32, 2, "register", True, 4)
ZERO4 = k.splat(k.lit(0.0, f32), 4)
I = k.var("i")


def loop(*body: k.Stmt, unroll: bool) -> k.For:
    return k.For(I, k.integer(0), k.integer(2), 1, body, unroll)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([k.Store(Y, k.var("q"), k.lit(0.0, f32))], r"after p#1: kernel t: variable q: expected one that is bound"),
        ([loop(unroll=False), k.Store(Y, I, k.lit(0.0, f32))], r"kernel t: variable i"),
        ([loop(k.Store(Y, I, k.lit(0.0, f64)), unroll=False)], r"kernel t: for i: store y: expected f32, got f64"),
        (
            [k.Alloc(REG), loop(k.Store(REG, I, ZERO4), unroll=False)],
            r"for i: store r: expected an index that is literal",
        ),
        ([k.Alloc(REG), k.Store(REG, k.integer(2), ZERO4)], r"store r: expected an index below 2, got 2"),
        ([k.Alloc(REG), k.Store(REG, k.integer(1), k.lit(0.0, f32))], r"store r: expected 4 lanes, got 1"),
        ([k.Store(REG, k.integer(1), ZERO4)], r"store r: expected a param or an allocated buffer"),
        ([k.Store(X, k.integer(1), k.lit(0.0, f32))], r"store x: expected a writable buffer"),
        ([k.Store(replace(Y, size=9), k.integer(1), k.lit(0.0, f32))], r"store y: expected Buffer"),
        ([k.Let(C, k.integer(1))], r"let c: expected a new name"),
        ([k.Let(k.var("q", i32), k.integer(1))], r"let q: expected i32, got i64"),
        ([k.Let(k.var("q"), k.lit(1.5, i64))], r"literal: expected a i64, got 1.5"),
        ([k.Let(k.var("q", u8), k.lit(256, u8))], r"literal: expected a value of u8, got 256"),
        (
            [k.Let(k.var("q", f32), k.Binary(f32, 1, "add", k.lit(1.0, f32), C))],
            r"add: expected an operand f32, got i64",
        ),
        (
            [k.Let(k.var("q", f32), k.Binary(f32, 1, "and", *[k.lit(1.0, f32)] * 2))],
            r"and: expected operands of kind iub",
        ),
        ([k.If(k.integer(1), ())], r"if: expected a bool scalar, got i64"),
        (
            [k.Let(k.var("q", f32), k.Load(f32, 4, X, C, k.lit(True, boolean)))],
            r"load x: mask: expected boolx4, got bool",
        ),
        (
            [k.Alloc(replace(STACK, space="scratch", offset=32))],
            r"alloc t: expected an offset that is a multiple of 64",
        ),
        ([k.Alloc(replace(STACK, space="scratch"))], r"alloc t: expected an end within scratch_bytes = 0, got 16"),
    ],
)
def test_verifier_refuses(body: list[k.Stmt], message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        verify_kernel(kernel(body, [X, Y]), "p#1")


def test_registers_may_be_indexed_by_unrolled_loops() -> None:
    verify_kernel(
        kernel(
            [
                k.Alloc(REG),
                loop(k.Let(k.var("j"), k.sub(k.integer(1), I)), k.Store(REG, k.var("j"), ZERO4), unroll=True),
            ],
            [],
        )
    )


@pytest.mark.parametrize("ordered", [True, False])
def test_an_increment_puts_chunks_in_order(ordered: bool) -> None:
    """The last of three to arrive adds what all have written; who looks without counting is refused."""
    parts, total = k.Buffer("parts", i64, writable=True), k.Buffer("total", i64, writable=True)
    arrived, before = k.Buffer("arrived", i64, writable=True), k.var("before")
    partial_sum = k.add(k.add(k.load(parts, ZERO), k.load(parts, ONE)), k.load(parts, k.integer(2)))
    cond = k.binary("eq", before if ordered else C, k.integer(2))
    body: list[k.Stmt] = [k.Store(parts, C, k.add(C, ONE))]
    body += [k.Increment(before, arrived, ZERO)] if ordered else []
    body += [k.If(cond, (k.Store(total, ZERO, partial_sum),))]
    summed = kernel(body, [parts, total, arrived], k.integer(3))
    verify_kernel(summed)
    buffers = {"parts": np.zeros(3, np.int64), "total": np.zeros(1, np.int64), "arrived": np.zeros(1, np.int64)}
    if ordered:
        run_kernel(summed, buffers, {"s0": 0}, order=[1, 2, 0])
        assert buffers["total"][0] == 6
        return
    with pytest.raises(VerifyError, match="chunk 2 loads from parts what chunk"):
        run_kernel(summed, buffers, {"s0": 0})


def test_what_is_written_behind_an_increment_is_not_in_order() -> None:
    x, arrived = k.Buffer("x", i64, writable=True), k.Buffer("arrived", i64, writable=True)
    before, second_load = k.var("before"), k.var("again")
    first = k.If(k.binary("eq", C, ZERO), (k.Store(x, ZERO, ONE),))
    reads = k.If(k.binary("eq", C, ONE), (k.Let(second_load, k.load(x, ZERO)),))
    summed = kernel([k.Increment(before, arrived, ZERO), first, reads], [x, arrived], k.integer(2))
    with pytest.raises(VerifyError, match="chunk 1 loads from x"):
        run_kernel(summed, {"x": np.zeros(1, np.int64), "arrived": np.zeros(1, np.int64)}, {"s0": 0})
