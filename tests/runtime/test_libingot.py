"""`libingot`: artifacts in C, against Python's runtime; artifacts that were changed; the examples."""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot import ops
from ingot.ir import types as T
from ingot.ir.dims import dim_max, symbol
from ingot.ir.node import Graph, Input
from ingot.pipeline.build import build_program
from ingot.pipeline.target import features_of
from ingot.runtime.executor import CompiledModel
from ingot.runtime.libingot import FOLDER, words
from ingot.runtime.program import Program
from tests.conformance.dags import STEPS, operands, random_graph
from tests.pipeline.functions.test_library import residual_network, running_sum, transformer
from tests.runtime.library import GCC, WARNINGS, LibraryError, Session, library, needs_gcc
from tests.test_sizes import graph as computed_sizes

pytestmark = needs_gcc
Arrays = Sequence[np.ndarray]
Model = tuple[Program, Sequence[Arrays]]
HOST = features_of("native")


def _random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def _dag(seed: int, dynamic: bool) -> Model:
    graph, sizes = random_graph(seed, dynamic, 10, STEPS)
    inputs = [operands(graph, sizes, seed)]
    if dynamic:
        inputs += [operands(graph, {name: size + 1 for name, size in sizes.items()}, seed), inputs[0]]
    return build_program(graph, HOST, 2), inputs


def _fixed(graph: Graph) -> Model:
    shape = [int(str(d)) for d in graph.inputs[0].type.shape]
    return build_program(graph, HOST, 2), [[_random(*shape, seed=seed)] for seed in range(2)]


def _computed_sizes() -> Model:
    inputs = [[_random(n, seed=n), _random(4)] for n in (5, 100, 0, 3000, 7)]
    return build_program(computed_sizes(), HOST, 2), inputs


def _cropped_axes() -> Model:
    """A size that the run computes on all three axes of an output."""
    n, k = symbol("n"), symbol("$k")
    x = Input("x", T.TensorType(T.f32, (n,)))()
    count = ops.Reduce("sum", (0,))(ops.Convert(T.i64)(ops.compare("GT", x, 0)))
    cut = ops.Slice((0,), (k,), (1,))(x)
    planes = [ops.BroadcastInDim((k, 3, k), (axis,))(cut) for axis in (0, 2)]
    graph = Graph((x,), (ops.Sub()(*planes), count), bounds=(("n", 0, None),), sizes=(("$k", n),))
    return build_program(graph, HOST, 2), [[_random(m, seed=m)] for m in (6, 31, 0)]


def _elements() -> Model:
    b, n, m = symbol("b"), symbol("shape.0"), symbol("shape.1")
    x = Input("x", T.TensorType(T.f32, (b,)))()
    shape = Input("shape", T.TensorType(T.i64, (2,)), (n, m))()
    rows = ops.broadcast_to(ops.reshape(x, (b, 1)), (b, dim_max(n, 0)))
    graph = Graph((x, shape), (ops.mul(rows, ops.cast(ops.DimValue(m)(), T.f32)),), ("y",), (("shape.1", None, 9),))
    return build_program(graph, HOST, 2), [
        [_random(3), np.array(message)] for message in ((4, -2), (0, 3), (-1, 3), (1, 9))
    ]


def _state() -> Model:
    return running_sum()[0], [[_random(3, 5, seed=seed)] for seed in range(5)]


def _onnx(text: str, inputs: Sequence[Arrays]) -> Model:
    onnx = pytest.importorskip("onnx")
    return ingot.compile(onnx.parser.parse_model(text), threads=2).program, inputs


LOOP = """<ir_version: 8, opset_import: ["" : 17]> g (float[4] x, int64 n) => (float[4] y) {
  c = Constant <value = bool {1}> ()
  y = Loop <body = b (int64 i, bool k, float[4] a) => (bool k2, float[4] a2)
    { k2 = Identity (k) s = Sin (a) a2 = Add (a, s) }> (n, c, x) }"""
