"""A decoder's step: norms, products that meet, and weights of few bits in one kernel, by its meaning."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType, bf16, dtype_of, f16, f32
from tests.conformance.checked import planned, run_checked
from tests.conformance.targets import H100

RNG = np.random.default_rng(5)
Weights = Callable[[int, int, type], Node]


def plain(depth: int, columns: int, kind: type) -> Node:
    """[columns, depth]"""
    return const((RNG.normal(size=(columns, depth)) / depth**0.5).astype(kind))


def levels(bits: int, block: int) -> Weights:
    def make(depth: int, columns: int, kind: type) -> Node:
        stored = ml_dtypes.uint4 if bits == 4 else np.uint8
        shape = columns, depth // block, block
        q, zero = (RNG.integers(0, 1 << bits, s).astype(stored) for s in (shape, (*shape[:2], 1)))
        scale = (RNG.uniform(0.5, 1, (*shape[:2], 1)) / (1 << bits) / depth**0.5).astype(kind)
        return ops.reshape(ops.Dequantize()(const(q), const(zero), const(scale)), (columns, depth))

    return make


def normed(x: Node) -> Node:
    """A layer norm in f32: one sum waits for another. It is rounded to the row's type and weighed."""
    n = x.shape[-1]
    assert isinstance(n, int)
    spread = ops.BroadcastInDim(x.shape, (0, 1))
    wide = ops.cast(x, f32)
    part = const(np.full((1, 1), 1 / n, np.float32))
    wide = ops.Sub()(wide, spread(ops.Mul()(ops.reshape(ops.Reduce("sum", (1,))(wide), (1, 1)), part)))
    square = ops.Mul()(ops.reshape(ops.Reduce("sum", (1,))(ops.Mul()(wide, wide)), (1, 1)), part)
    y = ops.cast(
        ops.Mul()(wide, spread(ops.Rsqrt()(ops.Add()(square, const(np.full((1, 1), 1e-5, np.float32)))))), x.dtype
    )
    return ops.Mul()(y, ops.BroadcastInDim(x.shape, (1,))(const(RNG.uniform(0.5, 1, n).astype(x.dtype.numpy))))


DOT = ops.DotGeneral(((), ()), ((1,), (1,)))


def gated(kind: type, depth: int, columns: int, weights: Weights) -> Graph:
    """silu(norm(x) @ gate) * (norm(x) @ up)"""
    x = Input("x", TensorType(dtype_of(np.empty(0, kind)), (1, depth)))()
    y = normed(x)
    gate, up = (DOT(y, weights(depth, columns, kind)) for _ in range(2))
    return Graph((x,), (ops.Mul()(ops.Mul()(gate, ops.Logistic()(gate)), up),))


def agrees(graph: Graph, x: np.ndarray, tolerance: float) -> None:
    for got, want in zip(run_checked(graph, [x], H100), interpret(graph, [x]), strict=True):
        wide = want.astype(np.float64)
        limit = np.abs(wide, where=np.isfinite(wide), out=np.zeros_like(wide)).max()
        np.testing.assert_allclose(got.astype(np.float64), wide, rtol=tolerance, atol=tolerance * limit)


@pytest.mark.parametrize(("kind", "depth", "columns", "weights", "tolerance"), [
    (np.float16, 2048, 21, plain, 2e-3),
    (ml_dtypes.bfloat16, 100, 33, plain, 1.5e-2),
    (np.float32, 31, 7, plain, 1e-5),
    (np.float16, 512, 21, levels(4, 32), 2e-3),
    (np.float16, 1536, 14, levels(8, 128), 2e-3),
    (ml_dtypes.bfloat16, 960, 21, levels(4, 64), 1.5e-2),
    (np.float32, 96, 5, levels(4, 24), 1e-5),
])  # fmt: skip
def test_a_norm_and_two_products_that_meet_are_one_kernel(
    kind: type, depth: int, columns: int, weights: Weights, tolerance: float
) -> None:
    graph = gated(kind, depth, columns, weights)
    agrees(graph, RNG.normal(size=(1, depth)).astype(kind), tolerance)
    program, _ = planned(graph, H100)
    assert [step.kernel for step in program.steps] == ["product_of_row_0"]


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_what_lies_behind_a_row_is_not_multiplied(value: float) -> None:
    """The last turn is not whole, and a norm of zeros there is no number."""
    x = RNG.normal(size=(1, 1100)).astype(np.float32)
    x[0, 7] = value
    agrees(gated(np.float32, 1100, 6, plain), x, 1e-5)


