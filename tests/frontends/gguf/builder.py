"""GGUF files by their parts, for tests: what no writer would write, too."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import numpy as np

from ingot.frontends.gguf import FORMATS

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}
CODES = {f.name: code for code, f in FORMATS.items()}


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def scalar(kind: int, value: float) -> bytes:
    return struct.pack(f"<{_CODES[kind]}", value)


def array(kind: int, items: Sequence[bytes]) -> bytes:
    return struct.pack("<IQ", kind, len(items)) + b"".join(items)


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def entry(name: str, shape: Sequence[int], code: int, offset: int) -> bytes:
    """shape: rows first."""
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), code, offset)


def file(keys: Sequence[bytes], entries: Sequence[bytes], data: bytes, *, version: int = 3) -> bytes:
    head = struct.pack("<4sIQQ", b"GGUF", version, len(entries), len(keys)) + b"".join(keys) + b"".join(entries)
    return head + bytes(-len(head) % 32) + data


def of_tensors(tensors: Mapping[str, tuple[str, Sequence[int], np.ndarray]], keys: Sequence[bytes] = ()) -> bytes:
    """tensors: name -> format, shape and raw bytes."""
    entries, data = [], b""
    for name, (format, shape, raw) in tensors.items():
        entries.append(entry(name, shape, CODES[format], len(data)))
        data += raw.tobytes()
        data += bytes(-len(data) % 32)
    return file(keys, entries, data)


def random_blocks(name: str, count: int, seed: int = 0) -> np.ndarray:
    """uint8[count, bytes]: levels at random; scales, too, but finite ones, and every seventh block's are 0."""
    format = FORMATS[CODES[name]]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (count, format.nbytes), np.uint8)
    for at in _SCALES.get(name, ()):
        scale = rng.normal(0, 0.05, count).astype(np.float16)
        scale[::7] = 0
        blocks[:, at : at + 2] = scale[:, None].view(np.uint8)
    if name == "MXFP4":
        blocks[:, 0] = rng.integers(110, 130, count)
        blocks[:2, 0] = 0, 1
    if format.levels is None:
        dtype = format.unpack(blocks).dtype
        values = rng.normal(0, 100, count).astype(dtype)
        return values[:, None].view(np.uint8).reshape(count, format.nbytes)
    return blocks


# where the float16 scales of a block are
_SCALES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "TQ1_0": (52,), "TQ2_0": (64,),
}  # fmt: skip
