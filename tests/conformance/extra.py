"""More inputs than the ops' own samples: long odd sizes that need vector tails, special values, every dtype."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ingot import ops
from ingot.ir.node import Op
from ingot.ir.types import DTYPES, dtype_of
from ingot.ops.core.samples import values

Samples = Iterator[tuple[Op, tuple[np.ndarray, ...]]]
NUMBERS = ("f32", "f64", "f16", "bf16", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")


def numbers(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    """Numbers whose sums of products are exact in f32."""
    kind = DTYPES[dtype]
    ints = np.random.default_rng([seed, *shape]).integers(0 if kind.kind == "u" else -9, 10, shape)
    return (ints / 8 if kind.is_float else ints).astype(kind.numpy)


def special(dtype: str, *shape: int) -> np.ndarray:
    """All edge values of a dtype, in a pattern that meets every lane."""
    v = values(DTYPES[dtype])
    return np.resize(np.concatenate([v, v[::-1], v[3:]]), shape)


def extra(cls: type[Op]) -> Samples:
    """More samples of an op."""
    if issubclass(cls, ops.Elementwise):
        return _long(cls)
    return _MORE.get(cls, _none)()


def _none() -> Samples:
    yield from ()


def _long(cls: type[Op]) -> Samples:
    """The op's samples, at lengths that fill vectors and leave a tail."""
    visited: set[tuple[Op, tuple]] = set()
    for op, inputs in cls.samples():
        key = op, tuple(dtype_of(x) for x in inputs)
        if key in visited or not inputs[0].size:
            continue
        visited.add(key)
        for shape in ((67,), (3, 1, 33)):
            yield op, tuple(np.resize(np.roll(x.reshape(-1), i), shape) for i, x in enumerate(inputs))


def _reduce() -> Samples:
    for dtype in NUMBERS:
        for kind in ("sum", "max", "min"):
            yield ops.Reduce(kind, (1,)), (numbers(dtype, 5, 67),)
            yield ops.Reduce(kind, (0,)), (numbers(dtype, 67, 5),)
        yield ops.Reduce("max", (1,)), (special(dtype, 3, 40),)
        yield ops.Reduce("min", (0,)), (special(dtype, 40, 17),)
    x = numbers("f32", 3, 1, 33, 2)
    for dims in ((), (0, 1, 2, 3), (0, 2), (1, 3), (2,), (1,)):
        yield ops.Reduce("sum", dims), (x,)
    yield ops.Reduce("sum", (0, 1)), (numbers("f32", 200, 301),)
    yield ops.Reduce("sum", (1,)), (special("f32", 5, 33),)
    yield ops.Reduce("prod", (0,)), (np.zeros((0, 20), np.float32),)


def _arg_reduce() -> Samples:
    for dtype in NUMBERS:
        for kind, last in (("max", False), ("min", True)):
            yield ops.ArgReduce(kind, 1, last), (special(dtype, 3, 41),)
            yield ops.ArgReduce(kind, 0, last), (special(dtype, 19, 37),)
    for kind in ("max", "min"):
        yield ops.ArgReduce(kind, 0, False), (np.full((5, 33), np.nan, np.float32),)
        yield ops.ArgReduce(kind, 0, False), (np.full((5, 33), -np.inf if kind == "max" else np.inf, np.float32),)
        yield ops.ArgReduce(kind, 1, True), (np.full((2, 1, 3), 7, np.int32),)


def _dot() -> Samples:
    plain = ((), ()), ((1,), (0,))
    for dtype in NUMBERS:
        for m, k, n in ((6, 5, 17), (1, 33, 1), (9, 1, 40), (17, 70, 33)):
            yield ops.DotGeneral(*plain), (numbers(dtype, m, k), numbers(dtype, k, n, seed=1))
        yield ops.DotGeneral(((0,), (0,)), ((2,), (2,))), (numbers(dtype, 3, 5, 19), numbers(dtype, 3, 18, 19, seed=1))
    i32 = DTYPES["i32"]
    for a, b in (("i8", "i8"), ("u8", "i8"), ("i16", "i16")):
        yield ops.DotGeneral(*plain, i32), (special(a, 5, 36), special(b, 36, 19))
    yield ops.DotGeneral(*plain), (special("f32", 4, 22), np.ones((22, 18), np.float32))
    yield ops.DotGeneral(*plain), (np.zeros((3, 0), np.float32), np.zeros((0, 18), np.float32))
    yield ops.DotGeneral(*plain), (np.zeros((0, 4), np.float32), numbers("f32", 4, 18))
    yield ops.DotGeneral(((), ()), ((), ())), (numbers("f32", 3), numbers("f32", 5))


