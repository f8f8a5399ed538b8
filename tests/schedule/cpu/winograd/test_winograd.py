"""Winograd convolution: exact transforms, error bounds, edges, layouts, what it reads, and when it is chosen."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import DimLike, symbol
from ingot.ir.interp import interpret
from ingot.ir.kernel.interp import run_kernel
from ingot.ir.layout import Layout
from ingot.ir.node import Const, Graph, Input, Node, const
from ingot.ir.types import DType, TensorType, f32, f64
from ingot.passes.core.layout import explicit_padding
from ingot.runtime.executor import CompiledModel
from ingot.schedule.axes import Axis, Contraction, ValidTaps
from ingot.schedule.cpu.contraction.cost_model import plan_contraction
from ingot.schedule.cpu.contraction.pack import pack_panels
from ingot.schedule.cpu.machine import AVX2, Machine
from ingot.schedule.cpu.winograd.kernel_gradient import has_winograd_gradient
from ingot.schedule.cpu.winograd.lower import lower_winograd
from ingot.schedule.cpu.winograd.plan import Shape, Winograd, plan_winograd, winograd_shape_of
from ingot.schedule.cpu.winograd.toom_cook import array, transform, transformed_weights
from ingot.schedule.lowered import Lowered
from tests.schedule.compiled import MACHINES, NATIVE, compile_graph
from tests.targets.cpu.native import Native, place

RNG = np.random.default_rng(5)
ALGORITHMS = [(2, 3), (4, 3), (2, 5)]


def random(*shape: int, dtype: DType = f32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype.numpy)


# The matrices


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_identity_is_exact(algorithm: tuple[int, int]) -> None:
    """In rational arithmetic A^T [(G g) . (B^T d)] is the convolution."""
    t = transform(*algorithm)
    d = [Fraction(int(v)) for v in RNG.integers(-9, 9, t.alpha)]
    g = [Fraction(int(v)) for v in RNG.integers(-9, 9, t.r)]

    def times(matrix: tuple[tuple[Fraction, ...], ...], v: list[Fraction]) -> list[Fraction]:
        return [sum((a * b for a, b in zip(row, v, strict=True)), Fraction(0)) for row in matrix]

    products = [a * b for a, b in zip(times(t.g, g), times(t.bt, d), strict=True)]
    want = [sum((g[k] * d[i + k] for k in range(t.r)), Fraction(0)) for i in range(t.m)]
    assert times(t.at, products) == want
    data = (array(t.at), array(t.bt))
    assert all((m.astype(np.float32) == m).all() for m in data)  # the kernel's constants are not rounded


# Kernels


def image(n: DimLike, h: int, w: int, c: int, dtype: DType = f32) -> Node:
    return Input("x", TensorType(dtype, (n, h, w, c)))()


def convolution(x: Node, w: np.ndarray, pad: int = 0) -> Node:
    """NHWC; weights O, I, window."""
    op = ops.Convolution((1, 1), ((pad, pad), (pad, pad)), (1, 1), (1, 1), "N01C", "OI01", "N01C")
    return op(x, const(w))


def lower(graph: Graph, pieces: Winograd, machine: Machine, packed: bool = True) -> tuple[Lowered, list[np.ndarray]]:
    """The graph, one convolution and its epilogue, as a group, and the constants it takes as inputs."""
    constants = [n for n in graph.nodes() if n.inputs == () and n not in graph.inputs and n.type.rank]
    params = {n: Input(f"c{i}", n.type)() for i, n in enumerate(constants)}
    memo: dict[Node, Node] = {}
    for n in graph.nodes():
        memo[n] = params.get(n) or n.with_inputs([memo[i] for i in n.inputs])
    body = Graph((*(memo[n] for n in graph.inputs), *params.values()), tuple(memo[o] for o in graph.outputs))
    ins, outs = (tuple(Layout.contiguous(n.shape) for n in nodes) for nodes in (body.inputs, body.outputs))
    anchor = next(n for n in body.nodes() if isinstance(n.op, ops.Convolution))
    low = lower_winograd(body, ins, outs, anchor, pieces, machine, packed)
    return low, [np.asarray(n.op.value) for n in constants if isinstance(n.op, Const)]


def execute(low: Lowered, ins: list[np.ndarray], result: np.ndarray, interpreted: bool = False) -> None:
    """All steps, in order; temporaries start as NaN."""
    packs = [place(p.apply(ins[p.index])) for p in low.packs]
    temps = [place(np.full(int(n) // result.itemsize, np.nan, result.dtype)) for n in low.temps]
    memory = {"in": ins, "out": [result], "pack": packs, "temp": temps}
    for step in low.steps:
        arrays = [memory[a.kind][a.index] for a in step.args]
        if interpreted:
            run_kernel(step.kernel, {b.name: a for b, a in zip(step.kernel.params, arrays, strict=True)})
        else:
            Native(step.kernel)(arrays, (), int(step.kernel.chunks.value))  # type: ignore[attr-defined]


def direct(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """float64, from NHWC and O, I, window."""
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), w.shape[2:], axis=(1, 2))
    return np.einsum("nhwcij,ocij->nhwo", windows, w.astype(np.float64), optimize=True)


def bound(x: np.ndarray, w: np.ndarray, m: int) -> np.ndarray:
    """What the error of each output cannot exceed: the same algorithm on absolute values, times the roundings on the
    way. (Barabasz et al. 2020, theorem 2, with a plain sum over channels.)"""
    t = transform(m, w.shape[2])
    at, g, bt = (np.abs(array(v)) for v in (t.at, t.g, t.bt))
    n, h, width, c = x.shape
    result = np.zeros((n, h - t.r + 1, width - t.r + 1, w.shape[0]))
    u = np.einsum("ea,ocab,fb->efco", g, np.abs(w.astype(np.float64)), g)
    for y in (*range(0, result.shape[1] - m, m), result.shape[1] - m):
        for z in (*range(0, result.shape[2] - m, m), result.shape[2] - m):
            d = np.abs(x[:, y : y + t.alpha, z : z + t.alpha].astype(np.float64))
            v = np.einsum("ea,nabc,fb->nefc", bt, d, bt)
            term = np.einsum("ie,nefc,efco,jf->nijo", at, v, u, at, optimize=True)
            part = result[:, y : y + m, z : z + m]
            part[...] = np.maximum(part, term)
    roundings = 4 * t.alpha + c + 2
    return result * roundings * 2.0**-24


CASES = [  # n, h, w, ci, co, pieces
    (1, 8, 8, 16, 16, Winograd(4, 4, 16)),
    (2, 8, 12, 32, 48, Winograd(2, 6, 32, True)),
    (1, 14, 14, 20, 37, Winograd(4, 5, 32)),
    (1, 14, 14, 20, 37, Winograd(4, 5, 16, True)),
    (3, 7, 9, 3, 70, Winograd(4, 4, 32, True)),
    (2, 7, 9, 33, 70, Winograd(2, 7, 48)),
    (1, 4, 5, 5, 1, Winograd(4, 2, 16)),
    (1, 14, 14, 32, 37, Winograd(4, 5, 32, late=16)),
    (2, 7, 9, 64, 70, Winograd(4, 4, 16, True, late=32)),
    (1, 7, 7, 16, 1, Winograd(2, 7, 16, True, late=16)),
]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("case", CASES)
def test_against_the_direct_convolution(case: tuple[int, int, int, int, int, Winograd], machine: Machine) -> None:
    """Sizes that tiles, vectors and blocks do not divide; a bias, a residual and relu behind it."""
    n, h, w, ci, co, pieces = case
    weights, bias = random(co, ci, 3, 3), random(co)
    x, residual = image(n, h + 2, w + 2, ci), Input("r", TensorType(f32, (n, h, w, co)))()
    y = convolution(x, weights)
    y = ops.add(ops.add(y, ops.BroadcastInDim(y.shape, (3,))(const(bias))), residual)
    y = ops.maximum(y, 0.0)
    low, constants = lower(Graph((x, residual), (y,)), pieces, machine)
    xs = random(n, h + 2, w + 2, ci), random(n, h, w, co)
    result = place(np.full((n, h, w, co), np.nan, np.float32))
    execute(low, [*map(place, xs), *map(place, constants)], result)
    want = np.maximum(direct(xs[0], weights) + bias + xs[1], 0)
    assert (np.abs(result - want) <= bound(xs[0], weights, pieces.m) + 1e-6 * (1 + np.abs(want))).all()


@pytest.mark.parametrize("case", CASES[1:])
def test_weights_of_the_call(case: tuple[int, int, int, int, int, Winograd]) -> None:
    """Laid out by a step of the kernel's own, from O, I, window and from window, I, O."""
    n, h, w, ci, co, pieces = case
    weights = random(co, ci, 3, 3)
    x, xs = image(n, h + 2, w + 2, ci), place(random(n, h + 2, w + 2, ci))
    limit = bound(xs, weights, pieces.m)
    data = Input("w", TensorType(f32, (3, 3, ci, co)))()
    permuted = ops.Convolution((1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1), "N01C", "01IO", "N01C")(x, data)
    transposed = np.ascontiguousarray(weights.transpose(2, 3, 1, 0))
    constant_graph = Graph((x,), (convolution(x, weights),))
    for graph, extra in ((constant_graph, None), (Graph((x, data), (permuted,)), transposed)):
        low, constants = lower(graph, pieces, NATIVE, packed=False)
        assert not low.packs
        result = place(np.full((n, h, w, co), np.nan, np.float32))
        execute(low, [xs, *map(place, constants if extra is None else [extra])], result)
        want = direct(xs, weights)
        assert (np.abs(result - want) <= limit + 1e-6 * (1 + np.abs(want))).all()


