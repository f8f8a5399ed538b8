"""Arrays by name in one file, as Hugging Face's safetensors has it: a JSON header behind its length, then the bytes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np

from ingot.support.errors import ImportModelError

_TYPES: dict[str, np.dtype] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U64": np.dtype(np.uint64),
    "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_LONGEST_HEADER = 100 << 20


def write(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Raises TypeError for a dtype that the format has none for."""
    header: dict[str, object] = {}
    at = 0
    for name, array in arrays.items():
        if array.dtype not in _NAMES:
            raise TypeError(f"safetensors has no {array.dtype}, of {name}")
        place = [at, at + array.nbytes]
        header[name] = {"dtype": _NAMES[array.dtype], "shape": list(array.shape), "data_offsets": place}
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            file.write(np.asarray(array, order="C").tobytes())


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
    dtype = _TYPES[str(entry["dtype"])]
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not isinstance(shape, list) or not isinstance(offsets, list):
        raise ValueError("an entry without shape and data_offsets")
    if not all(isinstance(d, int) and d >= 0 for d in (*shape, *offsets)):
        raise ValueError("an entry with sizes that are none")
    start, end = offsets
    if not 0 <= start <= end <= rest.size:
        raise ValueError("data_offsets outside of the file")
    return rest[start:end].view(dtype).reshape(shape)
