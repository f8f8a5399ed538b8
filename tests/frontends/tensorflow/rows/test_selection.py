"""Results whose size data decides, in a frozen graph that is written here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot.frontends.tensorflow import import_tensorflow
from ingot.ir.interp import interpret

FLOAT, INT32 = 1, 3


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return bytes((number << 3, value))
    assert len(value) < 1 << 14
    return bytes((number << 3 | 2, len(value) & 0x7F | 0x80, len(value) >> 7)) + value


def _node(name: str, op: str, inputs: Sequence[str] = (), attributes: Mapping[str, bytes] | None = None) -> bytes:
    texts = _field(1, name.encode()) + _field(2, op.encode()) + b"".join(_field(3, i.encode()) for i in inputs)
    pairs = (_field(1, k.encode()) + _field(2, v) for k, v in (attributes or {}).items())
    return _field(1, texts + b"".join(_field(5, pair) for pair in pairs))


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    shape = _field(7, _field(2, _field(1, 3)) + _field(2, _field(1, 4)))
    kind, index = _field(6, FLOAT), _field(6, INT32)
    flat = _field(8, _field(1, INT32) + _field(2, _field(2, _field(1, 1))) + _field(4, bytes((12, 0, 0, 0))))
    nodes = [
        _node("x", "Placeholder", (), {"dtype": kind, "shape": shape}),
        _node("twelve", "Const", (), {"dtype": index, "value": flat}),
        _node("line", "Reshape", ("x", "twelve"), {"T": kind}),
        _node("places", "Where", ("x",), {"T": kind}),
        _node("values", "GatherNd", ("x", "places"), {"Tparams": kind}),
        _node("differ", "UniqueWithCounts", ("line",), {"T": kind, "out_idx": index}),
        _node("known", "Unique", ("line",), {"T": kind, "out_idx": index}),
    ]
    path = tmp_path / "graph.pb"
    path.write_bytes(b"".join(nodes))
    return path


def test_places_and_members(graph: Path):
    names = ["places", "values", "differ:0", "differ:1", "differ:2", "known:0", "known:1"]
    imported = import_tensorflow(graph, outputs=names).graph
    model = ingot.compile(graph, outputs=names, threads=1)
    for x in (
        np.array([[3, 0, 1, 3], [0, 0, 7, 1], [3, 2, 0, -1]], np.float32), np.zeros((3, 4), np.float32),
        np.arange(1, 13, dtype=np.float32).reshape(3, 4),
    ):  # fmt: skip
        _, first, inverse, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
        order = np.argsort(first)
        where, members = np.argsort(order)[inverse].reshape(-1), x.reshape(-1)[np.sort(first)]
        expected = [np.argwhere(x), x[x != 0], members, where, counts[order], members, where]
        for results in (interpret(imported, [x]), model(x)):
            for got, want in zip(results, expected, strict=False):
                np.testing.assert_array_equal(got, want)
