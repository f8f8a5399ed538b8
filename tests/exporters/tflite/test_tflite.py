"""TFLite files that Ingot writes: what LiteRT's reference kernels and Ingot's own reader make of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flatbuffers")
litert = pytest.importorskip("ai_edge_litert.interpreter")

import ingot  # noqa: E402
from ingot import ops  # noqa: E402
from ingot.exporters.tflite import content  # noqa: E402
from ingot.frontends.tflite.file import read  # noqa: E402
from ingot.ir.dims import symbol  # noqa: E402
from ingot.ir.interp import interpret  # noqa: E402
from ingot.ir.node import Graph, Input, Node, const  # noqa: E402
from ingot.ir.types import DType, TensorType, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64  # noqa: E402
from ingot.support.errors import InputError, UnsupportedOpError  # noqa: E402
from ingot.transform.quantize.tflite import measure_over  # noqa: E402
from tests.pipeline.functions.test_library import arrays_of, residual_network, transformer  # noqa: E402


def _weights(*shape: int, seed: int = 0) -> Node:
    w = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return const(w / np.sqrt(np.prod(shape[1:]), dtype=np.float32))


def _input(*shape: int) -> Node:
    return Input("x", TensorType(f32, shape))()


def _with_bias(x: Node) -> Node:
    return ops.Add()(x, ops.BroadcastInDim(x.type.shape, (1,))(_weights(int(str(x.type.shape[1])), seed=1)))


def pools() -> Graph:
    """Explicit and implied padding, a mean over all positions, a concatenation of channels."""
    x = _input(2, 6, 11, 8)
    y = ops.Relu()(_with_bias(ops.Conv((1, 2), ((1, 1), (0, 1)), (1, 1))(x, _weights(8, 6, 3, 2))))
    a = ops.MaxPool((3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1))(y)
    b = ops.AvgPool((3, 3), (2, 2), ((1, 1), (0, 1)), (1, 1))(ops.Neg()(y))
    c = ops.MaxPool((3, 3), (2, 2), ((1, 1), (0, 1)), (1, 1))(ops.Neg()(y))
    concatenated = ops.Concat(1)(a, ops.Slice((0, 0, 0, 0), (2, 8, 6, 2), (1, 1, 1, 1))(b), c)
    total = ops.Reduce("sum", (2, 3))(concatenated)
    mean = ops.Div()(total, ops.BroadcastInDim((2, 24), ())(const(np.float32(12))))
    return Graph((x,), (mean, ops.Transpose((0, 2, 3, 1))(concatenated)))


def lines() -> Graph:
    """One-dimensional convolutions, dilated and in groups."""
    x = _input(1, 6, 40)
    y = ops.LeakyRelu(0.1)(ops.Conv((2,), ((3, 0),), (1,))(x, _weights(12, 6, 4)))
    y = ops.Conv((1,), ((2, 2),), (2,), 12)(y, _weights(12, 1, 3))
    return Graph((x,), (ops.MaxPool((2,), (2,), ((0, 0),), (1,))(y),))


def upsampling() -> Graph:
    x = _input(1, 5, 4, 6)
    y = ops.ConvTranspose((2, 2), ((1, 1), (0, 1)), (0, 0), (1, 1))(x, _weights(5, 3, 4, 3))
    return Graph((x,), (ops.Tanh()(y), ops.Logistic()(y)))


def pointwise() -> Graph:
    x = _input(3, 4, 5)
    row = ops.BroadcastInDim((3, 4, 5), (2,))(_weights(5))
    y = ops.Pow()(ops.Abs()(x), ops.BroadcastInDim((3, 4, 5), ())(const(np.float32(1.5))))
    chosen = ops.Select()(ops.Compare("LT")(x, row), y, ops.Exp()(ops.Sub()(row, x)))
    top = ops.ArgReduce("max", 1, False)(x)
    return Graph((x,), (chosen, ops.Reverse((1,))(ops.Convert(i32)(y)), top, ops.Gelu("tanh")(x)))


def products() -> Graph:
    """Contractions in orders that no operator has."""
    x = _input(2, 3, 4, 5)
    y = ops.DotGeneral(((0,), (0,)), ((2,), (3,)))(x, ops.Transpose((0, 1, 3, 2))(x))
    return Graph((x,), (y, ops.DotGeneral(((), ()), ((3,), (0,)))(x, _weights(5, 7)), ops.Softmax(3)(x)))


def lookups() -> Graph:
    """Places from both ends, vectors of places, functions without an operator, sums so far."""
    x = _input(3, 4, 5)
    last = ops.Take(1)(x, const(np.array([-1, 0, 2])))
    diagonal = ops.GatherND()(x, const(np.array([[0, -1], [2, 1]])))
    functions = [f()(x) for f in (ops.Erf, ops.Tan, ops.RoundAway, ops.IsFinite)]
    near = ops.Log1p()(ops.mul(ops.Abs()(x), 1e-4))
    return Graph(
        (x,), (last, diagonal, *functions, near, ops.CumReduce("sum", 1, reverse=True)(x), ops.Windows(2, 3, 2)(x))
    )


def loops() -> Graph:
    """x <- sin(x) + x[i] while i < 3, and one of two branches."""
    x, i, y = _input(4, 5), Input("i", TensorType(i32))(), Input("y", TensorType(f32, (4, 5)))()
    row = ops.DynamicSlice((1, 5))(y, i, const(np.int32(0)))
    body = Graph((i, y), (ops.add(i, 1), ops.DynamicUpdateSlice()(ops.Sin()(y), row, i, const(np.int32(0)))))
    loop = ops.While(Graph((i, y), (ops.compare("LT", i, 3),)), body)(const(np.int32(0)), x)
    branches = tuple(Graph((y,), (f()(y),)) for f in (ops.Exp, ops.Neg))
    is_above = ops.cast(ops.compare("GT", ops.reduce_sum(x, (0, 1)), 0.0), i32)
    return Graph((x,), (loop.results[1], ops.Case(branches)(is_above, loop.results[1])))


FLOAT = {
    f.__name__: f
    for f in (lookups, loops, pools, lines, upsampling, pointwise, products, residual_network, transformer)
}
INT8 = {f.__name__: f for f in (pools, lines, residual_network, transformer)}


def reference_kernels(data: bytes) -> Any:
    kernels = litert.OpResolverType.BUILTIN_REF
    interpreter = litert.Interpreter(model_content=data, experimental_op_resolver_type=kernels)
    interpreter.allocate_tensors()
    return interpreter


@pytest.mark.parametrize("name", FLOAT)
def test_float_models_are_the_same_read_back_and_in_litert(name: str, tmp_path: Path) -> None:
    graph = FLOAT[name]()
    arrays, path = arrays_of(graph), tmp_path / "m.tflite"
    path.write_bytes(content(graph))
    expected = interpret(graph, arrays)
    model = ingot.compile(path, cache=False)
    assert [str(s.shape) for s in model.inputs] == [str(x.type.shape) for x in graph.inputs]
    outputs = model.run(arrays)
    interpreter = reference_kernels(path.read_bytes())
    for d, x in zip(interpreter.get_input_details(), arrays, strict=True):
        interpreter.set_tensor(d["index"], x)
    interpreter.invoke()
    theirs = [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]
    for results in (outputs, theirs):
        for g, e in zip(results, expected, strict=True):
            assert g.shape == e.shape and g.dtype == e.dtype
            np.testing.assert_allclose(g, e, rtol=2e-5, atol=2e-6)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("activations", ("int8", "int16"))
@pytest.mark.parametrize("name", INT8)
def test_models_of_levels_have_the_bits_of_the_reference_kernels(name: str, activations: str, tmp_path: Path) -> None:
    graph, rng = INT8[name](), np.random.default_rng(7)
    shape = arrays_of(graph)[0].shape
    calls = [(rng.standard_normal(shape, np.float32),) for _ in range(6)]
    path = tmp_path / "m.tflite"
    path.write_bytes(content(graph, measure_over(calls), activations=activations))
    model, interpreter = ingot.compile(path, cache=False), reference_kernels(path.read_bytes())
    (inputs,) = interpreter.get_input_details()
    scale, zero = inputs["quantization"]
    assert inputs["dtype"] == np.dtype(activations)
    ends = np.iinfo(activations)
    # operators between them that stay in floats differ by the last bit, which is a level of the larger type at times
    tolerance = 0 if activations == "int8" or name != "transformer" else 4
    for call in calls:
        q = np.clip(np.rint(call[0] / scale) + zero, ends.min, ends.max).astype(activations)
        interpreter.set_tensor(inputs["index"], q)
        interpreter.invoke()
        details = interpreter.get_output_details()
        theirs = [interpreter.get_tensor(d["index"]) for d in details]
        for mine, their in zip(model.run([q]), theirs, strict=True):
            assert np.abs(mine.astype(int) - their.astype(int)).max() <= tolerance
        for their, d, want in zip(theirs, details, interpret(graph, call), strict=True):
            step, offset = d["quantization"]
            numbers = (their.astype(np.float64) - offset) * step
            # a few levels of 255 over the range, of a chain of ops; of weights alone for int16
            assert np.abs(numbers - want).max() < 12 * (step if activations == "int8" else np.abs(want).max() / 255)


def test_edges_in_floats(tmp_path: Path) -> None:
    graph = residual_network()
    arrays, path = arrays_of(graph), tmp_path / "m.tflite"
    path.write_bytes(content(graph, measure_over([arrays]), float_edges=True))
    model = ingot.compile(path, cache=False)
    assert [s.dtype for s in (*model.inputs, *model.outputs)] == ["f32", "f32"]
    np.testing.assert_allclose(model.run(arrays)[0], interpret(graph, arrays)[0], atol=0.02)


def test_an_onnx_model_by_the_public_calls(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1, 3, 8, 8] x)
      => (float[1, 5] y) <float[5, 3, 3, 3] w> {
      c = Conv <pads = [1, 1, 1, 1]> (x, w) r = Relu (c) p = GlobalAveragePool (r) y = Flatten (p) }"""
    model = onnx.parser.parse_model(text)
    w = _weights(5, 3, 3, 3).op.value  # type: ignore[attr-defined]
    del model.graph.value_info[:]
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    samples = np.random.default_rng(0).standard_normal((16, 1, 3, 8, 8), np.float32)
    for name, data in (("float", None), ("int8", [{"x": s} for s in samples])):
        ingot.export(model, tmp_path / f"{name}.tflite", samples=data)
    codes = {op.name for op in read(tmp_path / "int8.tflite").subgraphs[0].operators}
    assert codes <= {"TRANSPOSE", "CONV_2D", "MEAN", "RESHAPE"}
    result = ingot.compile(tmp_path / "float.tflite", cache=False)(samples[0])
    np.testing.assert_allclose(result, ingot.compile(model, cache=False)(samples[0]), rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError, match=r"\.tflite"):
        ingot.export(model, tmp_path / "m.mlir", samples=[{"x": s} for s in samples])


