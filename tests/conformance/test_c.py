"""Every op x some samples x C: what the printed program computes is the reference, within the op's bound.

It is compiled by the host's compiler with all warnings as errors.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Const, Graph, Input, Op, Project, const
from ingot.ir.types import TensorType, f32
from ingot.pipeline.build import build_program
from ingot.pipeline.c import TARGET
from ingot.support.errors import CompileError, IngotError
from tests.conformance.bounds import check
from tests.conformance.c import built, needs_gcc, run_c
from tests.conformance.native import Sample, _cast, together

# C has no such types, and no program of it has them yet
MISSING = {"i4", "u4", "i2", "u2", "f8e5m2", "f8e4m3fn", "f8e4m3fnuz", "f8e5m2fnuz", "f8e8m0fnu", "f4e2m1fn"}
OPS = [
    c for c in Op.REGISTRY.values()
    if c not in (Const, Input, Project, ops.Group) and c.__module__.startswith("ingot.ops")
]  # fmt: skip
QUICK = {"add", "divide", "exponential", "dot_general", "softmax", "sort", "scatter", "while", "case"}


def _expressible(sample: Sample) -> bool:
    types = sample.op.infer(*sample.types)
    all_ = (*sample.types, *(types if isinstance(types, tuple) else (types,)))
    return not any(t.dtype.name in MISSING for t in all_)


def _params() -> list[object]:
    return [pytest.param(c, id=c.name, marks=() if c.name in QUICK else pytest.mark.slow) for c in OPS]


@needs_gcc
@pytest.mark.parametrize("cls", _params())
def test_every_op(cls: type[Op], tmp_path: Path) -> None:
    samples = [s for op, inputs in cls.samples() if _expressible(s := Sample.static(op, inputs))]
    samples = samples[:: max(1, len(samples) // 4)]
    if not samples:
        pytest.skip("only types that C has none for")
    all_ = together(samples)
    results = run_c(all_.graph, all_.arrays, tmp_path)
    got = iter(_cast(np.asarray(g), t) for g, t in zip(results, all_.dtypes, strict=True))
    for s in samples:
        want = s.origin.reference(*s.inputs)
        for w in want if isinstance(want, tuple) else (want,):
            check(s.origin, s.inputs, next(got), np.asarray(w), str(s))


def _network() -> tuple[Graph, np.ndarray]:
    rng = np.random.default_rng(0)
    x = Input("image", TensorType(f32, (2, 3, 9, 9)))()
    y = ops.Conv((1, 1), ((1, 1), (1, 1)), (1, 1))(x, const(rng.standard_normal((4, 3, 3, 3), np.float32)))
    y = ops.Softmax(1)(ops.Reshape((2, 324))(ops.Max()(y, const(np.zeros((2, 4, 9, 9), np.float32)))))
    return Graph((x,), (y,)), rng.standard_normal((2, 3, 9, 9), np.float32)


@needs_gcc
def test_weights_in_a_file_and_the_callers_arena(tmp_path: Path) -> None:
    graph, image = _network()
    program = build_program(graph, TARGET.features(""), 1)
    TARGET.export(program, tmp_path / "net.c", tmp_path / "net.bin")
    library = built(tmp_path, tmp_path / "net.c", None, "-DNET_NO_ARENA")
    assert not hasattr(library, "net_run")
    weights = np.fromfile(tmp_path / "net.bin", np.uint8)
    held, arena = np.zeros(len(weights) // 8 + 1, np.uint64), np.zeros(1 << 20, np.uint64)
    out = np.zeros((2, 324), np.float32)
    held.view(np.uint8)[: len(weights)] = weights
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (arena, held, image, out)]
    assert library.net_run_in(*pointers) == 0
    np.testing.assert_allclose(out, interpret(graph, [image])[0], rtol=1e-5, atol=1e-7)
    assert library.net_run_in(None, *pointers[1:]) == 1
    assert library.net_run_in(ctypes.c_void_p(arena.ctypes.data + 4), *pointers[1:]) == 2


@needs_gcc
def test_the_file_needs_no_library_and_its_header_serves_cpp(tmp_path: Path) -> None:
    graph, _ = _network()
    TARGET.export(build_program(graph, TARGET.features(""), 1), tmp_path / "net.c")
    subprocess.run(["gcc", "-std=c99", "-O1", "-c", "-ffreestanding", "net.c", "-o", "net.o"], cwd=tmp_path, check=True)
    undefined = subprocess.run(["nm", "-u", "net.o"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    # a compiler may copy and clear memory by these four, as C's freestanding mode says
    assert {line.split()[-1] for line in undefined.splitlines()} <= {"memcpy", "memset", "memmove", "memcmp"}
    header = (tmp_path / "net.h").read_text()
    assert 'extern "C"' in header and "net_run(" in header and "malloc" not in (tmp_path / "net.c").read_text()


def test_open_sizes_are_refused_with_what_to_do(tmp_path: Path) -> None:
    from ingot.ir.dims import symbol

    x = Input("x", TensorType(f32, (symbol("n"),)))()
    program = build_program(Graph((x,), (ops.Exp()(x),)), TARGET.features(""), 1)
    with pytest.raises(CompileError, match=r"open sizes.*n.*--dim"):
        TARGET.export(program, tmp_path / "net.c")


@needs_gcc
def test_from_a_model_file(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[4, 3] x) => (float[4, 3] y) { z = Exp(x) y = Softmax(z) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    compiled = ingot.compile(tmp_path / "m.onnx", target="c")
    with pytest.raises(IngotError, match="cannot run here"):
        compiled(np.zeros((4, 3), np.float32))
    compiled.save(tmp_path / "m.c")
    x, y = np.random.default_rng(0).standard_normal((4, 3), np.float32), np.zeros((4, 3), np.float32)
    assert built(tmp_path, tmp_path / "m.c").m_run(*(ctypes.c_void_p(a.ctypes.data) for a in (x, y))) == 0
    e = np.exp(np.exp(x))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=1e-5)
    command = [sys.executable, "-m", "ingot", "compile", "m.onnx", "--target", "c", "-o", "again.c"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "again.c").exists() and (tmp_path / "again.h").exists()
