"""Turns of loops that sizes and constants tell."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType, i32, i64
from ingot.ops.core.turns import turns, value_of


def counting(*conditions: tuple[str, object], step: int = 1) -> ops.While:
    """A loop with a counter for each of the conditions, all of which a turn asks for: (direction, bound)."""
    entry = tuple(Input(f"i{k}", TensorType(i64))() for k in range(len(conditions)))
    parts = [ops.compare(d, i, bound) for i, (d, bound) in zip(entry, conditions, strict=True)]  # type: ignore[arg-type]
    ends = parts[0]
    for part in parts[1:]:
        ends = ops.And()(ends, part)
    return ops.While(Graph(entry, (ends,)), Graph(entry, tuple(ops.add(i, step) for i in entry)))


@pytest.mark.parametrize(
    ("conditions", "first", "expected"),
    [
        ((("LT", 5), ("LT", 3)), (0, 0), 3),
        ((("LT", 5), ("LE", 5)), (2, 0), 3),
        ((("LT", 5), ("LT", 3), ("LT", 9)), (0, 4, 0), 0),
        ((("LT", 5), ("GT", 3)), (0, 4), None),  # the second goes away from its bound
        ((("LT", 5), ("LT", 3)), (0, None), None),
    ],
)
def test_the_first_of_several_counters_ends_a_loop(
    conditions: tuple[tuple[str, object], ...], first: tuple[int | None, ...], expected: int | None
) -> None:
    assert turns(counting(*conditions), lambda i: first[i]) == expected


def test_an_element_of_a_vector_of_sizes() -> None:
    """As TensorFlow takes the steps of a sequence from its shape."""
    n = symbol("n")

    def entry(x: Node) -> Node:
        return ops.reshape(ops.cast(x, i32), (1,))

    shape = ops.Concat(0)(entry(ops.DimValue(n)()), entry(const(7, np.int64)))
    first, second = (ops.reshape(ops.Slice((k,), (k + 1,), (1,))(shape), ()) for k in range(2))
    assert value_of(first) == n
    assert value_of(second) == 7
    loop = counting(("LT", ops.cast(first, i64)), ("LT", ops.cast(first, i64)))
    assert turns(loop, lambda i: 0) == n