NONZERO = """<ir_version: 8, opset_import: ["" : 17]> g (float[N, M] x) => (int64[2, K] y, float[L] z) {
  y = NonZero (x) f = Greater (x, x) n = Not (f) s = Shape (x) t = ReduceProd <keepdims = 1> (s)
  v = Reshape (n, t) z = Compress (x, v) }"""
SORT = """<ir_version: 8, opset_import: ["" : 17]> g (float[N, 40] x) => (float[N, 5] v, int64[N, 5] i) {
  k = Constant <value = int64[1] {5}> () v, i = TopK (x, k) }"""
BRANCH = """<ir_version: 8, opset_import: ["" : 17]> g (float[N] x, bool c) => (float[N] y) {
  y = If (c) <then_branch = a () => (float[N] p) { p = Exp (x) },
              else_branch = b () => (float[N] q) { q = Neg (x) }> }"""

MODELS: dict[str, Callable[[], Model]] = {
    **{f"dag_{seed}": lambda seed=seed: _dag(seed, False) for seed in range(4)},
    **{f"open_dag_{seed}": lambda seed=seed: _dag(seed, True) for seed in range(4, 10)},
    "residual_network": lambda: _fixed(residual_network()),
    "transformer": lambda: _fixed(transformer()),
    "computed_sizes": _computed_sizes,
    "cropped_axes": _cropped_axes,
    "elements": _elements,
    "state": _state,
    "loop": lambda: _onnx(LOOP, [[_random(4), np.asarray(n, np.int64)] for n in (0, 1, 7)]),
    "branch": lambda: _onnx(BRANCH, [[_random(n), np.asarray(c)] for n, c in ((5, True), (5, False), (900, True))]),
    "non_zero": lambda: _onnx(NONZERO, [[_random(3, 4)], [_random(7, 2)]]),
    "sort": lambda: _onnx(SORT, [[_random(3, 40)], [_random(70, 40)]]),
}  # fmt: skip


@cache
def model(name: str) -> Model:
    return MODELS[name]()


def _assert_same(got: Arrays, expected: Arrays) -> None:
    assert len(got) == len(expected)
    for g, e in zip(got, expected, strict=True):
        assert (g.dtype, g.shape) == (e.dtype, e.shape)
        assert g.tobytes() == e.tobytes()


@pytest.mark.parametrize("threads", (1, 3))
@pytest.mark.parametrize("name", MODELS)
def test_artifacts_run_as_in_python(name: str, threads: int, tmp_path: Path) -> None:
    program, inputs = model(name)
    compiled = CompiledModel(program, threads=threads)
    compiled.save(tmp_path / "m.ingot")
    session = Session(tmp_path / "m.ingot", threads)
    assert [s[:2] for s in session.inputs] == [(s.name, s.dtype) for s in program.inputs]
    for arrays in inputs:
        _assert_same(session.run(arrays), compiled.run(arrays))
    for index, value in enumerate(compiled.state().values()):
        assert np.array_equal(session.read_state(index), value)
    session.close()
    assert len(MODELS) >= 20


def test_sessions_of_one_model_in_threads(tmp_path: Path) -> None:
    program, inputs = model("open_dag_4")
    compiled = CompiledModel(program, threads=1)
    compiled.save(tmp_path / "m.ingot")
    expected = [compiled.run(arrays) for arrays in inputs]
    sessions = [Session(tmp_path / "m.ingot", 1 + i % 2) for i in range(8)]

    def work(session: Session) -> None:
        for _ in range(20):
            for arrays, want in zip(inputs, expected, strict=True):
                _assert_same(session.run(arrays), want)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, sessions))
    for session in sessions:
        session.close()


def _refused(path: Path, code: int, message: str) -> None:
    with pytest.raises(LibraryError, match=message) as caught:
        Session(path)
    assert caught.value.code == code


