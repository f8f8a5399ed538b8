"""A Hugging Face model folder: config.json, and tensors in one safetensors file or in several with an index.

    folder = Folder("SmolLM2-135M")
    folder.config["model_type"], folder.tensors["model.embed_tokens.weight"].shape

Files are mapped, not read. What an index names must be a file of this folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ingot.support import safetensors
from ingot.support.errors import ImportModelError
from ingot.support.files import open_regular

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_MAX_CONFIG_BYTES = 4 << 20  # bytes
_MAX_INDEX_BYTES = 16 << 20
_MAX_SHARDS = 4096  # the most shards of a model


class Folder:
    """config: as config.json has it. tensors: views of the mapped files, by name.

    Raises ImportModelError for a file that is missing or malformed, and for tensors that are in none or in two.
    """

    config: Mapping[str, Any]
    tensors: Mapping[str, np.ndarray]

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config = MappingProxyType(read_json(self.path / CONFIG, _MAX_CONFIG_BYTES))
        self.tensors = MappingProxyType(_tensors(self.path))


def _tensors(folder: Path) -> dict[str, np.ndarray]:
    if (folder / INDEX).exists():
        return _sharded(folder)
    if (folder / WEIGHTS).exists():
        return safetensors.read(folder / WEIGHTS)
    files = sorted(folder.glob("*.safetensors"))
    if len(files) == 1:
        return safetensors.read(files[0])
    expected, got = f"{WEIGHTS}, or several files and {INDEX}", [f.name for f in files[:3]] or "no safetensors"
    raise ImportModelError("a model's weights", expected=expected, got=got, where=str(folder))


def _sharded(folder: Path) -> dict[str, np.ndarray]:
    where = str(folder / INDEX)
    by_name = read_json(folder / INDEX, _MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(by_name, dict) or not all(isinstance(file, str) for file in by_name.values()):
        raise ImportModelError(
            "the index of shards", expected="a weight_map from names to files", got="none", where=where
        )
    files = set(by_name.values())
    if len(files) > _MAX_SHARDS:
        raise ImportModelError(
            "the index of shards", expected=f"at most {_MAX_SHARDS} files", got=len(files), where=where
        )
    for file in files:
        if file != os.path.basename(file) or file in ("", ".", "..") or "\0" in file or "\\" in file:
            expected = "the name of a file in this folder"
            raise ImportModelError("the index of shards", expected=expected, got=repr(file), where=where)
    tensors: dict[str, np.ndarray] = {}
    for file in sorted(files):
        for name, array in safetensors.read(folder / file).items():
            if name in tensors:
                got = f"{name!r} in {by_name.get(name)} and {file}"
                raise ImportModelError("shards", expected="each tensor once", got=got, where=where)
            if by_name.get(name, file) != file:
                got = f"it in {file}"
                raise ImportModelError(f"shard of {name!r}", expected=by_name[name], got=got, where=where)
            tensors[name] = array
    if lacking := [name for name in by_name if name not in tensors]:
        ellipsis = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        expected = f"{lacking[0]!r} in {by_name[lacking[0]]}{ellipsis}"
        raise ImportModelError("shards", expected=expected, got="no such tensor", where=where)
    return tensors


def read_json(path: Path, max_bytes: int) -> dict[str, Any]:
    try:
        with open_regular(path) as file:
            text = file.read(max_bytes + 1)
    except OSError as error:
        raise ImportModelError(f"cannot read {path.name}: {error.strerror or error}", where=str(path)) from error
    if len(text) > max_bytes:
        raise ImportModelError(path.name, expected=f"at most {max_bytes} bytes", got="more", where=str(path))
    try:
        value = json.loads(text, object_pairs_hook=safetensors.unique)
    except (ValueError, RecursionError) as error:
        raise ImportModelError(f"{path.name} is not readable: {error}", where=str(path)) from error
    if not isinstance(value, dict):
        raise ImportModelError(path.name, expected="an object", got=type(value).__name__, where=str(path))
    return value
