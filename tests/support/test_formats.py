"""Files that are no models of Ingot's are told by what is in them."""

from __future__ import annotations

import json
import os
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from ingot.driver.recognize import files_of, kind_of, language_model
from ingot.support.formats import UNKNOWN, foreign

HEADS = {
    "a file of llama.cpp from before GGUF": b"ggjt\x03\0\0\0",
    "a pickle, which is a program": b"\x80\x04\x95",
    "a web page": b"\n<!DOCTYPE html><html>",
    "a pointer of Git LFS, not the file itself": b"version https://git-lfs.github.com/spec/v1\n",
    "an XML file, as OpenVINO writes": b"<?xml version='1.0'?><net name='x'>",
    "a model in ONNX Runtime's own format": b"\x18\0\0\0ORTM",
    "a compressed archive": b"\x1f\x8b\x08",
    "a JSON file": b"{}",
    "a model of TensorFlow.js": b'{"modelTopology": {}}',
    "an empty file": b"",
}


@pytest.mark.parametrize("name", HEADS)
def test_heads_tell(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"  # whatever its name says
    path.write_bytes(HEADS[name])
    result = foreign(path)
    assert result is not None and result.name == name and result.fix


def test_what_may_be_a_model_of_onnx(tmp_path: Path) -> None:
    (tmp_path / "m.keras").write_bytes(b"\x08\x0a")
    assert kind_of(tmp_path / "m.keras") == "onnx"
    (tmp_path / "m.onnx").write_bytes(b"not a model")
    assert kind_of(tmp_path / "m.onnx") is UNKNOWN


def test_safetensors(tmp_path: Path) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "w").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    result = foreign(tmp_path / "w")
    assert result is not None and result.name == "a safetensors file"


def _archive(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "x")
    return path


def test_archives(tmp_path: Path) -> None:
    cases = {
        "a module or its weights, as torch.save writes, not a program": ("net/data.pkl", "net/data/0", "net/version"),
        "a zip archive": ("readme.txt",),
    }
    for name, names in cases.items():
        result = foreign(_archive(tmp_path / "m", *names))
        assert result is not None and result.name == name
    assert foreign(_archive(tmp_path / "s", "net/constants.pkl", "net/code/__torch__.py", "net/data.pkl")) is None
    assert foreign(_archive(tmp_path / "p", "p/archive_format", "p/models/model.json", "p/data/weights/w.pkl")) is None
    np.savez(tmp_path / "a.npz", x=np.zeros(2))
    result = foreign(tmp_path / "a.npz")
    assert result is not None and result.name == "arrays of numpy"


def test_folders(tmp_path: Path) -> None:
    (tmp_path / "Manifest.json").write_bytes(b"x")
    result = foreign(tmp_path)
    assert result is not None and result.name == "a package of Core ML"
    (tmp_path / "Manifest.json").unlink()
    (tmp_path / "net.onnx").write_bytes(b"x")
    result = foreign(tmp_path)
    assert result is not None and result.fix == "name the file in it: net.onnx"


def test_language_models(tmp_path: Path) -> None:
    (tmp_path / "m.bin").write_bytes(b"GGUF\x03\0\0\0")
    assert language_model(tmp_path / "m.bin") == "gguf"
    (tmp_path / "m.gguf").write_bytes(b"ggjt")
    assert language_model(tmp_path / "m.gguf") is None
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"x")
    assert language_model(tmp_path) is None
    (tmp_path / "config.json").write_bytes(b"{}")
    assert language_model(tmp_path) == "huggingface"
    assert kind_of(tmp_path) == "huggingface"
    result = foreign(tmp_path)
    assert result is not None and result.name == "a folder of Hugging Face"


def test_files_of_language_models(tmp_path: Path) -> None:
    for name in ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "other.gguf"):
        (tmp_path / name).write_bytes(b"GGUF\x03\0\0\0")
    parts = [f"m-0000{i}-of-00002.gguf" for i in (1, 2)]
    assert [f.name for f in files_of(tmp_path / parts[0])] == parts
    assert files_of(tmp_path / "other.gguf") == [tmp_path / "other.gguf"]
    folder = tmp_path / "folder"
    (folder / "1_Pooling").mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "1_Pooling/config.json", "README.md"):
        (folder / name).write_bytes(b"{}")
    names = [f.relative_to(folder).as_posix() for f in files_of(folder)]
    assert names == ["1_Pooling/config.json", "config.json", "model.safetensors"]


def test_models_and_texts_of_models_are_not_foreign(tmp_path: Path) -> None:
    for head in (b"\x08\x08\x12\x07pytorch", b"module @m {\n}", b"\x8eINGOT\r\n"):
        (tmp_path / "m").write_bytes(head)
        assert foreign(tmp_path / "m") is None


def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="pipe"):
        foreign(tmp_path / "pipe")