def test_wrong_files_and_calls_are_errors(tmp_path: Path) -> None:
    program, inputs = model("open_dag_4")
    path = tmp_path / "m.ingot"
    CompiledModel(program, threads=1).save(path)
    data = path.read_bytes()
    session = Session(path)
    with pytest.raises(LibraryError, match="expected 2 dims, got 1"):
        session.run([inputs[0][0][0], *inputs[0][1:]])
    session.close()
    _refused(tmp_path / "none.ingot", 1, "No such file")
    _refused(tmp_path, 1, "not a file")
    path.write_bytes(b"")
    _refused(path, 1, "content")
    path.write_bytes(b"PK" + data[2:])
    _refused(path, 2, "not an Ingot artifact")
    path.write_bytes(data[:8] + struct.pack("<I", 99) + data[12:])
    _refused(path, 2, "version 99")
    for length in (70, 200, len(data) - 1):
        path.write_bytes(data[:length])
        _refused(path, 3, "truncated")
    for at in (64 + struct.unpack_from("<I", data, 12)[0] + 150, len(data) - 1):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        _refused(path, 3, "digest")
    foreign = build_program(residual_network(), features_of("cpu:aarch64"), 1)
    ingot.runtime.artifact.save(foreign, path)  # type: ignore[attr-defined]
    _refused(path, 5, "compiled for aarch64")
    lacking = replace(program.code["cpu"], features=replace(HOST, features=(*HOST.features, "avx512fp16")), plan=b"")
    ingot.runtime.artifact.save(replace(program, code={"cpu": lacking}), path)  # type: ignore[attr-defined]
    _refused(path, 5, "no avx512_fp16")


def test_numbers_of_over_64_bits_have_no_plan_for_c() -> None:
    program = model("dag_0")[0]
    steps = (replace(program.steps[0], dims=(1 << 63,)), *program.steps[1:])
    assert words.encode(program) and words.encode(replace(program, steps=steps)) is None


def _packed(arrays: Arrays) -> bytes:
    return b"".join(struct.pack(f"<{2 + a.ndim}q", a.ndim, *a.shape, a.nbytes) + a.tobytes() for a in arrays)


MUTATED = ("dag_1", "open_dag_4", "open_dag_5", "residual_network", "computed_sizes", "elements", "state", "loop")


@pytest.mark.slow
def test_changed_artifacts_are_errors_and_never_crashes(tmp_path: Path) -> None:
    """20,000 artifacts under right digests, in code that is checked for stray accesses and undefined behavior."""
    flags = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-I", str(FOLDER)]
    source = Path(__file__).with_name("mutate.c")
    command = [str(GCC), *WARNINGS, "-Wno-conversion", *flags, str(source), "-o", "mutate", "-lpthread"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[:3000]
    total = np.zeros(3, int)
    for seed, name in enumerate(MUTATED):
        program, inputs = model(name)
        CompiledModel(program, threads=1).save(tmp_path / "m.ingot")
        (tmp_path / "m.in").write_bytes(_packed(inputs[0]))
        run = [str(tmp_path / "mutate"), "m.ingot", "m.in", str(seed), "2500"]
        options = {**os.environ, "ASAN_OPTIONS": "allocator_may_return_null=1:max_allocation_size_mb=4096"}
        done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False, env=options, timeout=60)
        assert done.returncode == 0, f"{name}: {done.stderr[-3000:]}"
        total += [int(word) for word in done.stdout.split()]
    refused, bound, completed = total
    assert refused + bound + completed == 8 * 2501
    # what runs is whole, or has other state; what is bound is code that names a changed plan, and is not run
    assert refused > 15_000 and bound > 500 and 8 <= completed < 1_000, total


EXAMPLES = Path(__file__).parents[2] / "examples" / "libingot"


