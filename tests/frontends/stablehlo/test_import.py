"""Programs as graphs, in the interpreter and compiled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot import ops
from ingot.frontends.stablehlo import import_stablehlo
from ingot.ir.interp import interpret
from ingot.support.errors import ImportModelError, InputError, UnsupportedOpError
from tests.frontends.stablehlo.programs import PROGRAMS, Program


def _agree(got: object, expected: object) -> None:
    gots, reference = (v if isinstance(v, tuple) else (v,) for v in (got, expected))
    for g, w in zip(gots, reference, strict=True):
        g, w = np.asarray(g), np.asarray(w)
        assert g.dtype == w.dtype
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_programs_mean_what_numpy_says(program: Program):
    imported = import_stablehlo(program.text)
    with np.errstate(all="ignore"):
        _agree(interpret(imported.graph, program.inputs), program.expected(*program.inputs))


@pytest.mark.parametrize("program", PROGRAMS[:6], ids=lambda p: p.name)
def test_compiled_programs(program: Program, tmp_path: Path):
    path = tmp_path / "model.mlir"
    path.write_text("module {\n" + program.text + "}\n")
    _agree(ingot.compile(path)(*program.inputs), program.expected(*program.inputs))


@pytest.mark.parametrize("largest", ["", ", largest = true", ", largest = false"])
def test_top_k_as_older_jax_exports_it(largest: str):
    text = f"""func.func public @main(%x: tensor<2x4xf32>) -> (tensor<2x3xf32>, tensor<2x3xi32>) {{
      %0:2 = stablehlo.custom_call @mhlo.topk(%x) {{mhlo.attributes = {{k = 3 : i64{largest}}}, mhlo.version = 1 : i64}}
        : (tensor<2x4xf32>) -> (tensor<2x3xf32>, tensor<2x3xi32>)
      return %0#0, %0#1 : tensor<2x3xf32>, tensor<2x3xi32>
    }}"""
    if "false" in largest:
        with pytest.raises(UnsupportedOpError, match="least values"):
            import_stablehlo(text)
        return
    x = np.array([[1, 4, 2, 3], [0, 0, 5, -1]], np.float32)
    values, places = interpret(import_stablehlo(text).graph, (x,))
    assert values.tolist() == [[4, 3, 2], [5, 0, 0]] and places.tolist() == [[1, 3, 2], [2, 0, 1]]


def _ops(text: str) -> set[type]:
    return {type(n.op) for n in import_stablehlo(text).graph.nodes()}


def test_regions_become_the_ops_that_they_are():
    of = {p.name: _ops(p.text) for p in PROGRAMS}
    assert ops.ArgReduce in of["argmax"]
    assert ops.CumReduce in of["running_sum"]
    assert ops.ReduceWindow in of["pool_from_2"]
    assert ops.Sort in of["sort_by_absolute"] and ops.Reduce not in of["sort_by_absolute"]
    assert ops.While in of["scatter_of_its_own"]


@pytest.mark.parametrize(("precision", "tf32"), [
    ("", None), (", precision = [DEFAULT, DEFAULT]", None), (", precision = [HIGHEST, HIGHEST]", False),
])  # fmt: skip
def test_products_of_the_highest_precision_take_no_tf32(precision: str, tf32: bool | None):
    """JAX's `default_matmul_precision("highest")`; any other leaves it to the option `precision`."""
    text = f"""module {{
  func.func @main(%x: tensor<2x3xf32>, %y: tensor<3x4xf32>) -> tensor<2x4xf32> {{
    %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0]{precision}
      : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
    return %0 : tensor<2x4xf32>
  }}
}}"""
    (product,) = (n for n in import_stablehlo(text).graph.nodes() if isinstance(n.op, ops.DotGeneral))
    assert isinstance(product.op, ops.DotGeneral) and product.op.tf32 is tf32


DYNAMIC = """module {
  func.func @main(%x: tensor<?x4xf32>, %y: tensor<?x4xf32>) -> tensor<?xf32> {
    %0 = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x4xf32>) -> tensor<i32>
    %c = stablehlo.constant dense<4> : tensor<i32>
    %1 = stablehlo.multiply %0, %c : tensor<i32>
    %2 = stablehlo.reshape %1 : (tensor<i32>) -> tensor<1xi32>
    %3 = stablehlo.add %x, %y : tensor<?x4xf32>
    %4 = stablehlo.dynamic_reshape %3, %2 : (tensor<?x4xf32>, tensor<1xi32>) -> tensor<?xf32>
    return %4 : tensor<?xf32>
  }
}"""


def test_sizes_are_computed_as_expressions():
    graph = import_stablehlo(DYNAMIC, dynamic={"x": {0: "batch"}, "batch": (1, 16)}).graph
    assert [str(n.type) for n in graph.inputs] == ["f32[batch,4]", "f32[batch,4]"]
    assert str(graph.outputs[0].type) == "f32[4*batch]"
    assert graph.bounds == (("batch", 1, 16),)
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(interpret(graph, (x, x))[0], (x + x).reshape(-1))


