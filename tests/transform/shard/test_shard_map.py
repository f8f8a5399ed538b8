"""JAX's shard_map: what each device computes of its parts, as JAX computes it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

import ingot
from ingot.driver.open import Request, open_model
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir.interp import interpret
from ingot.support.errors import IngotError, InputError
from ingot.transform.shard.graph import collectives, graphs_of, shard
from ingot.transform.shard.mesh import mesh_of

MODULE = """
module @jit_f attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["dp"=2, "tp"=2]>
  func.func public @main(%arg0: tensor<4x6xf32> loc("x"), %arg1: tensor<6x5xf32> loc("w")) -> tensor<4x5xf32> {
    %s = stablehlo.sine %arg0 : tensor<4x6xf32>
    %0 = sdy.manual_computation(%s, %arg1) in_shardings=[<@mesh, [{"dp"}, {"tp"}]>, <@mesh, [{"tp"}, {}]>]
        out_shardings=[<@mesh, [{"dp"}, {}]>] manual_axes={"dp", "tp"}
        (%arg2: tensor<2x3xf32>, %arg3: tensor<3x5xf32>) {
      %1 = stablehlo.dot_general %arg2, %arg3, contracting_dims = [1] x [0]
          : (tensor<2x3xf32>, tensor<3x5xf32>) -> tensor<2x5xf32>
      %2 = "stablehlo.all_reduce"(%1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
          replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, use_global_device_ids}> ({
      ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
        %14 = stablehlo.add %arg4, %arg5 : tensor<f32>
        stablehlo.return %14 : tensor<f32>
      }) : (tensor<2x5xf32>) -> tensor<2x5xf32>
      %c = stablehlo.constant dense<2> : tensor<ui32>
      %4 = stablehlo.partition_id : tensor<ui32>
      %5 = stablehlo.divide %4, %c : tensor<ui32>
      %8 = stablehlo.convert %5 : (tensor<ui32>) -> tensor<f32>
      %9 = stablehlo.broadcast_in_dim %8, dims = [] : (tensor<f32>) -> tensor<2x5xf32>
      %13 = stablehlo.add %2, %9 : tensor<2x5xf32>
      sdy.return %13 : tensor<2x5xf32>
    } : (tensor<4x6xf32>, tensor<6x5xf32>) -> tensor<4x5xf32>
    return %0 : tensor<4x5xf32>
  }
}
"""
RNG = np.random.default_rng(0)
X, W = RNG.standard_normal((4, 6), np.float32), RNG.standard_normal((6, 5), np.float32)
WANTED = np.sin(X) @ W + np.array([[0], [0], [1], [1]], np.float32)
MESH = {"dp": 2, "tp": 2}


def test_each_device_computes_its_parts():
    np.testing.assert_allclose(ingot.compile(MODULE, mesh=ingot.simulate(MESH))(X, W), WANTED, rtol=1e-5, atol=1e-5)
    graph = open_model(MODULE, Request()).graph
    np.testing.assert_allclose(interpret(graph, [X, W])[0], WANTED, rtol=1e-5, atol=1e-5)
    for marks, expected in (
        ({}, {"all_reduce": 1, "all_gather": 1}),  # the result is whole on each rank
        ({"x": ("dp", 0)}, {"all_reduce": 1}),  # and here the caller works in parts along dp
    ):
        counts = [collectives(g) for g in graphs_of(shard(graph, mesh_of(MESH), marks))]
        assert counts == [expected] * 4


def test_it_needs_the_mesh_that_it_was_written_for():
    with pytest.raises(InputError, match=r"expected mesh=\{'dp': 2, 'tp': 2\}, got \{'tp': 2, 'dp': 2\}"):
        ingot.compile(MODULE, mesh=ingot.simulate({"tp": 2, "dp": 2}))
    with pytest.raises(InputError, match=r"their mesh, got one device; ingot.compile\(..., mesh="):
        ingot.compile(MODULE)
    one = MODULE.replace('"dp"=2, "tp"=2', '"dp"=1, "tp"=1')
    with pytest.raises(IngotError):
        ingot.compile(one)  # parts of another size


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('manual_axes={"dp", "tp"}', 'manual_axes={"dp"}', "without tp"),
        ('["dp"=2, "tp"=2]', '["dp"=2, "tp"=2], device_ids=[3, 2, 1, 0]', "devices in order"),
        ('<@mesh, [{"tp"}, {}]>', '<@other, [{"tp"}, {}]>', "one mesh"),
        ('<@mesh, [{"tp"}, {}]>', '<@mesh, [{"tp":(1)2}, {}]>', "a part of a mesh axis"),
    ],
)
def test_what_is_not_there_is_refused(old: str, new: str, message: str):
    with pytest.raises((IngotError, Unsupported), match=message):
        open_model(MODULE.replace(old, new), Request())


PROGRAM = """
import jax, jax.numpy as jnp, numpy as np, ingot
from jax.sharding import PartitionSpec as P
mesh = jax.make_mesh((2, 2), ("dp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

def body(x, w):
    y = jax.lax.psum_scatter(x @ w, "tp", scatter_dimension=1, tiled=True)
    y = y + jax.lax.ppermute(y, "dp", [(0, 1), (1, 0)]) * jax.lax.axis_index("tp")
    y = jax.lax.scan(lambda c, _: (jnp.tanh(c), None), y, None, length=3)[0]
    return jax.lax.all_gather(y, "tp", axis=1, tiled=True), jax.lax.pmax(y.max(), ("dp", "tp"))

def f(x, w):
    split = jax.shard_map(body, mesh=mesh, in_specs=(P("dp", "tp"), P("tp", None)), out_specs=(P("dp", None), P()),
                          check_vma=False)
    a, b = split(jnp.cos(x), w)
    return a * 2, b

rng = np.random.default_rng(1)
x, w = rng.standard_normal((4, 6)).astype(np.float32), rng.standard_normal((6, 8)).astype(np.float32)
model = ingot.compile(jax.jit(f).lower(x, w).as_text(), mesh=ingot.simulate({"dp": 2, "tp": 2}))
for got, want in zip(model(x, w), jax.jit(f)(x, w), strict=True):
    np.testing.assert_allclose(got, np.asarray(want), rtol=1e-5, atol=1e-6)
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("jax") is None, reason="jax is not installed")
def test_as_jax_on_four_devices():
    four = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**os.environ, **four}, capture_output=True, text=True, timeout=200
    )
    assert process.returncode == 0, process.stderr[-3000:]
