"""Hugging Face's safetensors: arrays by name in one file, with the length of a JSON header, the header, and the bytes.

Files are untrusted: the header's length is bounded, names are unique, and each array has the bytes of its type and
shape, without overlap.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TypeGuard

import numpy as np

from ingot.support.errors import ImportModelError
from ingot.support.files import atomic_write, map_file

# the format's names of dtypes -> those of numpy, and of the package ml_dtypes
_NUMPYS = {
    "F64": "float64", "F32": "float32", "F16": "float16", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
_NON_NUMPY = {
    "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip
_NAMES = {text: name for name, text in (_NUMPYS | _NON_NUMPY).items()}
_MAX_RANK = 32  # the most dimensions
_MAX_HEADER_BYTES = 16 << 20  # bytes: of some 100,000 arrays. Parsed, JSON takes up to 30 times its size


def write(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write the file atomically. Raises TypeError for a dtype that the format lacks."""
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
    data = _mapped(path)
    length = int.from_bytes(data[:8].tobytes(), "little")
    if data.size < 8 or not 2 <= length <= data.size - 8:
        raise ImportModelError("not a safetensors file", where=where)
    if length > _MAX_HEADER_BYTES:
        expected = f"a header of at most {_MAX_HEADER_BYTES} bytes"
        raise ImportModelError("safetensors file", expected=expected, got=length, where=where)
    rest = data[8 + length :]
    try:
        header = json.loads(data[8 : 8 + length].tobytes(), object_pairs_hook=unique)
        if not isinstance(header, dict):
            raise ValueError("a header that is no object")
        header.pop("__metadata__", None)
        places = {name: _place(name, entry, rest.size) for name, entry in header.items()}
    except (ValueError, RecursionError) as e:
        raise ImportModelError(f"not a readable safetensors file: {e}", where=where) from e
    ranges = sorted((start, end, name) for name, (start, end, _, _) in places.items() if start < end)
    for (_, end, first), (start, _, second) in pairwise(ranges):
        if start < end:
            got = f"{first!r} and {second!r} in one place"
            raise ImportModelError("not a readable safetensors file", expected="a place each", got=got, where=where)
    return {name: rest[start:end].view(dtype).reshape(shape) for name, (start, end, dtype, shape) in places.items()}


def _mapped(path: str | os.PathLike[str]) -> np.ndarray:
    try:
        return map_file(Path(path))
    except (OSError, ValueError) as e:
        raise ImportModelError(f"cannot read weights: {e}", where=str(path)) from e


def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object of JSON. Raises ValueError where it has a key twice: readers differ on which of them counts."""
    out = dict(pairs)
    if len(out) < len(pairs):
        (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"{twice!r} twice")
    return out


def _place(name: str, entry: object, size: int) -> tuple[int, int, np.dtype, tuple[int, ...]]:
    """From, up to, and type and shape of an array in `size` bytes."""
    if not isinstance(entry, dict) or not isinstance(kind := entry.get("dtype"), str):
        raise ValueError(f"{name!r} without a dtype")
    dtype = _dtype(name, kind)
    shape, offsets = entry.get("shape"), entry.get("data_offsets")
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2 or len(shape) > _MAX_RANK:
        raise ValueError(f"{name!r} without a shape and data_offsets of whole numbers")
    start, end = offsets
    if not start <= end <= size:
        raise ValueError(f"{name!r} at bytes {start} to {end} of {size}")
    if math.prod(shape) * dtype.itemsize != end - start:
        raise ValueError(f"{name!r} with {end - start} bytes for {kind}{shape}")
    return start, end, dtype, tuple(shape)


def _are_sizes(value: object) -> TypeGuard[list[int]]:
    """Whole numbers below 2^63."""
    return isinstance(value, list) and all(type(d) is int and 0 <= d < 1 << 63 for d in value)


def _dtype(name: str, kind: str) -> np.dtype:
    if kind in _NUMPYS:
        return np.dtype(_NUMPYS[kind])
    if kind not in _NON_NUMPY:
        raise ValueError(f"{name!r} of type {kind}, expected one of {', '.join((*_NUMPYS, *_NON_NUMPY))}")
    import ml_dtypes  # here, so that files of numpy's own types are read with numpy alone

    return np.dtype(getattr(ml_dtypes, _NON_NUMPY[kind]))
