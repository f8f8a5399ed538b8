"""Annotations of several devices: read, kept as marks, and without effect on one device."""

from __future__ import annotations

import numpy as np
import pytest

import ingot
from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.stablehlo.shardings import sharding
from ingot.frontends.stablehlo.syntax import Raw
from ingot.support.errors import InputError
from ingot.transform.shard.mesh import Spec, annotated_spec, mesh_of

SDY = """
module {
  sdy.mesh @mesh = <["dp"=2, "tp"=2]>
  func.func public @main(
      %arg0: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>},
      %arg1: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"tp"}]>},
      %arg2: tensor<6x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"tp"}, {}]>})
      -> (tensor<4x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>}) {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0]
        : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
    %1 = sdy.sharding_constraint %0 <@mesh, [{"dp"}, {"tp"}]> : tensor<4x6xf32>
    %2 = stablehlo.dot_general %1, %arg2, contracting_dims = [1] x [0]
        : (tensor<4x6xf32>, tensor<6x2xf32>) -> tensor<4x2xf32>
    return %2 : tensor<4x2xf32>
  }
}
"""
TILED = {
    '#sdy.sharding<@mesh, [{"dp"}, {}]>': "{devices=[2,1,2]<=[4] last_tile_dim_replicate}",
    '#sdy.sharding<@mesh, [{}, {"tp"}]>': "{devices=[1,2,2]<=[2,2]T(1,0) last_tile_dim_replicate}",
    '#sdy.sharding<@mesh, [{"tp"}, {}]>': "{devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}",
}


def tiled() -> str:
    """The same program with the older annotations."""
    text = SDY.replace('  sdy.mesh @mesh = <["dp"=2, "tp"=2]>\n', "").replace("sdy.sharding =", "mhlo.sharding =")
    for new, old in TILED.items():
        text = text.replace(new, f'"{old}"')
    constraint = '%1 = sdy.sharding_constraint %0 <@mesh, [{"dp"}, {"tp"}]> : tensor<4x6xf32>'
    call = '{mhlo.sharding = "{devices=[2,2]<=[4]}"} : (tensor<4x6xf32>) -> tensor<4x6xf32>'
    assert constraint in text
    return text.replace(constraint, f"%1 = stablehlo.custom_call @Sharding(%0) {call}")


@pytest.mark.parametrize("text", [SDY, tiled()], ids=["sdy", "mhlo"])
def test_a_program_with_annotations(text: str) -> None:
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(shape, np.float32) for shape in ((4, 8), (8, 6), (6, 2))]
    want = values[0] @ values[1] @ values[2]
    np.testing.assert_allclose(ingot.compile(text, cache=False)(*values), want, rtol=1e-5, atol=1e-5)
    model = ingot.compile(text, mesh=ingot.simulate({"dp": 2, "tp": 2}))
    np.testing.assert_allclose(model(*values), want, rtol=1e-5, atol=1e-5)
    rank = ingot.compile(text, mesh={"dp": 2, "tp": 2}, rank=3, cache=False)
    assert [str(spec) for spec in rank.inputs] == ["arg0: f32[2, 8]", "arg1: f32[8, 3]", "arg2: f32[3, 2]"]
    assert [str(spec) for spec in rank.outputs] == ["output_0: f32[2, 2]"]
    assert [s.kernel for s in rank.program.steps if s.collective is not None] == ["all_reduce"]


def test_a_mesh_without_the_axes_is_refused() -> None:
    with pytest.raises(InputError, match="a mesh axis: one of x"):
        ingot.compile(SDY, mesh=ingot.simulate({"x": 4}))
    with pytest.raises(InputError, match="those of 2 devices"):
        ingot.compile(tiled(), mesh=ingot.simulate({"x": 2}))


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ('#sdy.sharding<@mesh, [{"dp", "tp"}, {?}]>', (("dp", "tp"), ())),
        ('#sdy.sharding<@mesh, [{"tp", ?}p1, {"dp"}], replicated={"x"}>', (("tp",), ("dp",))),
        ("#sdy.sharding<@mesh, [{}, {}]>", None),
        ("{replicated}", None),
        ("{maximal device=0}", None),
        ("{devices=[2,2]0,1,2,3}", (("dp",), ("tp",))),
        ("{devices=[2,2]<=[2,2]T(1,0)}", (("tp",), ("dp",))),
        ("{devices=[1,4]<=[4]}", ((), ("dp", "tp"))),
        ("{devices=[4,1]<=[2,2]T(1,0)}", (("tp", "dp"), ())),
        ("{devices=[1,1,4]<=[4] last_tile_dim_replicate}", None),
    ],
)
def test_annotations(text: str, spec: Spec | None) -> None:
    op = sharding({"sdy.sharding" if "sdy" in text else "mhlo.sharding": Raw(text)}, 2)
    assert (None if op is None else annotated_spec(op, 2, mesh_of({"dp": 2, "tp": 2}))) == spec


@pytest.mark.parametrize(
    "text",
    [
        '#sdy.sharding<@mesh, [{"a":(1)2}, {}]>',
        '#sdy.sharding<@mesh, [{"a"}]>',
        "{devices=[2]<=[2]}",
        "{devices=[2,2]<=[2,3]}",
        "{devices=[2,2]<=[2,2]T(1,1)}",
        "{devices=[2,2]0,1,2,2}",
        "{devices=[99999,99999]<=[4]}",
    ],
)
def test_annotations_that_are_refused(text: str) -> None:
    with pytest.raises(Unsupported):
        sharding({"sharding": Raw(text)}, 2)


def test_tiles_that_no_axes_make() -> None:
    op = ops.Sharding((), (2, 2), (0, 3, 2, 1))
    with pytest.raises(InputError, match="parts along axes of the mesh"):
        annotated_spec(op, 2, mesh_of({"dp": 2, "tp": 2}))
