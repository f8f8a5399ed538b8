"""A sample of what `tools/fuzz.py` runs by the hundred thousand: damaged files are refused, never more than that."""

from __future__ import annotations

import importlib.util
import random
import re
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.guard import check_all
from tools import mutations

ROOT = Path(__file__).parents[1]


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ingot_fuzz", ROOT / "tools" / "fuzz.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for the module of their annotations
    spec.loader.exec_module(module)
    return module


fuzz = _load()
# seeds that were found to break something, each mended
FOUND = {"ingot": (468, 670, 735), "onnx": (), "stablehlo": (443,)}


@pytest.mark.parametrize("seed", [*range(40), *FOUND["ingot"]])
def test_damaged_programs_are_refused_or_whole(seed: int) -> None:
    what, where, _ = fuzz.outcome(fuzz.run_ingot, seed)
    assert what in ("accepted", "refused"), where


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 160, 40))
def test_damaged_models_are_refused_or_compiled(first: int) -> None:
    pytest.importorskip("onnx")
    for seed in (*range(first, first + 40), *(FOUND["onnx"] if first == 0 else ())):
        what, where, _ = fuzz.outcome(fuzz.run_onnx, seed)
        assert what in ("accepted", "refused"), f"seed {seed}: {where}"


@pytest.mark.parametrize("kind", ["stablehlo", "tensorflow", "tflite", "gguf", "safetensors"])
def test_damaged_files_of_other_formats_are_refused_or_read(kind: str) -> None:
    pytest.importorskip("ai_edge_litert") if kind == "tflite" else None
    for seed in (*range(25), *FOUND.get(kind, ())):
        what, where, _ = fuzz.outcome(fuzz.CASES[kind], seed)
        assert what in ("accepted", "refused"), f"seed {seed}: {where}"


def _refused_or_answered(kind: str, seed: int) -> None:
    what, where, _ = fuzz.outcome(fuzz.CASES[kind], seed)
    assert what in ("accepted", "refused"), where


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("stablehlo", 40),
        ("tflite", 20),
        ("ingot", 20),
        ("tensorflow", 3),
        pytest.param("onnx", 80, marks=pytest.mark.slow),
    ],
)
def test_what_damaged_files_compile_to_stays_in_its_buffers(kind: str, count: int, tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert") if kind == "tflite" else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INGOT_CACHE_DIR", str(tmp_path))
        check_all({f"seed {s}": partial(_refused_or_answered, f"{kind}-called", s) for s in range(count)}, ["last"])


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(20, 100, 20))])
def test_random_graphs_beside_onnx_runtime(first: int) -> None:
    pytest.importorskip("onnxruntime")
    for seed in range(first, first + 20):
        what, where, _ = fuzz.outcome(fuzz.CASES["onnx-graphs"], seed)
        assert what in ("accepted", "refused"), f"seed {seed}: {where}"


def test_damaged_numbers_leave_the_rest_as_it_is() -> None:
    """A text has its words, and a message its other fields, with lengths that fit."""
    text = b"slice [1:3, 0:9] : tensor<4x9xf32> -> %r"
    results: set[bytes] = set()
    for seed in range(60):
        changed = mutations.mutate_text(text, random.Random(seed))
        assert re.sub(rb"-?\d+", b"0", changed) == re.sub(rb"-?\d+", b"0", text)
        results.add(mutations.mutate_wire(b"\x0a\x02\x08\x07\x18\x09", random.Random(seed)))
    assert all(
        fields is not None and [tag for tag, _, _ in fields] == [1, 3] for fields in map(mutations._fields, results)
    )
    assert len(results) > 9


def test_a_seed_is_always_the_same_case() -> None:
    data = bytes(range(200))
    assert [fuzz.mutate_bytes(data, random.Random(s)) for s in range(50)] == [
        fuzz.mutate_bytes(data, random.Random(s)) for s in range(50)
    ]


def test_faults_are_counted_and_said_where() -> None:
    def broken(seed: int) -> None:
        raise KeyError(seed)

    tally = fuzz.Tally("ingot", 0, 0)
    fuzz._count(tally, 0, *fuzz.outcome(broken, 0))
    fuzz._count(tally, 1, "refused", "", 3.5)
    assert tally.next == 2 and tally.slow == {"1": 3.5} and not tally.clean
    assert [where.startswith("KeyError at test_fuzz.py") for where in tally.faults] == [True]


def test_models_of_a_folder_are_compared(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[3] x) => (float[3] y) { y = Floor(x) }"""
    for seed, results in enumerate(([1, 2, -1], [1, 2, 0])):
        model = onnx.parser.parse_model(text)
        if seed:  # which ONNX Runtime refuses: what PyTorch gave counts, and is wrong here
            model.graph.node[0].name, model.ir_version = "n", 1000
        (tmp_path / f"{seed}.onnx").write_bytes(model.SerializeToString())
        arrays = {"input/x": np.array([1.5, 2, -0.5], np.float32), "output/0": np.array(results, np.float32)}
        np.savez(tmp_path / f"{seed}.npz", allow_pickle=False, **arrays)
    case = fuzz.case_of("models", tmp_path)
    assert fuzz.outcome(case, 0)[0] == "accepted"
    assert fuzz.outcome(case, 1)[:2] == ("fault", "ours right: largest error 1 (0.5 of the largest magnitude) at [2]")
    assert fuzz.outcome(case, 2)[0] == "refused"