DEEP = [  # n, depth, h, w, ci, co, groups (ci and co of each), taps, apart, pieces
    (1, 2, 8, 9, 8, 32, 1, 3, 1, Winograd(4, 6, 32, True)),
    (1, 2, 5, 7, 5, 10, 2, 2, 2, Winograd(2, 5, 16, True)),
    (2, 3, 6, 6, 8, 16, 1, 1, 1, Winograd(4, 5, 16)),
    (1, 1, 9, 8, 20, 17, 3, 1, 1, Winograd(4, 5, 16)),
    (1, 1, 9, 8, 16, 40, 4, 1, 1, Winograd(4, 6, 16, True)),
    (1, 1, 6, 6, 3, 1, 5, 1, 1, Winograd(4, 4, 16)),
    (1, 1, 9, 8, 32, 40, 3, 1, 1, Winograd(4, 6, 32, True, late=16)),
    (2, 2, 6, 6, 32, 17, 2, 1, 1, Winograd(2, 5, 16, late=16)),
]


INTERPRETED = (DEEP[1], DEEP[5], DEEP[7])  # of all kinds, and few elements


@pytest.mark.parametrize(
    ("case", "interpreted"),
    [*((case, False) for case in DEEP), *(pytest.param(case, True, marks=pytest.mark.slow) for case in INTERPRETED)],
)
def test_groups_and_a_third_dimension(case: tuple[*tuple[int, ...], Winograd], interpreted: bool) -> None:
    """An output slice is the convolution of the slices that it reads, side by side as channels."""
    *sizes, pieces = case
    n, depth, h, w, ci, co, groups, taps, dilation = sizes
    extra = (taps - 1) * dilation
    weights = random(groups * co, ci, taps, 3, 3)
    op = ops.Convolution((1, 1, 1), ((0, 0),) * 3, (1, 1, 1), (dilation, 1, 1), "N012C", "OI012", "N012C", groups)
    x = Input("x", TensorType(f32, (n, depth + extra, h + 2, w + 2, groups * ci)))()
    machine = AVX2 if interpreted else NATIVE
    low, constants = lower(Graph((x,), (op(x, const(weights)),)), pieces, machine, packed=n == 1)
    data = random(*map(int, x.shape))
    result = np.full((n, depth, h, w, groups * co), np.nan, np.float32)
    if interpreted:
        execute(low, [data, *constants], result, interpreted=True)
    else:
        result = place(result)
        execute(low, [place(data), *map(place, constants)], result)
    for d in range(depth):
        for g in range(groups):
            read = data[:, d : d + extra + 1 : dilation, :, :, g * ci : (g + 1) * ci]
            flat = np.concatenate(list(read.swapaxes(0, 1)), axis=-1)
            kernel = weights[g * co : (g + 1) * co].swapaxes(1, 2).reshape(co, taps * ci, 3, 3)
            error = np.abs(result[:, d, :, :, g * co : (g + 1) * co] - direct(flat, kernel))
            assert (error <= bound(flat, kernel, pieces.m)).all()


