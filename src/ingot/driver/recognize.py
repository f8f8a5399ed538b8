"""What a file holds, by its content and not by its name."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Literal

from ingot.runtime import artifact
from ingot.support.files import open_regular
from ingot.support.formats import SCRIPT, UNKNOWN, Format, foreign

Kind = Literal["onnx", "torch", "stablehlo", "tensorflow", "tflite", "torchscript", "keras", "artifact"]
# MLIR: bytecode, or text that begins with a module, a function or an alias, comments before it
_MLIR = re.compile(rb"ML\xefR|(?:\s|//[^\n]*\n)*(?:module\b|\"builtin\.module\"|func\.func\b|[#!]\w+ = )")
_HEAD = 4096
# a GraphDef, which begins with a node, or a SavedModel of schema 1, which goes on with a graph and its description
_TENSORFLOW = re.compile(rb"\x0a[\x80-\xff]*[\x00-\x7f]\x0a|\x08\x01\x12[\x80-\xff]*[\x00-\x7f]\x0a", re.DOTALL)
# a field of ONNX's ModelProto, which has no mark of its own
_ONNX = re.compile(rb"[\x08\x12\x1a\x22\x28\x32\x3a\x42\x72]|[\xa2\xca\xd2]\x01")
_SAVED_MODEL = "saved_model.pb"
_HDF5 = b"\x89HDF\r\n"
_WEIGHTS_OF_KERAS = "model.weights.h5"
_GGUF = b"GGUF"
_ZIP = b"PK\x03\x04"  # torch.export.save writes a zip archive


def kind_of(path: Path) -> Kind | Format:
    """What to read the file as, or what it is that is not read. Raises OSError."""
    if path.is_dir() and (path / _SAVED_MODEL).is_file():
        return "tensorflow"
    if found := foreign(path):
        return found
    with open_regular(path) as file:
        head = file.read(_HEAD)
    if head.startswith(artifact.MAGIC):
        return "artifact"
    if head[4:8] == b"TFL3":
        return "tflite"
    if _MLIR.match(head):
        return "stablehlo"
    if _TENSORFLOW.match(head):
        return "tensorflow"
    if head.startswith(_HDF5):
        return "keras"
    if not head.startswith(_ZIP):
        return "onnx" if _ONNX.match(head) else UNKNOWN
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    if _WEIGHTS_OF_KERAS in names:
        return "keras"
    scripted = any(name.count("/") == 1 and name.endswith(f"/{SCRIPT}") for name in names)
    return "torchscript" if scripted else "torch"


def language_model(path: Path) -> Literal["gguf", "huggingface"] | None:
    """Which reader takes the weights of a language model: a GGUF file, or a folder with config.json and safetensors.
    Raises OSError."""
    if path.is_dir():
        whole = (path / "config.json").is_file() and any(path.glob("*.safetensors"))
        return "huggingface" if whole else None
    with open_regular(path) as file:
        return "gguf" if file.read(len(_GGUF)) == _GGUF else None


def files_of(path: Path) -> list[Path]:
    """The files that a model at `path` is in: of a SavedModel's folder its graph and its variables."""
    if not path.is_dir():
        beside = path.parent if path.name == _SAVED_MODEL else None
        return [path] if beside is None else files_of(beside)
    return [path / _SAVED_MODEL, *sorted((path / "variables").glob("variables.*"))]
