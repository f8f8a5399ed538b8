"""Programs of narrower types: weights in blocks, whose minima they sum apart, 16 bits and bytes, loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

import ingot
from ingot import ops
from ingot.driver.compile import Options, compiled_program
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const, rebuild
from ingot.ir.types import TensorType, f32
from ingot.passes.constants import value_of
from ingot.runtime.executor import CompiledModel
from ingot.transform.bounds.error import rounding_errors
from ingot.transform.bounds.forms import RoundedToBytes
from ingot.transform.bounds.narrow import in_parts
from ingot.transform.bounds.run import as_compiled
from ingot.transform.repeat import repeat

RANDOM = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has the numbers that it has alone."""
    monkeypatch.setitem(globals(), "RANDOM", np.random.default_rng(0))


ROWS, BLOCKS, SIZE = 6, 3, 32


def weights(minimum: float) -> Node:
    """[rows, blocks, size] of levels 7 and 8; a minimum of -7.5 cancels most of levels * scale."""
    levels = RANDOM.integers(7, 9, (ROWS, BLOCKS, SIZE)).astype(np.uint8)
    scale = np.full((ROWS, BLOCKS, 1), 4.0, np.float16) + RANDOM.random((ROWS, BLOCKS, 1)).astype(np.float16)
    return ops.DequantizeBlocks(bits=4)(const(levels), const(scale), const(scale * np.float16(minimum)))


def layer(minimum: float = -7.5) -> Graph:
    x = Input("x", TensorType(f32, (2, BLOCKS * SIZE)))()
    w = ops.Reshape((ROWS, BLOCKS * SIZE))(weights(minimum))
    return Graph((x,), (ops.DotGeneral(((), ()), ((1,), (1,)))(x, w),))


def test_parts_are_the_same_over_the_reals() -> None:
    graph = layer()
    x = RANDOM.standard_normal((2, BLOCKS * SIZE)).astype(np.float32)
    parts = in_parts(graph)
    assert [n.shape for n in parts.nodes() if isinstance(n.op, ops.Concat)] == [(2, 192), (6, 192)]
    (one,), (two,) = interpret(graph, [x]), interpret(parts, [x])
    np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-3)


def test_the_program_is_within_its_rounding() -> None:
    """The parts are some 30 times as large as the weights, and so is the bound."""
    graph, options = layer(), Options(threads=1, cache=False)
    program = CompiledModel(compiled_program(graph, options), threads=1)
    for _ in range(2):
        x = RANDOM.standard_normal((2, BLOCKS * SIZE)).astype(np.float32)
        (bound,) = rounding_errors(graph, [x], options).values()
        wide = next(n for n in graph.nodes() if isinstance(n.op, ops.DequantizeBlocks))
        levels, scale, minimum = (np.asarray(v.constant.value, np.float64) for v in wide.inputs)  # type: ignore[union-attr]
        real = x.astype(np.float64) @ (levels * scale + minimum).reshape(ROWS, -1).T
        got = np.asarray(program.run([x])[0], np.float64)
        assert 0 < np.abs(got - real).max() <= bound
        plain = graph.with_outputs(rebuild(graph.outputs, {wide: const(value_of(wide))}))
        (plain_bound,) = rounding_errors(plain, [x], options).values()
        assert bound > 20 * plain_bound


def test_what_has_no_parts_is_refused() -> None:
    w = ops.Reshape((1, ROWS, BLOCKS * SIZE))(weights(-7.5))
    x = Input("x", TensorType(f32, (4, ROWS, 8)))()
    op = ops.Convolution((1,), ((0, 0),), (1,), (1,), "NCW", "OIW", "NCW")
    with pytest.raises(ingot.InputError, match="got them as operand 0 of convolution"):
        in_parts(Graph((x,), (op(w, x),)))


