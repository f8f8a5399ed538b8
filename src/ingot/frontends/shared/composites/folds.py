"""Folds of the windows along an axis by any associative function, of open sizes too."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ingot import ops
from ingot.frontends.shared import bodies
from ingot.frontends.shared.computed_sizes import ComputedSizes
from ingot.ir.dims import DimLike
from ingot.ir.node import Node
from ingot.ir.types import i64

Combine = Callable[[Sequence[Node], Sequence[Node]], Sequence[Node]]


def window_folds(
    computed_sizes: ComputedSizes, combine: Combine, xs: Sequence[Node], axis: int, size: DimLike, loc: str = ""
) -> list[Node]:  # fmt: skip
    """The folds of the windows of `size` >= 1 neighbours that begin at each element of an axis, in order. Those of
    windows beyond its end are of no use. combine: of tensors of the shape of xs.

    In log2(size) steps, by folds of 1, 2, 4, ... neighbours, of which those add up to a window that are bits of its
    size (Hillis and Steele, "Data parallel algorithms", 1986).
    """
    n, window = xs[0].shape[axis], ops.scalar(size, i64)
    if n == 0:
        return list(xs)
    line = ops.arange(n)

    def shifted(values: Sequence[Node], by: Node) -> list[Node]:
        places = ops.clip(ops.add(line, by), 0, n - 1)
        return [ops.Take(axis)(v, places) for v in values]

    def step(values: Sequence[Node]) -> list[Node]:
        span, done, (folds, totals) = values[0], values[1], (values[2 : 2 + len(xs)], values[2 + len(xs) :])
        is_bit = ops.compare("NE", ops.And()(window, span), 0)
        is_first = ops.compare("EQ", done, 0)
        longer = combine(totals, shifted(folds, done))
        new = [ops.where(is_first, f, t) for f, t in zip(folds, longer, strict=True)]
        totals = [ops.where(is_bit, a, b) for a, b in zip(new, totals, strict=True)]
        doubled = combine(folds, shifted(folds, span))
        return [ops.mul(span, 2), ops.where(is_bit, ops.add(done, span), done), *doubled, *totals]

    starts = [ops.scalar(1, i64), ops.scalar(0, i64), *xs, *xs]
    end = bodies.loop(computed_sizes, starts, lambda v: ops.compare("LE", v[0], window), step, loc)
    return list(end[2 + len(xs) :])
