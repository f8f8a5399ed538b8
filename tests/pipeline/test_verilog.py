"""Circuits: Verilator runs what the interpreter computes, in the cycles that are promised."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot import ops
from ingot.driver.open import Request, open_model
from ingot.frontends.tflite.file import read
from ingot.ir.array import Array
from ingot.ir.dims import symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Const, Graph, Node
from ingot.ir.types import f32, i8, i32, i64
from ingot.pipeline.build import build_program
from ingot.pipeline.target import features_of
from ingot.pipeline.verilog import TARGET
from ingot.runtime.executor import CompiledModel
from ingot.support.errors import CompileError, InputError
from ingot.transform.quantize.tflite import write_levels
from tests.passes.check import arg, graph

EXAMPLES = Path(__file__).parents[2] / "examples"

needs_verilator = pytest.mark.skipif(shutil.which("verilator") is None, reason="no verilator")


def const(values: np.ndarray) -> Node:
    return Const(Array(values))()


def requantized(sums: Node, factor: float, zero: int = 0, low: int = -128) -> Node:
    """i32 sums -> i8: times factor = multiplier / 2^shift, rounded half up, as TFLite's kernels do it in 64 bits."""
    shift = 30 - int(np.floor(np.log2(factor)))
    multiplier = round(factor * 2.0**shift)

    def full(value: int, dtype: object) -> Node:
        return ops.BroadcastInDim(sums.shape, ())(const(np.array(value, dtype)))  # type: ignore[arg-type]

    wide = ops.Mul()(ops.Convert(i64)(sums), full(multiplier, np.int64))
    wide = ops.ShiftRightArithmetic()(ops.Add()(wide, full(1 << (shift - 1), np.int64)), full(shift, np.int64))
    shifted = ops.Add()(ops.Convert(i32)(wide), full(zero, np.int32))
    return ops.Convert(i8)(ops.Clamp()(full(low, np.int32), shifted, full(127, np.int32)))


def convolution(x: Node, w: np.ndarray, padding: int, groups: int = 1) -> Node:
    """x: i8 NHWC. w: OHWI."""
    op = ops.Convolution(
        strides=(1, 1), padding=((padding, padding),) * 2, lhs_dilation=(1, 1), rhs_dilation=(1, 1),
        lhs_layout="NHWC", rhs_layout="OHWI", out_layout="NHWC", feature_groups=groups,
    )  # fmt: skip
    return op(ops.Convert(i32)(x), const(w.astype(np.int32)))


def dense(x: Node, w: np.ndarray, bias: np.ndarray) -> Node:
    """x: i8[1, k]. w: [n, k]."""
    sums = ops.DotGeneral(((), ()), ((1,), (1,)))(ops.Convert(i32)(x), const(w.astype(np.int32)))
    return ops.Add()(sums, const(bias.astype(np.int32).reshape(1, -1)))


def network(side: int, channels: int, classes: int) -> Graph:
    """Convolution, depthwise convolution with a residual, two kinds of pools, dense."""
    rng = np.random.default_rng(0)

    def weights(*shape: int) -> np.ndarray:
        return rng.integers(-127, 128, shape)

    x = arg("x", 1, side, side, 3, dtype=i8)
    a = requantized(convolution(x, weights(channels, 3, 3, 3), 1), 0.004, low=-128)
    b = requantized(convolution(a, weights(channels, 3, 3, 1), 1, groups=channels), 0.006)
    c = requantized(ops.Add()(ops.Convert(i32)(a), ops.Convert(i32)(b)), 0.7, zero=3)
    window = ops.ReduceWindow("max", (1, 2, 2, 1), (1, 2, 2, 1), ((0, 0),) * 4, (1,) * 4, (1,) * 4)
    d = window(c)
    mean = requantized(ops.Reduce("sum", (1, 2))(ops.Convert(i32)(d)), 4 / side**2)
    return graph(requantized(dense(mean, weights(classes, channels), rng.integers(-999, 999, classes)), 0.01))


