"""The command as other processes meet it: a full disk, a damaged cache, company, and being killed."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("onnx")

import ingot
from ingot.runtime.artifact import MAGIC
from tests.debug import models

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    models.save(models.classifier(), tmp_path / "m.onnx")
    return tmp_path


def start(folder: Path, *args: str, before: Callable[[], None] | None = None) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "INGOT_CACHE_DIR": str(folder / "cache")}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # Python does not notice that a full disk cut its files short
    return subprocess.Popen(
        [sys.executable, "-m", "ingot", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment, cwd=folder, preexec_fn=before,
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    stdout, err = process.communicate(timeout=120)
    assert "Traceback" not in err
    return process.returncode, stdout, err


def call(folder: Path, *args: str, before: Callable[[], None] | None = None) -> tuple[int, str, str]:
    return finish(start(folder, *args, before=before))


def entries(folder: Path) -> list[Path]:
    """The programs in the cache, which has kernels' objects besides."""
    return [p for p in (folder / "cache").rglob("*") if p.is_file() and p.read_bytes().startswith(MAGIC)]


@pytest.mark.slow
def test_a_full_disk_is_an_error_and_leaves_no_file(folder: Path) -> None:
    def small_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing more is then EFBIG, as a full disk is ENOSPC
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))

    code, _, err = call(folder, "compile", "m.onnx", before=small_files)
    assert code == 2 and "error:" in err
    assert sorted(p.name for p in folder.iterdir() if p.is_file()) == ["m.onnx"]
    assert not entries(folder)
    assert call(folder, "compile", "m.onnx")[0] == 0


@pytest.mark.slow
def test_a_damaged_cache_entry_is_built_again(folder: Path) -> None:
    command = ("run", "m.onnx", "--random", "--json")
    first = call(folder, *command)
    (entry,) = entries(folder)
    data = bytearray(entry.read_bytes())
    for damaged in (bytes(data[: len(data) // 2]), bytes(len(data))):
        entry.write_bytes(damaged)
        code, stdout, err = call(folder, *command)
        assert code == 0 and "it will be rebuilt" in err
        assert json.loads(stdout)["outputs"] == json.loads(first[1])["outputs"]
        assert entry.read_bytes()[:8] == data[:8] and entry.stat().st_size == len(data)


def test_processes_that_compile_at_once_agree(folder: Path) -> None:
    running = [start(folder, "compile", "m.onnx", "-o", f"{i}.ingot", "--json") for i in range(3)]
    assert [finish(p)[0] for p in running] == [0, 0, 0]
    assert len(entries(folder)) == 1
    for i in range(3):
        ingot.load(folder / f"{i}.ingot")


@pytest.mark.slow
def test_a_killed_compile_leaves_nothing_half_written(folder: Path) -> None:
    begin = time.monotonic()
    assert call(folder, "compile", "m.onnx", "--no-cache")[0] == 0
    duration_s = time.monotonic() - begin
    artifact_path = folder / "m.ingot"
    artifact_path.unlink()
    for share in (0.7, 0.85, 0.95):
        process = start(folder, "compile", "m.onnx")
        time.sleep(duration_s * share)
        process.kill()
        process.communicate()
        if artifact_path.exists():  # then it is whole
            ingot.load(artifact_path)
            artifact_path.unlink()
    assert call(folder, "compile", "m.onnx")[0] == 0
    ingot.load(artifact_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_damaged_models_are_refused_or_compiled(folder: Path, seed: int) -> None:
    """Cut anywhere, or with flipped bits, in bounded memory."""
    r = random.Random(seed)
    data = bytearray((folder / "m.onnx").read_bytes())
    if seed % 2:
        data = data[: r.randrange(len(data))]
    for _ in range(0 if seed % 2 else 4):
        data[r.randrange(len(data))] ^= 1 << r.randrange(8)
    (folder / "bad.onnx").write_bytes(data)

    def little_memory() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))

    code, _, err = call(folder, "compile", "bad.onnx", "--no-cache", before=little_memory)
    assert code in ((2,) if seed % 2 else (0, 2, 3)), err
    assert (folder / "bad.ingot").exists() == (code == 0)
