"""Native libraries: C programs linked with what the compiler writes, and what the files are made of."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType, f32
from ingot.pipeline.build import build_program
from ingot.pipeline.functions.library import export
from ingot.pipeline.target import features_of
from ingot.runtime.executor import CompiledModel
from ingot.runtime.program import Program
from ingot.support.errors import InputError
from tests.conformance.c import WARNINGS, needs_gcc

HOST = features_of("native")
THREADS = 8


def _weights(rng: np.random.Generator, *shape: int) -> Node:
    return const(rng.standard_normal(shape, np.float32) / np.sqrt(np.prod(shape[1:]), dtype=np.float32))


def residual_network() -> Graph:
    """Convolutions with halos, a residual sum, a depthwise one, pools, and a dense layer."""
    rng = np.random.default_rng(1)
    x = Input("image", TensorType(f32, (2, 3, 33, 33)))()
    padding = ((1, 1), (1, 1))
    y = ops.Relu()(ops.Conv((2, 2), padding, (1, 1))(x, _weights(rng, 16, 3, 3, 3)))
    z = ops.Relu()(ops.Conv((1, 1), padding, (1, 1))(y, _weights(rng, 16, 16, 3, 3)))
    z = ops.Conv((1, 1), padding, (1, 1), 16)(z, _weights(rng, 16, 1, 3, 3))
    y = ops.MaxPool((3, 3), (2, 2), padding, (1, 1))(ops.Relu()(ops.Add()(y, z)))
    y = ops.Conv((1, 1), ((0, 0), (0, 0)), (1, 1))(y, _weights(rng, 40, 16, 1, 1))
    pooled = ops.Reshape((2, 40))(ops.AvgPool((9, 9), (1, 1), ((0, 0), (0, 0)), (1, 1))(y))
    return Graph((x,), (ops.Softmax(1)(ops.MatMul()(pooled, _weights(rng, 40, 10))),))


def transformer() -> Graph:
    """One layer on 2 x 19 tokens of 32 numbers, 4 heads."""
    rng = np.random.default_rng(2)
    batch, length, width, heads = 2, 19, 32, 4
    x = Input("tokens", TensorType(f32, (batch, length, width)))()
    normal = ops.LayerNorm((2,))(x)

    def split(y: Node) -> Node:
        return ops.Transpose((0, 2, 1, 3))(ops.Reshape((batch, length, heads, width // heads))(y))

    q, k, v = (split(ops.MatMul()(normal, _weights(rng, width, width))) for _ in range(3))
    scores = ops.Softmax(3)(ops.MatMul()(q, ops.Transpose((0, 1, 3, 2))(k)))
    mixed = ops.Reshape((batch, length, width))(ops.Transpose((0, 2, 1, 3))(ops.MatMul()(scores, v)))
    y = ops.Add()(x, ops.MatMul()(mixed, _weights(rng, width, width)))
    inner = ops.Tanh()(ops.MatMul()(ops.LayerNorm((2,))(y), _weights(rng, width, 2 * width)))
    return Graph((x,), (ops.Add()(y, ops.MatMul()(inner, _weights(rng, 2 * width, width))),))


MODELS = {"residual_network": residual_network, "transformer": transformer}

# reads NAME.in, has THREADS threads run it many times in arenas of their own, compares with NAME.out byte for byte
MAIN = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "net.h"
#define INPUT %(inputs)d
#define OUTPUT %(outputs)d
static float x[INPUT], expected[OUTPUT];
static void *work(void *turns) {
  void *arena = aligned_alloc(64, (NET_ARENA_BYTES + 63) / 64 * 64);
  float *y = malloc(sizeof expected);
  int i, status = 0;
  for (i = 0; i < *(int *)turns && !status; i++) {
    memset(y, 0xff, sizeof expected);
    status = net_run_in(arena, x, y) != NET_OK ? 1 : memcmp(y, expected, sizeof expected) ? 2 : 0;
  }
  free(arena);
  free(y);
  return (void *)(size_t)status;
}
static int filled(const char *name, void *to, size_t size) {
  FILE *file = fopen(name, "rb");
  size_t got = file ? fread(to, 1, size, file) : 0;
  if (file) fclose(file);
  return got == size;
}
int main(int count, char **words) {
  pthread_t threads[%(threads)d];
  float y[OUTPUT];
  int i, turns = count > 1 ? atoi(words[1]) : 1, wrong = 0;
  if (!filled("net.in", x, sizeof x) || !filled("net.out", expected, sizeof expected)) return 9;
  for (i = 0; i < 2; i++) {
    memset(y, 0, sizeof y);
    if (net_run(x, y) != NET_OK || memcmp(y, expected, sizeof y)) return 3;
  }
  for (i = 0; i < %(threads)d; i++) if (pthread_create(threads + i, NULL, work, &turns)) return 8;
  for (i = 0; i < %(threads)d; i++) {
    void *status;
    pthread_join(threads[i], &status);
    if (status) wrong = (int)(size_t)status;
  }
  if (net_run(NULL, y) != NET_NULL || net_run_in(x, NULL, y) != NET_NULL) return 4;
  if (net_run_in((char *)(64 - (size_t)y %% 64 + (size_t)y) + 8, x, y) != NET_ALIGNMENT) return 5;
  return wrong;
}
"""