@pytest.mark.parametrize("terms", [(0,), (3, 0), (0, 3)])
def test_no_weight_of_a_row_without_terms_is_read(terms: tuple[int, ...]) -> None:
    x, w = Input("x", TensorType(f32, (1, *terms)))(), const(np.zeros((*terms, 5), np.float32))
    dims = tuple(range(len(terms)))
    y = ops.DotGeneral(((), ()), (tuple(d + 1 for d in dims), dims))(x, w)
    agrees(Graph((x,), (y,)), np.zeros((1, *terms), np.float32), 0.0)


@pytest.mark.parametrize("shape", [(6, 32), (5, 7)])
def test_columns_of_two_axes(shape: tuple[int, int]) -> None:
    """Heads and their elements, of which a program's columns are some of one head or of several."""
    x, w = Input("x", TensorType(f32, (1, 70)))(), const(RNG.normal(size=(70, *shape)).astype(np.float32))
    y = ops.Transpose((0, 2, 1))(ops.DotGeneral(((), ()), ((1,), (0,)))(x, w))
    agrees(Graph((x,), (y,)), RNG.normal(size=(1, 70)).astype(np.float32), 1e-5)


def test_a_norm_that_others_need_is_stored() -> None:
    x = Input("x", TensorType(f32, (1, 64)))()
    y = normed(x)
    graph = Graph((x,), (DOT(y, plain(64, 32, np.float32)), y))
    assert len(planned(graph, H100)[0].steps) == 2
    agrees(graph, RNG.normal(size=(1, 64)).astype(np.float32), 1e-5)


@pytest.mark.parametrize(("count", "launches"), [(2, 2), (9, 10)])
def test_each_of_a_few_products_computes_the_norm_of_its_row(count: int, launches: int) -> None:
    """Products of other columns have loops of their own. Many of them read a norm that is stored."""
    x = Input("x", TensorType(f32, (1, 64)))()
    y = normed(x)
    graph = Graph((x,), tuple(ops.Tanh()(DOT(y, plain(64, 32 + n, np.float32))) for n in range(count)))
    assert len(planned(graph, H100)[0].steps) == launches
    agrees(graph, RNG.normal(size=(1, 64)).astype(np.float32), 1e-5)


def test_a_norm_behind_a_chain_of_norms() -> None:
    """Residual values that other norms are added to are stored, whatever comes before them."""
    x = Input("x", TensorType(f32, (1, 64)))()
    y = x
    for _ in range(8):
        y = ops.Add()(y, normed(y))
    program, _ = planned(Graph((x,), (DOT(normed(y), plain(64, 32, np.float32)), y)), H100)
    assert "rsqrt+dot_general" in program.steps[-1].label, program.steps[-1].label


@pytest.mark.parametrize("value", [1.0, np.nan, np.inf])
@pytest.mark.parametrize(("kind", "depth", "tolerance"), [
    (np.float16, 2048, 2e-3), (ml_dtypes.bfloat16, 1100, 1.5e-2), (np.float32, 31, 1e-5),
])  # fmt: skip
def test_products_with_weights_that_are_inputs(kind: type, depth: int, tolerance: float, value: float) -> None:
    """Queries, keys and values are one launch, a gate and what it gates one kernel, each with the norm before it."""
    dtype = dtype_of(np.empty(0, kind))
    shapes = (21, depth), (9, depth), (9, depth), (7, depth), (7, depth)
    x, *weights = (Input(f"x{i}", TensorType(dtype, s))() for i, s in enumerate(((1, depth), *shapes)))
    row, other = normed(x), normed(ops.Neg()(x))
    gate, up = (DOT(other, w) for w in weights[3:])
    results = (*(DOT(row, w) for w in weights[:3]), ops.Mul()(ops.Logistic()(gate), up))
    graph = Graph((x, *weights), results)
    program, _ = planned(graph, H100)
    assert len(program.steps) == 1 and program.steps[0].label.count("|") == 3
    arrays = [(RNG.normal(size=n.shape) / depth**0.5).astype(kind) for n in graph.inputs]
    arrays[0][0, 7] = value
    for got, want in zip(run_checked(graph, arrays, H100), interpret(graph, arrays), strict=True):
        np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("value", [1.0, 65504.0, 2.0**-24, np.inf, np.nan])
