"""Rows over the order in which images are stored, against the interpreter."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from ingot.ir.dims import symbol
from ingot.ir.kernel.show import show_kernel
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ops import ArgReduce, BroadcastInDim, Reduce, Transpose
from ingot.ops import build as op
from ingot.schedule.cpu.machine import AVX512, Machine
from ingot.schedule.cpu.rows.lower import lower_rows
from tests.schedule.compiled import MACHINES, check, inputs_like

on_machines = pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
CHANNELS_LAST = (0, 2, 3, 1)


def values(*shape: int) -> np.ndarray:
    x = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
    if x.size > 64:
        x.reshape(-1)[[0, x.size // 2, -1]] = np.nan, np.inf, -np.inf
    return x


def moments(x: Node, dims: Sequence[int], permutation: Sequence[int]) -> tuple[Node, ...]:
    """The mean of a transposed image, and the variance around it."""
    y = Transpose(tuple(permutation))(x)
    kept = tuple(d for d in range(y.type.rank) if d not in dims)
    mean = op.mul(Reduce("sum", tuple(dims))(y), 0.125)
    centred = op.sub(y, BroadcastInDim(y.shape, kept)(mean))
    return mean, Reduce("sum", tuple(dims))(op.mul(centred, centred))


@on_machines
@pytest.mark.parametrize("shape", [(2, 9, 5, 7), (1, 96, 6, 6), (2, 1, 3, 1), (2, 3, 0, 4), (2, 0, 3, 4)])
def test_channels_first(shape: tuple[int, ...], machine: Machine) -> None:
    xs = [values(*shape)]
    for n in (None, symbol("n")):
        (x,) = inputs_like(xs, {} if n is None else {0: (n, *shape[1:])})
        check(Graph((x,), moments(x, (3,), CHANNELS_LAST)), xs, machine=machine, rtol=2e-5)


@pytest.mark.sampled(8)
@on_machines
@pytest.mark.parametrize("permutation", [*itertools.permutations(range(3))], ids=str)
@pytest.mark.parametrize("dims", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)], ids=str)
def test_any_order(permutation: tuple[int, ...], dims: tuple[int, ...], machine: Machine) -> None:
    xs = [values(5, 18, 33)]
    (x,) = inputs_like(xs)
    check(Graph((x,), moments(x, dims, permutation)), xs, machine=machine, rtol=2e-5)
    if len(dims) == 1:  # the place of the first of equal maxima
        arg = ArgReduce("max", dims[0])(Transpose(permutation)(op.mul(x, 0.0)))
        check(Graph((x,), (arg,)), [np.nan_to_num(xs[0])], machine=machine)


def test_images_of_two_orders_stay() -> None:
    """One is read along its vectors, the other one across."""
    xs = [values(2, 9, 5, 7), values(2, 5, 7, 9)]
    x, y = inputs_like(xs)
    total = Reduce("sum", (3,))(op.mul(Transpose(CHANNELS_LAST)(x), y))
    check(Graph((x, y), (total,)), xs)


def test_vectors_run_along_memory() -> None:
    """The norm of a ConvNeXt over images with channels first."""
    (x,) = inputs_like([values(2, 96, 56, 56)])
    body = Graph((x,), moments(x, (3,), CHANNELS_LAST)[1:])
    steps = lower_rows(body, (Layout.contiguous(x.shape),), (Layout.contiguous((2, 56, 56)),), AVX512).steps
    assert "[ramp" not in "".join(show_kernel(step.kernel) for step in steps)


@on_machines
def test_results_beside_repeated_values(machine: Machine) -> None:
    """A value that is repeated has as many dimensions as the box, but others."""
    xs = [values(17, 3, 4, 2), values(2, 3, 17)]
    x, y = inputs_like(xs)
    total = Reduce("sum", (2,))(Transpose((2, 1, 3, 0))(x))
    repeated = op.reshape(BroadcastInDim((2, 2, 3, 17), (0, 2, 3))(op.mul(y, 0.5)), total.shape)
    check(Graph((x, y), (op.mul(total, repeated),)), xs, machine=machine, rtol=2e-5)

    xs = [values(8, 9, 4), values(2)]
    x, y = inputs_like(xs)
    repeated = op.reshape(BroadcastInDim((8, 9, 2, 2), (2,))(y), x.shape)
    check(Graph((x, y), (Reduce("sum", (1,))(op.reshape(op.sub(x, repeated), (8, 1, 9, 4))),)), xs, machine=machine)
