"""Pooling to a given output size: each output reduces its share of the image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ingot.ir.dims import DimLike, dim_max, dim_min, exact_quotient, is_static, product
from ingot.ir.node import Node, Op, Samples
from ingot.ir.types import Shape, TensorType, dtype_of
from ingot.ops.core.base import check_count, identity_of, round_to, widen
from ingot.ops.core.reduce import ReduceWindow
from ingot.ops.nn import terms as t
from ingot.ops.nn.pool import sample_image
from ingot.ops.nn.terms import Term, Value
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class AdaptivePool(Op):
    """Base: x[N,C,*S] -> [N,C,*output_size]; output i reduces x[floor(i S / out):ceil((i + 1) S / out)] per axis.

    As torch.nn.AdaptiveAvgPool2d and its like.
    """

    output_size: Shape

    def infer(self, *inputs: TensorType) -> TensorType:
        check_count(self, inputs, 1)
        (x,) = inputs
        spatial = len(self.output_size)
        self.expect(x.rank == spatial + 2, f"expected x of rank {spatial + 2} (N, C and {spatial} sizes), got {x}")
        self.expect(x.dtype.kind != "b", f"expected a number operand, got {x}")
        has_empty = any(d == 0 and out != 0 for d, out in zip(x.shape[2:], self.output_size, strict=True))
        self.expect(not has_empty, f"expected spatial sizes other than 0, got {x}")
        return x.with_shape((*x.shape[:2], *self.output_size))

    def spans(self, shape: Shape, d: int) -> list[tuple[int, int]]:
        """The first and one-past-last index of each window along dimension d, for static sizes."""
        return _spans(int(shape[d]), int(self.output_size[d - 2]))

    def reduce_regular(self, x: Term, kind: str, dims: Sequence[tuple[int, DimLike]]) -> Term:
        """x with each dimension d of the pairs (d, factor) reduced by `factor` neighbors at a time."""
        full_dims = tuple(d for d, factor in dims if factor == x.shape[d])
        out = x.reduce(kind, full_dims)
        partial_dims = [(d, f) for d, f in dims if d not in full_dims]
        if not partial_dims:
            return out
        if is_static(f for _, f in partial_dims):
            window = [1] * x.rank
            for d, f in partial_dims:
                window[d] = int(f)
            ones, zero = (1,) * x.rank, ((0, 0),) * x.rank
            return out.map(ReduceWindow(kind, tuple(window), tuple(window), zero, ones, ones))
        # a window of symbolic size becomes a dimension of its own
        for d, f in partial_dims:
            shape = out.shape
            split = out.reshape((*shape[:d], exact_quotient(shape[d], f) or 0, f, *shape[d + 1 :]))
            out = split.reduce(kind, (d + 1,), keepdims=False)
        return out

    def gather_windows(self, x: Term, d: int, kind: str) -> tuple[Term, Term]:
        """The windows along dimension d as rows of equal length, along dimension d + 1, and their element counts.

        Elements of a row that are outside its window are the identity of the reduction `kind`.
        """
        size, out = x.shape[d], self.output_size[d - 2]
        first, end = _bounds(size, out)
        if isinstance(size, int) and isinstance(out, int):
            longest: DimLike = max((b - a for a, b in _spans(size, out)), default=1)
        else:
            longest = dim_min(dim_max((size + out - 1) // out + 1, 1), size)
        start = t.as_term(t.minimum(first, t.size(size - longest)))
        x = t.windows(x, start, longest, d)
        positions, f, e = start.expand(1) + t.as_term(t.arange(longest)), t.as_term(first), t.as_term(end)
        is_inside = (positions >= f.expand(1)) & (positions < e.expand(1))
        return t.as_term(t.where(is_inside.spread(x.shape, (d, d + 1)), x, identity_of(kind, x.dtype))), e - f

    def split_dims(self, shape: Shape) -> tuple[list[tuple[int, DimLike]], list[int]]:
        """(dimension, window size) of the dimensions whose windows have one size, and the other dimensions."""
        regular: list[tuple[int, DimLike]] = []
        irregular: list[int] = []
        for i, out in enumerate(self.output_size):
            size = shape[i + 2]
            factor = exact_quotient(size, out) if out != 0 else None
            if out == size:
                continue
            if factor is None:
                irregular.append(i + 2)
            else:
                regular.append((i + 2, factor))
        return regular, irregular


def _bounds(size: DimLike, out: DimLike) -> tuple[Value, Value]:
    """The first and one-past-last input index of each window."""
    i, n, m = t.arange(out), t.size(size), t.size(out)
    return t.div_floor(i * n, m), t.div_floor((i + 1) * n + m - 1, m)


def _spans(size: int, out: int) -> list[tuple[int, int]]:
    return [(i * size // out, -((-(i + 1) * size) // out)) for i in range(out)]


def _adaptive_reference(x: np.ndarray, sizes: Shape, mean: bool) -> np.ndarray:
    for i, out in enumerate(sizes):
        spans = _spans(x.shape[i + 2], int(out))
        parts = [np.take(x, range(a, b), i + 2) for a, b in spans]
        results = [p.mean(i + 2) if mean else p.max(i + 2) for p in parts]
        x = np.stack(results, i + 2) if results else np.take(x, [], i + 2)
    return x


def _adaptive_samples(cls: type[AdaptivePool]) -> Samples:
    x = sample_image(2, 3, 9, 10)
    for size in ((1, 1), (3, 5), (9, 10), (4, 3), (3, 4), (11, 2), (1, 5)):
        yield cls(size), (x,)
    yield cls((3,)), (sample_image(2, 2, 7).astype(np.float16),)
    yield cls((2, 1, 2)), (sample_image(1, 2, 4, 3, 5),)
    yield cls((2,)), (sample_image(0, 2, 5),)
    yield cls((3,)), (sample_image(2, 2, 7).astype(np.float64),)
    yield cls((3, 4)), (np.where(x > x.max() - 0.2, np.nan, np.where(x < x.min() + 0.2, np.inf, x)),)


@dataclass(frozen=True)
class AdaptiveAvgPool(AdaptivePool):
    """The mean of each adaptive window: x[N,C,*S] -> [N,C,*output_size], floats."""

    name: ClassVar[str] = "adaptive_avg_pool"

    def infer(self, *inputs: TensorType) -> TensorType:
        out = super().infer(*inputs)
        self.expect(out.dtype.is_float, f"expected a float operand, got {inputs[0]}")
        return out

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        return round_to(_adaptive_reference(t.as_f64(inputs[0]), self.output_size, True), dtype_of(inputs[0]))

    def lower(self, *inputs: Node) -> Node:
        (node,) = inputs
        x = t.widen_narrow(node)
        regular, irregular = self.split_dims(node.shape)
        if regular:
            x = self.reduce_regular(x, "sum", regular) / t.size(product(f for _, f in regular), x.dtype)
        for d in irregular:
            # no product with an averaging matrix: its zeros would spread NaN and infinities to all windows
            windows, count = self.gather_windows(x, d, "sum")
            total = windows.sum((d + 1,), keepdims=False)
            x = total / count.cast(x.dtype).spread(total.shape, (d,))
        return x.cast(node.dtype).node

    @classmethod
    def samples(cls) -> Samples:
        yield from _adaptive_samples(cls)


@dataclass(frozen=True)
class AdaptiveMaxPool(AdaptivePool):
    """The largest element of each adaptive window: x[N,C,*S] -> [N,C,*output_size]."""

    name: ClassVar[str] = "adaptive_max_pool"

    def reference(self, *inputs: np.ndarray) -> np.ndarray:
        return round_to(_adaptive_reference(widen(inputs[0]), self.output_size, False), dtype_of(inputs[0]))

    def lower(self, *inputs: Node) -> Node:
        (node,) = inputs
        regular, irregular = self.split_dims(node.shape)
        x = self.reduce_regular(Term(node), "max", regular)
        for d in irregular:
            windows, _ = self.gather_windows(x, d, "max")
            x = windows.max((d + 1,), keepdims=False)
        return x.node

    @classmethod
    def samples(cls) -> Samples:
        yield from _adaptive_samples(cls)
        yield cls((3, 2)), (np.arange(60, dtype=np.int32).reshape(1, 2, 6, 5),)
