"""Models that TensorFlow wrote, with its results: see tools/tensorflow_fixtures.py."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent / "fixtures"
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Fixture:
    """path: of the model; calls: inputs and TensorFlow's results, by name."""

    path: Path
    calls: tuple[tuple[Arrays, Arrays], ...]


def fixture(name: str, to: Path) -> Fixture:
    """The fixture, unpacked into the folder `to`."""
    calls: dict[int, tuple[Arrays, Arrays]] = {}
    with zipfile.ZipFile(FOLDER / f"{name}.zip") as archive:
        for member in archive.namelist():
            if not member.startswith("calls/"):
                archive.extract(member, to)
                continue
            _, number, kind = member.split("/")
            arrays = dict(np.load(io.BytesIO(archive.read(member))))
            inputs, outputs = calls.get(int(number), ({}, {}))
            calls[int(number)] = (arrays, outputs) if kind == "inputs.npz" else (inputs, arrays)
    path = to / "model" if (to / "model").is_dir() else to / "graph.pb"
    return Fixture(path, tuple(calls[i] for i in sorted(calls)))


def names(name: str) -> list[str]:
    """The results that a fixture holds, in any call."""
    with zipfile.ZipFile(FOLDER / f"{name}.zip") as archive:
        members = [m for m in archive.namelist() if m.endswith("/outputs.npz")]
        return sorted({file for m in members for file in np.load(io.BytesIO(archive.read(m))).files})


def field(number: int, value: int | bytes) -> bytes:
    """A field of a message, where a test writes a graph itself."""
    if isinstance(value, int):
        return bytes((number << 3, value))
    assert len(value) < 1 << 14
    return bytes((number << 3 | 2, len(value) & 0x7F | 0x80, len(value) >> 7)) + value


def node(name: str, op: str, inputs: Sequence[str] = (), attributes: Mapping[str, bytes] | None = None) -> bytes:
    """A node of a GraphDef."""
    texts = field(1, name.encode()) + field(2, op.encode()) + b"".join(field(3, i.encode()) for i in inputs)
    pairs = (field(1, k.encode()) + field(2, v) for k, v in (attributes or {}).items())
    return field(1, texts + b"".join(field(5, pair) for pair in pairs))
