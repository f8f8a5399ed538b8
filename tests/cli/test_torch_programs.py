"""The command line on a PyTorch program saved by torch.export.save."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ingot import cli

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).eval()
    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(net, (torch.randn(2, 16),), dynamic_shapes=({0: batch},))
    path = tmp_path_factory.mktemp("pt2") / "net.pt2"
    torch.export.save(exported, path)
    return path


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_CACHE_DIR", str(tmp_path / "cache"))


def call(*args: object) -> dict:
    result = CliRunner().invoke(cli.app, [*(str(a) for a in args), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_compare_with_pytorch(program: Path):
    facts = call("compare", program)
    assert facts["ok"]
    assert {c["reference"].split()[0] for c in facts["checks"]} == {"PyTorch", "interpreter"}


def test_what_torch_save_writes_is_no_program(tmp_path: Path):
    torch.save({"w": torch.ones(2)}, tmp_path / "weights.pt")
    result = CliRunner().invoke(cli.app, ["compile", str(tmp_path / "weights.pt")])
    assert result.exit_code == 2 and "torch.export.save(torch.export.export(" in " ".join(result.stderr.split())


def _symbol(program: Path, folder: Path) -> str:
    """The name of the batch dimension; torch.export.save does not keep the one it was given."""
    (text,) = call("compile", program, "-o", folder / "a.ingot")["inputs"]
    result = re.fullmatch(r"input: f32\[(\w+), 16\]", text)
    assert result is not None, text
    return result.group(1)


def test_compile_and_fix_a_size(program: Path, tmp_path: Path):
    name = _symbol(program, tmp_path)
    fixed = call("compile", program, "-o", tmp_path / "b.ingot", "--dim", f"{name}=4")
    assert fixed["inputs"] == ["input: f32[4, 16]"]


def test_run_random(program: Path, tmp_path: Path):
    size = f"{_symbol(program, tmp_path)}=5"
    assert call("run", program, "--random", "--size", size)["outputs"][0]["shape"] == [5, 4]


@pytest.mark.slow
def test_bench_beside_eager(program: Path):
    ours, theirs = call("bench", program, "--against", "eager", "--rounds", 1, "--seconds", 0.01)["results"]
    assert ours["seconds"] > 0 and theirs["ratio"] > 0 and theirs["error"] < 1e-5


def test_a_zip_that_is_no_program(tmp_path: Path):
    bad = tmp_path / "bad.pt2"
    bad.write_bytes(b"PK\x03\x04 and nothing else")
    result = CliRunner().invoke(cli.app, ["compile", str(bad)])
    assert result.exit_code == 2 and "damaged zip archive" in result.stderr
