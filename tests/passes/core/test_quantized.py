"""Quantized values: products in integers, moves and maxima of levels, what changes and what does not."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Const, Graph, Node, Op, const
from ingot.ir.types import DType, f8e4m3fn, f8e5m2, f32, i4, i8, i16, i32, i64, u4, u8
from ingot.ir.verify import verify
from ingot.passes.core.block_quantized import is_product_of_levels
from ingot.passes.core.quantized import lower_quantized
from ingot.passes.model.lower import lower_model_ops
from ingot.pipeline.build import build_program
from ingot.pipeline.cpu import TARGET
from ingot.runtime.executor import CompiledModel
from ingot.targets.cpu.workers import host_features
from tests.passes.check import arg, graph

KEPT: frozenset[type[Op]] = frozenset({ops.Dequantize})
PAIRS = TARGET.features("x86-64-v3")
ROUNDED = 3 * 2.0**-24  # a sum's conversion, the product of two scales, the product with it


def levels(*shape: int, dtype: DType, seed: int = 0) -> np.ndarray:
    """From all of the type's range."""
    info = np.iinfo(dtype.numpy)
    return np.random.default_rng(seed).integers(info.min, info.max + 1, shape).astype(dtype.numpy)


def value(q: np.ndarray | Node, zero: int | np.ndarray, scale: float | np.ndarray | None) -> Node:
    node = q if isinstance(q, Node) else const(q)
    scales = () if scale is None else (const(np.asarray(scale, np.float32)),)
    return ops.Dequantize()(node, const(np.asarray(zero, node.dtype.numpy)), *scales)


def lowered(g: Graph, int8_dot: DType | None = u8) -> Graph:
    new = lower_quantized(lower_model_ops(g, KEPT), int8_dot)
    verify(new, "the pass")
    weights = {n.inputs[1] for n in new.nodes() if is_product_of_levels(n, (f32,))}
    assert not any(isinstance(n.op, ops.Dequantize) and n not in weights for n in new.nodes())
    return new


def in_integers(g: Graph, kind: DType = u8) -> bool:
    """Whether all products are of `kind` with i8, summed in i32, or of bytes in f32 where they are few."""
    products = [n for n in g.nodes() if isinstance(n.op, ops.DotGeneral | ops.Convolution)]
    product_types = {(a.dtype, b.dtype, n.dtype) for n in products for a, b in [n.inputs] if not _is_depthwise(n)}
    depthwise = {(a.dtype.bits, b.dtype) for n in products for a, b in [n.inputs] if _is_depthwise(n)}
    return product_types <= {(kind, i8, i32)} and depthwise <= {(8, i8)}


def _is_depthwise(n: Node) -> bool:
    return isinstance(n.op, ops.Convolution) and n.op.feature_groups == n.shape[n.op.out_layout.index("C")] != 1


def results(g: Graph, data: np.ndarray) -> list[np.ndarray]:
    """Interpreted behind the pass, and compiled: for this machine, and for one that multiplies pairs of 16 bits."""
    matches: list[np.ndarray] = []
    for kind, features in ((u8, host_features()), (i16, PAIRS)):
        new = lowered(g, kind)
        assert in_integers(new, kind)
        model = CompiledModel(build_program(g, features, 2), threads=2)
        matches += [interpret(new, [data])[0], np.asarray(model(data))]
    return matches


WEIGHTS = [(i8, 0), (i8, 5), (u8, 128), (u8, 77)]  # of the last not all fit i8 once they are centred


@pytest.mark.parametrize("weights", WEIGHTS)
def test_weights_are_moved_as_constants(weights: tuple[DType, int]) -> None:
    """However large they are: what a product packs is known, and no pass has to fold it."""
    dtype, zero = weights
    w = value(levels(37, 21, dtype=dtype), zero, 0.02)
    new = lowered(graph(ops.MatMul()(value(arg("x", 9, 37, dtype=u8), 3, 0.037), w)))
    (product,) = [n for n in new.nodes() if isinstance(n.op, ops.DotGeneral)]
    assert isinstance(product.inputs[1].op, Const)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("data_type", [(u8, 0), (u8, 131), (i8, 0), (i8, -128)])