def convolution(groups: int) -> Graph:
    """Kernels of levels 7 and 8, most of which the minimum cancels."""
    x = Input("x", TensorType(f32, (2, 12, 40)))()
    levels = RANDOM.integers(7, 9, (8, 12 // groups, 3)).astype(np.uint8)
    scale = np.full((8, 1, 1), 4.0, np.float32)
    kernel = ops.DequantizeBlocks(bits=4)(const(levels), const(scale), const(scale * np.float32(-7.4)))
    op = ops.Convolution((1,), ((1, 1),), (1,), (1,), "NCW", "OIW", "NCW", feature_groups=groups)
    return Graph((x,), (op(x, kernel),))


def loop() -> Graph:
    """h -> w h / 8, three times; the blocks are few enough to be folded."""
    x = Input("x", TensorType(f32, (2, 8)))()
    levels, scale = RANDOM.integers(7, 9, (8, 1, 8)).astype(np.uint8), np.full((8, 1, 1), 0.5, np.float32)
    blocks = ops.DequantizeBlocks(bits=4)(const(levels), const(scale), const(scale * np.float32(-7.4)))
    w = ops.Reshape((8, 8))(blocks)

    def body(i: Node, sums: Sequence[Node], values: Sequence[Node]) -> list[Node]:
        return [ops.DotGeneral(((), ()), ((1,), (1,)))(sums[0], w)]

    return Graph((x,), tuple(repeat(3, [x], [], body)))


@pytest.mark.parametrize("graph", [convolution(1), convolution(4), loop()], ids=["dense", "grouped", "loop"])
def test_convolutions_and_loops(graph: Graph) -> None:
    """Equal over the real numbers; the bounds hold for the program, and are those of both parts."""
    options, (x,) = Options(threads=1, cache=False), graph.inputs
    values = RANDOM.standard_normal(x.shape).astype(np.float32)  # type: ignore[arg-type]
    parts = in_parts(graph)
    real = interpret(graph, [values])[0]
    scale = np.abs(real).max()
    np.testing.assert_allclose(interpret(parts, [values])[0], real, atol=1e-4 * scale)
    assert sum(isinstance(n.op, ops.Concat) for n in parts.nodes()) >= 2
    program = CompiledModel(compiled_program(graph, options), threads=1)
    distance = np.abs(np.asarray(program.run([values])[0]) - real).max()
    (bound,) = rounding_errors(graph, [values], options).values()
    assert 0 < distance <= bound < scale


NARROW = [("bfloat16", "float32"), ("float16", "float32"), ("float32", "int8"), ("bfloat16", "int8")]


def wide_layer(rows: int, has_minimum: bool) -> Graph:
    """Levels of 4 bits in blocks of 32, enough of them that the program keeps them."""
    x = Input("x", TensorType(f32, (rows, 256)))()
    levels = const(RANDOM.integers(0, 16, (64, 8, 32)).astype(np.uint8))
    scale = (RANDOM.random((64, 8, 1)) + 0.5).astype(np.float16)
    minimum = [const(scale * np.float16(-7.5))] if has_minimum else []
    w = ops.DequantizeBlocks(bits=4, zero=0 if has_minimum else 8)(levels, const(scale), *minimum)
    return Graph((x,), (ops.DotGeneral(((), ()), ((1,), (1,)))(x, ops.Reshape((64, 256))(w)),))


def rounding(graph: Graph, options: Options) -> tuple[float, float, float]:
    """(distance from the exact result, its bound, the deviation of results) of a compiled graph on random values."""
    values = RANDOM.standard_normal(graph.inputs[0].shape).astype(np.float32)  # type: ignore[arg-type]
    real = interpret(graph, [values])[0]
    program = CompiledModel(compiled_program(graph, options), threads=1)
    distance = np.abs(np.asarray(program.run([values])[0]) - real).max()
    (bound,) = rounding_errors(graph, [values], options).values()
    return distance, bound, float(real.std())


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("precision", "activations"), NARROW)
@pytest.mark.parametrize("has_minimum", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 64])
def test_levels_in_narrower_programs(rows: int, has_minimum: bool, precision: str, activations: str) -> None:
    """Products of a few rows multiply levels, those of many weights of 16 bits."""
    graph = wide_layer(rows, has_minimum)
    options = Options(threads=1, cache=False, precision=precision, activations=activations)
    distance, bound, deviation = rounding(graph, options)
    assert 0 < distance <= bound < deviation
    parts = in_parts(as_compiled(graph, options))
    assert sum(isinstance(n.op, ops.Concat) for n in parts.nodes()) == 2 * has_minimum


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("precision", "activations"), NARROW)
@pytest.mark.parametrize("of", ["constants", "levels", "minima"])
def test_loops_in_narrower_programs(of: str, precision: str, activations: str) -> None:
    """h -> w h / 8, three times; also of constants in f32."""
    graph = loop()
    if of != "minima":
        (node,) = [n for n in graph.nodes() if isinstance(n.op, ops.While)]
        (wide,) = [n for n in node.op.body.nodes() if isinstance(n.op, ops.DequantizeBlocks)]  # type: ignore[attr-defined]
        w = const(value_of(wide)) if of == "constants" else ops.DequantizeBlocks(zero=8, bits=4)(*wide.inputs[:2])
        body = node.op.body  # type: ignore[attr-defined]
        op = replace(node.op, body=body.with_outputs(rebuild(body.outputs, {wide: w})))  # type: ignore[type-var]
        graph = graph.with_outputs(rebuild(graph.outputs, {node: Node.make(op, node.inputs, node.loc)}))
    options = Options(threads=1, cache=False, precision=precision, activations=activations)
    distance, bound, _ = rounding(graph, options)
    assert distance <= bound


@pytest.mark.parametrize("carried", [True, False])
def test_loops_with_activations_in_bytes(carried: bool) -> None:
    """h -> relu(w h), three times; the levels are carried by the loop, or are constants of its body."""
    x = Input("x", TensorType(f32, (2, 32)))()
    levels = const(RANDOM.integers(-7, 8, (32, 32)).astype(np.int8))
    w = ops.DequantizeBlocks()(levels, const(np.full((32, 1), 0.02, np.float32)))

    def body(i: Node, sums: Sequence[Node], values: Sequence[Node]) -> list[Node]:
        y = ops.DotGeneral(((), ()), ((1,), (1,)))(sums[0], values[0] if carried else w)
        return [ops.Max()(y, ops.full(y.shape, 0.0, f32))]

    (y,) = repeat(3, [x], [w] if carried else [], body)
    graph, options = Graph((x,), (y,)), Options(threads=1, cache=False, activations="int8")
    expected = as_compiled(graph, options)
    (loop,) = [n for n in expected.nodes() if isinstance(n.op, ops.While)]
    assert sum(isinstance(n.op, RoundedToBytes) for n in loop.op.body.nodes()) == 1  # type: ignore[attr-defined]
    values = RANDOM.standard_normal((2, 32)).astype(np.float32)
    program = CompiledModel(compiled_program(graph, options), threads=1)
    real = interpret(graph, [values])[0]
    distance = np.abs(np.asarray(program.run([values])[0]) - real).max()
    (in_bytes,) = rounding_errors(graph, [values], options).values()
    (in_floats,) = rounding_errors(graph, [values], replace(options, activations="float32")).values()
    assert distance <= in_bytes and in_floats < 1e-2 * in_bytes
