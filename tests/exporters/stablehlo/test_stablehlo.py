"""Graphs as StableHLO: what is written is read as the same computation, and StableHLO's interpreter computes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot import ops
from ingot.exporters.stablehlo import emit, write
from ingot.frontends.stablehlo import import_stablehlo
from ingot.frontends.stablehlo.pretty import parse
from ingot.frontends.stablehlo.printer import show
from ingot.ir import types as T
from ingot.ir.dims import symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Op, const
from ingot.ir.types import TensorType, dtype_of
from ingot.passes.core.simplify import simplify
from ingot.support import safetensors
from ingot.support.errors import ImportModelError, UnsupportedOpError

CORE = sorted(
    (cls for cls in Op.REGISTRY.values() if cls.__module__.startswith("ingot.ops.core")), key=lambda cls: cls.name
)


def _samples(cls: type[Op]) -> Iterator[tuple[Op, tuple[np.ndarray, ...]]]:
    """The first sample of each type of operands."""
    visited: set[str] = set()
    for op, arrays in cls.samples():
        kind = str([a.dtype for a in arrays])
        if kind not in visited and not any(a.dtype.name.startswith("float8") for a in arrays):
            visited.add(kind)
            yield op, arrays


def _graph(op: Op, arrays: tuple[np.ndarray, ...]) -> Graph:
    inputs = tuple(Input(f"x{i}", TensorType(dtype_of(a), a.shape))() for i, a in enumerate(arrays))
    return Graph(inputs, op(*inputs).results)


@pytest.mark.parametrize("cls", CORE, ids=lambda cls: cls.name)
def test_what_is_written_is_read_as_the_same(cls: type[Op]):
    for op, arrays in _samples(cls):
        graph = _graph(op, arrays)
        text = show(emit(graph).module)
        assert show(parse(text)) == text
        reimported = import_stablehlo(text).graph
        if cls is ops.Gelu:  # written out in steps that round
            reimported = simplify(reimported)
        with np.errstate(all="ignore"):
            for got, expected in zip(interpret(reimported, arrays), interpret(graph, arrays), strict=True):
                assert got.dtype == expected.dtype
                # one NaN is as good as another, which numpy does not know of ml_dtypes' types
                wide = [v.astype(np.float64) if v.dtype.kind not in "iub" else v for v in (got, expected)]
                if cls is ops.GeluDerivative:  # in such steps, too, but not found again
                    rtol = 2 * float(np.spacing(expected.dtype.type(1)))
                    np.testing.assert_allclose(wide[0], wide[1], rtol=rtol, err_msg=str(op))
                    continue
                np.testing.assert_array_equal(*wide, err_msg=str(op))


def test_weights_lie_beside_the_program(tmp_path: Path):
    w = np.random.default_rng(0).normal(size=(64, 48)).astype(np.float32)
    x = Input("x", TensorType(T.f32, (symbol("batch"), 64)))()
    y = ops.Softmax(1)(ops.MatMul()(x, const(w, loc="layer.weight")))
    path = tmp_path / "model.mlir"
    assert write(Graph((x,), (y,), ("y",)), path) == tmp_path / "model.safetensors"
    stored = safetensors.read(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(stored["layer.weight"], w)
    model = ingot.compile(path, weights=tmp_path / "model.safetensors")
    assert [spec.name for spec in model.inputs] == ["x"]
    data = np.random.default_rng(1).normal(size=(3, 64)).astype(np.float32)
    expected = interpret(Graph((x,), (y,)), (data,))[0]
    np.testing.assert_allclose(model(data), expected, rtol=1e-5, atol=1e-6)


def test_sizes_are_computed_from_those_of_inputs():
    n = symbol("n")
    x = Input("x", TensorType(T.f32, (n, 3)))()
    y = ops.reshape(ops.broadcast_to(x, (4, n, 3)), (4, 3 * n))
    z = ops.pad(ops.slice_axis(y, 1, n, 2 * n), (0, n), (0, 1), 2.0)
    graph = Graph((x,), (z, ops.scalar(n, T.i64)))
    reimported = import_stablehlo(show(emit(graph).module)).graph
    array = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    for got, expected in zip(interpret(reimported, (array,)), interpret(graph, (array,)), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_what_has_no_form_is_named():
    x = Input("x", TensorType(T.f32, (symbol("n"),)))()
    for op, reason in ((ops.CumReduce("sum", 0), "a window's size is a number"), (ops.Relu(), "")):
        with pytest.raises(UnsupportedOpError, match=rf"in StableHLO:\n  {op.name}.*{reason}.*\nrewrite the model"):
            emit(Graph((x,), (op(x),)))


def test_safetensors_that_are_damaged(tmp_path: Path):
    path = tmp_path / "w.safetensors"
    safetensors.write(path, {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(True)})
    data = path.read_bytes()
    assert safetensors.read(path)["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    for broken in (b"", data[:7], data[:20], data[:-9], b"\xff" * 64, data.replace(b"F32", b"F99")):
        path.write_bytes(broken)
        with pytest.raises(ImportModelError):
            safetensors.read(path)


# ops whose results StableHLO's interpreter computes bit for bit or nearly so
EVALUATED = (
    ops.Add, ops.Mul, ops.Reduce, ops.ArgReduce, ops.ReduceWindow, ops.CumReduce, ops.Gather, ops.Sort,
    ops.Pad, ops.Slice, ops.Concat, ops.DotGeneral, ops.Convolution, ops.While, ops.Case, ops.DynamicSlice, ops.Iota,
    ops.Windows, ops.Transpose, ops.Reverse, ops.BroadcastInDim, ops.DynamicUpdateSlice,
)  # fmt: skip


@pytest.mark.parametrize("cls", EVALUATED, ids=lambda cls: cls.name)
def test_the_reference_interpreter_computes_the_same(cls: type[Op]):
    mlir = pytest.importorskip("jax._src.interpreters.mlir")  # the only way to a context that knows all dialects
    ir, dialect = mlir.ir, mlir.hlo
    # it takes no bits from Python, and does not order NaN as TOTALORDER does
    plain = ("float32", "int32", "int64")
    op, arrays = next(s for s in cls.samples() if all(a.dtype.name in plain and (a == a).all() for a in s[1]))
    graph = _graph(op, arrays)
    with mlir.make_ir_context(), ir.Location.unknown():
        module = ir.Module.parse(show(emit(graph).module))
        values = [ir.DenseElementsAttr.get(np.asarray(a, order="C")) for a in arrays]
        results = [np.asarray(r) for r in dialect.eval_module(module, values)]
    for got, expected in zip(results, interpret(graph, arrays), strict=True):
        np.testing.assert_allclose(got.reshape(expected.shape), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_the_lines_that_docs_tell_for_tpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    jax = pytest.importorskip("jax")
    pytest.importorskip("safetensors")
    rng = np.random.default_rng(0)
    w, b = (rng.normal(size=shape).astype(np.float32) for shape in ((64, 48), (3, 1024)))
    x, i = Input("x", TensorType(T.f32, (3, 64)))(), Input("i", TensorType(T.i64, (2,)))()
    y = ops.Take(0)(ops.concat([ops.Softmax(1)(ops.MatMul()(x, const(w, loc="w"))), const(b, loc="b")], 1), i)
    graph = Graph((x, i), (y,), ("y",))
    monkeypatch.chdir(tmp_path)
    write(graph, tmp_path / "model.mlir")
    page = Path(__file__).parents[3] / "docs" / "how-to" / "tpu.md"
    facts: dict[str, Callable[..., list[np.ndarray]]] = {}
    inputs = rng.normal(size=(3, 64)).astype(np.float32), np.array([2, 0])
    is_x64 = jax.config.jax_enable_x64
    try:
        exec(page.read_text().split("```python")[1].split("```")[0], facts)
        (got,) = facts["run"](*inputs)
    finally:  # the page's lines change this for the whole process
        jax.config.update("jax_enable_x64", is_x64)
    np.testing.assert_allclose(got, interpret(graph, inputs)[0], rtol=1e-5, atol=1e-6)


def test_powers_of_integers_wrap():
    x, y = (np.array(v, np.int32) for v in ([3, -3, -1, 2, 0, 1], [2**31 - 1, 2**31 - 2, -3, -1, -2, -5]))
    graph = _graph(ops.Pow(), (x, y))
    reimported = import_stablehlo(show(emit(graph).module)).graph
    assert not any(isinstance(n.op, ops.Pow) for n in reimported.nodes())  # XLA's wrap otherwise
    np.testing.assert_array_equal(interpret(reimported, (x, y))[0], interpret(graph, (x, y))[0])
