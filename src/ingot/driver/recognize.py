"""Recognize the kind of a model file by its content, not by its name."""

from __future__ import annotations

import mmap
import re
import struct
import zipfile
from pathlib import Path
from typing import Literal

from ingot.runtime import artifact
from ingot.support.files import open_regular
from ingot.support.formats import SCRIPT, UNKNOWN, Format, foreign

Kind = Literal[
    "onnx", "torch", "stablehlo", "tensorflow", "tflite", "torchscript", "keras", "gguf", "huggingface", "jax",
    "artifact",
]  # fmt: skip
LANGUAGE = ("gguf", "huggingface")  # kinds of language models
# MLIR: bytecode, or text that begins with a module, a function or an alias, after comments
_MLIR = re.compile(rb"ML\xefR|(?:\s|//[^\n]*\n)*(?:module\b|\"builtin\.module\"|func\.func\b|[#!]\w+ = )")
_BYTECODE = b"ML\xefR"
_TABLE_BYTES = 8  # the least before a table of FlatBuffers
_HEAD_BYTES = 4096
# a GraphDef, which begins with a node, or a SavedModel of schema 1, which begins with a graph and its description
_TENSORFLOW = re.compile(rb"\x0a[\x80-\xff]*[\x00-\x7f]\x0a|\x08\x01\x12[\x80-\xff]*[\x00-\x7f]\x0a", re.DOTALL)
# a field of ONNX's ModelProto, which has no magic number
_ONNX = re.compile(rb"[\x08\x12\x1a\x22\x28\x32\x3a\x42\x72]|[\xa2\xca\xd2]\x01")
_SAVED_MODEL = "saved_model.pb"
_HDF5 = b"\x89HDF\r\n"
_KERAS_WEIGHTS = "model.weights.h5"
_GGUF = b"GGUF"
_GGUF_PART = re.compile(r"-\d{5}-of-\d{5}\.gguf")
_FOLDER_FILES = (".json", ".safetensors", ".jinja")  # of Hugging Face
_ZIP = b"PK\x03\x04"  # torch.export.save writes a zip archive


def kind_of(path: Path) -> Kind | Format:
    """The kind of a model file, or the `Format` of a file that is not supported. Raises OSError."""
    if path.is_dir() and (path / _SAVED_MODEL).is_file():
        return "tensorflow"
    if language := language_model(path):
        return language
    if file_format := foreign(path):
        return file_format
    with open_regular(path) as file:
        head = file.read(_HEAD_BYTES)
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
    if _is_jax_export(path, head):
        return "jax"
    if not head.startswith(_ZIP):
        return "onnx" if _ONNX.match(head) else UNKNOWN
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    if _KERAS_WEIGHTS in names:
        return "keras"
    is_script = any(name.count("/") == 1 and name.endswith(f"/{SCRIPT}") for name in names)
    return "torchscript" if is_script else "torch"


def _is_jax_export(path: Path, head: bytes) -> bool:
    """Whether it is what `jax.export.Exported.serialize` gives: a table of FlatBuffers, which have no magic number
    there, with a module in MLIR's bytecode. Raises OSError."""
    if len(head) < _TABLE_BYTES:
        return False
    (root,) = struct.unpack_from("<I", head)
    if not _TABLE_BYTES <= root <= len(head) - 4:
        return False
    fields = root - struct.unpack_from("<i", head, root)[0]
    if not 4 <= fields <= root - 4 or struct.unpack_from("<H", head, fields)[0] not in range(4, root - fields + 1):
        return False
    with open_regular(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data.find(_BYTECODE) >= 0


def language_model(path: Path) -> Literal["gguf", "huggingface"] | None:
    """Which reader takes the weights of a language model: a GGUF file, or a folder with config.json and safetensors.
    Raises OSError."""
    if path.is_dir():
        is_complete = (path / "config.json").is_file() and any(path.glob("*.safetensors"))
        return "huggingface" if is_complete else None
    with open_regular(path) as file:
        return "gguf" if file.read(len(_GGUF)) == _GGUF else None


def files_of(path: Path) -> list[Path]:
    """The files of a model at `path`: for a SavedModel's folder its graph and its variables, for a language model its
    configuration files and the parts of its weights."""
    if path.is_dir() and not (path / _SAVED_MODEL).is_file():
        return sorted(file for file in path.rglob("*") if file.suffix in _FOLDER_FILES and file.is_file())
    if part := _GGUF_PART.search(path.name):
        return sorted(path.parent.glob(f"{path.name[: part.start()]}-*-of-*.gguf"))
    if not path.is_dir():
        folder = path.parent if path.name == _SAVED_MODEL else None
        return [path] if folder is None else files_of(folder)
    return [path / _SAVED_MODEL, *sorted((path / "variables").glob("variables.*"))]