def test_matmul(data_type: tuple[DType, int], weights: tuple[DType, int]) -> None:
    """One scale, one for each column, none."""
    (a_type, za), (b_type, zb) = data_type, weights
    x, w = levels(9, 37, dtype=a_type), levels(37, 21, dtype=b_type, seed=1)
    sums = (x.astype(np.int64) - za) @ (w.astype(np.int64) - zb)
    for scale in (0.02, np.linspace(0.01, 0.3, 21)):
        g = graph(ops.MatMul()(value(arg("x", 9, 37, dtype=a_type), za, 0.037), value(w, zb, scale)))
        exact = sums * np.float64(np.float32(0.037)) * np.asarray(scale, np.float32).astype(np.float64)
        for got in results(g, x):
            np.testing.assert_allclose(got, exact, rtol=ROUNDED)
    g = graph(ops.MatMul()(value(arg("x", 9, 37, dtype=a_type), za, None), value(w, zb, None)))
    for got in results(g, x):
        np.testing.assert_array_equal(got, sums)


@pytest.mark.parametrize("zero", [0, 100])
@pytest.mark.parametrize(
    ("channels", "groups", "size", "stride", "pad", "dilation"),
    [
        (3, 1, 7, 2, 3, 1), (8, 1, 3, 1, 1, 1), (5, 1, 3, 1, 2, 2), (16, 1, 1, 1, 0, 1), (24, 3, 3, 2, 1, 1),
        (12, 12, 5, 2, 2, 1),
    ],
)  # fmt: skip
def test_convolution(zero: int, channels: int, groups: int, size: int, stride: int, pad: int, dilation: int) -> None:
    """What padding adds stands for 0 and so is a's zero, and a sum for each output channel is exact."""
    x = levels(2, channels, 11, 13, dtype=u8)
    w = levels(12, channels // groups, size, size, dtype=i8, seed=1)
    scale = np.linspace(0.01, 0.3, 12).reshape(12, 1, 1, 1)
    conv = ops.Conv((stride,) * 2, ((pad, pad),) * 2, (dilation,) * 2, groups)
    wide = conv.reference(x.astype(np.float64) - zero, w.astype(np.float64))
    exact = wide * np.float64(np.float32(0.5)) * scale.astype(np.float32).reshape(1, 12, 1, 1)
    g = graph(conv(value(arg("x", *x.shape, dtype=u8), zero, 0.5), value(w, 0, scale)))
    for got in results(g, x):
        np.testing.assert_allclose(got, exact, rtol=ROUNDED)


@pytest.mark.parametrize("zero", [0, 9])
def test_transposed_convolution(zero: int) -> None:
    """Holes between elements stand for 0: in integers only where that is a's zero."""
    x, w = levels(1, 6, 5, 4, dtype=u8), levels(6, 8, 2, 2, dtype=i8, seed=1)
    conv = ops.ConvTranspose((2, 2), ((0, 0), (0, 0)), (0, 0), (1, 1))
    g = graph(conv(value(arg("x", *x.shape, dtype=u8), zero, 0.5), value(w, 0, np.linspace(0.1, 1, 8)[:, None, None])))
    scale = np.linspace(0.1, 1, 8).astype(np.float32).astype(np.float64)[:, None, None]
    exact = conv.reference(x.astype(np.float64) - zero, w.astype(np.float64)) * 0.5 * scale
    assert in_integers(lowered(g)) == (zero == 0)
    model = CompiledModel(build_program(g, host_features(), 2), threads=2)
    for got in (interpret(lowered(g), [x])[0], np.asarray(model(x))):
        np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-5 * np.abs(exact).max())


def test_views_between() -> None:
    """Weights [out, in] by their rows, values through reshapes, at a length known at run time."""
    x, w, scale = levels(2, 6, 8, dtype=u8), levels(10, 24, dtype=i8, seed=1), np.linspace(0.1, 1, 10)
    q = value(arg("x", 2, symbol("s") * 3, 8, dtype=u8), 3, 0.25)
    g = graph(ops.linear(ops.reshape(q, (2, -1, 24)), value(w, 0, scale.reshape(10, 1))))
    exact = (x.reshape(2, 2, 24).astype(np.int64) - 3) @ w.astype(np.int64).T * 0.25 * scale.astype(np.float32)
    for got in results(g, x):
        np.testing.assert_allclose(got, exact, rtol=ROUNDED)


