"""Depthwise convolutions and gradients of their kernels that read an image without its padding."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.node import Graph, Node
from ingot.ops.core.base import window_count
from ingot.passes.fusion.fuse import fuse
from ingot.pipeline.cpu import POLICY, KernelAssembler
from ingot.plan.link import link
from ingot.runtime.executor import CompiledModel
from ingot.schedule.cpu.machine import Machine
from tests.guard import failures
from tests.schedule.compiled import HOST, MACHINES, inputs_like, lowering

Ints = tuple[int, ...]


def compiled(graph: Graph, machine: Machine) -> CompiledModel:
    fused = fuse(graph, POLICY)
    assert not any(isinstance(n.op, ops.Pad) for n in fused.nodes())
    program = link(fused, lowering(machine), KernelAssembler(HOST), stages={}, meta={})
    program.check()
    return CompiledModel(program, threads=2)


CASES = [  # size, window, strides, dilation, padding below and above, channels
    ((9, 8), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 21),
    ((5, 40), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 16),  # lines of several tiles
    ((11, 35), (5, 4), (2, 3), (1, 1), (2, 0), (1, 3), 7),
    ((7, 30), (3, 3), (1, 1), (2, 5), (2, 5), (2, 5), 33),
    ((2, 3), (5, 5), (1, 1), (1, 1), (4, 4), (4, 4), 17),  # windows that hold no element
    ((1, 1), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1), 16),
    ((6, 50), (1, 7), (1, 1), (1, 1), (0, 30), (0, 2), 16),  # tiles in the padding
    ((23,), (4,), (2,), (3,), (5,), (0,), 18),
    ((3, 5, 6), (3, 3, 3), (1, 2, 1), (1, 1, 1), (1, 1, 1), (1, 0, 1), 16),
]


def expected(x: np.ndarray, other: np.ndarray, geometry: tuple[Ints, ...], gradient: bool) -> np.ndarray:
    """The convolution of x[N,*S,C] with other[*K,C], or the kernel's gradient [*K,C] by other[N,*P,C]: the products of
    what is in the image."""
    window, strides, dilation, low, places = geometry
    result = np.zeros((*window, x.shape[-1]) if gradient else (x.shape[0], *places, x.shape[-1]))
    for tap in np.ndindex(*window):
        for place in np.ndindex(*places):
            at = [p * s + t * d - lo for p, s, t, d, lo in zip(place, strides, tap, dilation, low, strict=True)]
            if not all(0 <= a < n for a, n in zip(at, x.shape[1:-1], strict=True)):
                continue
            if gradient:
                result[tap] += (x[(slice(None), *at)] * other[(slice(None), *place)]).sum(0)
            else:
                result[(slice(None), *place)] += x[(slice(None), *at)] * other[tap]
    return result


def agree(got: np.ndarray, want: np.ndarray) -> None:
    finite = np.isfinite(want)
    np.testing.assert_array_equal(np.where(finite, 0, got), np.where(finite, 0, want))
    assert np.abs(got[finite] - want[finite]).max(initial=0) <= 1e-5 * max(1, np.abs(want[finite]).max(initial=0))


@pytest.mark.parametrize("machine", MACHINES, ids=["native", "narrow"][: len(MACHINES)])
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize(("size", "window", "strides", "dilation", "low", "high", "channels"), CASES)
def test_taps_outside_are_left_out(
    size: Ints, window: Ints, strides: Ints, dilation: Ints, low: Ints, high: Ints, channels: int, gradient: bool,
    machine: Machine,
) -> None:  # fmt: skip
    """Infinities and NaN of either operand stay where a product has them."""
    rng = np.random.default_rng(0)
    places = tuple(
        int(window_count(n + lo + hi, k, s, d))
        for n, lo, hi, k, s, d in zip(size, low, high, window, strides, dilation, strict=True)
    )
    x = rng.standard_normal((2, *size, channels)).astype(np.float32)
    other = rng.standard_normal((2, *places, channels) if gradient else (*window, channels)).astype(np.float32)
    geometry = window, strides, dilation, low, places
    data, first = (x, other), (0,) * len(size)
    inputs = inputs_like(data)
    model = compiled(Graph(tuple(inputs), (_op(inputs, geometry, high, gradient),)), machine)
    for infinite in (False, True):
        if infinite:
            x[(0, *first, 1)], x[(1, *(n - 1 for n in size), 2)] = np.inf, np.nan
            other.reshape(-1, channels)[0, 3], other.reshape(-1, channels)[-1, 4] = -np.inf, np.nan
        with np.errstate(invalid="ignore"):
            want = expected(x.astype(np.float64), other.astype(np.float64), geometry, gradient)
        got = np.asarray(model(*data))
        agree(np.moveaxis(got[:, 0], 0, -1) if gradient else got, want)


def _op(inputs: list[Node], geometry: tuple[Ints, ...], high: Ints, gradient: bool) -> Node:
    window, strides, dilation, low, _ = geometry
    x, other = inputs
    rank, channels = len(window), int(x.shape[-1])
    padded = ops.pad(x, (0, *low, 0), (0, *high, 0))
    if gradient:
        return ops.KernelGradient(window, strides, dilation, depthwise=True)(padded, other)
    letters, none = "DHW"[-rank:], ((0, 0),) * rank
    layouts = f"N{letters}C", f"{letters}IO", f"N{letters}C"
    op = ops.Convolution(strides, none, (1,) * rank, dilation, *layouts, channels)
    return op(padded, ops.Reshape((*window, 1, channels))(other))


def test_nothing_outside_is_read() -> None:
    def case(i: int, gradient: bool) -> None:
        size, window, strides, dilation, low, high, channels = CASES[i]
        machine = MACHINES[i % len(MACHINES)]
        test_taps_outside_are_left_out(size, window, strides, dilation, low, high, channels, gradient, machine)

    cases = {f"{i} {gradient}": partial(case, i, gradient) for i in range(len(CASES)) for gradient in (False, True)}
    assert not failures(cases)


@pytest.mark.parametrize("gradient", [False, True])
def test_open_sizes(gradient: bool) -> None:
    n, h, w = symbol("n"), symbol("h"), symbol("w")
    window, strides, dilation, low = (3, 3), (1, 1), (1, 1), (1, 1)
    geometry = window, strides, dilation, low, ()
    rng = np.random.default_rng(0)
    shapes = {0: (n, h, w, 18), 1: (n, h, w, 18)} if gradient else {0: (n, h, w, 18)}
    other_shape = (1, 4, 5, 18) if gradient else (3, 3, 18)
    inputs = inputs_like([np.zeros((1, 4, 5, 18), np.float32), np.zeros(other_shape, np.float32)], shapes)
    model = compiled(Graph(tuple(inputs), (_op(inputs, geometry, (1, 1), gradient),)), MACHINES[0])
    for images, (high, wide) in itertools.product((1, 3), ((1, 1), (4, 9), (3, 31))):
        x = rng.standard_normal((images, high, wide, 18)).astype(np.float32)
        other = rng.standard_normal(x.shape if gradient else other_shape).astype(np.float32)
        got = np.asarray(model(x, other))
        want = expected(x, other, (*geometry[:-1], (high, wide)), gradient)
        agree(np.moveaxis(got[:, 0], 0, -1) if gradient else got, want)


def test_transposed_images_are_copied() -> None:
    """Of channels first: each padded image would be gathered."""
    x, g = (np.random.default_rng(i).standard_normal((2, 17, 6, 7)).astype(np.float32) for i in (0, 1))
    inputs = inputs_like((x, g))
    image, cotangent = (ops.Transpose((0, 2, 3, 1))(v) for v in inputs)
    padded = ops.pad(image, (0, 1, 1, 0), (0, 1, 1, 0))
    result = ops.KernelGradient((3, 3), (1, 1), (1, 1), depthwise=True)(padded, cotangent)
    graph = Graph(tuple(inputs), (result,))
    assert len(fuse(graph, POLICY).nodes()) == 5  # inputs, two copies, the gradient
    got = np.asarray(compiled(graph, MACHINES[0])(x, g))
    geometry = (3, 3), (1, 1), (1, 1), (1, 1), (6, 7)
    want = expected(x.transpose(0, 2, 3, 1), g.transpose(0, 2, 3, 1), geometry, True)
    agree(np.moveaxis(got[:, 0], 0, -1), want)
