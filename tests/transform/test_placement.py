"""Models over a GPU and the host: what runs where, right results, and memory of a GPU that is simulated."""

from __future__ import annotations

import ctypes
import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper
from typer.testing import CliRunner

import ingot
from ingot import ops
from ingot.cli import app
from ingot.driver.compile import Options
from ingot.ir.dims import symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType, f32, i32, static_shape
from ingot.pipeline.build import build_program
from ingot.pipeline.target import features_of
from ingot.runtime.cuda import device as cuda
from ingot.runtime.cuda.streaming import copy_rate
from ingot.runtime.executor import CompiledModel
from ingot.runtime.program import Buffer, Program, Step, TensorSpec
from ingot.support.cubins import KernelCode, pack
from ingot.support.errors import ArtifactError, InputError
from ingot.transform.placement import run as placement
from ingot.transform.placement.choose import Copies, Unit, choose
from ingot.transform.placement.cut import Part, cut, derived_weights, value_names
from ingot.transform.placement.run import PlacedProgram, compile_part, place
from tests.runtime.cuda.programs import H100
from tests.runtime.cuda.test_streaming import Metered
from tests.serving.models import pooled, proto

ROWS, WIDTH, COUNT = 4096, 64, 5  # of the table, of a row, of the tokens


def embedding() -> Graph:
    """tokens[5] -> rows of a table (1 MB), two layers (16 kB each), and the product with the table again (tied)."""
    rng = np.random.default_rng(0)
    table = const(rng.standard_normal((ROWS, WIDTH)).astype(np.float32))
    tokens = Input("tokens", TensorType(i32, (COUNT,)))()
    x = ops.Take(0)(table, tokens)
    for _ in range(2):
        w = const(rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 8)
        x = ops.Tanh()(ops.MatMul()(x, w))
    return Graph((tokens,), (ops.MatMul()(x, ops.transpose(table, (1, 0))), ops.Neg()(x)))


TOKENS = np.array([0, 7, ROWS - 1, 7, 12], np.int32)
SLOW, FAST = Copies(1e6, 1e-6), Copies(1e15, 1e-12)