@pytest.mark.parametrize("interpreted", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("size", "dilation", "pieces"),
    [
        ((9, 14), (2, 3), Winograd(4, 5, 16)),
        ((8, 16), (2, 2), Winograd(4, 4, 16, True)),
        ((5, 3), (3, 4), Winograd(2, 6, 16, True, late=16)),
        ((7, 9), (1, 2), Winograd(2, 6, 16)),
    ],
)
def test_dilated_windows(size: tuple[int, int], dilation: tuple[int, int], pieces: Winograd, interpreted: bool) -> None:
    """Images of every dilation-th row and column: of unlike sizes, smaller than a tile, empty."""
    (h, w), (a, b) = size, dilation
    weights = random(9, 16, 3, 3)
    op = ops.Convolution((1, 1), ((0, 0), (0, 0)), (1, 1), dilation, "N01C", "OI01", "N01C")
    x = image(2, h + 2 * a, w + 2 * b, 16)
    machine = AVX2 if interpreted else NATIVE
    low, constants = lower(Graph((x,), (op(x, const(weights)),)), pieces, machine)
    data, result = random(*map(int, x.shape)), np.full((2, h, w, 9), np.nan, np.float32)
    if interpreted:
        execute(low, [data, *constants], result, interpreted=True)
    else:
        result = place(result)
        execute(low, [place(data), *map(place, constants)], result)
    spread = np.zeros((9, 16, 2 * a + 1, 2 * b + 1), np.float32)
    spread[:, :, ::a, ::b] = weights
    want = direct(data, spread)
    assert np.abs(result - want).max() <= 5e-6 * np.abs(want).max()


