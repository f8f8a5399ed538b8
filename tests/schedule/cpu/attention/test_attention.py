"""Attention kernels against the interpreter: both kernels, masks, causal, grouped heads, edges, dynamic sizes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ingot.ir.dims import symbol
from ingot.ir.node import Graph, Input
from ingot.ir.types import TensorType, f32
from ingot.ops import Attention, Reshape, Slice, Transpose
from ingot.passes.fusion.fuse import fuse
from ingot.schedule.cpu.attention.decode import MAX_HEAD_SIZE
from ingot.support.limits import Limits, limited
from tests.growth import lowered
from tests.schedule.compiled import MACHINES, NATIVE, check, inputs_like, op_graph, run, slow

SIZES = {
    "decode": (1, 4, 4, 1, 130, 64, 64),
    "decode-grouped": (1, 8, 2, 1, 700, 64, 64),
    "decode-odd": (2, 4, 1, 3, 77, 40, 24),
    "decode-one-key": (1, 2, 1, 8, 1, 16, 16),
    "flash": (1, 2, 2, 40, 300, 64, 64),
    "flash-odd": (2, 4, 2, 33, 65, 20, 36),
    "flash-narrow": (1, 1, 1, 100, 129, 7, 3),
    "flash-wide": (1, 2, 2, 16, 200, 128, 64),
}


def normal(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def operands(b: int, hq: int, hk: int, sq: int, sk: int, d: int, dv: int) -> list[np.ndarray]:
    return [normal(b, hq, sq, d), normal(b, hk, sk, d), normal(b, hk, sk, dv)]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_causal_and_masks(sizes: tuple[int, ...], machine) -> None:
    xs = operands(*sizes)
    b, hq, _, sq, sk, *_ = sizes
    rng = np.random.default_rng(0)
    check(op_graph(Attention("none", 0.2), xs), xs, machine=machine)
    check(op_graph(Attention("lower_right", 0.2), xs), xs, machine=machine)
    check(op_graph(Attention("upper_left", 0.2, 3.0), xs), xs, machine=machine)
    keys = [*xs, rng.random((b, 1, 1, sk)) < 0.5]
    check(op_graph(Attention("none", 0.2), keys), keys, machine=machine)
    added = normal(hq, sq, sk)
    added[:, sq // 2] = -np.inf
    added[0, :, : sk // 2] = -np.inf
    full = [*xs, added]
    check(op_graph(Attention("lower_right", 0.2), full), full, machine=machine)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
def test_one_query_without_its_axes(machine) -> None:
    """The places of a vector of queries are one place then."""
    xs = operands(1, 1, 1, 1, 1, 2, 2)
    unmasked = op_graph(Attention("lower_right", 0.2), xs)
    check(Graph(unmasked.inputs, (Reshape((1, 2))(*unmasked.outputs),)), xs, machine=machine)


def test_decode_splits_keys_over_threads() -> None:
    xs = operands(1, 2, 1, 1, 3000, 64, 48)
    for causal in ("none", "upper_left"):
        check(op_graph(Attention(causal, 0.2), xs), xs)
    hidden = [*xs, np.arange(3000) > 2900]
    check(op_graph(Attention("none", 0.2), hidden), hidden)
    masked = [*xs, np.zeros((1, 3000), bool)]
    check(op_graph(Attention("none", 0.2), masked), masked)
    xs[1][0, 0, 2000, 5] = np.nan
    for guarded in (False, True):
        check(op_graph(Attention("none", 0.2, guarded=guarded), xs), xs)


@pytest.mark.parametrize("depth, cols", [(8, MAX_HEAD_SIZE + 3), (MAX_HEAD_SIZE + 3, 8)])
def test_heads_that_are_too_wide_to_unroll(depth: int, cols: int) -> None:
    xs = operands(1, 1, 1, 2, 5, depth, cols)
    check(op_graph(Attention("none", 0.01), xs), xs)


def test_a_head_of_any_size_compiles_in_bounded_time() -> None:
    types = [TensorType(f32, (1, 1, rows, size)) for rows, size in ((2, 8), (5, 8), (5, 1 << 31))]
    graph = Graph(tuple(xs := [Input(f"x{i}", t)() for i, t in enumerate(types)]), (Attention()(*xs),))
    with limited(Limits(seconds=20)):
        assert 1 <= lowered(graph) < 9


def test_narrow_storage() -> None:
    for sq in (1, 20):
        xs = [x.astype(np.float16) for x in operands(1, 4, 2, sq, 90, 32, 32)]
        check(op_graph(Attention("none", 0.2), xs), xs, rtol=1e-3)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_keys_and_values_narrower_than_queries(sizes: tuple[int, ...], machine) -> None:
    """In 16 bits, and as levels with a scale for each key and value."""
    q, key, value = operands(*sizes)
    b, hq, hk, sq, sk, *_ = sizes
    narrow = [q, key.astype(np.float16), value.astype(np.float16)]
    check(op_graph(Attention("lower_right", 0.2), narrow), narrow, machine=machine)
    levels = [np.rint(x * 30).astype(np.int8) for x in (key, value)]
    scales = [np.random.default_rng(i).random((b, hk, sk, 1)).astype(np.float32) / 30 for i in range(2)]
    for op in (Attention("lower_right", 0.2, scaled=True), Attention("none", 0.2, 3.0, scaled=True)):
        data = [q, *levels, *scales]
        check(op_graph(op, data), data, machine=machine)
    data = [q, *levels, normal(hq, sq, sk), *scales]
    check(op_graph(Attention("none", 0.2, scaled=True), data), data, machine=machine)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_keys_in_pages(sizes: tuple[int, ...], machine) -> None:
    """Of any order, some twice and some of positions that there are not, in floats and as levels."""
    b, hq, hk, sq, sk, d, dv = sizes
    rng = np.random.default_rng(5)
    q, key, value = operands(b, hq, hk, sq, 3 * sk + 5, d, dv)
    at = rng.integers(0, 3 * sk + 5, sk)
    at[rng.random(sk) < 0.1], at[rng.random(sk) < 0.1] = 1 << 62, -(1 << 62)
    for dtype in (np.float32, np.float16):
        data = [q, key.astype(dtype), value.astype(dtype), at]
        check(op_graph(Attention("lower_right", 0.2, indexed=True), data), data, machine=machine)
    levels = [np.rint(x * 30).astype(np.int8) for x in (key, value)]
    scales = [rng.random((b, hk, 3 * sk + 5, 1)).astype(np.float32) / 30 for _ in range(2)]
    data = [q, *levels, rng.random((sq, sk)) < 0.7, *scales, at]
    check(op_graph(Attention("none", 0.2, scaled=True, indexed=True), data), data, machine=machine)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize("window", [40, *slow(1, 200)])
def test_blocks_that_a_mask_hides_are_not_read(window: int, machine) -> None:
    """A sliding window, queries that see nothing, and keys that nothing sees: their values are NaN."""
    q, key, value = operands(1, 4, 2, 300, 700, 32, 24)
    at, row = np.arange(700), np.arange(300)[:, None] + 400
    mask = (at <= row) & (at > row - window)
    mask[:70] = mask[:, 640:660] = False
    bias = np.where(mask, np.random.default_rng(0).normal(size=mask.shape), -np.inf).astype(np.float32)
    hidden = np.array(value)
    hidden[:, :, :16] = np.nan
    for own_mask in (mask, bias):
        for causal in ("none", "lower_right"):
            xs = [q, key, value, own_mask]
            check(op_graph(Attention(causal, 0.2), xs), xs, machine=machine)
        if window == 1:
            got = run(op_graph(Attention("none", 0.2), xs), [q, key, hidden, own_mask], machine)[0]
            assert not np.isnan(got).any()
    bias[:, :16] = np.nan  # of a block that nothing else would show
    got = run(op_graph(Attention("none", 0.2), xs), [q, key, value, bias], machine)[0]
    assert np.isnan(got).all()


@pytest.mark.parametrize("sq", [3, 20])
def test_nan_and_infinity(sq: int) -> None:
    q, k, v = operands(1, 2, 2, sq, 40, 16, 16)
    q[0, 0, 1, 3] = np.nan
    q[0, 1, 0, 2] = np.inf
    k[0, 1, 5, 7] = np.inf
    v[0, 0, 30, 2] = np.inf
    v[0, 0, 31, 3] = np.nan
    for guarded in (False, True):
        check(op_graph(Attention("none", 0.2, guarded=guarded), (q, k, v)), (q, k, v))
    mask = np.ones((sq, 40), bool)
    mask[:, 5] = False
    check(op_graph(Attention("none", 0.2), (q, k, v, mask)), (q, k, v, mask))


@pytest.mark.parametrize("causal", ["none", "lower_right", *slow("upper_left")])
def test_dynamic_sizes(causal: str) -> None:
    b, s, t = symbol("b"), symbol("s"), symbol("t")
    shapes = {0: (b, 4, s, 24), 1: (b, 2, t, 24), 2: (b, 2, t, 17), 3: (s, t)}
    for sizes in ((1, 4, 2, 1, 9, 24, 17), (3, 4, 2, 50, 70, 24, 17), (2, 4, 2, 16, 150, 24, 17)):
        xs = operands(*sizes)
        check(op_graph(Attention(causal, 0.3), xs, shapes), xs)
        masked = [*xs, normal(sizes[3], sizes[4])]
        check(op_graph(Attention(causal, 0.3), masked, shapes), masked)
    # few queries, dynamic keys
    xs = operands(2, 4, 2, 2, 333, 24, 17)
    shapes = {0: (b, 4, 2, 24), 1: (b, 2, t, 24), 2: (b, 2, t, 17)}
    check(op_graph(Attention(causal, 0.3), xs, shapes), xs)


@pytest.mark.parametrize("sq", [1, 37])
def test_heads_are_read_and_written_in_place(sq: int) -> None:
    """[B,S,3HD] -> split heads -> attention -> [B,S,HD] is one group without a copy."""
    b, h, d = 2, 3, 32
    qkv = normal(b, sq, 3 * h * d)
    (x,) = inputs_like([qkv])

    def part(i: int):
        head_slice = Slice((0, 0, i * h * d), (b, sq, (i + 1) * h * d), (1, 1, 1))(x)
        return Transpose((0, 2, 1, 3))(Reshape((b, sq, h, d))(head_slice))

    y = Attention("lower_right", 0.2)(part(0), part(1), part(2))
    graph = Graph((x,), (Reshape((b, sq, h * d))(Transpose((0, 2, 1, 3))(y)),))
    assert len([n for n in fuse(graph).nodes() if n.inputs]) == 1
    for machine in MACHINES:
        check(graph, [qkv], machine=machine)


def test_one_thread_does_not_split() -> None:
    xs = operands(1, 1, 1, 1, 2000, 64, 64)
    check(op_graph(Attention("none", 0.2), xs), xs, machine=replace(NATIVE, threads=1))
