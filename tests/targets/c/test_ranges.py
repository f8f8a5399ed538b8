"""Ranges of a kernel's scalars: what they say holds for every run of the loops, and C takes 32 bits where it fits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ingot.ir import kernel as k
from ingot.ir.kernel import Buffer, Kernel, integer
from ingot.ir.kernel.arithmetic import ARITHMETIC, COMPARE
from ingot.ir.types import f32, i32, i64
from ingot.schedule.block import Block
from ingot.targets.c.printer import print_kernel
from ingot.targets.c.ranges import Ranges

SPANS = [(0, 0), (0, 3), (-2, 5), (4, 9), (-7, -1), (3, 3)]


@pytest.mark.parametrize("fn", ["add", "sub", "mul", "div", "rem", "min", "max", "lt", "le", "gt", "ge", "eq", "ne"])
def test_every_value_is_within_its_range(fn: str):
    a, b = k.var("a"), k.var("b")
    for x, y in itertools.product(SPANS, SPANS):
        ranges = Ranges()
        ranges.bind(a, x)
        ranges.bind(b, y)
        span = ranges.of(k.binary(fn, a, b))
        if span is None:
            continue
        for i, j in itertools.product(range(x[0], x[1] + 1), range(y[0], y[1] + 1)):
            if fn in ("div", "rem") and j == 0:
                continue
            value = int({**ARITHMETIC, **COMPARE}[fn](np.array([i]), np.array([j]))[0])
            assert span[0] <= value <= span[1], (fn, x, y, i, j)


def _printed(extent: k.Expr, dims: tuple[k.Var, ...] = ()) -> str:
    x, y, top = Buffer("x", f32), Buffer("y", f32, writable=True), Block()

    def body(block: Block, i: k.Expr) -> None:
        at = block.let(k.add(k.mul(i, integer(3)), integer(1)), "at")
        block.store(y, at, k.load(x, at))

    top.loop("i", integer(0), extent, 1, body)
    return print_kernel(Kernel("k", (x, y), dims, k.var("chunk"), integer(1), top.body))


def test_indices_have_32_bits_where_they_fit():
    assert "int64_t" not in _printed(integer(1000)) and "for (ig_index" in _printed(integer(1000))
    assert "for (int64_t" in _printed(integer(1 << 33))
    n = k.var("n")
    assert "for (int64_t" in _printed(n, (n,))  # a size that nobody bounds


def test_a_branch_that_is_always_taken_is_no_branch():
    y, top = Buffer("y", f32, writable=True), Block()

    def body(block: Block, i: k.Expr) -> None:
        condition, other = k.binary("lt", i, integer(10)), k.binary("ge", i, integer(5))
        block.when(condition, lambda b: b.store(y, i, k.lit(1.0, f32)), lambda b: b.store(y, i, k.lit(2.0, f32)))
        block.when(other, lambda b: b.store(y, i, k.lit(3.0, f32)))

    top.loop("i", 0, 10, 1, body)
    text = print_kernel(Kernel("k", (y,), (), k.var("chunk"), integer(1), top.body))
    assert "2.0f" not in text and text.count("if (") == 1


def test_a_product_is_of_what_registers_held_when_it_was_bound():
    """The upper half of a product is one function, but not of a register that was written since."""
    result, top = Buffer("out", i32, writable=True), Block()
    acc = top.alloc("acc", i32, 1)
    top.store(acc, integer(0), k.lit(1 << 20, i32))
    wide = top.let(k.cast(k.load(acc, integer(0)), i64), "w")
    loaded = top.let(k.load(acc, integer(0)), "h")
    top.store(acc, integer(0), k.lit(5, i32))
    for place, x in enumerate((wide, top.let(k.cast(loaded, i64), "x"))):
        product = top.let(k.mul(x, k.cast(k.lit(3 << 20, i32), i64)), "p")
        total = top.let(k.binary("add", product, k.lit(1 << 31, i64)), "t")
        top.store(result, integer(place), k.cast(k.binary("ashr", total, k.lit(32, i64)), i32))
    text = print_kernel(Kernel("k", (result,), (), k.var("chunk"), integer(1), top.body))
    assert text.count("ig_mul_high(") == 1
