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


@pytest.mark.parametrize("rows", [[], [3, 0, 3], [0, 1, 2, 3, 4]])
def test_empty_rows_get_an_element(tmp_path: Path, rows: list[int]) -> None:
    """Of 5; in the order of the rows, those of one row as they come."""
    count, wide, kind = len(rows), field(6, 9), field(6, FLOAT)
    sizes = b"".join(n.to_bytes(8, "little") for n in (5, 6))
    value = field(8, field(1, 9) + field(2, field(2, field(1, 2))) + field(4, sizes))
    other = field(8, field(1, FLOAT) + field(2, b"") + field(4, np.float32(7).tobytes()))
    grid_shape, line_shape = (
        field(7, field(2, field(1, count)) + field(2, field(1, 2))),
        field(7, field(2, field(1, count))),
    )
    nodes = [
        node("at", "Placeholder", (), {"dtype": wide, "shape": grid_shape}),
        node("values", "Placeholder", (), {"dtype": kind, "shape": line_shape}),
        node("sizes", "Const", (), {"dtype": wide, "value": value}),
        node("other", "Const", (), {"dtype": kind, "value": other}),
        node("fill", "SparseFillEmptyRows", ("at", "values", "sizes", "other"), {"T": kind}),
    ]
    path = tmp_path / "graph.pb"
    path.write_bytes(b"".join(nodes))
    matches = [(r, 1 + i, float(i)) for i, r in enumerate(rows)]
    filled = sorted([*matches, *((r, 0, 7.0) for r in range(5) if r not in rows)], key=lambda e: e[0])
    expected = (
        np.array([e[:2] for e in filled], np.int64),
        np.array([e[2] for e in filled], np.float32),
        np.array([r not in rows for r in range(5)]),
        np.array([filled.index(e) for e in matches], np.int64),
    )
    at = np.array([e[:2] for e in matches], np.int64).reshape(count, 2)
    inputs, names = [at, np.arange(count, dtype=np.float32)], ["fill:0", "fill:1", "fill:2", "fill:3"]
    imported = import_tensorflow(path, outputs=names)
    compiled = ingot.compile(path, outputs=names, threads=1)(*inputs)
    for results in (interpret(imported.graph, inputs), compiled):
        for got, want in zip(results, expected, strict=True):
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("limits", [(-1, -1), (4, -1), (-1, 2), (2, 6)])
@pytest.mark.parametrize("lengths", [(2, 0, 3), (1,), (0, 1), (4, 1, 1, 5, 2)])
def test_ragged_rows_are_filled_up(tmp_path: Path, limits: tuple[int, int], lengths: tuple[int, ...]) -> None:
    index, kind = field(6, 9), field(6, FLOAT)
    line = np.array(limits, np.int64).tobytes()
    shape = field(8, field(1, 9) + field(2, field(2, field(1, 2))) + field(4, line))
    other = field(8, field(1, FLOAT) + field(2, b"") + field(4, np.float32(-1).tobytes()))
    nodes = [
        node("values", "Placeholder", (), {"dtype": kind}),
        node("splits", "Placeholder", (), {"dtype": index}),
        node("asked", "Const", (), {"dtype": index, "value": shape}),
        node("other", "Const", (), {"dtype": kind, "value": other}),
        node("rows", "RaggedTensorToTensor", ("asked", "values", "other", "splits"),
             {"row_partition_types": field(1, field(2, b"ROW_SPLITS"))}),
    ]  # fmt: skip
    path = tmp_path / "graph.pb"
    path.write_bytes(b"".join(nodes))
    splits = np.cumsum([0, *lengths])
    values = np.arange(splits[-1], dtype=np.float32)
    count, width = (a if a != -1 else d for a, d in zip(limits, (len(lengths), max(lengths)), strict=True))
    expected = np.full((count, width), -1, np.float32)
    for i, (first, length) in enumerate(zip(splits, lengths, strict=False)):
        if i < count:
            expected[i, :length] = values[first : first + length][:width]
    imported = import_tensorflow(path, inputs={"values": [None], "splits": [None]}).graph
    model = ingot.compile(path, inputs={"values": [None], "splits": [None]}, threads=1)
    for got in (interpret(imported, [values, splits])[0], model(values, splits)):
        np.testing.assert_array_equal(got, expected)
