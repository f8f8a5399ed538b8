"""Models that TensorFlow wrote, with its results: see tools/tensorflow_fixtures.py."""

from __future__ import annotations

import io
import zipfile
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
    """The results that a fixture holds, in its first call."""
    with zipfile.ZipFile(FOLDER / f"{name}.zip") as archive:
        return sorted(np.load(io.BytesIO(archive.read("calls/0/outputs.npz"))).files)
