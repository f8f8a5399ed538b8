"""What `ingot.compile` says of what is no model."""

from __future__ import annotations

import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

import ingot
from ingot.support.errors import ImportModelError, InputError

FOREIGN = {"m.ingot": b"\x8eINGOT\r\n", "m.ggml": b"ggjt\x03"}
FIXES = {"m.ingot": r"ingot\.load", "m.ggml": "GGUF"}


@pytest.mark.parametrize("name", FOREIGN)
def test_files_of_others_are_named(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(FOREIGN[name] + bytes(64))
    with pytest.raises(InputError, match=FIXES[name]):
        ingot.compile(path)


def test_damaged_programs_of_torch_export(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.pt2", "w") as archive:
        archive.writestr("m/archive_format", "pt2")
    message = "not a readable exported program" if find_spec("torch") else "needs PyTorch; pip install"
    with pytest.raises(ImportModelError, match=message):
        ingot.compile(tmp_path / "m.pt2")


def test_folders_and_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a model's file, got a folder"):
        ingot.compile(tmp_path)
    with pytest.raises(InputError, match="No such file"):
        ingot.compile(tmp_path / "none.onnx")


def test_example_inputs_are_not_for_files(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\x08\x0a")
    with pytest.raises(InputError, match="none for an ONNX model"):
        ingot.compile(tmp_path / "m.onnx", (1,))
