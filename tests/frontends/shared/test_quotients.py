"""Sizes that were floats on their way."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from ingot import ops
from ingot.frontends.shared.quotients import upper_bound
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.shared.sizes import Sizes
from ingot.ir.dims import DimLike, substitute, symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import DType, TensorType, f16, f32, f64, i32

H, W = symbol("h"), symbol("w")


def size(d: DimLike, dtype: DType = f32) -> Node:
    return ops.cast(ops.scalar(d, i32), dtype)


def to_i32(x: Node) -> Node:
    return ops.cast(x, i32)


ROUNDED: dict[str, Callable[[Node], Node]] = {
    "ceil of a part": lambda h: ops.mul(to_i32(ops.Ceil()(ops.div(h, 512.0))), 512),
    "floor of a part": lambda h: to_i32(ops.Floor()(ops.div(h, 7.0))),
    "towards zero": lambda h: to_i32(ops.mul(h, 0.75)),
    "half of the next": lambda h: to_i32(ops.div(ops.add(h, 1.0), 2.0)),
    "the share of a share": lambda h: to_i32(ops.Floor()(ops.div(ops.mul(h, 0.5), 2.5))),
    "at most": lambda h: to_i32(ops.minimum(h, ops.mul(h, 0.5))),
    "never below zero": lambda h: to_i32(ops.maximum(ops.sub(ops.mul(h, 0.5), 8.0), 0.0)),
    "rounded as it is": lambda h: to_i32(ops.RoundEven()(h)),
}


@pytest.mark.parametrize("dtype", [f32, f64])
@pytest.mark.parametrize("name", ROUNDED)
def test_what_is_rounded_once_is_a_size(name: str, dtype: DType) -> None:
    rounded_size = Sizes().size_of(ROUNDED[name](size(H, dtype)))
    assert rounded_size is not None
    x = Input("x", TensorType(dtype, ()))()
    graph = Graph((x,), (ROUNDED[name](x),), ("y",))
    for n in (*range(1, 600), 4095, 65537, 999_999, (1 << 22) - 1):
        assert substitute(rounded_size, {"h": n}) == interpret(graph, [np.asarray(n, dtype.numpy)])[0], n


REFUSED: dict[str, Callable[[], Node]] = {
    "a number that floats have not": lambda: to_i32(ops.mul(size(H), 0.7)),
    "twice rounded": lambda: to_i32(ops.mul(ops.div(size(H), 3.0), 3.0)),
    "ties": lambda: to_i32(ops.RoundEven()(ops.mul(size(H), 0.5))),
    "it may be negative": lambda: to_i32(ops.sub(size(H), 8.0)),
    "half of what nothing bounds from below": lambda: to_i32(ops.div(ops.sub(size(H), size(W)), 2.0)),
    "half of what falls as a size grows": lambda: to_i32(ops.div(ops.sub(8.0, size(H)), 2.0)),
    "by what may be zero": lambda: to_i32(ops.div(size(H), size(H - 1))),
    "few bits": lambda: to_i32(ops.mul(size(H, f16), 0.5)),
    "not a number": lambda: to_i32(ops.mul(size(H), float("nan"))),
}


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_left_to_the_run(name: str) -> None:
    with pytest.raises(Unsupported):
        Sizes().dims(REFUSED[name]())


def test_what_keeps_a_ratio_has_a_bound() -> None:
    ratio = ops.minimum(ops.div(32.0, size(H)), ops.div(48.0, size(W)))
    rounded = to_i32(ops.RoundEven()(ops.mul(ratio, size(H))))
    bound = upper_bound(Sizes().elements, rounded)
    assert isinstance(bound, int) and 32 <= bound <= 34
    other = ops.maximum(ops.div(size(H), 32.0), ops.div(size(W), 48.0))
    shrunk = to_i32(ops.Floor()(ops.div(size(H), other)))
    assert upper_bound(Sizes().elements, shrunk) == 33
    border = ops.maximum(to_i32(ops.Floor()(ops.div(ops.sub(32.0, ops.cast(shrunk, f32)), 2.0))), 0)
    assert upper_bound(Sizes().elements, border) == 17
    share = upper_bound(Sizes().elements, to_i32(ops.mul(size(H), 0.7)))
    assert share is not None
    for n in (1, 10, 1000):
        share_at_n = substitute(share, {"h": n})
        assert isinstance(share_at_n, int) and int(Fraction(7, 10) * n) <= share_at_n <= n + 1


def test_nothing_bounds_what_may_be_anything() -> None:
    x = Input("x", TensorType(f32, ()))()
    assert upper_bound(Sizes().elements, to_i32(x)) is None
    assert upper_bound(Sizes().elements, to_i32(ops.mul(x, size(H)))) is None
    assert upper_bound(Sizes().elements, to_i32(ops.minimum(x, size(H)))) == H + 1


def test_a_size_that_was_found_tells_others() -> None:
    x = Input("x", TensorType(i32, (1,)))()
    place, result = ops.reshape(x, ()), symbol("k")
    rest = ops.sub(ops.scalar(H, i32), ops.index_axis(ops.cast(x, i32), 0, 0))
    assert Sizes().size_of(rest) is None
    assert Sizes().with_size(place, result).size_of(rest) == H - result