@pytest.mark.parametrize("weights", [(i8, 0), (u8, 77)])
@pytest.mark.parametrize("data_type", [u8, i8])
def test_each_row_has_a_scale_and_a_zero(data_type: DType, weights: tuple[DType, int]) -> None:
    """As they are told at run time, for tokens of a batch: some zeros, some scales, none."""
    x, (b_type, zb) = levels(3, 5, 37, dtype=data_type), weights
    w = levels(37, 21, dtype=b_type, seed=1)
    zero, scale = levels(3, 5, 1, dtype=data_type, seed=2), np.linspace(0.1, 2, 15, dtype=np.float32).reshape(3, 5, 1)
    sums = (x.astype(np.int64) - zero) @ (w.astype(np.int64) - zb)
    b = symbol("b")
    tokens = [arg("x", b, 5, 37, dtype=data_type), arg("zero", b, 5, 1, dtype=data_type), arg("scale", b, 5, 1)]
    columns = np.linspace(0.01, 0.3, 21, dtype=np.float32)
    g = graph(ops.MatMul()(ops.Dequantize()(*tokens), value(w, zb, columns)))
    assert in_integers(lowered(g))
    model = CompiledModel(build_program(g, host_features(), 2))
    for got in (interpret(lowered(g), [x, zero, scale])[0], np.asarray(model(x, zero, scale))):
        np.testing.assert_allclose(got, sums * scale.astype(np.float64) * columns, rtol=ROUNDED)
    g = graph(ops.MatMul()(ops.Dequantize()(*tokens[:2]), value(w, zb, None)))
    np.testing.assert_array_equal(interpret(lowered(g), [x, zero])[0], sums)
    one_zero = ops.Dequantize()(tokens[0], const(np.array(3, data_type.numpy)), tokens[2])
    g = graph(ops.MatMul()(one_zero, value(w, zb, 0.5)))
    assert in_integers(lowered(g))
    want = ((x.astype(np.int64) - 3) @ (w.astype(np.int64) - zb)) * scale.astype(np.float64) * 0.5
    np.testing.assert_allclose(interpret(lowered(g), [x, scale])[0], want, rtol=ROUNDED)