def arrays_of(graph: Graph) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.standard_normal([int(str(d)) for d in x.type.shape], np.float32) for x in graph.inputs]


def program_in(folder: Path, graph: Graph, target: str, suffix: str) -> Program:
    """Write the library, the program `main.c`, its input and, from Python's runtime, its expected output."""
    program = build_program(graph, features_of(target), 1)
    (x,) = arrays_of(graph)
    (y,) = CompiledModel(program, threads=1).run([x])
    export(program, folder / f"net{suffix}")
    x.tofile(folder / "net.in")
    y.tofile(folder / "net.out")
    (folder / "main.c").write_text(MAIN % {"inputs": x.size, "outputs": y.size, "threads": THREADS})
    return program


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


def linked(folder: Path, suffix: str) -> None:
    libraries = ["-L.", "-l:net.so", "-Wl,-rpath,$ORIGIN"] if suffix == ".so" else [f"net{suffix}"]
    process = run(folder, "gcc", *WARNINGS, "-std=c11", "-O1", "main.c", *libraries, "-o", "main", "-lpthread")
    assert process.returncode == 0 and not process.stderr, process.stderr


@needs_gcc
@pytest.mark.parametrize("suffix", (".so", ".o", ".a"))
@pytest.mark.parametrize("name", MODELS)
def test_a_c_program_gets_pythons_bits_from_eight_threads(name: str, suffix: str, tmp_path: Path) -> None:
    program_in(tmp_path, MODELS[name](), "native", suffix)
    linked(tmp_path, suffix)
    assert run(tmp_path, "./main", "50").returncode == 0


@needs_gcc
def test_a_loaded_artifact_becomes_a_library(tmp_path: Path) -> None:
    """By Python and by the command line: the same bits as the artifact, whatever threads it was made for."""
    graph = residual_network()
    CompiledModel(build_program(graph, HOST, 2), threads=2).save(tmp_path / "m.ingot")
    model, arrays = ingot.load(tmp_path / "m.ingot", threads=2), arrays_of(graph)
    model.save(tmp_path / "m.so")
    process = run(tmp_path, sys.executable, "-m", "ingot", "compile", "m.ingot", "-o", "other.so")
    assert process.returncode == 0, process.stderr
    (want,) = model.run(arrays)
    for name in ("m", "other"):
        library, got = ctypes.CDLL(str(tmp_path / f"{name}.so")), np.zeros_like(want)
        function = getattr(library, f"{name}_run")
        assert function(*(ctypes.c_void_p(a.ctypes.data) for a in (*arrays, got))) == 0
        np.testing.assert_array_equal(got, want)


@needs_gcc
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="no valgrind")
@pytest.mark.parametrize("name", MODELS)
def test_valgrind_finds_nothing(name: str, tmp_path: Path) -> None:
    program_in(tmp_path, MODELS[name](), "cpu:x86-64-v3", ".so")
    linked(tmp_path, ".so")
    done = run(tmp_path, "valgrind", "--error-exitcode=77", "--leak-check=full", "./main", "1")
    assert done.returncode == 0 and "ERROR SUMMARY: 0 errors" in done.stderr, done.stderr[-3000:]


