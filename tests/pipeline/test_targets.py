"""Machines that are named: what their code may use, programs for machines that this one is not, and what these are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot import ops
from ingot.ir.node import Graph, Input, const
from ingot.ir.types import TensorType, f32
from ingot.passes.fusion.policy import FusionPolicy
from ingot.pipeline.build import build_program
from ingot.pipeline.cores import CORES
from ingot.pipeline.target import NAMES, Target, features_of, target_of
from ingot.runtime import artifact, device
from ingot.runtime.executor import CompiledModel
from ingot.schedule.cpu.machine import Machine
from ingot.support.errors import ArtifactError, InputError
from ingot.support.native import FEATURES, cache_sizes, host
from ingot.targets.cpu.codegen import emit

FOREIGN = "cpu:aarch64" if host().arch == "x86_64" else "cpu:x86-64-v3"


TOLD = [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2048K")]
EXP = '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) { y = Exp(x) }'


def machine(text: str) -> Machine:
    features = features_of(text)
    return target_of(features).machine(features, 1, {})


def layer() -> Graph:
    x = Input("x", TensorType(f32, (5, 33)))()
    w = const(np.random.default_rng(0).standard_normal((33, 20), np.float32))
    return Graph((x,), (ops.Max()(ops.MatMul()(x, w), const(np.zeros((5, 20), np.float32))),))


@pytest.mark.parametrize("name", CORES)
def test_named_cores_have_features_that_can_be_checked(name: str) -> None:
    features = features_of(f"cpu:{name}")
    assert set(features.features) <= FEATURES[features.arch].keys()
    assert features.features == tuple(sorted(features.features)) and features.target == "cpu"
    assert features.cpu == ("" if CORES[name].level else name)


@pytest.mark.parametrize("name", CORES)
def test_llvm_knows_the_names_of_cores(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Of another name it only warns, and ends the process at the first function."""
    emit("", features_of(f"cpu:{name}"))
    assert "not a recognized" not in capfd.readouterr().err


@pytest.mark.parametrize("text", ["gpu", "cpu:znver99", "", "native:avx2", "cpu:cpu:x"])
def test_other_names_are_refused_with_those_there_are(text: str) -> None:
    with pytest.raises(InputError, match=r"native|znver4"):
        features_of(text)


def test_a_half_rate_core_is_not_taken_for_a_full_rate_one() -> None:
    four, five = machine("cpu:znver4"), machine("cpu:znver5")
    assert four.vector_bits == five.vector_bits == 512
    assert (four.fma_per_cycle, five.fma_per_cycle) == (1, 2) and four.gflops == five.gflops / 2
    assert machine("cpu:haswell").l2 == 256 << 10
    # of a core without its widest vectors, what is known of these says nothing
    features = features_of("cpu:znver4")
    narrow = replace(features, features=tuple(f for f in features.features if not f.startswith("avx512")))
    assert target_of(narrow).machine(narrow, 1, {}).fma_per_cycle == 2


def test_this_machine_has_the_caches_that_it_tells(tmp_path: Path) -> None:
    for i, (level, kind, size) in enumerate(TOLD):
        (tmp_path / f"index{i}").mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (tmp_path / f"index{i}" / name).write_text(text + "\n")
    assert cache_sizes(tmp_path) == ()  # the third is not told
    (tmp_path / "index3").mkdir()
    for name, text in (("level", "3"), ("type", "Unified"), ("size", "36608K")):
        (tmp_path / "index3" / name).write_text(text + "\n")
    assert cache_sizes(tmp_path) == (48 << 10, 2 << 20, 36608 << 10)
    mine = machine("native")
    if sizes := cache_sizes():
        assert (mine.l1, mine.l2, mine.l3) == sizes


@pytest.mark.parametrize("text", ["cpu:riscv64-scalable", "cpu:aarch64-sve2"])
def test_vectors_of_an_unknown_length_are_refused_by_name(text: str) -> None:
    with pytest.raises(InputError, match=f"known when the model is compiled, got {text}; cpu:riscv64"):
        features_of(text)


@pytest.mark.parametrize(
    "text",
    [
        "cpu:aarch64",
        "cpu:neoverse-v2",
        "cpu:riscv64",
        "cpu:riscv64-zvl512b",
        "cpu:x86-64-v2",
        "cpu:x86-64-v4",
        "cpu:znver4",
    ],
)
def test_any_machine_compiles_for_any_other(text: str, tmp_path: Path) -> None:
    features = features_of(text)
    program = build_program(layer(), features, 2)
    assert program.features == features and program.code_bytes > 0
    refused = device.refusal(program)
    missing = features.arch != host().arch or host().missing(features.features)
    assert (refused is not None) == bool(missing)
    ours = ingot.CompiledModel(program) if not missing else None
    artifact.save(program, tmp_path / "m.ingot")
    if ours is None:
        with pytest.raises(ArtifactError, match="compiled for another machine"):
            ingot.load(tmp_path / "m.ingot")
        return
    x = np.random.default_rng(1).standard_normal((5, 33), np.float32)
    native = CompiledModel(build_program(layer(), features_of("native"), 2))
    np.testing.assert_allclose(ours(x), native(x), rtol=1e-5, atol=1e-5)  # type: ignore[arg-type]


def test_a_program_for_another_machine_is_saved_and_looked_at(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.parser.parse_model(EXP)
    onnx.save(model, tmp_path / "m.onnx")
    first, result = (ingot.compile(tmp_path / "m.onnx", target=FOREIGN) for _ in range(2))  # the second in the cache
    for compiled in (first, result):
        with pytest.raises(ArtifactError, match="compiled for another machine"):
            compiled(np.zeros(4, np.float32))
        assert "1 kernels" in compiled.plan() and "exp" in compiled.dump("model")
    result.save(tmp_path / "m.ingot")
    assert artifact.load(tmp_path / "m.ingot").features == features_of(FOREIGN)


def test_targets_that_run_say_what_fusion_weighs() -> None:
    """`explain` asks fusion again why kernels are apart."""
    for name in ("native", "cuda:sm_90a"):
        assert isinstance(target_of(features_of(name)).policy, FusionPolicy)


@pytest.mark.parametrize("name", NAMES)
def test_targets_have_all_that_is_asked_of_them(name: str) -> None:
    """What a machine without a device of the target asks, too."""
    members = {*Target.__annotations__, *(n for n in vars(Target) if not n.startswith("_"))}
    target = target_of(features_of({"null": "null:cuda:sm_90a"}.get(name, name)))
    assert {member for member in members if not hasattr(target, member)} == set()
