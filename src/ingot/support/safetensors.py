"""Arrays by name in one file, as Hugging Face's safetensors has it: a JSON header behind its length, then the bytes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ingot.support.errors import ImportModelError
from ingot.support.files import atomic_write

# its names -> numpy's, and those of the package ml_dtypes
_NUMPYS = {
    "F64": "float64", "F32": "float32", "F16": "float16", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
_MORE = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
_NAMES = {text: name for name, text in (_NUMPYS | _MORE).items()}
_LONGEST_HEADER = 100 << 20


def write(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """The file is written whole or not at all. Raises TypeError for a dtype that the format has none for."""
    header: dict[str, object] = {}
    at = 0
    for name, array in arrays.items():
        if array.dtype.name not in _NAMES:
            raise TypeError(f"safetensors has no {array.dtype}, of {name}")
        place = [at, at + array.nbytes]
        header[name] = {"dtype": _NAMES[array.dtype.name], "shape": list(array.shape), "data_offsets": place}
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    bodies = (np.asarray(array, order="C").tobytes() for array in arrays.values())
    atomic_write(path, [len(text).to_bytes(8, "little") + text, *bodies])


def read(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The arrays, views of the mapped file. Raises ImportModelError for a file that is damaged or of another kind."""
    where = str(path)
    try:
        data = np.memmap(path, np.uint8, "r")
    except (OSError, ValueError) as e:
        raise ImportModelError(f"cannot read weights: {e}", where=where) from e
    length = int.from_bytes(data[:8].tobytes(), "little")
    if data.size < 8 or not 2 <= length <= min(_LONGEST_HEADER, data.size - 8):
        raise ImportModelError("not a safetensors file", where=where)
    rest = data[8 + length :]
    try:
        header = json.loads(data[8 : 8 + length].tobytes())
        entries = {name: _entry(entry, rest) for name, entry in header.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise ImportModelError(f"not a readable safetensors file: {e}", where=where) from e
    return entries


def _entry(entry: Mapping[str, object], rest: np.ndarray) -> np.ndarray:
    dtype = _dtype(str(entry["dtype"]))
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not isinstance(shape, list) or not isinstance(offsets, list):
        raise ValueError("an entry without shape and data_offsets")
    if not all(isinstance(d, int) and d >= 0 for d in (*shape, *offsets)):
        raise ValueError("an entry with sizes that are none")
    start, end = offsets
    if not 0 <= start <= end <= rest.size:
        raise ValueError("data_offsets outside of the file")
    return rest[start:end].view(dtype).reshape(shape)


def _dtype(name: str) -> np.dtype:
    if name in _NUMPYS:
        return np.dtype(_NUMPYS[name])
    import ml_dtypes  # here, so that files of numpy's own types are read with numpy alone

    return np.dtype(getattr(ml_dtypes, _MORE[name]))
