"""Random graphs with random marks, on simulated devices as on one."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType, f32, i64
from ingot.transform.shard.graph import shard
from ingot.transform.shard.mesh import mesh_of
from ingot.transform.shard.simulate import simulate

MESHES = ({"a": 2}, {"a": 4}, {"a": 2, "b": 2})
SIZES = (1, 2, 3, 4, 8)


class Maker:
    """A graph of a dozen ops on values of up to three dimensions, whose magnitudes stay small."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.values: list[Node] = []

    def pick(self, rank: int | None = None) -> Node:
        results = [v for v in self.values if rank is None or len(v.shape) == rank]
        return results[self.rng.integers(len(results))] if results else self.weight(rank or 1)

    def shape(self, rank: int) -> tuple[int, ...]:
        return tuple(int(self.rng.choice(SIZES)) for _ in range(rank))

    def weight(self, rank: int, shape: tuple[int, ...] | None = None) -> Node:
        shape = self.shape(rank) if shape is None else shape
        return const(self.rng.integers(-2, 3, shape).astype(np.float32), loc=f"w{len(self.values)}")

    def op(self) -> Node:
        rng, x = self.rng, self.pick()
        rank = len(x.shape)
        axis = int(rng.integers(rank)) if rank else 0
        match rng.integers(16):
            case 0:
                return [ops.Relu(), ops.Neg(), ops.Tanh(), ops.Gelu()][rng.integers(4)](x)
            case 1 | 2:
                candidates = [v for v in self.values if v.shape == x.shape] + [
                    self.weight(rank, tuple(map(int, x.shape)))
                ]
                build = [ops.add, ops.sub, ops.mul, ops.maximum][rng.integers(4)]
                return ops.Tanh()(build(x, candidates[rng.integers(len(candidates))]))
            case 3 | 4 | 5:
                x = x if rank >= 2 else self.pick(2)
                depth, result_size = int(x.shape[-1]), int(rng.choice(SIZES))
                shape = (*map(int, x.shape[:-2]), depth, result_size) if rng.integers(2) else (depth, result_size)
                return ops.div(ops.MatMul()(x, self.weight(0, shape)), float(depth))
            case 6:
                return ops.transpose(x, tuple(map(int, rng.permutation(rank))))
            case 7:
                sizes = [int(d) for d in x.shape]
                if rank >= 2 and rng.integers(2):
                    at = int(rng.integers(rank - 1))
                    return ops.reshape(x, (*sizes[:at], sizes[at] * sizes[at + 1], *sizes[at + 2 :]))
                half = [i for i, d in enumerate(sizes) if d % 2 == 0]
                if not half or rank == 3:
                    return ops.reshape(x, (int(np.prod(sizes, dtype=int)),))
                at = half[rng.integers(len(half))]
                return ops.reshape(x, (*sizes[:at], 2, sizes[at] // 2, *sizes[at + 1 :]))
            case 8:
                if not rank:
                    return ops.broadcast_to(x, self.shape(2))
                kind = ("sum", "max", "min")[rng.integers(3)]
                y = ops.Reduce(kind, (axis,))(x)
                return ops.div(y, float(x.shape[axis])) if kind == "sum" else y
            case 9:
                return (
                    ops.BroadcastInDim((int(rng.choice(SIZES)), *x.shape), tuple(range(1, rank + 1)))(x)
                    if rank < 3
                    else x
                )
            case 10 if rank:
                start = int(rng.integers(x.shape[axis]))
                return ops.slice_axis(x, axis, start)
            case 11 if rank:
                low, high = ([0] * rank for _ in range(2))
                low[axis], high[axis] = int(rng.integers(3)), int(rng.integers(3))
                return ops.Pad(tuple(low), tuple(high), (0,) * rank)(x, ops.scalar(float(rng.integers(2)), f32))
            case 12 if rank:
                return ops.concat([x, x], axis)
            case 13 if rank:
                return ops.Softmax(axis)(x)
            case 14 if rank:
                ids = rng.integers(0, int(x.shape[axis]), self.shape(1)).astype(np.int64)
                return ops.Take(axis)(x, const(ids))
            case 15 if rank:
                rows = const(rng.integers(0, 5, int(x.shape[0])).astype(np.int64))
                windows = tuple(range(1, rank))
                zeros = ops.full((5, *x.shape[1:]), 0.0, f32)
                return ops.Tanh()(ops.Scatter("add", windows, (0,), (), (), (0,), 1)(zeros, rows, x))
        return ops.CumReduce("max", axis)(x) if rank else ops.Neg()(x)

    def graph(self) -> Graph:
        inputs = [Input(f"x{i}", TensorType(f32, self.shape(int(self.rng.integers(1, 4)))))() for i in range(2)]
        self.values = list(inputs)
        for _ in range(12):
            y = self.op()
            if int(y.type.size) <= 4096 and len(y.shape) <= 3:
                self.values.append(y)
        outputs = (
            [self.values[-1], self.values[int(self.rng.integers(2, len(self.values)))]]
            if len(self.values) > 2
            else [inputs[0]]
        )
        return Graph(tuple(inputs), tuple(outputs))

    def marks(self, graph: Graph, mesh: dict[str, int]) -> dict[str, list[tuple[str, int]]]:
        """A few splits of inputs and weights into equal parts."""
        named = [(n.op.label, n.shape) for n in graph.inputs if isinstance(n.op, Input)]
        named += [(n.loc, n.shape) for n in graph.nodes() if n.constant is not None and n.loc and n.dtype != i64]
        names = [name for name, _ in named]
        results: dict[str, list[tuple[str, int]]] = {}
        for name, shape in named:
            remaining_axes = list(mesh)
            for axis in range(len(shape)):
                if (
                    remaining_axes
                    and names.count(name) == 1
                    and self.rng.integers(3) == 0
                    and shape[axis] % mesh[remaining_axes[0]] == 0
                ):
                    results.setdefault(name, []).append((remaining_axes.pop(0), axis))
        return results


def check(seed: int) -> int:
    """How many collectives it took."""
    maker = Maker(seed)
    graph = maker.graph()
    inputs = [maker.rng.integers(-3, 4, [int(d) for d in n.shape]).astype(np.float32) for n in graph.inputs]
    want = interpret(graph, inputs)
    mesh = MESHES[seed % len(MESHES)]
    got = simulate(shard(graph, mesh_of(mesh), maker.marks(graph, mesh)), inputs)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4, err_msg=f"seed {seed}")
    return 1


def test_some_random_graphs() -> None:
    assert sum(map(check, range(60))) == 60


@pytest.mark.slow
def test_a_thousand_random_graphs() -> None:
    assert sum(map(check, range(1000))) == 1000
