"""Collectives on simulated devices: against numpy, lowered, printed, and their gradients."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.autodiff import gradients
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, const
from ingot.ir.parse import parse
from ingot.ir.show import show
from ingot.ir.types import TensorType, dtype_of, f32
from ingot.ops.core.collective import Collective, simulated
from ingot.passes.model.lower import lower_model_ops
from ingot.support.errors import InputError, ShapeError

OPS = (ops.AllReduce, ops.AllGather, ops.ReduceScatter, ops.AllToAll, ops.Permute)
GROUPS = {"2": ((0, 1),), "4": ((0, 1, 2, 3),), "2x2": ((0, 2), (3, 1))}


def expected(op: Collective, parts: list[np.ndarray], index: int) -> np.ndarray:
    """The result of a group's member, written with plain numpy functions."""
    n = len(parts)
    wide = [p.astype(np.float64) if p.dtype.kind == "f" else p for p in parts]
    stacked = np.stack(wide)
    with np.errstate(all="ignore"):
        match op:
            case ops.AllReduce() | ops.ReduceScatter():
                fold = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}[op.kind]
                total = (
                    fold(stacked, axis=0, dtype=stacked.dtype) if op.kind in ("sum", "prod") else fold(stacked, axis=0)
                )
                total = total.astype(parts[0].dtype)
                return total if isinstance(op, ops.AllReduce) else np.split(total, n, op.axis)[index]
            case ops.AllGather():
                return np.concatenate(parts, op.axis)
            case ops.AllToAll():
                return np.concatenate([np.split(p, n, op.split_axis)[index] for p in parts], op.concat_axis)
            case ops.Permute():
                return parts[(index - op.shift) % n]
    raise AssertionError(op)


def run(graph: Graph, *inputs: list[np.ndarray]) -> list[tuple[np.ndarray, ...]]:
    """The results of each device for its inputs."""
    return simulated(len(inputs[0]), lambda rank: interpret(graph, [x[rank] for x in inputs]))


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("cls", OPS, ids=lambda cls: cls.name)
def test_on_simulated_devices(cls: type[Collective], groups: tuple[tuple[int, ...], ...]) -> None:
    count = sum(map(len, groups))
    for op, (base,) in cls.group_samples(groups):
        assert isinstance(op, Collective)
        shifts = range(count) if base.dtype != bool else [0, 1, 0, 1]
        xs = [(base ^ bool(s)) if base.dtype == bool else (base + s).astype(base.dtype) for s in shifts][:count]
        x = Input("x", TensorType(dtype_of(base), base.shape))()
        graph = Graph((x,), (op(x),))
        got = [r[0] for r in run(graph, xs)]
        lowered_results = [r[0] for r in run(lower_model_ops(graph), xs)]
        for group in groups:
            for index, rank in enumerate(group):
                want = expected(op, [xs[member] for member in group], index)
                np.testing.assert_allclose(got[rank].astype(np.float64), want.astype(np.float64), rtol=2e-3, atol=1e-6)
                assert got[rank].dtype == want.dtype
                np.testing.assert_array_equal(lowered_results[rank], got[rank])
        assert show(parse(show(graph))) == show(graph)


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("cls", OPS, ids=lambda cls: cls.name)
def test_gradients_are_transposed(cls: type[Collective], groups: tuple[tuple[int, ...], ...]) -> None:
    """The sum over the devices of <y, A x> is that of <A' y, x>."""
    count, rng = sum(map(len, groups)), np.random.default_rng(0)
    for op, (base,) in cls.group_samples(groups):
        if base.dtype != np.float32 or not base.size or getattr(op, "kind", "sum") != "sum":
            continue
        x = Input("x", TensorType(f32, base.shape))()
        y = op(x)
        weights = Input("w", y.type)()
        (g,) = gradients(ops.reduce_sum(ops.mul(y, weights)), [x])
        xs = [rng.integers(-4, 5, base.shape).astype(np.float32) for _ in range(count)]
        ws = [rng.integers(-4, 5, [int(d) for d in y.shape]).astype(np.float32) for _ in range(count)]
        graph = Graph((x, weights), (y, g))
        results = run(graph, xs, ws)
        forward = sum(float((w * r[0]).sum()) for w, r in zip(ws, results, strict=True))
        backward = sum(float((v * r[1]).sum()) for v, r in zip(xs, results, strict=True))
        assert forward == backward


def test_devices_that_run_different_ops_are_refused() -> None:
    x = np.ones(2, np.float32)
    with pytest.raises(InputError, match="one collective at a time"):
        simulated(2, lambda rank: ops.AllReduce(((0, 1),), ("sum", "max")[rank]).reference(x))


def test_an_error_of_a_device_ends_the_others() -> None:
    def program(rank: int) -> np.ndarray:
        if rank:
            raise ValueError("device 1 ends")
        return ops.AllReduce(((0, 1),)).reference(np.ones(2, np.float32))

    with pytest.raises(ValueError, match="device 1 ends"):
        simulated(2, program)


def test_one_process_does_not_stand_for_several_devices() -> None:
    with pytest.raises(InputError, match="simulated devices"):
        ops.AllReduce(((0, 1),)).reference(np.ones(2, np.float32))


@pytest.mark.parametrize("groups", [(), ((),), ((0, 1), (2,)), ((0, 0),), ((0, -1),)])
def test_groups_are_checked(groups: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises((ShapeError, IndexError)):
        ops.AllReduce(groups)(const(np.ones(2, np.float32)))


def test_parts_have_equal_sizes() -> None:
    with pytest.raises(ShapeError, match="2 equal parts"):
        ops.ReduceScatter(((0, 1),))(const(np.ones(3, np.float32)))