def simulated(g: Graph, inputs: Sequence[np.ndarray], folder: Path, target: str) -> np.ndarray:
    """The outputs of a circuit by Verilator, whose cycles are those promised."""
    net = folder / "net"
    TARGET.export(build_program(g, features_of(target), 1), net)
    (net / "input.txt").write_text("\n".join(str(v) for x in inputs for v in x.ravel()) + "\n")
    command = ["verilator", "--binary", "--timing", "-Wall", "-Wno-DECLFILENAME", "-Wno-UNUSED", "-Wno-BLKSEQ"]
    command += ["--top-module", "net_tb", "net_tb.v", "net.v", "-o", "net", "-CFLAGS", "-O1"]
    process = subprocess.run(command, cwd=net, capture_output=True, text=True, timeout=240, check=False)
    assert process.returncode == 0, process.stderr[-3000:]
    completed = subprocess.run(["obj_dir/net"], cwd=net, capture_output=True, text=True, timeout=240, check=True)
    promised = json.loads((net / "circuit.json").read_text())["cycles"]
    cycles = [int(line.split()[1]) for line in completed.stdout.splitlines() if line.startswith("cycles")]
    assert cycles == [promised] * len(inputs)
    return np.loadtxt(net / "output.txt", dtype=np.int64).reshape(len(inputs), -1)


@needs_verilator
@pytest.mark.slow
@pytest.mark.parametrize("target", ["verilog", "verilog:lanes4"])
def test_a_network_is_exact_on_a_thousand_inputs(target: str, tmp_path: Path) -> None:
    g = network(6, 8, 5)
    rng = np.random.default_rng(1)
    inputs = [rng.integers(-128, 128, (1, 6, 6, 3)).astype(np.int8) for _ in range(1000)]
    got = simulated(g, inputs, tmp_path, target)
    model = CompiledModel(build_program(g, features_of("native"), 1), threads=1)
    want = np.array([model(x).ravel() for x in inputs])
    np.testing.assert_array_equal(want[:20], [interpret(g, [x])[0].ravel() for x in inputs[:20]])
    assert len(np.unique(want)) > 50
    np.testing.assert_array_equal(got, want)


def sounds() -> tuple[Graph, Sequence[np.ndarray]]:
    """MLPerf Tiny's ad01, a dense autoencoder, with random weights; samples as its spectrograms are spread."""
    widths, rng = (640, 128, 128, 128, 128, 8, 128, 128, 128, 128, 640), np.random.default_rng(0)
    y = x = arg("x", 1, widths[0])
    for i, (k, n) in enumerate(pairwise(widths)):
        y = ops.linear(y, const(rng.standard_normal((n, k), np.float32) * np.float32((2 / k) ** 0.5)))
        y = ops.add(y, const(rng.standard_normal(n, np.float32) * np.float32(0.1)))
        y = ops.Relu()(y) if i < len(widths) - 2 else y
    return Graph((x,), (y,)), [rng.normal(-20, 9, (1, 640)).astype(np.float32) for _ in range(1000)]


def digits() -> tuple[Graph, Sequence[np.ndarray]]:
    """The network of examples/digits.py on the images that it is for."""
    pytest.importorskip("onnx")
    images = pytest.importorskip("sklearn.datasets").load_digits().images[:1000]
    graph = open_model(EXAMPLES / "digits.onnx", Request(dynamic={"batch": 1})).graph
    return graph, [(image / 16).astype(np.float32).reshape(1, 1, 8, 8) for image in images]