def _convolution() -> Samples:
    one = (1, 1)
    for dtype in NUMBERS:
        # plain, grouped, depthwise, depthwise with a multiplier
        for c, o, groups in ((3, 17, 1), (4, 6, 2), (20, 20, 20), (5, 10, 5)):
            op = ops.Convolution((2, 1), ((1, 1), (0, 2)), one, (1, 2), "NCHW", "OIHW", "NCHW", groups)
            yield op, (numbers(dtype, 2, c, 7, 9), numbers(dtype, o, c // groups, 3, 2, seed=1))
    for layouts in ("NHWC HWIO NHWC", "CNHW IOHW NCHW", "NCHW OIHW NHWC", "NWCH OIHW WNCH"):
        lhs, rhs, result_layout = layouts.split()
        op = ops.Convolution(one, ((1, 0), (0, 1)), (2, 1), one, lhs, rhs, result_layout)
        sizes = {"N": 2, "C": 5, "H": 6, "W": 4}
        kernel = {"O": 7, "I": 5, "H": 3, "W": 2}
        yield op, (numbers("f32", *(sizes[a] for a in lhs)), numbers("f32", *(kernel[a] for a in rhs)))


def _window() -> Samples:
    one = (1, 1, 1)
    for dtype in NUMBERS:
        for kind in ("max", "sum", "min"):
            op = ops.ReduceWindow(kind, (1, 3, 1), (1, 2, 1), ((0, 0), (1, 2), (0, 0)), one, one)
            yield op, (numbers(dtype, 2, 9, 33),)
        op = ops.ReduceWindow("max", (1, 1, 3), (1, 1, 2), ((0, 0), (0, 0), (1, 1)), one, one)
        yield op, (special(dtype, 2, 3, 35),)
    yield ops.ReduceWindow("max", (1, 2, 3), one, ((0, 0), (0, 0), (0, 0)), one, one), (numbers("f32", 1, 19, 3),)


def _pad() -> Samples:
    for dtype in (*NUMBERS, "bool"):
        x = special(dtype, 3, 19)
        for fill in (np.zeros((), x.dtype), x.reshape(-1)[2]):
            yield ops.Pad((1, 2), (0, 3), (0, 0)), (x, np.asarray(fill))
            yield ops.Pad((-1, 2), (2, -3), (1, 2)), (x, np.asarray(fill))


def _movement_ops() -> dict[type[Op], list[Op]]:
    return {
        ops.Transpose: [ops.Transpose((2, 0, 1)), ops.Transpose((0, 2, 1)), ops.Transpose((1, 0, 2))],
        ops.Reshape: [ops.Reshape(s) for s in ((19, 34, 3), (2, 19, 3, 17), (1938,), (6, 17, 19))],
        ops.Slice: [ops.Slice((1, 2, 3), (5, 17, 18), (2, 1, 3)), ops.Slice((0, 1, 0), (6, 1, 19), (1, 1, 1))],
        ops.Reverse: [ops.Reverse((2,)), ops.Reverse((0, 1))],
        ops.BroadcastInDim: [ops.BroadcastInDim((6, 2, 17, 19), (0, 2, 3))],
    }


def _movement_samples(cls: type[Op]) -> Samples:
    for dtype in (*NUMBERS, "bool"):
        for op in _movement_ops()[cls]:
            yield op, (special(dtype, 6, 17, 19),)


def _concat() -> Samples:
    for dtype in (*NUMBERS, "bool"):
        for axis, sizes in ((0, (1, 3)), (2, (5, 1, 17)), (1, (0, 4))):
            shapes = [[2, 3, 4] for _ in sizes]
            for shape, n in zip(shapes, sizes, strict=True):
                shape[axis] = n
            yield ops.Concat(axis), tuple(special(dtype, *shape) for shape in shapes)


def _sort() -> Samples:
    for dtype in NUMBERS:
        for descending in (False, True):
            yield ops.Sort(1, descending), (special(dtype, 3, 41), np.arange(123).reshape(3, 41))
    yield ops.Sort(0), (special("f32", 40, 3),)


def _cumulative() -> Samples:
    for dtype in NUMBERS:
        for kind in ("sum", "max"):
            yield ops.CumReduce(kind, 1), (numbers(dtype, 3, 37),)
            yield ops.CumReduce(kind, 0, True, True), (numbers(dtype, 19, 18),)
    yield ops.CumReduce("max", 0), (special("f32", 41),)


_MORE = {
    ops.Reduce: _reduce,
    ops.ArgReduce: _arg_reduce,
    ops.DotGeneral: _dot,
    ops.Convolution: _convolution,
    ops.ReduceWindow: _window,
    ops.Pad: _pad,
    ops.Concat: _concat,
    ops.Sort: _sort,
    ops.CumReduce: _cumulative,
    **{cls: lambda cls=cls: _movement_samples(cls) for cls in _movement_ops()},
}
