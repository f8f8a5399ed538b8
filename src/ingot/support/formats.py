"""Files that users mistake for models, recognized by their content, never by their names, with advice for each.

    foreign(Path("net.gguf"))  ->  Format("a GGUF file", "export the model ...")

One table; a new frontend for a format removes its line.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

from ingot.support.dataclass import dataclass
from ingot.support.files import open_regular

_HEAD_BYTES = 512  # bytes that identify a file's format
# advice
_TO_ONNX = "export the model to ONNX from where it was trained"
_EXPORT = "torch.export.save(torch.export.export(net.eval(), (x,)), 'net.pt2')"
_TRUSTED = f"in a process that you trust: {_EXPORT}"
_WEIGHTS = (
    "it holds weights and no model: name the folder of a language model, with its config.json; or load them into the "
    "PyTorch module, and ingot.compile(net, (x,))"
)
_HUB = "compile the module: ingot.compile(AutoModel.from_pretrained(folder).eval(), example_inputs)"
_TO_GGUF = "convert the model to GGUF anew, with llama.cpp's convert_hf_to_gguf.py"
_SOURCE = "compile the ONNX file that it was made from"
_UNPACK = "unpack it first"
_ARRAYS = "it is an input and no model: ingot run MODEL --input x=FILE"


@dataclass(frozen=True)
class Format:
    """name, with its article; fix: what to do with such a file."""

    name: str
    fix: str


def _starts(*magic: bytes) -> Callable[[bytes], bool]:
    return lambda head: head.startswith(magic)


def _is_safetensors(head: bytes) -> bool:
    length = int.from_bytes(head[:8], "little")
    return head[8:9] == b"{" and 2 <= length < 100 << 20 and head[9:10] in b'"} \n'


def _is_text(*words: bytes) -> Callable[[bytes], bool]:
    return lambda head: any(head.lstrip(b"\xef\xbb\xbf \r\n\t").lower().startswith(w) for w in words)


_OF_FILES: tuple[tuple[Callable[[bytes], bool], Format], ...] = (
    (_is_text(b"version https://git-lfs"), Format("a pointer of Git LFS, not the file itself", "git lfs pull")),
    (_is_text(b"<!doctype html", b"<html"), Format("a web page", "download the model again")),
    (_is_safetensors, Format("a safetensors file", _WEIGHTS)),
    (_starts(b"ggjt", b"ggml", b"lmgg", b"tjgg"), Format("a file of llama.cpp from before GGUF", _TO_GGUF)),
    (_starts(*(bytes((0x80, version)) for version in range(2, 6))), Format("a pickle, which is a program", _TRUSTED)),
    (_starts(b"\x93NUMPY"), Format("a numpy array", _ARRAYS)),
    (_is_text(b"<?xml", b"<net "), Format("an XML file, as OpenVINO writes", _TO_ONNX)),
    (_is_text(b"7767517"), Format("an ncnn model", _TO_ONNX)),
    (_is_text(b"[net]"), Format("a Darknet configuration", _TO_ONNX)),
    (_starts(b"ptrt", b"ftrt"), Format("an engine of TensorRT", _SOURCE)),
    (lambda head: b"ORTM" in (head[:4], head[4:8]), Format("a model in ONNX Runtime's own format", _SOURCE)),
    (_starts(b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"7z\xbc\xaf", b"Rar!"), Format("a compressed archive", _UNPACK)),
    (_starts(b"\x7fELF", b"MZ", b"\xcf\xfa\xed\xfe"), Format("a program or library", _TO_ONNX)),
    (_starts(b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF", b"%PDF"), Format("a picture, a sound or a text", _TO_ONNX)),
)

UNKNOWN = Format("a file of no format that Ingot knows", "copy or export the model again")
SCRIPT = "constants.pkl"  # at the top of a TorchScript archive
# of a zip archive: a file at its top, and what it says
_OF_ARCHIVES: tuple[tuple[str, Format], ...] = (
    ("data.pkl", Format("a module or its weights, as torch.save writes, not a program", _TRUSTED)),
    ("MANIFEST.MF", Format("a Java archive", _TO_ONNX)),
)

# of a folder: the pattern of a file in it, and what it says
_OF_FOLDERS: tuple[tuple[str, Format], ...] = (
    ("Manifest.json", Format("a package of Core ML", _TO_ONNX)),
    ("*.safetensors", Format("a folder of Hugging Face", _HUB)),
    ("pytorch_model.bin", Format("a folder of Hugging Face", _HUB)),
    ("genai_config.json", Format("a folder of ONNX Runtime GenAI", "name the .onnx file in it")),
)


def foreign(path: Path) -> Format | None:
    """The format of a file that Ingot cannot read; None if it may be readable. Raises OSError."""
    if path.is_dir():
        return _of_folder(path)
    with open_regular(path) as file:
        head = file.read(_HEAD_BYTES)
    if not head:
        return Format("an empty file", "export the model again")
    for matches, known_format in _OF_FILES:
        if matches(head):
            return known_format
    if head[:1] == b"{":
        return _of_json(path)
    return _of_archive(path) if head.startswith(b"PK\x03\x04") else None


def _of_folder(path: Path) -> Format:
    for name, known_format in _OF_FOLDERS:
        if any(path.glob(name)):
            return known_format
    inside = sorted(p.name for p in path.glob("*.onnx"))
    return Format("a folder", f"name the file in it: {inside[0]}" if inside else "name the model's file")


def _of_archive(path: Path) -> Format | None:
    """The format of a zip archive; None for a program of torch.export."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return Format("a damaged zip archive", "copy or export the file again")
    # a program has its weights pickled further down; at the top are modules and their weights
    top = {name.rsplit("/", 1)[-1] for name in names if name.count("/") <= 1}
    if SCRIPT in top:
        return None
    for name, known_format in _OF_ARCHIVES:
        if name in top:
            return known_format
    if names and all(name.endswith(".npy") for name in names):
        return Format("arrays of numpy", _ARRAYS)
    programs = any("archive_format" in name or name.endswith((".json", "/version", "version")) for name in names)
    return None if programs else Format("a zip archive", _UNPACK)


def _of_json(path: Path) -> Format:
    try:
        with open_regular(path) as file:
            keys = set(json.loads(file.read(64 << 20)))
    except (ValueError, RecursionError):
        keys = set[str]()
    if "modelTopology" in keys:
        return Format("a model of TensorFlow.js", _TO_ONNX)
    if "learner" in keys:
        return Format("a model of XGBoost", "convert it: onnxmltools.convert_xgboost(model)")
    return Format("a JSON file", "name the model's file")
