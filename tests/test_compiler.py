"""What `ingot.compile` says of what is no model."""

from __future__ import annotations

from pathlib import Path

import pytest

import ingot
from ingot.support.errors import InputError

FOREIGN = {"m.ingot": b"\x8eINGOT\r\n", "m.pt": b"PK\x03\x04", "m.h5": b"\x89HDF\r\n\x1a\n", "m.gguf": b"GGUF\x03"}
FIXES = {"m.ingot": r"ingot\.load", "m.pt": r"torch\.export\.load", "m.h5": "ONNX", "m.gguf": "ONNX"}


@pytest.mark.parametrize("name", FOREIGN)
def test_files_of_others_are_named(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(FOREIGN[name] + bytes(64))
    with pytest.raises(InputError, match=FIXES[name]):
        ingot.compile(path)


def test_folders_and_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a file, got a folder"):
        ingot.compile(tmp_path)
    with pytest.raises(InputError, match="expected a file, got none"):
        ingot.compile(tmp_path / "none.onnx")


def test_example_inputs_are_not_for_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none for an ONNX model"):
        ingot.compile(tmp_path / "m.onnx", (1,))