class InterpretingDriver(Metered):
    """A GPU whose kernels are nodes of graphs, each computed by its reference."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels = {}
        self.parameters: dict[str, int] = {}

    def count_of(self, name: str) -> int:
        return self.parameters[name]


def interpreted(graph: Graph, driver: InterpretingDriver) -> Program:
    """A program of one step for each node, which reads its operands from the simulated GPU, weights too."""
    derived = derived_weights(graph)
    nodes = [n for n in graph.nodes() if n not in derived and not isinstance(n.op, Input)]
    weights = [n for n in graph.nodes() if n in derived and any(n in m.inputs for m in nodes)]
    values = dict(zip(weights, interpret(Graph((), tuple(weights)), []), strict=True)) if weights else {}
    chunks, buffers, ids = [], [], dict[Node, int]()
    for i, n in enumerate(graph.inputs):
        ids[n] = len(buffers)
        buffers.append(Buffer(ids[n], "input", nbytes(n), index=i))
    for n in weights:
        ids[n] = len(buffers)
        buffers.append(Buffer(ids[n], "weight", nbytes(n), offset=sum(map(len, chunks))))
        chunks.append(values[n].tobytes().ljust(-(-nbytes(n) // 64) * 64, b"\0"))
    for at, n in enumerate(nodes):
        ids[n] = len(buffers)
        last = max([at, *(j for j, m in enumerate(nodes) if n in m.inputs)])
        kind = "output" if n in graph.outputs else "arena"
        index = graph.outputs.index(n) if n in graph.outputs else 0
        buffers.append(Buffer(ids[n], kind, nbytes(n), at, last if kind == "arena" else 0, index=index))
    steps = []
    for n in nodes:
        name = f"node{n.id}"
        driver.kernels[name] = lambda addresses, n=n: run_node(n, addresses)
        args = tuple((ids[i], 0) for i in (*n.inputs, n))
        driver.parameters[name] = len(args)
        steps.append(Step(name, args, (), 1, n.op.name, device="cuda"))
    kernels = {s.kernel: KernelCode(s.kernel, b"cubin", 32, 0, len(s.args), (len(s.args) - 1,)) for s in steps}
    names = value_names(graph)
    result = Program(
        symbols=(), inputs=tuple(spec(names[n], n) for n in graph.inputs),
        outputs=tuple(spec(name, n) for name, n in zip(graph.output_names, graph.outputs, strict=True)),
        buffers=tuple(replace(b, device="cuda") for b in buffers), steps=tuple(steps),
        code={"cuda": pack(H100, {arch: kernels for arch in ("sm_90a", "sm_80")})},
        weights=np.frombuffer(b"".join(chunks), np.uint8),
    )  # fmt: skip
    result.check()
    return result


def nbytes(n: Node) -> int:
    return math.prod(static_shape(n.shape)) * n.dtype.numpy.itemsize


def spec(name: str, n: Node) -> TensorSpec:
    return TensorSpec(name, str(n.dtype), static_shape(n.shape))


def run_node(n: Node, addresses: list[int]) -> None:
    *operands, result = addresses
    arrays = [
        np.frombuffer(ctypes.string_at(a, nbytes(i)), i.dtype.numpy).reshape(static_shape(i.shape))
        for i, a in zip(n.inputs, operands, strict=True)
    ]
    inputs = [Input(f"x{at}", i.type)() for at, i in enumerate(n.inputs)]
    (outcome,) = interpret(Graph(tuple(inputs), (n.with_inputs(inputs),)), arrays)
    ctypes.memmove(result, np.ascontiguousarray(outcome).tobytes(), nbytes(n))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> InterpretingDriver:
    result = InterpretingDriver()
    monkeypatch.setattr(cuda, "driver", lambda: result)
    return result


def placed(graph: Graph, driver: InterpretingDriver, bound: int, copies: Copies) -> CompiledModel:
    options = Options("cuda", device_memory=bound, cache=False)
    plan = build_program(graph, features_of("null:cuda"), 1)

    def compile_(part: Part, options: Options) -> Program:
        return compile_part(part, options) if part.place == "cpu" else interpreted(part.graph, driver)

    return CompiledModel(place(graph, plan, options, copies, compile_))


def places_of(model: CompiledModel) -> list[str]:
    assert isinstance(model._executable, PlacedProgram)
    return [part.place for part in model._executable._parts]


def test_a_table_that_does_not_fit_is_read_on_the_cpu(driver: InterpretingDriver):
    """It is tied: its other reader runs there, too. What fits stays on the GPU."""
    graph = embedding()
    model = placed(graph, driver, 1 << 19, SLOW)
    for got, want in zip(model(TOKENS), interpret(graph, [TOKENS]), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert driver.peak <= 1 << 19
    before = driver.copied
    model(TOKENS)
    assert driver.copied - before == COUNT * WIDTH * 4, "the rows alone"
    assert places_of(model) == ["cpu", "gpu", "cpu"]
    text = model.explain(TOKENS)
    assert "part 0  CPU" in text and "part 1  GPU" in text and "copied to the GPU    placement.value" in text
    assert "CPU  1.05 MB of take, matmul" in text and " on cuda\n" in text
    with pytest.raises(InputError, match="a model on two devices"):
        model.save("/dev/null")


def test_weights_are_streamed_where_the_cpu_is_slower(driver: InterpretingDriver):
    graph = embedding()
    model = placed(graph, driver, 1 << 21, FAST)
    assert places_of(model) == ["gpu"]
    model(TOKENS)
    model = placed(graph, driver, 1_300_000, FAST)  # one of two forms of the table
    assert places_of(model) == ["gpu"]
    for got, want in zip(model(TOKENS), interpret(graph, [TOKENS]), strict=True):
        np.testing.assert_array_equal(got, want)
    assert driver.peak > 0 and "copied from the host in each call" in model.explain(TOKENS)


def test_compile_measures_copies_and_places(driver: InterpretingDriver, monkeypatch: pytest.MonkeyPatch):
    """All but the search for a GPU and the code for it."""

    def compile_(part: Part, options: Options) -> Program:
        return compile_part(part, options) if part.place == "cpu" else interpreted(part.graph, driver)

    monkeypatch.setattr("ingot.runtime.cuda.driver.driver", lambda: driver)
    monkeypatch.setattr(placement, "check_runs", lambda target: None)
    monkeypatch.setattr(placement, "compile_part", compile_)
    weight = np.random.default_rng(1).standard_normal((512, 256)).astype(np.float32)
    net = proto(
        [helper.make_node("Gather", ["w", "i"], ["r"]), helper.make_node("Tanh", ["r"], ["y"])],
        [("i", T.INT64, [3])], [("y", T.FLOAT, [3, 256])], [("w", weight)],
    )  # fmt: skip
    model = ingot.compile(net, target="cuda", placement="measured", device_memory=100_000)
    np.testing.assert_allclose(model(np.array([1, 0, 511])), np.tanh(weight[[1, 0, 511]]), rtol=1e-5, atol=1e-6)
    assert "524 kB" in model.plan()


def unit(nbytes: int, seconds: float) -> Unit:
    return Unit((), nbytes, 0, seconds)


def test_the_bytes_that_do_not_fit_cost_the_least():
    copies = Copies(1e9, 0.0)
    slow, quick, large = unit(100, 1.0), unit(200, 1e-8), unit(1000, 2e-7)
    assert choose([slow, quick, large], 0, copies) == []
    assert choose([slow, quick, large], 150, copies) == [quick]
    assert choose([slow, quick, large], 900, copies) == [quick, large]
    assert choose([slow, unit(1000, 9e-7)], 100, copies) == [], "to copy 100 bytes takes less"


def test_parts_compute_what_the_model_computes():
    """Random graphs of layers, each on either device."""
    rng = np.random.default_rng(3)
    for _ in range(30):
        x = Input("x", TensorType(f32, (3, 8)))()
        values, layers = [x], list[Node]()
        for _ in range(int(rng.integers(1, 9))):
            a, b = (values[i] for i in rng.integers(0, len(values), 2))
            w = const(rng.standard_normal((8, 8)).astype(np.float32))
            layers.append(ops.MatMul()(a, w))
            values += [layers[-1], ops.add(ops.Tanh()(layers[-1]), b)]
        graph = Graph((x,), (values[-1], values[-2], x, const(np.float32(3))))
        parts = cut(graph, [n for n in layers if rng.random() < 0.5])
        fed = {"x": rng.standard_normal((3, 8)).astype(np.float32)}
        feeds = dict(fed)
        for part in parts:
            feeds |= zip(part.writes, interpret(part.graph, [feeds[name] for name in part.reads]), strict=True)
        names = value_names(graph)
        for output, want in zip(graph.outputs, interpret(graph, [fed["x"]]), strict=True):
            np.testing.assert_array_equal(feeds[names[output]], want)
        places = [part.place for part in parts]
        assert all(a != b for a, b in itertools.pairwise(places))


def test_open_sizes_reach_all_parts(driver: InterpretingDriver):
    """A part whose values have batch * length rows alone is told both."""
    batch, length = symbol("batch"), symbol("length")
    x = Input("x", TensorType(f32, (batch, length, 4)))()
    rows = ops.reshape(x, (batch * length, 4))
    y = ops.MatMul()(rows, const(np.ones((4, 4), np.float32)))
    graph = Graph((x,), (ops.reshape(ops.Tanh()(y), (batch, length, 4)),))
    parts = cut(graph, [y])
    assert [part.place for part in parts] == ["gpu", "cpu", "gpu"]
    value = np.random.default_rng(0).standard_normal((3, 5, 4)).astype(np.float32)
    values = {"x": value, "placement.sizes": np.array([3, 5])}
    for part in parts:
        model = CompiledModel(build_program(part.graph, features_of("native"), 1), threads=1)
        values |= zip(part.writes, model.run([values[name] for name in part.reads]), strict=True)
    np.testing.assert_allclose(values[value_names(graph)[graph.outputs[0]]], interpret(graph, [value])[0], rtol=1e-5)


def test_what_cannot_be_placed_is_an_error():
    net = proto([], [], [])
    with pytest.raises(InputError, match='target="cuda:'):
        ingot.compile(net, placement="measured", device_memory=1 << 20)
    with pytest.raises(InputError, match="strict or measured"):
        ingot.compile(net, placement="anywhere")
    with pytest.raises(ArtifactError, match="here is none"):
        ingot.compile(net, target="cuda", placement="measured", device_memory=1 << 20)


def test_the_command_line_refuses_what_it_cannot_place(tmp_path: Path):
    onnx.save(pooled(), tmp_path / "pool.onnx")
    words = ["explain", str(tmp_path / "pool.onnx"), "--repeats", "1", "--device-memory", "1000000"]
    for arguments, message in (
        ([], "a device with memory of its own"),
        (["--placement", "measured"], "cuda:"),
        (["--placement", "measured", "--target", "cuda"], "here is none"),
    ):
        result = CliRunner().invoke(app, [*words, *arguments])
        assert result.exit_code and message in " ".join(result.output.split()), result.output


def test_copies_are_measured():
    driver = Metered()
    rate, latency = copy_rate(driver)  # pyright: ignore[reportArgumentType]
    assert rate > 0 and latency > 0 and not driver.sizes