def test_dynamic_sizes_are_refused_or_fixed():
    with pytest.raises(InputError, match="dynamic dimensions"):
        import_stablehlo(DYNAMIC, dynamic=False)
    fixed = import_stablehlo(DYNAMIC, dynamic={"x_0": 3}).graph
    assert str(fixed.inputs[1].type) == "f32[3,4]"
    with pytest.raises(InputError, match="no symbol"):
        import_stablehlo(DYNAMIC, dynamic={"z": 3})


SIZE_ARGUMENT = """func.func @main(%n: tensor<i64>, %x: tensor<?xf32>) -> tensor<?x2xf32> {
  %c = stablehlo.constant dense<2> : tensor<1xi64>
  %0 = stablehlo.reshape %n : (tensor<i64>) -> tensor<1xi64>
  %1 = stablehlo.concatenate %0, %c, dim = 0 : (tensor<1xi64>, tensor<1xi64>) -> tensor<2xi64>
  %2 = stablehlo.dynamic_broadcast_in_dim %x, %1, dims = [0] : (tensor<?xf32>, tensor<2xi64>) -> tensor<?x2xf32>
  return %2 : tensor<?x2xf32>
}
"""


def test_a_size_that_is_an_argument():
    graph = import_stablehlo(SIZE_ARGUMENT).graph
    x = np.array([1, 2, 3], np.float32)
    np.testing.assert_array_equal(interpret(graph, (np.array(3), x))[0], np.stack([x, x], 1))
    with pytest.raises(InputError):
        interpret(graph, (np.array(2), x))


COMPLEX = """func.func @main(%z: tensor<3xcomplex<f32>>) -> (tensor<3xcomplex<f32>>, tensor<3xf32>) {
  %0 = stablehlo.exponential %z : tensor<3xcomplex<f32>>
  %1 = stablehlo.multiply %0, %z : tensor<3xcomplex<f32>>
  %2 = stablehlo.abs %1 : (tensor<3xcomplex<f32>>) -> tensor<3xf32>
  return %1, %2 : tensor<3xcomplex<f32>>, tensor<3xf32>
}
"""


def test_complex_arguments_and_results():
    model = ingot.compile(COMPLEX)
    z = np.array([1 + 2j, -0.5j, 3], np.complex64)
    product, size = model(z)
    assert product.dtype == np.complex64
    np.testing.assert_allclose(product, np.exp(z) * z, rtol=1e-5)
    np.testing.assert_allclose(size, np.abs(np.exp(z) * z), rtol=1e-5)
    with pytest.raises(InputError, match="complex64"):
        model(z.real)


def test_weights_are_constants():
    program = next(p for p in PROGRAMS if p.name == "dot_general")
    a, b = program.inputs
    for weights in ({1: b}, {"arg1": b}):
        imported = import_stablehlo(program.text, weights=weights)
        assert [leaf.name for leaf in imported.inputs] == ["arg0"]
        _agree(interpret(imported.graph, (a,)), program.expected(a, b))
    with pytest.raises(InputError, match="weights"):
        import_stablehlo(program.text, weights={"w": b})
    with pytest.raises(InputError, match="float32"):
        import_stablehlo(program.text, weights={1: b[0]})


def test_everything_that_is_refused_is_named_at_once():
    text = """func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.custom_call @magic(%x) : (tensor<2xf32>) -> tensor<2xf32> loc("net.py":7:2)
  %1 = "other.op"(%0) : (tensor<2xf32>) -> tensor<2xf32>
  %2 = "stablehlo.all_reduce"(%x) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    stablehlo.return %a : tensor<f32>
  }) : (tensor<2xf32>) -> tensor<2xf32>
  %3 = "other.op"(%x) : (tensor<2xf32>) -> tensor<2xf32>
  return %3 : tensor<2xf32>
}
"""
    with pytest.raises(UnsupportedOpError) as e:
        import_stablehlo(text)
    message = str(e.value)
    for part in ("3 ops", "@magic", "net.py:7", "other.op", "combines otherwise"):
        assert part in message, message


@pytest.mark.parametrize(("body", "message"), [
    ("return %9 : tensor<2xf32>", "%9, which nothing defines"),
    ("%0 = stablehlo.add %x, %x : tensor<3xf32>\n return %0 : tensor<3xf32>", "declared size"),
    ("%0 = func.call @main(%x) : (tensor<2xf32>) -> tensor<2xf32>\n return %0 : tensor<2xf32>", "call each other"),
])  # fmt: skip
def test_programs_that_are_not_well_formed(body: str, message: str):
    with pytest.raises(ImportModelError, match=message):
        import_stablehlo(f"func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {{\n {body}\n}}\n")


def test_bytecode(tmp_path: Path):
    pytest.importorskip("jaxlib")
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    program = PROGRAMS[0]
    with ir.Context() as context:
        stablehlo.register_dialect(context)
        data = stablehlo.serialize_portable_artifact_str(program.text, stablehlo.get_minimum_version())
    _agree(interpret(import_stablehlo(data).graph, program.inputs), program.expected(*program.inputs))
    path = tmp_path / "model.mlirbc"
    path.write_bytes(data[:-9])
    with pytest.raises(ImportModelError, match=r"not readable as StableHLO bytecode.* at .*model.mlirbc"):
        import_stablehlo(path)
