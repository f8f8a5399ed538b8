"""Reshapes between arithmetic and its operands, results or reductions: without gathers, against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from ingot.ir.dims import Dim, symbol
from ingot.ir.kernel.show import show_kernel
from ingot.ir.layout import Layout
from ingot.ir.node import Graph
from ingot.ir.types import DType, bf16, f32, f64, i64
from ingot.ops import BroadcastInDim, Reduce, Reshape, Transpose
from ingot.ops import build as op
from ingot.ops.group import Group
from ingot.passes.fusion.fuse import fuse
from ingot.schedule.cpu.lower import lower
from ingot.schedule.cpu.machine import AVX512, Machine
from tests.schedule.compiled import MACHINES, check, inputs_like

on_machines = pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")


def values(*shape: int) -> np.ndarray:
    x = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
    if x.size > 64:
        x.reshape(-1)[[0, x.size // 2, -1]] = np.nan, np.inf, -np.inf
    return x


def kernels(graph: Graph) -> str:
    """All kernels of a graph as text, on a machine with AVX-512."""
    texts: list[str] = []
    for node in fuse(graph).nodes():
        if isinstance(node.op, Group):
            ins, outs = (tuple(Layout.contiguous(n.shape) for n in ns) for ns in (node.inputs, node.op.body.outputs))
            lowered = lower(node.op, ins, outs, (False,) * len(ins), AVX512)
            texts += [show_kernel(step.kernel) for step in lowered.steps]
    return "\n".join(texts)


def of_groups(xs: list[np.ndarray], n: Dim | None = None) -> Graph:
    """sum(reshape((x * scale[c] - y) * (x * scale[c] - y)), positions), and one of two readers that differ"""
    a, b, scale = ins = inputs_like(xs, {} if n is None else {0: (n, *xs[0].shape[1:]), 1: (n, *xs[1].shape[1:])})
    channels = a.shape[1]
    scaled = op.sub(op.mul(a, BroadcastInDim(a.shape, (1,))(scale)), b)
    flat = Reshape((a.shape[0], channels, a.shape[2] * a.shape[3]))
    squares = Reduce("sum", (2,))(flat(op.mul(scaled, scaled)))
    return Graph(tuple(ins), (squares, Reduce("max", (2,))(flat(op.mul(a, b)))))


@on_machines
@pytest.mark.parametrize("shape", [(2, 3, 28, 28), (2, 5, 7, 9), (1, 1, 1, 1), (2, 3, 0, 5), (0, 3, 4, 5)])
def test_reduced_after_arithmetic(shape: tuple[int, ...], machine: Machine) -> None:
    xs = [values(*shape), values(*shape), values(shape[1])]
    check(of_groups(xs), xs, machine=machine, rtol=2e-5)
    if shape[0]:
        check(of_groups(xs, symbol("n")), xs, machine=machine, rtol=2e-5)


def test_positions_that_are_joined_again_are_not_divided() -> None:
    """The gradient of a group norm multiplies images, and sums the product over the positions of each channel."""
    text = kernels(of_groups([values(2, 3, 28, 28), values(2, 3, 28, 28), values(3)]))
    assert "ramp16" not in text, text


def of_repeated(xs: list[np.ndarray]) -> Graph:
    """x[n, h, w, c] - y[n, g], repeated for the channels of each group: a norm's, channels last"""
    a, b = ins = inputs_like(xs)
    (n, *_, channels), groups = a.shape, b.shape[1]
    repeated = BroadcastInDim((n, groups, channels // groups), (0, 1))(b)
    channelwise = BroadcastInDim(a.shape, (0, 3))(Reshape((n, channels))(repeated))
    return Graph(tuple(ins), (op.mul(op.sub(a, channelwise), 2.0),))


@on_machines
@pytest.mark.parametrize("groups", [1, 2, 4, 8, 20, 40])
def test_groups_of_channels(groups: int, machine: Machine) -> None:
    xs = [values(2, 19, 17, 40), values(2, groups)]
    check(of_repeated(xs), xs, machine=machine)


def test_groups_of_channels_are_stored_once() -> None:
    """Not looked up again for each pixel, at places that are divided: vectors of pixels are loads alone."""
    text = kernels(of_repeated([values(2, 32, 32, 320), values(2, 32)]))
    assert "10:i64x16" not in text.split("kernel ")[-1], text


def shuffled(xs: list[np.ndarray], groups: int, dtype: DType = f32) -> Graph:
    """ShuffleNet's: the channels of each pixel as a matrix, transposed"""
    (x,) = ins = inputs_like(xs)
    *pixels, channels = x.shape
    k = len(pixels)
    parts = Reshape((*pixels, groups, channels // groups))(op.cast(x, dtype))
    return Graph(tuple(ins), (Transpose((*range(k), k + 1, k))(parts),))


@on_machines
@pytest.mark.parametrize("dtype", [f32, f64, bf16, i64], ids=str)
@pytest.mark.parametrize(("groups", "channels"), [(4, 32), (2, 116), (3, 24), (8, 16), (4, 36), (1, 8)])
def test_channels_are_shuffled(groups: int, channels: int, dtype: DType, machine: Machine) -> None:
    for pixels in ((2, 5, 7), (0, 3), (129,)):
        x = np.random.default_rng(channels).integers(-99, 99, (*pixels, channels)).astype(np.float32)
        check(shuffled([x], groups, dtype), [x], machine=machine)


def test_shuffled_channels_are_read_in_order() -> None:
    text = kernels(shuffled([values(8, 56, 56, 32)], 4))
    assert ", 32)]" not in text and "shuffle" in text, text


@on_machines
@pytest.mark.parametrize(("shape", "new"), [((5,), (5, 1)), ((6, 35), (6, 5, 7)), ((6, 35), (210,))])
def test_reshaped_results_of_rows(shape: tuple[int, ...], new: tuple[int, ...], machine: Machine) -> None:
    """Values of rows are broadcast over the box of the reductions, whatever shape the results have."""
    xs = [values(*shape), values(*shape)]
    x, y = inputs_like(xs)
    kept = tuple(range(len(shape) - 1))
    largest = BroadcastInDim(shape, kept)(Reduce("max", (len(shape) - 1,))(x))
    for result in (op.mul(largest, 0.5), op.sub(y, largest)):
        check(Graph((x, y), (op.reshape(result, new),)), xs, machine=machine)