@pytest.mark.parametrize("language", ("c", "cpp", "rs"))
def test_examples(language: str, tmp_path: Path) -> None:
    compiler = {"c": "gcc", "cpp": "g++", "rs": "rustc"}[language]
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    onnx = pytest.importorskip("onnx")
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 3] x) => (float[N, 3] y) { y = Softmax (x) }'
    ingot.compile(onnx.parser.parse_model(text)).save(tmp_path / "softmax.ingot")
    lib, example = tmp_path / "libingot.a", EXAMPLES / f"softmax.{language}"
    for command in (
        [str(GCC), "-std=c11", "-O2", "-c", str(FOLDER / "libingot.c"), "-o", "libingot.o"],
        ["ar", "rcs", str(lib), "libingot.o"],
        [compiler, str(example), "-o", "softmax", "-L", str(tmp_path), "-l", "static=ingot"]
        if language == "rs"
        else [
            compiler,
            "-Wall",
            "-Wextra",
            "-Werror",
            "-I",
            str(FOLDER),
            str(example),
            str(lib),
            "-lpthread",
            "-o",
            "softmax",
        ],
    ):
        process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stderr[:3000]
    done = subprocess.run(["./softmax", "softmax.ingot"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "y: f32[2, 3]\n0.0900 0.2447 0.6652\n0.3333 0.3333 0.3333\n"


@pytest.mark.skipif(shutil.which("go") is None, reason="no go")
def test_the_go_example(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 3] x) => (float[N, 3] y) { y = Softmax (x) }'
    ingot.compile(onnx.parser.parse_model(text)).save(tmp_path / "softmax.ingot")
    shutil.copy(EXAMPLES / "softmax.go", tmp_path)
    (tmp_path / "go.mod").write_text("module softmax\n\ngo 1.19\n")
    flags = {"CGO_CFLAGS": f"-O2 -I{FOLDER}", "GOCACHE": str(tmp_path / "cache"), "GOFLAGS": "-mod=mod"}
    shutil.copy(FOLDER / "libingot.c", tmp_path)  # cgo compiles what lies beside
    environment = {**os.environ, **flags}
    process = subprocess.run(
        ["go", "build", "-o", "softmax", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert process.returncode == 0, process.stderr[:3000]
    done = subprocess.run(["./softmax", "softmax.ingot"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "y: f32[2, 3]\n0.0900 0.2447 0.6652\n0.3333 0.3333 0.3333\n", done.stderr


@pytest.mark.slow
def test_an_arm_processor(tmp_path: Path) -> None:
    """In an emulator: an artifact for AArch64, with two threads, and one whose instructions are not there."""
    compiler, emulator = "aarch64-linux-gnu-gcc", "qemu-aarch64"
    if missing := [tool for tool in (compiler, emulator) if shutil.which(tool) is None]:
        pytest.skip(f"no {missing[0]}")
    x = Input("x", T.TensorType(T.f32, (symbol("n"), 3)))()
    graph = Graph((x,), (ops.Softmax(1)(x),), ("y",), (("n", 0, None),))
    source = (
        (EXAMPLES / "softmax.c").read_text().replace("ingot_session_open(model, 1,", "ingot_session_open(model, 2,")
    )
    (tmp_path / "softmax.c").write_text(source)
    command = [compiler, *WARNINGS, "-O1", "-static", "-I", str(FOLDER), "softmax.c", str(FOLDER / "libingot.c")]
    process = subprocess.run([*command, "-o", "softmax"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[:3000]
    for target, processor, text in (
        ("cpu:aarch64", "cortex-a53", "y: f32[2, 3]\n0.0900 0.2447 0.6652\n0.3333 0.3333 0.3333\n"),
        ("cpu:neoverse-v2", "cortex-a53", ""),
    ):
        ingot.runtime.artifact.save(build_program(graph, features_of(target), 2), tmp_path / "m.ingot")  # type: ignore[attr-defined]
        run = [emulator, "-cpu", processor, "./softmax", "m.ingot"]
        done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
        assert done.stdout == text, done.stderr
        assert text or "this processor has no" in done.stderr


def test_pkg_config(tmp_path: Path) -> None:
    """The command prints what a compiler needs."""
    from ingot.runtime.libingot import cflags, libs

    assert cflags() == f"-I{FOLDER}" and str(FOLDER / "libingot.c") in libs()
    assert ctypes.c_int(library().ingot_input_count(None)).value == 0