def readelf(path: Path, *options: str) -> str:
    tool = shutil.which("readelf")
    if tool is None:
        pytest.skip("no readelf")
    done = run(path.parent, tool, "-W", *options, path.name)
    assert not done.stderr, done.stderr
    return done.stdout


@pytest.mark.parametrize("target", ("cpu:x86-64-v3", "cpu:aarch64"))
def test_segments_are_not_writable_and_executable_at_once_and_nothing_is_relocated(target: str, tmp_path: Path) -> None:
    program = build_program(residual_network(), features_of(target), 1)
    export(program, tmp_path / "net.so")
    segments = readelf(tmp_path / "net.so", "--segments")
    rows = [line.split() for line in segments.splitlines() if line.split()[:1] == ["LOAD"]]
    flags = ["".join(row[6:-1]) for row in rows]
    assert flags == ["R", "RE", "RW"]
    assert "GNU_STACK" in segments and "RWE" not in segments
    assert "no relocations" in readelf(tmp_path / "net.so", "--relocs")
    dynamic = readelf(tmp_path / "net.so", "--dynamic")
    assert "[net.so]" in dynamic and "NEEDED" not in dynamic and "TEXTREL" not in dynamic
    symbols = readelf(tmp_path / "net.so", "--dyn-syms")
    assert {"net_run", "net_run_in"} == {line.split()[-1] for line in symbols.splitlines() if "GLOBAL" in line}
    weights = next(line for line in readelf(tmp_path / "net.so", "--sections").splitlines() if ".rodata" in line)
    address, offset = (int(word, 16) for word in weights.split("PROGBITS")[1].split()[:2])
    assert address % 4096 == offset % 4096 == 0
    assert (tmp_path / "net.so").read_bytes()[offset:][: program.weights.nbytes] == program.weights.tobytes()
    for suffix in (".o", ".a"):
        export(program, tmp_path / f"net{suffix}")
        relocations = readelf(tmp_path / f"net{suffix}", "--relocs")
        assert relocations.count("PC64" if "x86" in target else "PREL64") == 2


# prints what a run returns, and its output's bytes
SIMPLE = """
#include <stdio.h>
#include "net.h"
static float x[%d], y[%d];
int main(void) {
  FILE *file = fopen("net.in", "rb");
  if (!file || fread(x, 1, sizeof x, file) != sizeof x) return 9;
  int status = net_run(x, y);
  fwrite(y, 1, sizeof y, stdout);
  return status;
}
"""
# target -> compiler, and emulators with the processors that must run it and must refuse it
FOREIGN = {
    "cpu:aarch64": ("aarch64-linux-gnu-gcc", "qemu-aarch64", "cortex-a53", None),
    "cpu:neoverse-v2": ("aarch64-linux-gnu-gcc", "qemu-aarch64", "max", "cortex-a53"),
    "cpu:x86-64-v3": ("gcc", "qemu-x86_64", "max", "Nehalem"),
}


