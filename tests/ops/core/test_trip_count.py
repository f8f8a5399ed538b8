"""Trip counts of loops that are known from sizes and constants."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType, i32, i64
from ingot.ops.core.trip_count import static_value, trip_count


def counting_loop(*conditions: tuple[str, object], step: int = 1) -> ops.While:
    """A loop with one counter for each condition (direction, bound), which runs while all hold."""
    entry = tuple(Input(f"i{k}", TensorType(i64))() for k in range(len(conditions)))
    parts = [ops.compare(d, i, bound) for i, (d, bound) in zip(entry, conditions, strict=True)]  # type: ignore[arg-type]
    condition = parts[0]
    for part in parts[1:]:
        condition = ops.And()(condition, part)
    return ops.While(Graph(entry, (condition,)), Graph(entry, tuple(ops.add(i, step) for i in entry)))


@pytest.mark.parametrize(
    ("conditions", "first", "expected"),
    [
        ((("LT", 5), ("LT", 3)), (0, 0), 3),
        ((("LT", 5), ("LE", 5)), (2, 0), 3),
        ((("LT", 5), ("LT", 3), ("LT", 9)), (0, 4, 0), 0),
        ((("LT", 5), ("GT", 3)), (0, 4), None),  # the second counter moves away from its bound
        ((("LT", 5), ("LT", 3)), (0, None), None),
    ],
)
def test_several_counters(
    conditions: tuple[tuple[str, object], ...], first: tuple[int | None, ...], expected: int | None
) -> None:
    assert trip_count(counting_loop(*conditions), lambda i: first[i]) == expected


def test_size_from_shape_vector() -> None:
    """TensorFlow models take the number of steps from the shape of a sequence like this."""
    n = symbol("n")

    def entry(x: Node) -> Node:
        return ops.reshape(ops.cast(x, i32), (1,))

    shape = ops.Concat(0)(entry(ops.DimValue(n)()), entry(const(7, np.int64)))
    first, second = (ops.reshape(ops.Slice((k,), (k + 1,), (1,))(shape), ()) for k in range(2))
    assert static_value(first) == n
    assert static_value(second) == 7
    loop = counting_loop(("LT", ops.cast(first, i64)), ("LT", ops.cast(first, i64)))
    assert trip_count(loop, lambda i: 0) == n