@pytest.mark.parametrize("stored", [ml_dtypes.uint4, ml_dtypes.int4, np.uint8, np.int8])
def test_levels_of_all_kinds_beside_large_and_small_terms(stored: type, value: float) -> None:
    """A depth of no whole turns, columns of no whole program. Beside an infinite term a level at its zero gives NaN."""
    bits, signed = (4 if "4" in stored.__name__ else 8), not stored.__name__.startswith("u")
    low = -(1 << (bits - 1)) if signed else 0
    shape = 7, 5, 48
    q, zero = (RNG.integers(low, low + (1 << bits), s).astype(stored) for s in (shape, (*shape[:2], 1)))
    scale = RNG.uniform(0.001, 0.002, (*shape[:2], 1)).astype(np.float16)
    w = ops.reshape(ops.Dequantize()(const(q), const(zero), const(scale)), (7, 240))
    x = RNG.normal(size=(1, 240)).astype(np.float16)
    x[0, 3] = value
    if value < 1:
        x[0, 100:] *= value
    agrees(Graph((data := Input("x", TensorType(f16, (1, 240)))(),), (DOT(data, w),)), x, 2e-3)


def test_zeros_that_are_no_integers() -> None:
    q = RNG.integers(0, 16, (6, 2, 64)).astype(ml_dtypes.uint4)
    zero, scale = (RNG.uniform(*r, (6, 2, 1)).astype(np.float16) for r in ((6, 9), (0.01, 0.02)))
    w = ops.reshape(ops.Dequantize()(const(q), const(zero), const(scale)), (6, 128))
    data = Input("x", TensorType(f16, (1, 128)))()
    agrees(Graph((data,), (DOT(data, w),)), RNG.normal(size=(1, 128)).astype(np.float16), 2e-3)


@pytest.mark.parametrize(("bits", "block", "kind", "rows", "depth", "columns"), [
    (4, 32, ml_dtypes.bfloat16, 16, 1152, 70),
    (4, 16, np.float32, 9, 48, 20),
    (4, 128, np.float16, 130, 768, 130),
    (4, 24, np.float16, 6, 96, 21),
    (8, 32, np.float16, 70, 96, 33),
    (8, 12, np.float32, 7, 84, 21),
])  # fmt: skip
def test_rows_read_the_words_of_one_row(bits: int, block: int, kind: type, rows: int, depth: int, columns: int) -> None:
    """Columns whose last k-step is not whole, blocks shorter than a product of tensor cores."""
    weights = levels(bits, block)(depth, columns, kind)
    packs: list[int] = []
    for count in (rows, 1):
        x = Input("x", TensorType(dtype_of(np.empty(0, kind)), (count, depth)))()
        graph = Graph((x,), (DOT(x, weights),))
        agrees(graph, RNG.normal(size=(count, depth)).astype(kind), 1e-5 if kind == np.float32 else 2e-2)
        packs.append(planned(graph, H100)[0].weights.nbytes)
    assert packs[0] == packs[1]
    both = Graph((x, y := Input("y", TensorType(x.dtype, (rows, depth)))()), (DOT(x, weights), DOT(y, weights)))
    assert planned(both, H100)[0].weights.nbytes == packs[0]


@pytest.mark.parametrize("weights", [plain, levels(4, 32)])
def test_an_open_number_of_few_rows_is_split(weights: Weights) -> None:
    """As in a step of several sequences. Later calls may have more rows than a tile."""
    x = Input("x", TensorType(bf16, (symbol("rows"), 4096)))()
    graph = Graph((x,), (DOT(x, weights(4096, 70, ml_dtypes.bfloat16)),), bounds=(("rows", 1, None),))
    tiles = 3  # across the columns, for each 16 rows
    assert planned(graph, H100)[0].steps[0].chunks == (4 * tiles, "rows", 15, "+", 16, "//", "*")
    for rows in (1, 5, 16, 40):
        agrees(graph, RNG.normal(size=(rows, 4096)).astype(ml_dtypes.bfloat16), 1e-2)