@needs_verilator
@pytest.mark.slow
@pytest.mark.parametrize("make", [sounds, digits])
def test_quantized_networks_are_exact_on_a_thousand_inputs(
    make: Callable[[], tuple[Graph, Sequence[np.ndarray]]], tmp_path: Path
) -> None:
    """Floats to int8 TFLite to Verilog."""
    pytest.importorskip("flatbuffers")
    g, samples = make()
    path = tmp_path / "m.tflite"
    write_levels(g, [(x,) for x in samples[:50]], path)
    tensor = read(path).subgraphs[0].tensors[read(path).subgraphs[0].inputs[0]]
    q = tensor.quantization
    assert q is not None
    inputs = [np.clip(np.rint(x / q.scale) + q.zero, -128, 127).astype(np.int8) for x in samples]
    levels = open_model(path, Request()).graph
    model = ingot.compile(path, threads=1, cache=False)
    want = np.array([model.run([x])[0].ravel() for x in inputs])
    np.testing.assert_array_equal(want[:3], [interpret(levels, [x])[0].ravel() for x in inputs[:3]])
    assert len(np.unique(want)) > 50 and len(np.unique(want, axis=0)) > 500
    np.testing.assert_array_equal(simulated(levels, inputs, tmp_path, "verilog:lanes16"), want)


@needs_verilator
@pytest.mark.slow
def test_lanes_take_fewer_cycles(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    w, bias = rng.integers(-128, 128, (8, 128)), rng.integers(-5000, 5000, 8)
    g = graph(requantized(dense(arg("x", 1, 128, dtype=i8), w, bias), 0.002))
    inputs = [rng.integers(-128, 128, (1, 128)).astype(np.int8) for _ in range(3)]
    want = np.array([interpret(g, [x])[0].ravel() for x in inputs])
    np.testing.assert_array_equal(simulated(g, inputs, tmp_path, "verilog:lanes8"), want)
    facts = json.loads((tmp_path / "net" / "circuit.json").read_text())
    # the input, its conversion at two cycles an element, and 128 products of eight lanes
    assert facts["cycles"] < 128 + 2 * 128 + (128 + 1 + 8) + 20


def test_the_files_of_a_circuit(tmp_path: Path) -> None:
    g = network(4, 4, 3)
    TARGET.export(build_program(g, features_of("verilog"), 1), tmp_path / "my net")
    names = {p.name for p in (tmp_path / "my net").iterdir()}
    assert {"my_net.v", "my_net_tb.v", "circuit.json"} <= names
    text = (tmp_path / "my net" / "my_net.v").read_text()
    read = {line.split('"')[1] for line in text.splitlines() if "$readmemh" in line}
    assert read == {n for n in names if n.endswith(".hex")} and read
    assert "module my_net (" in text and text.count("endmodule") == text.count("\nmodule ")
    # weights take the bits that they need
    weights = [p.read_text().split() for p in (tmp_path / "my net").glob("*.hex")]
    assert any(len(words) == 4 * 3 * 3 * 3 and {len(w) for w in words} == {2} for words in weights)


def test_what_has_no_circuit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="integers only"):
        build_program(graph(ops.Exp()(arg("x", 4, dtype=f32))), features_of("verilog"), 1)
    with pytest.raises(CompileError, match="fixed sizes"):
        open_sizes = graph(ops.Add()(arg("x", symbol("n"), dtype=i8), arg("y", symbol("n"), dtype=i8)))
        build_program(open_sizes, features_of("verilog"), 1)
    two = build_program(graph(ops.Add()(arg("x", 4, dtype=i8), arg("y", 4, dtype=i8))), features_of("verilog"), 1)
    with pytest.raises(CompileError, match="one input"):
        TARGET.export(two, tmp_path / "net")
    one = build_program(graph(ops.Neg()(arg("x", 4, dtype=i8))), features_of("verilog"), 1)
    with pytest.raises(InputError, match="weights"):
        TARGET.export(one, tmp_path / "net", tmp_path / "weights")
    for name in ("verilog:lanes0", "verilog:lanes257", "verilog:wide"):
        with pytest.raises(InputError, match="lanesN"):
            features_of(name)
