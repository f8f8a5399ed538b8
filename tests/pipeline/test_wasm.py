"""Packages of WebAssembly: their files, open sizes, computed sizes, state, what is refused."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph
from ingot.pipeline.build import build_program
from ingot.pipeline.target import features_of
from ingot.pipeline.wasm import TARGET
from ingot.runtime.program import Program
from ingot.support.errors import ArtifactError, InputError
from tests.conformance.wasm import NODE, call
from tests.passes.check import arg, graph

needs_node = pytest.mark.skipif(NODE is None, reason="no node")


def _program(g: Graph) -> Program:
    return build_program(g, features_of("wasm"), threads=1)


def _softmax() -> Program:
    n = symbol("n")
    return _program(graph(ops.Softmax(axis=1)(arg("x", n, 5))))


def test_the_files_of_a_package(tmp_path: Path) -> None:
    program = _softmax()
    TARGET.export(program, tmp_path / "My Net")
    TARGET.export(program, tmp_path / "My Net")  # over itself
    names = {"model.wasm", "weights.bin", "runtime.js", "index.js", "index.d.ts", "package.json"}
    assert {p.name for p in (tmp_path / "My Net").iterdir()} == names
    package = json.loads((tmp_path / "My Net" / "package.json").read_text())
    assert package["name"] == "my-net" and package["type"] == "module"
    types = (tmp_path / "My Net" / "index.d.ts").read_text()
    assert '"x": Float32Array | Tensor<Float32Array>;' in types and "/** f32[n, 5] */" in types


@needs_node
def test_sizes_may_change_from_call_to_call(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=(n, 5)).astype(np.float32) for n in (3, 300, 1, 300)]
    results = call(_softmax(), [[x] for x in inputs], tmp_path)
    for x, (y,) in zip(inputs, results, strict=True):
        e = np.exp(x - x.max(1, keepdims=True))
        np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=1e-6, atol=1e-7)


@needs_node
def test_state_is_kept_from_call_to_call(tmp_path: Path) -> None:
    total, frames, x = (arg(name, 3, 5) for name in ("total", "frames", "x"))
    new = ops.Add()(total, x)
    shifted = ops.Concat(0)(ops.Slice((1, 0), (3, 5), (1, 1))(frames), ops.Slice((0, 0), (1, 5), (1, 1))(x))
    g = Graph((x, total, frames), (new, shifted, ops.Mul()(new, shifted)), state=("total", "frames"))
    state = [np.arange(15, dtype=np.float32).reshape(3, 5), np.zeros((3, 5), np.float32)]
    program = _program(g).with_state({"total": state[0]})
    assert [bool(s.copy_reason) for s in program.state] == [False, True]
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=(3, 5)).astype(np.float32) for _ in range(4)]
    for data, (got,) in zip(inputs, call(program, [[x] for x in inputs], tmp_path), strict=True):
        *state, want = interpret(g, (data, *state))
        np.testing.assert_allclose(got, want, rtol=1e-6)


@needs_node
@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("{}", "input x"),
        ("{ x: new Float64Array(5) }", "input x: Float32Array"),
        ("{ x: new Float32Array(5) }", "sizes are open"),
        ("{ x: { data: new Float32Array(6), shape: [2, 3] } }", "5 expected, got 3"),
        ("{ x: { data: new Float32Array(6), shape: [1, 5] } }", "5 elements, got 6"),
        ("{ x: { data: new Float32Array(5), shape: [5] } }", "2 dims"),
        ("{ x: { data: new Float32Array(5), shape: [1, 5] }, y: 1 }", "no input y"),
    ],
)
def test_wrong_inputs_are_named(tmp_path: Path, run: str, message: str) -> None:
    TARGET.export(_softmax(), tmp_path / "net")
    script = f'import {{ load }} from "{tmp_path}/net/index.js"; (await load()).run({run});'
    process = subprocess.run(
        [str(NODE), "--input-type=module", "-e", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert process.returncode and message in process.stderr, process.stderr


@needs_node
@pytest.mark.parametrize("change", [b"", b"\0" * 5])
def test_weights_of_another_size_are_refused(tmp_path: Path, change: bytes) -> None:
    TARGET.export(_softmax(), tmp_path / "net")
    weights = tmp_path / "net" / "weights.bin"
    weights.write_bytes(weights.read_bytes() + change if change else b"")
    script = f'import {{ load }} from "{tmp_path}/net/index.js"; await load();'
    command = [str(NODE), "--input-type=module", "-e", script]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    has_weights = bool(change) or _softmax().weights.nbytes
    assert bool(process.returncode) == bool(has_weights) and (not has_weights or "bytes expected" in process.stderr)


def test_it_runs_elsewhere_only(tmp_path: Path) -> None:
    model = _onnx(tmp_path)
    compiled = ingot.compile(model, target="wasm", cache=False)
    with pytest.raises(ArtifactError, match="cannot run here"):
        compiled(np.zeros(4, np.float32))
    with pytest.raises(InputError, match="weights"):
        compiled.save(tmp_path / "net", weights=tmp_path / "w")
    with pytest.raises(InputError, match="a folder for wasm"):
        compiled.save(model)
    with pytest.raises(InputError, match="wasm:threads"):
        features_of("wasm:threads")


def _onnx(folder: Path) -> Path:
    import onnx
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy")
    g = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    onnx.save(helper.make_model(g, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "relu.onnx")
    return folder / "relu.onnx"
