"""Results whose size data decides, in a frozen graph that is written here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ingot
from ingot.frontends.tensorflow import import_tensorflow
from ingot.ir.interp import interpret
from tests.frontends.tensorflow.fixtures import field, node

FLOAT, INT32 = 1, 3


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    shape = field(7, field(2, field(1, 3)) + field(2, field(1, 4)))
    kind, index = field(6, FLOAT), field(6, INT32)
    flat = field(8, field(1, INT32) + field(2, field(2, field(1, 1))) + field(4, bytes((12, 0, 0, 0))))
    nodes = [
        node("x", "Placeholder", (), {"dtype": kind, "shape": shape}),
        node("twelve", "Const", (), {"dtype": index, "value": flat}),
        node("line", "Reshape", ("x", "twelve"), {"T": kind}),
        node("places", "Where", ("x",), {"T": kind}),
        node("values", "GatherNd", ("x", "places"), {"Tparams": kind}),
        node("differ", "UniqueWithCounts", ("line",), {"T": kind, "out_idx": index}),
        node("known", "Unique", ("line",), {"T": kind, "out_idx": index}),
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