@pytest.mark.parametrize(
    ("algorithm", "split", "late_channels"),
    [
        ((2, 3), False, 0), ((2, 3), True, 0), ((2, 3), True, 16), ((4, 3), False, 0), ((2, 5), False, 0),
        *(pytest.param(a, True, late, marks=pytest.mark.slow) for a in ALGORITHMS[1:] for late in (0, 16)),
    ],
)  # fmt: skip
def test_every_access_is_in_bounds(algorithm: tuple[int, int], split: bool, late_channels: int) -> None:
    """The interpreter sees every read beyond an operand, every read of memory never written, every race."""
    m, r = algorithm
    h, w, ci, co = m + 3, m + 1, late_channels or 5, 9
    weights = random(co, ci, r, r)
    x = image(1, h + r - 1, w + r - 1, ci)
    pieces = Winograd(m, 3, 8, split, late_channels)
    low, constants = lower(Graph((x,), (convolution(x, weights),)), pieces, AVX2)
    data, result = random(1, h + r - 1, w + r - 1, ci), np.zeros((1, h, w, co), np.float32)
    data[0, 0, 0, 0] = data[0, -1, -1, -1] = np.inf  # in one window each
    execute(low, [data, *constants], result, interpreted=True)
    want, bound_ = direct(data, weights), bound(np.where(np.isfinite(data), data, 0), weights, m)
    touched = ~np.isfinite(want)
    assert (result[touched] == want[touched]).all() and touched.any()
    assert (np.abs(result[~touched] - want[~touched]) <= bound_[~touched]).all()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("late_channels", [0, 16])
@pytest.mark.parametrize("spread", [0, 4, 15])
def test_error_bound(algorithm: tuple[int, int], spread: int, late_channels: int) -> None:
    """Magnitudes over `spread` decades both ways, in data and weights: within the bound, output by output."""
    m, r = algorithm
    h, ci, co = 13, 48, 32

    def data(*shape: int) -> np.ndarray:
        return (random(*shape) * 10.0 ** RNG.uniform(-spread, spread, shape)).astype(np.float32)

    xs, weights = data(1, h + r - 1, h + r - 1, ci), data(co, ci, r, r)
    x = image(*xs.shape)
    low, constants = lower(Graph((x,), (convolution(x, weights),)), Winograd(m, 16, 32, late=late_channels), NATIVE)
    result = place(np.full((1, h, h, co), np.nan, np.float32))
    execute(low, [place(xs), *map(place, constants)], result)
    assert (np.abs(result - direct(xs, weights)) <= bound(xs, weights, m)).all()


@pytest.mark.parametrize("late_channels", [0, 16])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_error_on_data_like_a_model_s(algorithm: tuple[int, int], late_channels: int) -> None:
    m, r = algorithm
    xs = np.maximum(random(1, 27 + r, 27 + r, 128), 0)
    weights = random(64, 128, r, r) * np.float32((2 / (r * r * 128)) ** 0.5)
    x = image(*xs.shape)
    low, constants = lower(Graph((x,), (convolution(x, weights),)), Winograd(m, 49, 64, late=late_channels), NATIVE)
    result = place(np.zeros((1, 28, 28, 64), np.float32))
    execute(low, [place(xs), *map(place, constants)], result)
    want = direct(xs, weights)
    assert np.abs(result - want).max() <= 5e-6 * np.abs(want).max()


