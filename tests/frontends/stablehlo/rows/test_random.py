"""rng_bit_generator gives XLA's bits; rng its distributions; JAX's own random programs compile to JAX's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from ingot import ops
from ingot.exporters.stablehlo import write
from ingot.frontends.stablehlo import import_stablehlo
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input
from ingot.ir.types import TensorType, f32
from ingot.ops import sampling

jax = pytest.importorskip("jax")


@pytest.mark.sampled(5)
@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 4), (5, 6), (64,), (0,)], ids=str)
@pytest.mark.parametrize("algorithm", ["THREE_FRY", "PHILOX", "DEFAULT"])
def test_bits_are_xlas(algorithm: str, shape: tuple[int, ...], bits: int) -> None:
    from jax import lax

    state = np.asarray([0x9ABCDEF012345678, 0xFFFFFFFFFFFFFFFE], np.uint64)
    which = getattr(lax.RandomAlgorithm, f"RNG_{algorithm}")

    def draw(words):
        return lax.rng_bit_generator(words, shape, dtype=cast(Any, f"uint{bits}"), algorithm=which)

    with jax.enable_x64(True):
        words = state.view(np.uint32)
        want = jax.jit(draw)(words)
        text = jax.jit(draw).lower(words).as_text()
    got = interpret(import_stablehlo(text).graph, (words,))
    for g, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(g, np.asarray(w))


RNG = """
func.func @main(%a: tensor<{0}>, %b: tensor<{0}>) -> tensor<40x300x{0}> {{
  %s = stablehlo.constant dense<[40, 300]> : tensor<2xi64>
  %0 = stablehlo.rng %a, %b, %s, distribution = {1} : (tensor<{0}>, tensor<{0}>, tensor<2xi64>) -> tensor<40x300x{0}>
  return %0 : tensor<40x300x{0}>
}}
"""


@pytest.mark.parametrize(
    ("dtype", "kind", "mean", "std"),
    [
        (np.float32, "UNIFORM", 3.5, 3 * 12**-0.5),
        (np.float64, "NORMAL", 2.0, 5.0),
        (np.float16, "NORMAL", 2.0, 5.0),
        (np.int32, "UNIFORM", 3.0, (2 / 3) ** 0.5),
    ],
)
def test_rng(dtype: type, kind: str, mean: float, std: float) -> None:
    name = {"f": "f", "i": "i"}[np.dtype(dtype).kind] + str(8 * np.dtype(dtype).itemsize)
    graph = import_stablehlo(RNG.format(name, kind)).graph
    (x,) = interpret(graph, (np.asarray(2, dtype), np.asarray(5, dtype)))
    assert x.dtype == dtype and x.shape == (40, 300)
    assert abs(x.astype(np.float64).mean() - mean) < 4 * std / np.sqrt(x.size)
    assert abs(x.astype(np.float64).std() / std - 1) < 0.05


@pytest.mark.parametrize("name", ["normal", "uniform", "exponential", "bits"])
def test_jaxs_numbers(name: str) -> None:
    from ingot.frontends.jax import import_jax

    def draw(key):
        return getattr(jax.random, name)(jax.random.fold_in(jax.random.split(key, 3)[1], 7), (50,))

    key = jax.random.PRNGKey(42)
    imported = import_jax(draw, (key,))
    (got,) = interpret(imported.graph, [np.asarray(key)])
    want = np.asarray(draw(key))
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-7)


def test_a_program_that_draws_is_exported_with_its_state(tmp_path: Path) -> None:
    x = Input("x", TensorType(f32, (5, 7)))()
    graph = Graph((x,), (sampling.dropout(ops.RandomKey(0)(), x, 0.4)[0],))
    write(graph, tmp_path / "net.mlir")
    reimported = import_stablehlo(tmp_path / "net.mlir").graph
    data = np.arange(1, 36, dtype=np.float32).reshape(5, 7)
    after, y = interpret(reimported, (data, np.asarray([0, 0])))
    np.testing.assert_array_equal(y, interpret(graph, (data,))[0])
    assert after.tolist() == [0, 1] and (interpret(reimported, (data, after))[1] != y).any()