@pytest.mark.slow
@pytest.mark.parametrize("target", FOREIGN)
def test_other_machines_run_it_and_those_without_its_instructions_say_so(target: str, tmp_path: Path) -> None:
    compiler, emulator, able, unable = FOREIGN[target]
    if missing := [tool for tool in (compiler, emulator) if shutil.which(tool) is None]:
        pytest.skip(f"no {missing[0]}")
    graph = residual_network()
    (x,), (y,) = arrays_of(graph), interpret(graph, arrays_of(graph))
    export(build_program(graph, features_of(target), 1), tmp_path / "net.a")
    x.tofile(tmp_path / "net.in")
    (tmp_path / "main.c").write_text(SIMPLE % (x.size, y.size))
    process = run(tmp_path, compiler, *WARNINGS, "main.c", "net.a", "-static", "-o", "main")
    assert process.returncode == 0 and not process.stderr, process.stderr
    done = subprocess.run([emulator, "-cpu", able, "./main"], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.frombuffer(done.stdout, np.float32).reshape(y.shape), y, rtol=2e-5, atol=1e-7)
    if unable:
        done = subprocess.run([emulator, "-cpu", unable, "./main"], cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == 3 and not any(done.stdout), done.stderr


def running_sum() -> tuple[Program, np.ndarray]:
    total, frames, x = (Input(name, TensorType(f32, (3, 5)))() for name in ("total", "frames", "x"))
    new = ops.Add()(total, x)
    shifted = ops.Concat(0)(ops.Slice((1, 0), (3, 5), (1, 1))(frames), ops.Slice((0, 0), (1, 5), (1, 1))(x))
    graph = Graph((x, total, frames), (new, shifted, ops.Mul()(new, shifted)), state=("total", "frames"))
    first = np.arange(15, dtype=np.float32).reshape(3, 5)
    return build_program(graph, HOST, 1).with_state({"total": first}), first


def test_state_in_memory_of_the_caller_and_of_the_library(tmp_path: Path) -> None:
    import ctypes

    program, first = running_sum()
    export(program, tmp_path / "net.so")
    library = ctypes.CDLL(str(tmp_path / "net.so"))
    (line,) = (s for s in (tmp_path / "net.h").read_text().splitlines() if "#define NET_STATE_BYTES" in s)
    memory = np.zeros(1 << 14, np.uint8)
    at = memory.ctypes.data + -memory.ctypes.data % 64
    arena, state = ctypes.c_void_p(at), ctypes.c_void_p(at + (1 << 13))
    assert int(line.split()[-1]) < 1 << 13
    model, rng = CompiledModel(program, threads=1), np.random.default_rng(0)
    assert library.net_reset(state) == 0 and library.net_reset(ctypes.c_void_p(at + 8)) == 2
    value, y = np.empty((3, 5), np.float32), np.zeros((3, 5), np.float32)
    pointers: Sequence[ctypes.c_void_p] = [ctypes.c_void_p(a.ctypes.data) for a in (value, y)]
    for step in range(6):
        if step == 3:
            assert library.net_reset(state) == 0 and library.net_reset(None) == 0
            model.set_state({"total": first, "frames": np.zeros((3, 5), np.float32)})
        value[:] = rng.standard_normal((3, 5), np.float32)
        expected = model(value.copy())
        for function, arguments in ((library.net_run, ()), (library.net_run_in, (arena, state))):
            y.fill(0)
            assert function(*arguments, *pointers) == 0
            np.testing.assert_array_equal(y, expected)
    assert library.net_run_in(arena, None, *pointers) == 1


def test_loops_and_branches(tmp_path: Path) -> None:
    """Jumps of the plan are jumps of the library."""
    import ctypes

    import ingot

    onnx = pytest.importorskip("onnx")
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[4] x, int64 n) => (float[4] y) {
      c = Constant <value = bool {1}> ()
      y = Loop <body = b (int64 i, bool k, float[4] a) => (bool k2, float[4] a2)
        { k2 = Identity (k) s = Sin (a) a2 = Add (a, s) }> (n, c, x) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    model = ingot.compile(tmp_path / "m.onnx", threads=1)
    assert any(step.target is not None for step in model.program.steps)
    model.save(tmp_path / "m.so")
    library = ctypes.CDLL(str(tmp_path / "m.so"))
    x, y = np.linspace(-1, 1, 4, dtype=np.float32), np.zeros(4, np.float32)
    for trip_count in (0, 1, 7):
        n = np.asarray(trip_count, np.int64)
        assert library.m_run(*(ctypes.c_void_p(a.ctypes.data) for a in (x, n, y))) == 0
        np.testing.assert_array_equal(y, model(x, n))


def test_what_cannot_be_a_library_is_refused(tmp_path: Path) -> None:
    x = Input("x", TensorType(f32, (symbol("n"),)))()
    program = build_program(Graph((x,), (ops.Exp()(x),)), HOST, 1)
    with pytest.raises(InputError, match=r"symbolic sizes.*n.*--dim"):
        export(program, tmp_path / "net.so")
    with pytest.raises(InputError, match=r"ends in \.so"):
        export(program, tmp_path / "net.dll")
    with pytest.raises(InputError, match="weights"):
        export(program, tmp_path / "net.so", tmp_path / "net.bin")
    with pytest.raises(InputError, match=r"x86_64 or .*aarch64, got riscv64"):
        export(build_program(residual_network(), features_of("cpu:riscv64"), 1), tmp_path / "net.so")
    assert not list(tmp_path.iterdir())