@pytest.mark.parametrize("late_channels", [0, 16])
def test_float64(late_channels: int) -> None:
    weights = random(24, 16, 3, 3, dtype=f64)
    x = image(1, 11, 11, 16, f64)
    low, constants = lower(Graph((x,), (convolution(x, weights),)), Winograd(4, 9, 24, late=late_channels), NATIVE)
    data, result = random(1, 11, 11, 16, dtype=f64), place(np.zeros((1, 9, 9, 24)))
    execute(low, [place(data), *map(place, constants)], result)
    np.testing.assert_allclose(result, direct(data, weights), rtol=1e-12, atol=1e-12)


def spoiled(data: np.ndarray, count: int) -> np.ndarray:
    """`data` with so many NaN and infinities at random places."""
    flat = data.reshape(-1).copy()
    flat[RNG.permutation(flat.size)[:count]] = RNG.choice([np.nan, np.inf, -np.inf], count)
    return flat.reshape(data.shape)


def defined(op: ops.Convolution, data: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """In float64: a sum that float32 does not hold is infinite."""
    x, w = Input("x", TensorType(f64, data.shape))(), Input("w", TensorType(f64, weights.shape))()
    (y,) = interpret(Graph((x, w), (op(x, w),)), [data.astype(np.float64), weights.astype(np.float64)])
    with np.errstate(over="ignore"):
        return np.where(np.isfinite(y), y.astype(np.float32), y)


SPOILED = [  # n, h, w, ci, co, groups, dilation, pieces
    (1, 18, 18, 16, 16, 1, (1, 1), Winograd(4, 4, 16)),
    (1, 18, 18, 16, 16, 1, (1, 1), Winograd(4, 4, 16, late=16)),
    (2, 9, 13, 3, 37, 1, (1, 1), Winograd(4, 5, 32, True)),
    (1, 11, 10, 20, 17, 3, (1, 1), Winograd(2, 5, 16)),
    (2, 8, 11, 32, 40, 2, (1, 1), Winograd(4, 6, 32, True, late=16)),
    (1, 10, 19, 16, 9, 1, (2, 3), Winograd(4, 5, 16)),
    (1, 11, 11, 16, 1, 1, (3, 4), Winograd(2, 6, 16, True, late=16)),
]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("case", SPOILED)
def test_no_number_spreads_beyond_its_windows(
    case: tuple[int, int, int, int, int, int, tuple[int, int], Winograd], machine: Machine
) -> None:
    """An infinity, a NaN, or a number that overflows makes of an output what the definition makes of it; weights of 0
    and windows that hold none of them are among those that tell."""
    n, h, w, ci, co, groups, dilation, pieces = case
    weights = random(groups * co, ci, 3, 3) * RNG.choice([0, 1], (groups * co, ci, 3, 3), p=[0.2, 0.8])
    weights = weights.astype(np.float32)
    op = ops.Convolution((1, 1), ((0, 0), (0, 0)), (1, 1), dilation, "N01C", "OI01", "N01C", groups)
    x = image(n, h, w, groups * ci)
    y = op(x, const(weights))
    low, constants = lower(Graph((x,), (y,)), pieces, machine)
    for count in (1, 3, 40):
        data = spoiled(random(n, h, w, groups * ci), count)
        result = place(np.full(y.shape, 7, np.float32))
        execute(low, [place(data), *map(place, constants)], result)
        want = defined(op, data, weights)
        np.testing.assert_allclose(result, want, rtol=0, atol=2e-4)
    data.reshape(-1)[RNG.integers(data.size)] = 3e38  # alone, as with others a sum depends on its order
    data[~np.isfinite(data)] = 1
    execute(low, [place(data), *map(place, constants)], result)
    np.testing.assert_array_equal(np.isnan(result), np.isnan(defined(op, data, weights)))
    data = np.full((n, h, w, groups * ci), -np.inf, np.float32)
    execute(low, [place(data), *map(place, constants)], result)
    np.testing.assert_array_equal(result, defined(op, data, weights))


def test_an_infinity_through_a_volume_s_slices() -> None:
    weights, x = random(10, 5, 2, 3, 3), Input("x", TensorType(f32, (1, 4, 7, 9, 5)))()
    op = ops.Convolution((1, 1, 1), ((0, 0),) * 3, (1, 1, 1), (2, 1, 1), "N012C", "OI012", "N012C")
    y = op(x, const(weights))
    low, constants = lower(Graph((x,), (y,)), Winograd(2, 5, 16, True), NATIVE)
    data, result = random(1, 4, 7, 9, 5), place(np.zeros(y.shape, np.float32))
    data[0, 3, 2, 4, 1], data[0, 0, 6, 8, 0] = -np.inf, np.nan
    execute(low, [place(data), *map(place, constants)], result)
    np.testing.assert_allclose(result, defined(op, data, weights), atol=2e-4)


def test_other_tiles_keep_their_bits() -> None:
    weights, x = random(16, 16, 3, 3), image(1, 18, 18, 16)
    low, constants = lower(Graph((x,), (convolution(x, weights),)), Winograd(4, 4, 16), NATIVE)
    data = random(1, 18, 18, 16)
    clean, result = (place(np.zeros((1, 16, 16, 16), np.float32)) for _ in range(2))
    execute(low, [place(data), *map(place, constants)], clean)
    data[0, 7, 7, 3] = np.nan  # inputs 4..9 belong to tile 1, windows 5..7 hold it
    execute(low, [place(data), *map(place, constants)], result)
    bad = np.zeros((16, 16), bool)
    bad[5:8, 5:8] = True
    np.testing.assert_array_equal(np.isnan(result), np.broadcast_to(bad[None, :, :, None], result.shape))
    bad[4:8, 4:8] = True
    np.testing.assert_array_equal(result[:, ~bad], clean[:, ~bad])


def test_packed_weights_are_the_panels_of_the_products() -> None:
    """The layout that the contraction generator reads: for each block of columns, all products, in its panels."""
    weights = random(70, 12, 3, 3)
    x = image(1, 10, 10, 12)
    graph = Graph((x,), (convolution(x, weights),))
    pieces = Winograd(4, 4, 48)
    low, _ = lower(graph, pieces, NATIVE)
    got = low.packs[0].apply(weights)
    u = np.zeros((36, 12, 96), np.float32)
    u[:, :, :70] = transformed_weights(weights.transpose(2, 3, 1, 0), transform(4, 3))
    dense = np.ascontiguousarray(u.reshape(36, 12, 2, 48).transpose(2, 0, 1, 3))
    c = _products(36, 12, 48)
    np.testing.assert_array_equal(got, pack_panels(1, c, plan_contraction(c, NATIVE)).apply(dense))


def _products(products: int, ci: int, columns: int) -> Contraction:
    return Contraction(
        (Axis(2, 0, products * ci * columns), Axis(products, 0, ci * columns)), (Axis(4, 16),), (Axis(columns, 0, 1),),
        (Axis(ci, 1, columns),), f32, f32, f32,
    )  # fmt: skip


# In programs


def network(n: DimLike) -> Graph:
    """Two convolutions with padding, a residual and a concatenation, all of which change where results lie."""
    x = image(n, 14, 14, 64)
    first = ops.maximum(convolution(x, random(64, 64, 3, 3) * np.float32(0.05), 1), 0.0)
    second = ops.add(convolution(first, random(64, 64, 3, 3) * np.float32(0.05), 1), x)
    concatenated = ops.Concat(3)(first, second)
    return Graph((x,), (convolution(concatenated, random(32, 128, 3, 3) * np.float32(0.03), 1),))


@pytest.mark.parametrize("machine", MACHINES)
def test_a_single_channel_that_goes(machine: Machine) -> None:
    weights, x = random(1, 5, 3, 3), image(2, 10, 11, 5)
    y = ops.Reshape((2, 8, 9))(ops.maximum(convolution(x, weights), 0.0))
    low, constants = lower(Graph((x,), (y,)), Winograd(4, 4, 16), machine)
    data = random(2, 10, 11, 5)
    result = place(np.full((2, 8, 9), np.nan, np.float32))
    execute(low, [place(data), *map(place, constants)], result)
    want = np.maximum(direct(data, weights), 0)[..., 0]
    assert (np.abs(result - want) <= bound(data, weights, 4)[..., 0] + 1e-6).all()


@pytest.mark.parametrize("batch", [1, 3])
def test_dynamic_batch(batch: int) -> None:
    x = random(batch, 14, 14, 64)
    graph = network(symbol("n"))
    model = compile_graph(explicit_padding(graph))
    assert sum(s.kernel.startswith("winograd") for s in model.program.steps) >= 3
    (want,) = interpret(graph, [x])
    error = np.asarray(model(x)).astype(np.float64) - want
    # docs/inside/winograd.md has 0.7 to 1.2e-6 of one layer; the largest of 20,000 errors varies by half from draw to
    # draw
    assert np.sqrt(np.mean(error**2)) <= 1.5e-6 * want.std()


@pytest.fixture(scope="module")
def open_size() -> tuple[Graph, CompiledModel]:
    x = Input("x", TensorType(f32, (symbol("n"), symbol("h"), 2 * symbol("w"), 32)))()
    op = ops.Convolution((1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), "N01C", "OI01", "N01C", 1)
    wide = op(x, const(random(40, 32, 3, 3) * np.float32(0.05)))
    y = ops.add(ops.maximum(wide, 0.0), wide)
    result = op(y, const(random(33, 40, 3, 3) * np.float32(0.05)))
    graph = Graph((x,), (result,), bounds=(("h", 0, None),))
    model = compile_graph(explicit_padding(graph))
    assert sum(s.kernel.startswith("winograd") for s in model.program.steps) == 2
    return graph, model


SIZES = [(1, 1, 1), (2, 1, 4), (1, 3, 1), (1, 4, 2), (3, 5, 3), (1, 13, 9), (1, 16, 20), (2, 0, 3)]


@pytest.mark.parametrize("size", SIZES)
def test_open_sizes(size: tuple[int, int, int], open_size: tuple[Graph, CompiledModel]) -> None:
    """Slices that are smaller than a tile too: nothing beyond them is read, and each of their outputs is written."""
    graph, model = open_size
    n, h, w = size
    x = random(n, h, 2 * w, 32)
    (want,) = interpret(graph, [x])
    got = np.asarray(model(x)).astype(np.float64)
    assert got.shape == want.shape and np.isfinite(got).all()
    assert not got.size or np.sqrt(np.mean((got - want) ** 2)) <= 2e-6 * want.std()


@pytest.mark.parametrize("batch", [1, 3])
def test_dynamic_batch_of_volumes(batch: int) -> None:
    x = Input("x", TensorType(f32, (symbol("n"), 6, 14, 14, 32)))()
    op = ops.Convolution((1,) * 3, ((1, 1),) * 3, (1,) * 3, (1,) * 3, "N012C", "OI012", "N012C", 2)
    graph = Graph((x,), (op(x, const(random(64, 16, 3, 3, 3) * np.float32(0.05))),))
    model = compile_graph(explicit_padding(graph))
    assert any(s.kernel.startswith("winograd") for s in model.program.steps)
    data = random(batch, 6, 14, 14, 32)
    (want,) = interpret(graph, [data])
    error = np.asarray(model(data)).astype(np.float64) - want
    assert np.sqrt(np.mean(error**2)) <= 1.5e-6 * want.std()


def test_switched_off() -> None:
    padded = explicit_padding(network(symbol("n")))
    model = compile_graph(padded, replace(NATIVE, winograd=False))
    assert not any(s.kernel.startswith("winograd") for s in model.program.steps)


def test_windows_that_read_padding_stay_direct() -> None:
    """A direct convolution leaves out the turns that read zeros: a third along each axis for d half of the size."""
    share = ValidTaps(24, 24, 1, 12, 12, 36).valid_fraction(3)
    assert share == 2 / 3
    x, w = (1, 48, 48, 64), (64, 64, 3, 3)
    op = ops.Convolution((1, 1), ((0, 0), (0, 0)), (1, 1), (12, 12), "N01C", "OI01", "N01C")
    node = op(Input("x", TensorType(f32, x))(), Input("w", TensorType(f32, w))())
    s = winograd_shape_of(node, Layout.contiguous(x), Layout.contiguous(w))
    axes = Axis(24, 48 * 64), Axis(24, 64)
    c = Contraction((), axes, (Axis(64, 0, 1),), (Axis(9, 12 * 64, 64 * 64), Axis(64, 1, 64)), f32, f32, f32)
    assert s is not None and plan_winograd(s, plan_contraction(c, NATIVE), NATIVE) is not None
    assert plan_winograd(s, plan_contraction(c, NATIVE), NATIVE, share * share) is None


def test_only_where_it_is_covered() -> None:
    def shape(op: ops.Convolution, x: tuple[DimLike, ...], w: tuple[DimLike, ...]) -> Shape | None:
        node = op(Input("x", TensorType(f32, x))(), Input("w", TensorType(f32, w))())
        return winograd_shape_of(node, Layout.contiguous(x), Layout.contiguous(w))

    plain = ops.Convolution((1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1), "N01C", "OI01", "N01C")
    assert shape(plain, (symbol("n"), 9, 8, 16), (24, 16, 3, 3)) == Shape(symbol("n"), 7, 6, 16, 24, 3, f32)
    assert shape(plain, (1, 9, 9, 16), (24, 16, 7, 7)) is None
    assert shape(plain, (1, 9, 9, 16), (24, 16, 3, 1)) is None
    assert shape(plain, (1, symbol("h") + 2, 9, 16), (24, 16, 3, 3)) == Shape(1, symbol("h"), 7, 16, 24, 3, f32)
    assert shape(plain, (1, symbol("h") + 2, 9, 16), (24, 16, 3, symbol("s"))) is None
    assert shape(replace(plain, strides=(2, 2)), (1, 9, 9, 16), (24, 16, 3, 3)) is None
    dilated = Shape(1, 5, 7, 16, 24, 3, f32, dilation=(2, 1))
    assert shape(replace(plain, rhs_dilation=(2, 1)), (1, 9, 9, 16), (24, 16, 3, 3)) == dilated
    assert shape(replace(plain, feature_groups=2), (1, 9, 9, 16), (24, 8, 3, 3)) == Shape(1, 7, 7, 8, 12, 3, f32, 2)
    deep = ops.Convolution((1,) * 3, ((0, 0),) * 3, (1,) * 3, (2, 1, 1), "N012C", "OI012", "N012C")
    assert shape(deep, (1, 8, 9, 9, 16), (24, 16, 3, 3, 3)) == Shape(1, 7, 7, 16, 24, 3, f32, 1, 4, 3, 2)
    assert shape(replace(deep, strides=(2, 1, 1)), (1, 8, 9, 9, 16), (24, 16, 3, 3, 3)) is None
    first = replace(plain, lhs_layout="NC01")
    assert shape(first, (1, 16, 9, 9), (24, 16, 3, 3)) is None  # vectors run along channels


def test_only_where_it_pays() -> None:
    def chosen(h: int, ci: int, co: int) -> Winograd | None:
        shape = Shape(1, h, h, ci, co, 3, f32)
        w = h + 2
        c = Contraction(
            (), (Axis(h, w * ci), Axis(h, ci)), (Axis(co, 0, 1),),
            (Axis(3, w * ci, 3 * ci * co), Axis(3 * ci, 1, co)), f32, f32, f32,
        )  # fmt: skip
        return plan_winograd(shape, plan_contraction(c, NATIVE), NATIVE)

    large, image_input, tiny = chosen(56, 64, 64), chosen(224, 3, 64), chosen(2, 4, 4)
    assert large is not None and large.m == 4
    assert image_input is None and tiny is None


# Gradients of kernels


@pytest.mark.parametrize("machine", MACHINES, ids=["native", "narrow"][: len(MACHINES)])
@pytest.mark.parametrize("sizes", [(2, 4, 4, 16, 32), (3, 7, 11, 21, 19), (1, 13, 5, 40, 70)], ids=str)
def test_kernel_gradients(sizes: tuple[int, ...], machine: Machine) -> None:
    """Against the definition; infinities and NaN stay where they belong, and nothing overflows that need not."""
    n, h, w, ci, co = sizes
    x, g = random(n, h + 2, w + 2, ci), random(n, h, w, co)
    inputs = [Input(label, TensorType(f32, v.shape))() for label, v in (("x", x), ("g", g))]
    node = ops.KernelGradient((3, 3), (1, 1), (1, 1))(*inputs)
    assert has_winograd_gradient(node)
    # another order of the result, as layouts may ask for
    for root in (node, ops.Transpose((2, 3, 1, 0))(node), ops.Transpose((0, 2, 3, 1))(node)):
        graph = Graph(tuple(inputs), (root,))
        run = compile_graph(graph, machine)
        broken = x.copy(), g.copy()
        broken[0][0, 1, 2, 3], broken[1][-1, 0, 0, 1] = np.inf, np.nan
        for data in ((x, g), broken, (x * np.float32(1e20), g * np.float32(1e15))):
            (want,) = interpret(graph, data)
            got = np.asarray(run(*data))
            np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
            sure = np.isfinite(want)
            assert (got[~sure & ~np.isnan(want)] == want[~sure & ~np.isnan(want)]).all()
            scale = np.abs(want[sure]).max()
            assert np.abs(got[sure] - want[sure]).max() <= 4e-6 * scale
