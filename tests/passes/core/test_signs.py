"""Products of signs on their bits: the reference's numbers, for borders, zeros, NaN, odd sizes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Node, const
from ingot.ir.types import f32
from ingot.ir.verify import verify
from ingot.passes.core.signs import pack_signs, unpack_signs
from ingot.pipeline.build import build_program, optimize
from ingot.pipeline.cpu import TARGET, cpu_passes
from ingot.runtime.executor import CompiledModel
from tests.passes.check import arg, graph

RNG = np.random.default_rng(5)


def chosen(x: Node) -> Node:
    return ops.where(ops.compare("GE", x, 0.0), 1.0, -1.0)


def larq(x: Node) -> Node:
    return ops.Sign()(ops.add(ops.Sign()(x), 0.1))


def arithmetic(x: Node) -> Node:
    return ops.sub(ops.mul(ops.cast(ops.compare("GT", x, 0.25), f32), 2.0), 1.0)


def scaled(x: Node) -> Node:
    return ops.mul(chosen(x), 0.5)


def difference(x: Node) -> Node:
    """PyTorch's sign, which is 0 at 0 and of NaN."""
    return ops.sub(ops.cast(ops.compare("GT", x, 0.0), f32), ops.cast(ops.compare("LT", x, 0.0), f32))


def moved_difference(x: Node) -> Node:
    return difference(ops.add(difference(x), 0.1))


FORMS = [chosen, larq, ops.Sign(), arithmetic, scaled, difference, moved_difference]


def binary(*shape: int) -> np.ndarray:
    return RNG.choice([-1.0, 1.0], shape).astype(np.float32)


def ternary(*shape: int) -> np.ndarray:
    return RNG.choice([-1.0, 0.0, 1.0], shape).astype(np.float32)


def activations(*shape: int) -> np.ndarray:
    x = RNG.standard_normal(shape).astype(np.float32)
    x.reshape(-1)[::7], x.reshape(-1)[1::11] = 0.0, -0.0
    return x


def _members(n: Node) -> list[Node]:
    bodies = [v for v in vars(n.op).values() if isinstance(v, Graph)]
    return [m for body in bodies for m in body.nodes()]


def check(g: Graph, *arrays: np.ndarray, products: int = 1, features: str = "") -> None:
    new = pack_signs(g)
    verify(new, "the pass")
    of_signs = [n for n in new.nodes() if isinstance(n.op, ops.DotGeneral | ops.Convolution) and n.op.of_signs]
    assert len(of_signs) == products
    with np.errstate(invalid="ignore"):
        want, got = interpret(g, arrays)[0], interpret(new, arrays)[0]
    np.testing.assert_array_equal(got, want)
    compiled = optimize(g, cpu_passes())
    words = [n for group in compiled.nodes() for n in _members(group) if getattr(n.op, "of_signs", False)]
    assert len(words) == products or not arrays[0].size, "as the pipeline has it"
    floats = unpack_signs(new)
    assert not any(getattr(n.op, "of_signs", False) for n in floats.nodes())
    np.testing.assert_array_equal(interpret(floats, arrays)[0], want)
    model = CompiledModel(build_program(g, TARGET.features(features), 1), threads=1)
    np.testing.assert_array_equal(np.asarray(model(*arrays)), want)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("weights", [binary, ternary])
def test_products(form: Callable[[Node], Node], weights: Callable[..., np.ndarray]) -> None:
    for rows, k, columns in ((1, 33, 1), (5, 64, 7), (3, 100, 19)):
        x = activations(rows, k)
        check(graph(ops.linear(form(arg("x", rows, k)), const(weights(columns, k)))), x)


