"""Helpers for tests of passes."""

from __future__ import annotations

import zlib

import numpy as np

from ingot.ir.array import Array
from ingot.ir.dims import DimLike, substitute
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, Op
from ingot.ir.parse import parse
from ingot.ir.show import show
from ingot.ir.types import DType, TensorType, f32
from ingot.ir.verify import verify


def arg(label: str, *shape: DimLike, dtype: DType = f32) -> Node:
    return Input(label, TensorType(dtype, shape))()


def graph(*outputs: Node) -> Graph:
    """The graph of `outputs`, its inputs in order of appearance."""
    results = [n for n in Graph((), outputs).nodes() if isinstance(n.op, Input)]
    return Graph(tuple(results), outputs)


def random_inputs(g: Graph, sizes: dict[str, int]) -> list[np.ndarray]:
    arrays: list[np.ndarray] = []
    for n in g.inputs:
        assert isinstance(n.op, Input)
        shape = tuple(int(substitute(d, sizes)) for d in n.shape)  # type: ignore[arg-type]
        r = np.random.default_rng(zlib.crc32(n.op.label.encode()))
        values = r.standard_normal(shape) if n.dtype.is_float else r.integers(0, 5, shape)
        arrays.append(np.asarray(values).astype(n.dtype.numpy))
    return arrays


def same_values(before: Graph, after: Graph, tolerance: float = 0, **sizes: int) -> None:
    """`after` is well formed, prints and parses back, and computes what `before` does."""
    verify(after, "the pass")
    table: list[Array] = []
    text = show(after, table=table)
    assert parse(text, table) == after
    data = random_inputs(before, sizes)
    for want, got in zip(interpret(before, data), interpret(after, data), strict=True):
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance, equal_nan=True
        )


def count(g: Graph, *classes: type[Op]) -> int:
    return sum(isinstance(n.op, classes) for n in g.nodes())