def test_what_tflite_has_not_is_refused_by_name() -> None:
    n = symbol("n")
    x = Input("x", TensorType(f32, (n, 3)))()
    with pytest.raises(InputError, match=r"fixed sizes.*n.*--dim"):
        content(Graph((x,), (ops.Exp()(x),)))
    y = _input(3, 4)
    with pytest.raises(UnsupportedOpError, match=r"(?s)acosh.*sort"):  # all at once
        content(Graph((y,), (ops.Acosh()(y), ops.Sort(1, False)(y))))


@pytest.mark.parametrize("dtype", [f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64], ids=str)
def test_operators_have_kernels_for_their_elements(dtype: DType) -> None:
    """An op is written for elements that LiteRT computes with, and refused by name for others."""
    x = Input("x", TensorType(dtype, (2, 4)))()
    one, weights = const(np.ones((), dtype.numpy)), const(np.ones((4, 3), dtype.numpy))
    rows = Input("rows", TensorType(i32, (2,)))()
    unary = ops.Abs(), ops.Neg(), ops.Sign(), ops.Reverse((1,)), ops.Reduce("sum", (1,)), ops.Reduce("max", (0,))
    floats = ops.Logistic(), ops.Tanh(), ops.Sqrt(), ops.Exp(), ops.Relu(), ops.Softmax(1)
    binary = ops.Add(), ops.Sub(), ops.Mul(), ops.Div(), ops.Max(), ops.Compare("EQ"), ops.Compare("LT"), ops.Concat(1)
    results = [
        *(op(x) for op in (*unary, *(floats if dtype.is_float else ()))), *(op(x, x) for op in binary),
        ops.Pad((0, 1), (1, 0), (0, 0))(x, one), ops.Take(0)(x, rows), ops.Convert(f32)(x), ops.Transpose((1, 0))(x),
        *([ops.MatMul()(x, weights)] if dtype.is_float else []),
    ]  # fmt: skip
    arrays = [np.arange(1, 9).reshape(2, 4).astype(dtype.numpy), np.array([1, 0], np.int32)]
    written = 0
    for result in results:
        graph = Graph((x, rows), (result,))
        try:
            interpreter = reference_kernels(content(graph))
        except UnsupportedOpError as e:
            assert f"(of {dtype})" in str(e) and dtype != f32
            continue
        for detail, array in zip(interpreter.get_input_details(), arrays, strict=True):
            interpreter.set_tensor(detail["index"], array)
        interpreter.invoke()
        (got,) = (interpreter.get_tensor(detail["index"]) for detail in interpreter.get_output_details())
        np.testing.assert_allclose(got, interpret(graph, arrays)[0], rtol=2e-3 if dtype == f16 else 1e-6, strict=True)
        written += 1
    assert written == len(results) if dtype == f32 else written


@pytest.mark.slow
def test_vela_leaves_nothing_on_the_cpu(tmp_path: Path) -> None:
    pytest.importorskip("ethosu")
    from ingot.debug.npu import npu_report

    graph = residual_network()
    (tmp_path / "m.tflite").write_bytes(content(graph, measure_over([arrays_of(graph)])))
    report = npu_report(tmp_path / "m.tflite", "ethos-u55-128")
    assert report.cpu_operators == 0 and report.npu_operators > 5 and report.sram_kib > 1
    (tmp_path / "f.tflite").write_bytes(content(graph))
    report = npu_report(tmp_path / "f.tflite", "ethos-u85-256")
    assert report.npu_operators == 0 and any("Float32" in reason for _, _, reason in report.on_cpu)
    with pytest.raises(InputError, match="invalid choice"):
        npu_report(tmp_path / "m.tflite", "ethos-u99")