@pytest.mark.parametrize("features", ["", "x86-64-v3"])
def test_rows_known_at_run_time(features: str) -> None:
    g = graph(ops.linear(chosen(arg("x", symbol("n"), 70)), const(binary(9, 70))))
    for rows in (1, 13):
        check(g, activations(rows, 70), features=features)
    check(graph(ops.linear(chosen(arg("x", 0, 70)), const(binary(9, 70)))), activations(0, 70), features=features)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("features", ["", "x86-64-v3"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("pad", "stride", "dilation"), [(0, 1, 1), (1, 1, 1), (2, 2, 1), (2, 1, 2)])
def test_convolutions(form: Callable[[Node], Node], pad: int, stride: int, dilation: int, features: str) -> None:
    """What zeros around an image add is 0, not 1."""
    conv = ops.Conv((stride,) * 2, ((pad, pad),) * 2, (dilation,) * 2, 1)
    x = arg("x", 2, 40, 7, 6)
    g = graph(conv.lower(form(x), const(binary(5, 40, 3, 3))))
    check(g, activations(2, 40, 7, 6), features=features)


@pytest.mark.parametrize("border", [0.0, 1.0, -1.0])
def test_images_padded_before(border: float) -> None:
    """Larq pads with ones."""
    x = ops.pad(chosen(arg("x", 1, 5, 6, 33)), (0, 1, 1, 0), (0, 1, 2, 0), border)
    layouts = ("NHWC", "HWIO", "NHWC")
    op = ops.Convolution((1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1), *layouts)
    check(graph(op(x, const(ternary(3, 3, 33, 4)))), activations(1, 5, 6, 33))


def test_a_magnitude_for_each_channel() -> None:
    w = binary(6, 50) * np.geomspace(0.1, 3, 6, dtype=np.float32)[:, None]
    w[2] = 0
    x = activations(4, 50)
    g = graph(ops.linear(chosen(arg("x", 4, 50)), const(w)))
    want, got = interpret(g, [x])[0], interpret(pack_signs(g), [x])[0]
    np.testing.assert_allclose(got, want, rtol=50 * 2.0**-24, atol=50 * 3 * 2.0**-24)


@pytest.mark.parametrize("form", [larq, ops.Sign(), difference, moved_difference])
def test_nan_stays_in_its_sums(form: Callable[[Node], Node]) -> None:
    x = activations(1, 34, 6, 6)
    x[0, 3, 0, 0] = x[0, 33, 4, 5] = np.nan
    conv = ops.Conv((1, 1), ((1, 1), (1, 1)), (1, 1), 1)
    check(graph(conv.lower(form(arg("x", 1, 34, 6, 6)), const(binary(3, 34, 3, 3)))), x)
    rows = activations(5, 34)
    rows[2, 1] = np.nan
    check(graph(ops.linear(form(arg("x", 5, 34)), const(ternary(3, 34)))), rows)


def test_weights_that_are_not_folded() -> None:
    w = difference(const(RNG.standard_normal((6, 64)).astype(np.float32)))
    check(graph(ops.linear(chosen(arg("x", 3, 64)), w)), activations(3, 64))


def test_views_between() -> None:
    x = ops.reshape(ops.transpose(chosen(arg("x", 3, 5, 16)), (0, 2, 1)), (3, 80))
    check(graph(ops.linear(x, const(binary(4, 80)))), activations(3, 5, 16))


def test_long_chains_are_not_followed_twice() -> None:
    x = arg("x", 3, 48)
    for _ in range(60):
        x = ops.mul(x, x)
    g = graph(ops.linear(ops.add(x, ops.Sign()(x)), const(binary(4, 48))))
    assert pack_signs(g).outputs == g.outputs


def test_what_stays() -> None:
    """Other weights, other activations, few channels, two booleans, images whose border is not known."""
    x = arg("x", 3, 48)
    some = binary(4, 48)
    some[0, 0] = 2
    for g in (
        graph(ops.linear(chosen(x), const(some))),
        graph(ops.linear(chosen(x), const(np.where(some > 0, np.inf, -np.inf).astype(np.float32)))),
        graph(ops.linear(ops.where(ops.compare("GE", x, 0.0), 1.0, -0.5), const(binary(4, 48)))),
        graph(ops.linear(ops.add(chosen(x), chosen(ops.sub(0.0, x))), const(binary(4, 48)))),
        graph(ops.linear(x, const(binary(4, 48)))),
        graph(ops.linear(chosen(arg("x", 3, 16)), const(binary(4, 16)))),
        graph(ops.linear(chosen(x), arg("w", 4, 48))),
    ):
        assert pack_signs(g) is not None and not any(getattr(n.op, "of_signs", False) for n in pack_signs(g).nodes())
