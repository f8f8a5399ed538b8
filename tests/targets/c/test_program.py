"""Programs printed as C: their files, their arena, what they need. Every op: test_targets.py."""

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
from ingot.ir.node import Graph, Input, const
from ingot.ir.types import TensorType, f32
from ingot.pipeline.build import build_program
from ingot.pipeline.c import TARGET
from ingot.support.errors import IngotError, InputError
from tests.conformance.c import built, needs_gcc, run_program


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
    state, arena = np.zeros(len(weights) // 8 + 1, np.uint64), np.zeros(1 << 20, np.uint64)
    result = np.zeros((2, 324), np.float32)
    state.view(np.uint8)[: len(weights)] = weights
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (arena, state, image, result)]
    assert library.net_run_in(*pointers) == 0
    np.testing.assert_allclose(result, interpret(graph, [image])[0], rtol=1e-5, atol=1e-7)
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


@needs_gcc
def test_state_in_the_callers_memory_and_in_the_programs_own(tmp_path: Path) -> None:
    total, frames, x = (Input(name, TensorType(f32, (3, 5)))() for name in ("total", "frames", "x"))
    new = ops.Add()(total, x)
    shifted = ops.Concat(0)(ops.Slice((1, 0), (3, 5), (1, 1))(frames), ops.Slice((0, 0), (1, 5), (1, 1))(x))
    graph = Graph((x, total, frames), (new, shifted, ops.Mul()(new, shifted)), state=("total", "frames"))
    first = np.arange(15, dtype=np.float32).reshape(3, 5)
    program = build_program(graph, TARGET.features(""), 1).with_state({"total": first})
    assert [bool(s.copy_reason) for s in program.state] == [False, True]
    TARGET.export(program, tmp_path / "net.c")
    library, rng = built(tmp_path, tmp_path / "net.c"), np.random.default_rng(0)
    arena, state_buffer = np.zeros(1 << 12, np.uint64), np.zeros(1 << 10, np.uint64)
    y, memory, state_memory = (
        np.zeros((3, 5), np.float32),
        *(ctypes.c_void_p(a.ctypes.data) for a in (arena, state_buffer)),
    )
    assert library.net_reset(state_memory) == 0
    state = [first, np.zeros((3, 5), np.float32)]
    value = np.empty((3, 5), np.float32)
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (value, y)]
    for step in range(6):
        if step == 3:
            assert library.net_reset(state_memory) == 0 and library.net_reset(None) == 0
            state = [first, np.zeros((3, 5), np.float32)]
        value[:] = rng.standard_normal((3, 5), np.float32)
        *state, expected = interpret(graph, (value.copy(), *state))
        for run, arguments in ((library.net_run, ()), (library.net_run_in, (memory, state_memory))):
            y.fill(0)
            assert run(*arguments, *pointers) == 0
            np.testing.assert_allclose(y, expected, rtol=1e-6)
    assert library.net_run_in(memory, None, *pointers) == 1


def test_symbolic_sizes_are_refused_with_what_to_do(tmp_path: Path) -> None:
    from ingot.ir.dims import symbol

    x = Input("x", TensorType(f32, (symbol("n"),)))()
    program = build_program(Graph((x,), (ops.Exp()(x),)), TARGET.features(""), 1)
    with pytest.raises(InputError, match=r"symbolic sizes.*n.*--dim"):
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


@needs_gcc
@pytest.mark.parametrize("nbytes", [16, 32])
def test_vector_extensions(tmp_path: Path, nbytes: int) -> None:
    graph, image = _network()
    program = build_program(graph, TARGET.features(f"vector{nbytes}"), 1)
    (got,) = run_program(program, [image], tmp_path)
    np.testing.assert_allclose(got, interpret(graph, [image])[0], rtol=1e-5, atol=1e-7)
    assert (
        f"typedef float ig_f32x{nbytes // 4} __attribute__((vector_size({nbytes})));"
        in (tmp_path / "net.c").read_text()
    )


def test_other_vectors_are_refused() -> None:
    with pytest.raises(InputError, match="c or c:vector16 or c:vector32"):
        TARGET.features("vector7")
