from __future__ import annotations

import random
import re

import ml_dtypes
import numpy as np
import pytest

from ingot.ir.array import Array
from ingot.ir.dims import Dim, dim_max, parse_dim, symbol
from ingot.ir.node import Graph, const
from ingot.ir.parse import ParseError, parse
from ingot.ir.show import show, show_node
from ingot.ir.types import DTYPES, TensorType, bf16, f32
from tests.ir.tiny import TAdd, TAttrs, TBroadcast, TCall, TNeg, TSplit, arg

S, T = symbol("s0"), symbol("batch.n")


def sample() -> Graph:
    x = arg("x", S, 4)
    a, b = TSplit()(TBroadcast((8, S, 4))(x)).results
    inner = arg("p", 4, S, 4)
    body = Graph((inner,), (TNeg()(inner), inner), ("neg", "same"))
    attrs = TAttrs(
        None,
        True,
        -3,
        -1e-05,
        'a "q" \n é',
        bf16,
        TensorType(f32, (S // 3, dim_max(S, T))),
        ((), (1,), (S * 2 - 1, 2.0)),
    )
    n = attrs(TAdd()(a, TCall(body)(b).results[0]), loc="model.py:3")
    conditions = tuple(d for d in (19 - S - T, dim_max(S, T) - 2) if isinstance(d, Dim))
    return Graph((x,), (n, b), ("out", ""), (("s0", 1, 16), ("batch.n", 0, None)), conditions)


# ruff: noqa: E501
GOLDEN = r"""graph(%0 "x": f32[s0,4]) [s0: 1..16, batch.n: 0..] nonnegative [-1*batch.n-1*s0+19, max(batch.n,s0)-2] {
  %1 = t.broadcast(%0) {shape = (8, <s0>, 4)} : f32[8,s0,4]
  %2 = t.split(%1) : f32[4,s0,4], f32[4,s0,4]
  %3 = t.call(%2.1) {body = graph(%0 "p": f32[4,s0,4]) {
    %1 = t.negate(%0) : f32[4,s0,4]
    return %1 "neg", %0 "same"
  }} : f32[4,s0,4], f32[4,s0,4]
  %4 = t.add(%2.0, %3.0) : f32[4,s0,4]
  %5 = t.attrs(%4) {none = none, flag = true, count = -3, ratio = -1e-05, text = "a \"q\" \n \u00e9", dtype = bf16, type = f32[(s0//3),max(batch.n,s0)], dims = ((), (1,), (<2*s0-1>, 2.0))} : f32[4,s0,4]    # model.py:3
  return %5 "out", %2.1 ""
}
"""


def test_golden_and_round_trip() -> None:
    g = sample()
    text = show(g, locations=True)
    assert text == GOLDEN
    parsed = parse(text)
    assert parsed == g
    assert show(parsed, locations=True) == text
    assert parse(show(g)) == g


def test_locations_are_read_back() -> None:
    text = 'graph(%0 "zz": f32[7]) {\n  %1 = t.negate(%0) : f32[7]    # a b.py:1\n  %2 = const 1.5 : f32[]  # c\n'
    text += "  return %1, %2\n}\n"
    g = parse(text)
    assert g.outputs[0].loc == "a b.py:1"
    assert show(g, locations=True).count("#") == 2


def special(name: str) -> np.ndarray:
    dt = DTYPES[name]
    if dt.kind == "b":
        return np.array([True, False])
    if dt.is_integer:
        low = -(1 << (dt.bits - 1)) if dt.kind == "i" else 0
        return np.array([low, 0, 1, low + (1 << dt.bits) - 1], object).astype(dt.numpy)
    info = ml_dtypes.finfo(dt.numpy)
    parts = [info.max, info.min, info.tiny, info.smallest_subnormal, 0.1, -0.0, 1, 1e-3, np.nan, 1 / 3]
    return np.array([dt.numpy.type(p) for p in parts] + [dt.numpy.type(np.inf)], dt.numpy)


@pytest.mark.parametrize("name", list(DTYPES))
def test_constants_keep_every_bit(name: str) -> None:
    for value in (special(name), special(name)[:1].reshape(()), special(name)[:0], np.repeat(special(name)[:1], 99)):
        g = Graph((), (const(value),))
        parsed = parse(show(g))
        assert parsed == g, show(g)
    bits = DTYPES[name].bits
    if DTYPES[name].is_float and bits >= 16:
        raw = np.random.default_rng(0).integers(0, 1 << 62, 400, np.uint64).astype(f"u{bits // 8}")
        value = raw.view(DTYPES[name].numpy)
        nans = (raw | ((1 << bits) - 1) >> 1 & ~np.array(0, raw.dtype)).view(DTYPES[name].numpy)[:3]
        for v in (value, nans):
            g = Graph((), (const(v),))
            assert parse(show(g, inline=999)) == g


def test_large_constants_live_in_the_table_once() -> None:
    big = np.arange(5000, dtype=np.float32)
    a, b = const(big), const(np.arange(40, dtype=np.int8))
    g = Graph((), (a, b, TNeg()(a)))
    table: list[Array] = []
    text = show(g, table=table)
    assert text.count("const<#0 f32[5000]>") == 1
    assert "const<#1 i8[40]>" in text
    assert table[0].value is big
    assert parse(text, table) == g
    with pytest.raises(ParseError, match=r"entry #0 is not in the table of 0 constants"):
        parse(text)
    with pytest.raises(ParseError, match=r"entry #1 of the table: expected i8\[40\], got float32\[5000\]"):
        parse(text, [Array(big), Array(big)])


def test_node_line() -> None:
    x = arg("x", 2)
    assert re.fullmatch(r"%\d+ = t\.negate\(%\d+\) : f32\[2\]    # here", show_node(TNeg()(TNeg()(x), loc="here")))


HEAD = 'graph(%0 "x": f32[2]) {\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"1:1: expected 'graph', got the end"),
        ("grap", r"1:1: expected 'graph', got 'grap'"),
        (HEAD + "  %1 = nosuch(%0) : f32[2]\n", r"2:8: no op is named 'nosuch'"),
        (HEAD + "  %1 = t.negate(%9) : f32[2]\n", r"2:17: %9 is not defined above"),
        (HEAD + "  %0 = t.negate(%0) : f32[2]\n", r"2:3: %0 is defined twice"),
        (HEAD + "  %1 = t.negate(%0) : f32[3]\n", r"2:8: t.negate: the text says f32\[3\], the type rule f32\[2\]"),
        (HEAD + "  %1 = t.negate(%0) {a = 1} : f32[2]\n", r"2:22: t.negate: attribute 'a' is none of \[\]"),
        (HEAD + "  %1 = t.broadcast(%0) : f32[2]\n", r"2:24: t.broadcast: .*missing 1 required"),
        (HEAD + "  %1 = t.broadcast(%0) {shape = none} : f32[2]\n", r"2:8: "),
        (HEAD + "  %1 = t.negate() : f32[2]\n", r"2:8: "),
        (HEAD + "  %1 = t.negate(%0.1) : f32[2]\n", r"2:17: %0 has 1 results, got index 1"),
        (HEAD + "  %1 = const 1 : f32[]\n", r"2:14: expected an element of f32, got 1"),
        (HEAD + "  %1 = const [1.0] : f32[2]\n", r"2:14: f32\[2\] has 2 elements, got 1"),
        (HEAD + "  %1 = const 300 : i8[]\n", r"2:14: 300 is out of range for i8"),
        (HEAD + "  %1 = const all 1.0 : f32[99999999999]\n", r"2:14: a constant of 99999999999 elements is too large"),
        (HEAD + "  %1 = const all 1.0 : f32[s]\n", r"2:14: a constant of type f32\[s\]: expected a static shape"),
        (HEAD + "  %1 = const nan(0x0) : f32[]\n", r"2:14: nan\(0x0\) is a number in f32"),
        (HEAD + "  return %0 $", r"2:13: unexpected '\$'"),
        (HEAD + "  return %0 'a'", r"2:13: unexpected"),
        (HEAD + '  return %0 "a", %0 }', r"2:21: expected a name for each of the 2 results or for none, got 1"),
        (HEAD + "  return %0 } x", r"2:15: expected the end, got 'x'"),
        ('graph(%0 "x": f32[s//0]) { return }', r"1:19: "),
        ('graph(%0 "x": f33[2]) { return }', r"1:15: expected a value or one of .*, got 'f33'"),
        ('graph(%0 "\\q": f32[2]) { return }', r"1:10: malformed text"),
        ('graph(%0 "x": f32[2', r"1:18: a shape is not closed"),
        (HEAD + "  %1 = t.call(%0) {body = " + "(" * 100, r"nest deeper"),
    ],
)
def test_errors_say_where(text: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        parse(text)


def test_mangled_text_never_raises_anything_else() -> None:
    text = show(sample(), locations=True)
    r = random.Random(7)
    for _ in range(1500):
        at, n = r.randrange(len(text)), r.randrange(1, 6)
        piece = r.choice(["", "(", ")", "<", "}", "9" * 30, "-", "none", "%1", '"', "graph", text[at : at + 9]])
        try:
            parse(text[:at] + piece + text[at + n :])
        except ParseError as e:
            assert re.match(r"\d+:\d+: ", str(e))


def test_sizes_read_back() -> None:
    r = random.Random(3)
    from ingot.ir.dims import ceildiv, dim_min, floordiv, mod

    def make(depth: int):
        if not depth:
            return r.choice([S, T, symbol("k"), r.randrange(-3, 7)])
        a, b = make(depth - 1), make(depth - 1)
        fn = r.choice(["+", "-", "*", "max", "min", "//", "%", "cd"])
        if fn in "//%cd":
            b = r.choice([2, 3, 4, 8, S])
        return (
            {"+": a + b, "-": a - b, "*": a * b}.get(fn)
            if fn in "+-*"
            else ({"max": dim_max, "min": dim_min, "//": floordiv, "%": mod, "cd": ceildiv}[fn](a, b))
        )

    for _ in range(800):
        d = make(r.randrange(4))
        assert parse_dim(str(d)) == d, str(d)
