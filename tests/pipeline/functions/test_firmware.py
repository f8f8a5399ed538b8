"""C for microcontrollers: cores by name, flash and RAM, examples that run in QEMU."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingot.pipeline.cores import MICROCONTROLLERS
from tests.cli.test_cli import call, parse_output, refused
from tests.frontends.tflite.builder import Model, feed

needs_arm = pytest.mark.skipif(
    not (shutil.which("arm-none-eabi-gcc") and shutil.which("qemu-system-arm")),
    reason="no arm-none-eabi-gcc or qemu-system-arm",
)
needs_cc = pytest.mark.skipif(not (shutil.which("cc") and shutil.which("make")), reason="no cc or make")
CONV: dict[str, Any] = {"stride_w": 1, "stride_h": 1, "padding": 0}


def _i8(*shape: int, seed: int) -> np.ndarray:
    return np.maximum(feed(shape, np.int8, seed), -127)


def network() -> bytes:
    """x[n, 9, 7, 3] of levels -> convolutions (3x3, depthwise, 1x1 with odd channels), a sum, a layer, softmax."""
    model = Model()
    g = model.subgraph()
    rng = np.random.default_rng(5)

    def scales(n: int, axis: int = 0) -> tuple[list[float], list[int], int]:
        return rng.uniform(0.002, 0.02, n).tolist(), [0] * n, axis

    def bias(n: int) -> int:
        return g.const(rng.integers(-3000, 3000, n).astype(np.int32))

    x = g.input((-1, 9, 7, 3), np.int8, (0.03, 5), name="image")
    w = g.const(_i8(6, 3, 3, 3, seed=1), scales(6))
    (y,) = g.op(
        "CONV_2D", [x, w, bias(6)], [g.tensor((-1, 9, 7, 6), np.int8, (0.1, -128))], "Conv2D", activation=1, **CONV
    )
    w = g.const(_i8(1, 3, 3, 6, seed=2), scales(6, 3))
    (d,) = g.op(
        "DEPTHWISE_CONV_2D", [y, w, bias(6)], [g.tensor((-1, 9, 7, 6), np.int8, (0.2, -3))], "DepthwiseConv2D",
        depth_multiplier=1, **CONV,
    )  # fmt: skip
    w = g.const(_i8(6, 1, 1, 6, seed=3), scales(6))
    (p,) = g.op("CONV_2D", [d, w, bias(6)], [g.tensor((-1, 9, 7, 6), np.int8, (0.3, 4))], "Conv2D", **CONV)
    (s,) = g.op("ADD", [p, y], [g.tensor((-1, 9, 7, 6), np.int8, (0.3, -1))], "Add")
    (flat,) = g.op("RESHAPE", [s, g.const(np.array([-1, 378], np.int32))], [g.tensor((-1, 378), np.int8, (0.3, -1))])
    w = g.const(_i8(5, 378, seed=4), (0.01, 0))
    (z,) = g.op("FULLY_CONNECTED", [flat, w, bias(5)], [g.tensor((-1, 5), np.int8, (0.9, 3))], "FullyConnected")
    result = g.tensor((-1, 5), np.int8, (1 / 256, -128), name="scores")
    g.outputs = list(g.op("SOFTMAX", [z], [result], "Softmax", beta=1.0))
    return model.finish()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.tflite"
    path.write_bytes(network())
    return path


@needs_arm
@pytest.mark.sampled(4)
@pytest.mark.parametrize("core", MICROCONTROLLERS)
def test_an_example_runs_in_qemu(core: str, model: Path, tmp_path: Path):
    facts = parse_output(
        call("compile", model, "--target", f"c:{core}", "-o", tmp_path / "net.c", "--example", "--json")
    )
    assert facts["sizes_from_file"] == {"image_0": 1}
    assert 500 < facts["flash"]["code_bytes"] < 40_000 and "arm-none-eabi-gcc" in facts["flash"]["compiler"]
    process = subprocess.run(["make", "run"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert process.returncode == 0 and "output scores: 0 of 5 differ" in process.stderr, process.stderr
    assert "instructions" in process.stderr
    flags = [*MICROCONTROLLERS[core].flags, "-mthumb", "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion"]
    command = ["arm-none-eabi-gcc", *flags, "-Werror", "-fsyntax-only", "net.c"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
    source = (tmp_path / "main.c").read_text()
    head, _, rest = source.partition("expected_0[5] = {\n  ")
    first = rest.split(",")[0]
    (tmp_path / "main.c").write_text(f"{head}expected_0[5] = {{\n  {int(first) ^ 1}{rest[len(first) :]}")
    process = subprocess.run(["make", "run"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert process.returncode != 0 and "output scores: 1 of 5 differ" in process.stderr


@needs_cc
def test_an_example_runs_on_this_machine(model: Path, tmp_path: Path):
    result = call("compile", model, "--target", "c", "-o", tmp_path / "net.c", "--example")
    assert result.exit_code == 0, result.output
    assert "image_0=1" in result.stderr and "--dim image_0=SIZE" in result.stderr
    assert "flash" in result.stdout and "of code (cc -O2)" in result.stdout and "of arena" in result.stdout
    process = subprocess.run(["make", "run"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert process.returncode == 0 and "output scores: 0 of 5 differ" in process.stdout, process.stderr


def test_sizes_asked_for_are_not_the_files(model: Path, tmp_path: Path):
    facts = parse_output(
        call("compile", model, "--target", "c", "--dim", "image_0=2", "-o", tmp_path / "net.c", "--json")
    )
    assert facts["sizes_from_file"] == {} and facts["inputs"] == ["image: i8[2, 9, 7, 3]"]


def test_code_is_unknown_without_a_compiler(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    facts = parse_output(call("compile", model, "--target", "c:cortex-m4", "-o", tmp_path / "net.c", "--json"))
    assert facts["flash"]["code_bytes"] is None and facts["ram"]["state_bytes"] == 0
    result = call("compile", model, "--target", "c:cortex-m4", "-o", tmp_path / "net.c")
    assert "unknown bytes of code (no arm-none-eabi-gcc here)" in result.stdout
    for program in ("arm-none-eabi-gcc", "arm-none-eabi-size"):  # too old to know the core
        (tmp_path / program).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / program).chmod(0o755)
    result = call("compile", model, "--target", "c:cortex-m4", "-o", tmp_path / "net.c")
    assert "unknown bytes of code (arm-none-eabi-gcc fails)" in result.stdout


def test_wrong_use_exits_with_2(model: Path, tmp_path: Path):
    assert all(f"c:{core}" in refused(2, "compile", model, "--target", "c:cortex-m9") for core in MICROCONTROLLERS)
    source = tmp_path / "net.c"
    assert "a program in C" in refused(2, "compile", model, "--example", "-o", tmp_path / "net.ingot")
    assert "a program in C" in refused(2, "compile", model, "--weights", tmp_path / "w.bin")
    assert "ends in .c" in refused(2, "compile", model, "--target", "c", "-o", tmp_path / "net.so")
    weights = tmp_path / "w.bin"
    assert "--weights" in refused(2, "compile", model, "--target", "c", "-o", source, "--weights", weights, "--example")
    assert "another name" in refused(2, "compile", model, "--target", "c", "-o", tmp_path / "main.c", "--example")
    (tmp_path / "Makefile").write_text("all:\n")
    error = refused(2, "compile", model, "--target", "c", "-o", source, "--example", "--json")
    assert "a folder without Makefile" in error and not source.exists()
    assert json.loads(call("compile", model, "--target", "c:none", "--json").stdout)["code"] == 2