@pytest.mark.parametrize("groups", [1, 8])
@pytest.mark.parametrize("pad", [0, 1])
def test_each_image_has_a_scale_and_a_zero(pad: int, groups: int) -> None:
    """What padding adds is each image's own zero."""
    x, w = levels(3, 8, 7, 9, dtype=i8), levels(8, 8 // groups, 3, 3, dtype=i8, seed=1)
    zero, scale = levels(3, 1, 1, 1, dtype=i8, seed=2), np.array([0.1, 0.7, 1.9], np.float32).reshape(3, 1, 1, 1)
    conv = ops.Conv((1, 2), ((pad, pad),) * 2, (1, 1), groups)
    exact = conv.reference(x.astype(np.float64) - zero, w.astype(np.float64)) * scale.astype(np.float64) * 0.5
    images = [arg("x", *x.shape, dtype=i8), arg("zero", 3, 1, 1, 1, dtype=i8), arg("scale", 3, 1, 1, 1)]
    g = graph(conv(ops.Dequantize()(*images), value(w, 0, 0.5)))
    assert in_integers(lowered(g))
    model = CompiledModel(build_program(g, host_features(), 2))
    for got in (interpret(lowered(g), [x, zero, scale])[0], np.asarray(model(x, zero, scale))):
        np.testing.assert_allclose(got, exact, rtol=ROUNDED)


def test_zeros_known_at_run_time() -> None:
    """As dynamic quantization has them."""
    x, w = levels(4, 16, dtype=u8), levels(16, 5, dtype=i8, seed=1)
    zero = arg("zero", dtype=u8)
    q = ops.Dequantize()(arg("x", 4, 16, dtype=u8), zero)
    g = graph(ops.MatMul()(q, value(w, 0, None)))
    model = CompiledModel(build_program(g, host_features(), 1), threads=1)
    for z in (0, 9, 255):
        inputs = {"x": x, "zero": np.uint8(z)}
        want = (x.astype(np.int64) - z) @ w.astype(np.int64)
        np.testing.assert_array_equal(interpret(lowered(g), [inputs[n.op.label] for n in g.inputs])[0], want)  # type: ignore[attr-defined]
        np.testing.assert_array_equal(model(**inputs), want)


def matmul_of(w: Node, depth: int = 16, zero: int = 0, scale: float | np.ndarray = 0.5) -> Graph:
    return graph(ops.MatMul()(value(arg("x", 4, depth, dtype=u8), zero, scale), w))


def test_what_stays() -> None:
    """Scales along the sum, sums that may leave i32, computed right sides, and machines without such instructions."""
    w = levels(16, 5, dtype=i8)
    supported = matmul_of(value(w, 0, 0.1))
    assert in_integers(lowered(supported)) and not in_integers(lowered(supported, int8_dot=None))
    assert not in_integers(lowered(matmul_of(value(w, 0, np.ones((16, 1))))))
    assert not in_integers(lowered(matmul_of(value(w, 0, 0.1), scale=np.ones(16))))
    assert not in_integers(lowered(matmul_of(value(arg("w", 16, 5, dtype=i8), 0, 0.1))))
    long = levels(70000, 1, dtype=i8)
    assert not in_integers(lowered(matmul_of(value(long, 0, 0.1), depth=70000)))


@pytest.mark.parametrize("depth", [32768, 40000])
def test_long_sums_of_weights_that_fit_no_i8(depth: int) -> None:
    """Each product may be as large as 255 * 255."""
    w = np.full((depth, 2), 255, np.uint8)
    w[0] = 0
    x = np.full((4, depth), 255, np.uint8)
    g = matmul_of(value(w, 0, 0.1), depth)
    assert in_integers(lowered(g)) == (depth == 32768)
    model = CompiledModel(build_program(g, host_features(), 1), threads=1)
    for got in (interpret(lowered(g), [x])[0], np.asarray(model(x))):
        np.testing.assert_allclose(got, np.full((4, 2), 255 * 255 * 0.05 * (depth - 1)), rtol=1e-3)


def test_constants_without_products_are_what_they_stand_for() -> None:
    """Nothing is left to be done at run time, also of a large table."""
    table = levels(600, 500, dtype=i8)
    new = lowered(graph(ops.add(arg("x", 600, 500), value(table, 3, 0.5))))
    assert len(new.nodes()) == 3
    x = np.zeros((600, 500), np.float32)
    np.testing.assert_array_equal(interpret(new, [x])[0], (table.astype(np.float32) - 3) * np.float32(0.5))


def of(n: Node, *ops_: type[Op]) -> list[Node]:
    return [x for x in Graph((), (n,)).nodes() if isinstance(x.op, ops_)]


@pytest.mark.parametrize("scale", [0.25, -0.25])
def test_levels_are_pooled_and_moved(scale: float) -> None:
    """Not by a scale that turns the order round."""
    q = value(arg("x", 2, 8, 9, 9, dtype=u8), 7, scale)
    pooled = ops.MaxPool((3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1))(ops.transpose(q, (0, 1, 3, 2)))
    g = graph(pooled)
    new = lowered(g)
    (window,) = of(new.outputs[0], ops.ReduceWindow)
    assert (window.dtype == u8) == (scale > 0)
    x = levels(2, 8, 9, 9, dtype=u8)
    model = CompiledModel(build_program(g, host_features(), 1), threads=1)
    for got in (interpret(new, [x])[0], model(x)):
        np.testing.assert_array_equal(got, interpret(g, [x])[0])


@pytest.mark.parametrize(("window", "pads", "dilation"), [((1, 1), (1, 0), 1), ((2, 1), (1, 1), 4)])
def test_windows_of_padding_alone_stay(window: tuple[int, int], pads: tuple[int, int], dilation: int) -> None:
    """Their maximum is -inf, which no level stands for."""
    q = value(arg("x", 1, 1, 3, 3, dtype=u8), 7, 0.25)
    pooled = ops.MaxPool(window, (1, 1), (pads, (0, 0)), (dilation, 1))(q)
    (reduce_window,) = of(lowered(graph(pooled)).outputs[0], ops.ReduceWindow)
    assert reduce_window.dtype != u8


def test_levels_quantized_again_are_the_same() -> None:
    x = arg("x", 3, 5, dtype=u8)
    requantized = ops.apply(ops.Quantize(), value(x, 7, 0.25), const(np.float32(0.25)), const(np.uint8(7)))
    assert lowered(graph(requantized)).outputs == (x,)
    for scale, zero in ((0.5, np.uint8(7)), (0.25, np.uint8(8)), (0.25, np.int8(7))):
        other = ops.apply(ops.Quantize(), value(x, 7, 0.25), const(np.float32(scale)), const(np.asarray(zero)))
        assert lowered(graph(other)).outputs != (x,)


def test_what_is_joined_for_levels_is_levels_before() -> None:
    x, y = arg("x", 3, 5), arg("y", 3, 2)
    concatenated = ops.concat([x, y], 1)
    q = ops.quantize(concatenated, const(np.float32(0.05)), const(np.uint8(7)))
    new = lowered(graph(q))
    assert [n.dtype for n in of(new.outputs[0], ops.Concat)] == [u8]
    data = [np.linspace(-9, 9, x.type.size, dtype=np.float32).reshape(x.type.shape) for x in (x, y)]  # type: ignore[call-overload]
    np.testing.assert_array_equal(interpret(new, data)[0], interpret(graph(q), data)[0])
    others = graph(q, ops.add(concatenated, 1.0))  # which read it as it was
    assert [n.dtype for n in of(lowered(others).outputs[0], ops.Concat)] == [f32]


TABLE = levels(9, 6, dtype=i8)


@pytest.mark.parametrize("zero", [np.int8(3), np.zeros((9, 1), np.int8), levels(9, 1, dtype=i8, seed=1)])
@pytest.mark.parametrize("scale", [0.5, np.linspace(0.1, 1, 9)[:, None], np.linspace(0.1, 1, 6), np.full((9, 6), 0.25)])
@pytest.mark.parametrize("axis", [0, 1])
def test_tables_are_read_as_levels(axis: int, zero: np.ndarray, scale: np.ndarray) -> None:
    """By rows and by columns, with parameters of the whole table, of each row, of each column and of each number."""
    table = value(TABLE, zero, scale)
    g = graph(ops.Take(axis)(table, arg("at", symbol("n"), dtype=i64)))
    new = lowered(g)
    assert not any(n.type.size == TABLE.size and n.dtype == f32 for n in new.nodes() if np.ndim(scale) < 2 or n.inputs)
    model = CompiledModel(build_program(g, host_features(), 1), threads=1)
    dequantized = (TABLE.astype(np.float32) - zero) * np.float32(scale)
    for at in (np.array([5, 0, 5, 2]), np.array([4])):
        for got in (interpret(new, [at])[0], model(at)):
            np.testing.assert_array_equal(np.asarray(got), dequantized.take(at, axis).astype(np.float32))


@pytest.mark.parametrize("dtype", [i4, u4, i8])
def test_scales_of_blocks_are_known(dtype: DType) -> None:
    """A scale for each block of a sum's terms, spread over it by ops that rearrange: nothing is left to be done."""
    low, high = (-8, 8) if dtype != u4 else (0, 16)
    q = np.random.default_rng(0).integers(low, high, (12, 5)).astype(dtype.numpy)
    scale, zero = np.linspace(0.1, 2, 15, dtype=np.float32).reshape(3, 1, 5), np.arange(15).reshape(3, 1, 5) % 7
    spread = [ops.reshape(ops.broadcast_to(const(p), (3, 4, 5)), (12, 5)) for p in (zero.astype(dtype.numpy), scale)]
    g = graph(ops.MatMul()(arg("x", 2, 12), ops.Dequantize()(const(q), *spread)))
    assert len(lowered(g).nodes()) == 3
    x = np.random.default_rng(1).standard_normal((2, 12)).astype(np.float32)
    w = (q.astype(np.float32) - zero.repeat(4, 1).reshape(12, 5)) * scale.repeat(4, 1).reshape(12, 5)
    model = CompiledModel(build_program(g, host_features(), 1), threads=1)
    np.testing.assert_allclose(np.asarray(model(x)), x @ w, rtol=1e-5, atol=1e-5)


def _between(low: float | None, high: float | None, x: Node) -> Node:
    ends = [None if b is None else ops.BroadcastInDim(x.shape, ())(const(np.float32(b))) for b in (low, high)]
    if ends[0] is None or ends[1] is None:
        return ops.Max()(x, ends[0]) if ends[0] is not None else ops.Min()(ends[1] or x, x)
    return ops.Clamp()(ends[0], x, ends[1])


@pytest.mark.parametrize(
    ("low", "high", "zero", "is_removed"),
    [(0, None, 0, True), (0, None, 3, False), (-0.3, None, 3, True), (0, 6, 0, False), (0, 25.5, 0, True),
     (None, 25.2, 3, True), (None, 25.1, 3, False), (np.nan, None, 0, False)],
)  # fmt: skip
def test_bounds_in_front_of_levels_that_cut_earlier(low: float | None, high: float | None, zero: int, is_removed: bool):
    y = _between(low, high, arg("x", 3, 41))
    q = ops.quantize(y, ops.scalar(0.1), ops.scalar(zero, u8))
    new = lowered(graph(q))
    assert (not any(isinstance(n.op, type(y.op)) for n in new.nodes())) is is_removed
    inputs = (np.random.default_rng(0).standard_normal((3, 41)) * 20).astype(np.float32)
    inputs[0, :5] = np.nan, np.inf, -np.inf, -0.0, 25.25
    got, want = (interpret(g, [inputs])[0] for g in (new, graph(q)))
    np.testing.assert_array_equal(got, want)
    reference = lowered(graph(q, y))  # somebody else reads what is cut
    assert any(isinstance(n.op, type(y.op)) for n in reference.nodes())


def narrow(*shape: int, dtype: DType = f8e4m3fn, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype.numpy)


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("columns", [False, True])
def test_floats_of_8_bits_are_multiplied_as_they_are(rows: bool, columns: bool) -> None:
    """Constant weights behind a view, one scale or one for each row and column."""
    rng = np.random.default_rng(2)
    x, w = arg("x", 7, 40, dtype=f8e4m3fn), narrow(12, 40, dtype=f8e5m2, seed=1)
    scales = [rng.random(shape if per_row else ()) + 0.1 for shape, per_row in (((7, 1), rows), ((12, 1), columns))]
    y = ops.MatMul()(value(x, 0, scales[0]), ops.transpose(value(w, 0, scales[1]), (1, 0)))
    g = graph(y)
    new = lower_quantized(lower_model_ops(g, KEPT), None, f8_dot=True)
    verify(new, "the pass")
    (dot,) = of(new.outputs[0], ops.DotGeneral)
    assert ([n.dtype for n in dot.inputs], dot.dtype) == ([f8e4m3fn, f8e5m2], f32)
    data = narrow(7, 40)
    np.testing.assert_allclose(interpret(new, [data])[0], interpret(g, [data])[0], rtol=1e-5, atol=1e-5)
    (dot,) = of(lowered(g).outputs[0], ops.DotGeneral)
    assert dot.inputs[0].dtype == f32


def test_a_convolution_of_floats_of_8_bits() -> None:
    x, w = arg("x", 2, 3, 9, 9, dtype=f8e4m3fn), narrow(5, 3, 3, 3, seed=1)
    scale = np.linspace(0.1, 0.5, 5).reshape(5, 1, 1, 1)
    g = graph(ops.Conv((1, 1), ((1, 1), (1, 1)), (1, 1))(value(x, 0, 0.3), value(w, 0, scale)))
    new = lower_quantized(lower_model_ops(g, KEPT), None, f8_dot=True)
    (conv,) = of(new.outputs[0], ops.Convolution)
    assert [n.dtype for n in conv.inputs] == [f8e4m3fn, f8e4m3fn]
    data = narrow(2, 3, 9, 9)
    np.testing.assert_allclose(interpret(new, [data])[0], interpret(g, [data])[0], rtol=1e-5, atol=1e-5)


def test_floats_of_8_bits_that_are_moved_or_summed_by_several_scales_stay() -> None:
    x, w = arg("x", 7, 40, dtype=f8e4m3fn), narrow(40, 12)
    for zero, scale in ((1, 0.3), (0, np.linspace(0.1, 1, 40).reshape(40, 1))):
        g = graph(ops.MatMul()(value(x, 0, 0.5), value(w, zero, scale)))
        new = lower_quantized(lower_model_ops(g, KEPT), None, f8_dot=True)
        (dot,) = of(new.outputs[0], ops.DotGeneral)
        assert dot.inputs[0].dtype == f32
