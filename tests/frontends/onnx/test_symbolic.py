"""Arithmetic on symbolic values."""

from __future__ import annotations

import numpy as np
import pytest

from ingot.frontends.onnx.symbolic import ARITHMETIC, UNARY, Sym, UnknownSize, arange, cast, compared
from ingot.frontends.shared.quotients import Quotient
from ingot.ir import types as T
from ingot.ir.dims import Dim, symbol

N = symbol("n")
assert isinstance(N, Dim)


def test_sizes_survive_float_arithmetic() -> None:
    half = ARITHMETIC["Mul"](True, N, 0.5)
    assert half == Quotient(N, 2)
    assert UNARY["Floor"](half) == N // 2
    assert UNARY["Ceil"](half) == (N + 1) // 2
    assert ARITHMETIC["Mul"](True, half, 4.0) == N * 2
    assert ARITHMETIC["Div"](True, N, N) == 1.0
    assert ARITHMETIC["Max"](True, half, 0.0) == half


def test_an_inexact_factor_is_no_ratio() -> None:
    with pytest.raises(UnknownSize):
        ARITHMETIC["Mul"](True, N, 1 / 3)


@pytest.mark.parametrize(("a", "b", "want"), [(-7, 2, -3), (7, -2, -3), (7, 2, 3), (-7, -2, 3)])
def test_integer_division_truncates(a: int, b: int, want: int) -> None:
    assert ARITHMETIC["Div"](False, a, b) == want


def test_division_by_zero_is_unknown() -> None:
    for floats, zero in ((False, 0), (True, 0.0)):
        with pytest.raises(UnknownSize):
            ARITHMETIC["Div"](floats, zero, zero)


def test_comparisons_that_hold_for_every_size() -> None:
    assert compared("EQ", N, N) is True
    assert compared("EQ", N, -1) is False
    assert compared("GT", N, 0) is True
    assert compared("LT", N, N + 1) is True
    assert compared("GE", N, 1) is True
    with pytest.raises(UnknownSize):
        compared("EQ", N, 5)


def test_casts_round_and_wrap() -> None:
    value = Sym.of_array(np.array([2.75, -2.75], np.float32))
    assert list(cast(value, T.i64).items) == [2, -2]
    assert list(cast(Sym.of_array(np.array([300])), T.u8).items) == [44]
    assert list(cast(Sym.of(T.f32, [Quotient(N, 2)]), T.i64).items) == [N // 2]
    assert list(cast(Sym.of(T.i64, [N, 0]), T.boolean).items) == [True, False]
    with pytest.raises(UnknownSize):
        cast(Sym.of_array(np.array([np.nan])), T.i64)


def test_float_constants_are_rounded_to_their_type() -> None:
    tenth = Sym.of_array(np.array([0.1], np.float32))
    assert tenth.to_array().dtype == np.float32
    assert float(tenth.items[0]) == float(np.float32(0.1))


def test_large_tensors_are_not_tracked() -> None:
    with pytest.raises(UnknownSize):
        arange(0, 10_000, 1, T.i64)
    with pytest.raises(UnknownSize):
        Sym.of_array(np.zeros(5000))
