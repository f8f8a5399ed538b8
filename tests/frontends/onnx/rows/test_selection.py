"""NonZero, Compress, Unique, NonMaxSuppression and what follows on them, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto as T
from onnx import helper

from ingot.frontends.onnx import import_onnx
from ingot.ir.interp import interpret
from ingot.ir.node import Graph
from ingot.ir.verify import verify
from ingot.pipeline.build import build_native
from ingot.runtime.executor import CompiledModel
from ingot.support.errors import InputError
from tests.conformance.checked import run_checked

Info = tuple[str, int, tuple[int | str, ...] | None]


def model(nodes: Sequence[onnx.NodeProto], ins: Sequence[Info], outs: Sequence[str]) -> onnx.ModelProto:
    input_infos = [helper.make_tensor_value_info(*i) for i in ins]
    output_infos = [helper.make_tensor_value_info(name, T.UNDEFINED, None) for name in outs]
    for g in output_infos:
        g.ClearField("type")
    graph = helper.make_graph(nodes, "g", input_infos, output_infos)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


class Pair:
    """A model in ONNX Runtime, the interpreter and compiled; all results bit for bit alike."""

    def __init__(self, m: onnx.ModelProto) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        self.theirs = onnxruntime.InferenceSession(m.SerializeToString(), options)
        self.graph = import_onnx(m)
        verify(self.graph)
        self.ours = CompiledModel(build_native(self.graph, 2))

    def check(self, feeds: Mapping[str, np.ndarray], rtol: float = 0.0) -> None:
        got = self.ours(**feeds)
        results = zip(
            map(np.asarray, self.theirs.run(None, dict(feeds))), interpret(self.graph, feeds),
            got if isinstance(got, tuple) else (got,), strict=True,
        )  # fmt: skip
        for want, meant, mine in results:
            assert want.shape == meant.shape == mine.shape
            np.testing.assert_allclose(meant, want, rtol=rtol)
            np.testing.assert_allclose(mine, want, rtol=rtol)


def by_kernels(graph: Graph, inputs: Sequence[np.ndarray]) -> None:
    """A GPU's kernels, by their meaning."""
    for got, meant in zip(run_checked(graph, inputs, "cuda:sm_90a"), interpret(graph, inputs), strict=True):
        assert got.shape == meant.shape
        np.testing.assert_allclose(got, meant, rtol=1e-4)


def test_places_and_what_follows() -> None:
    """x[x > 0], doubled, its sum and its largest: of any size, none and all included."""
    nodes = [
        helper.make_node("Greater", ["x", "zero"], ["mask"]),
        helper.make_node("NonZero", ["mask"], ["places"]),
        helper.make_node("Transpose", ["places"], ["rows"]),
        helper.make_node("GatherND", ["x", "rows"], ["chosen"]),
        helper.make_node("Compress", ["x", "keep"], ["columns"], axis=1),
        helper.make_node("Add", ["chosen", "chosen"], ["double"]),
        helper.make_node("ReduceSum", ["columns"], ["total"], keepdims=0),
    ]
    ins: list[Info] = [("x", T.FLOAT, ("a", 7)), ("zero", T.FLOAT, ()), ("keep", T.BOOL, (7,))]
    pair, rng = Pair(model(nodes, ins, ["places", "double", "columns", "total"])), np.random.default_rng(0)
    for rows in (1, 4, 700):
        for shift in (0.0, -9.0, 9.0):
            x = (rng.standard_normal((rows, 7)) + shift).astype(np.float32)
            keep = rng.random(7) < 0.5 + shift
            pair.check({"x": x, "zero": np.asarray(0, np.float32), "keep": keep}, 1e-4)
            if rows == 4 and shift <= 0:
                by_kernels(pair.graph, [x, np.asarray(0, np.float32), keep])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [T.FLOAT, T.INT64, T.INT8])
@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("in_order", [0, 1])
def test_unique(dtype: int, axis: int | None, in_order: int) -> None:
    axis_options: dict[str, Any] = {} if axis is None else {"axis": axis}
    node = helper.make_node("Unique", ["x"], ["y", "first", "inverse", "counts"], sorted=in_order, **axis_options)
    pair, rng = Pair(model([node], [("x", dtype, ("a", 3))], node.output)), np.random.default_rng(0)
    for rows in (1, 2, 30):
        x = rng.integers(-2, 2, (rows, 3)).astype(helper.tensor_dtype_to_np_dtype(dtype))
        pair.check({"x": x})
        if rows == 2 and dtype == T.FLOAT and axis == 0:
            by_kernels(pair.graph, [x])


def test_unique_of_wide_rows_and_nan() -> None:
    node = helper.make_node("Unique", ["x"], ["y", "first", "inverse", "counts"], axis=0)
    graph = import_onnx(model([node], [("x", T.FLOAT, ("a", 20))], node.output))
    rng, ours = np.random.default_rng(0), CompiledModel(build_native(graph, 2))
    x = rng.integers(0, 2, (5, 20))[rng.integers(0, 5, 40)].astype(np.float32)
    x[:, 3] = np.where(x[:, 3] == 1, np.nan, x[:, 3])
    want = np.unique(x, True, True, True, axis=0, equal_nan=True)
    counts = [len(np.unique(np.nan_to_num(x, nan=9), axis=0))]
    got = ours(x)
    assert isinstance(got, tuple) and [got[0].shape[0]] == counts
    np.testing.assert_array_equal(got[0][np.asarray(got[2])], x)
    assert want[0].shape[1] == 20


@pytest.mark.parametrize("center", [0, 1])
@pytest.mark.parametrize("scored", [False, True])
def test_non_max_suppression(center: int, scored: bool) -> None:
    ins: list[Info] = [
        ("boxes", T.FLOAT, ("b", "n", 4)), ("scores", T.FLOAT, ("b", "c", "n")), ("most", T.INT64, (1,)),
        ("iou", T.FLOAT, (1,)), ("score", T.FLOAT, (1,)),
    ][: 5 if scored else 4]  # fmt: skip
    names = [i[0] for i in ins]
    # the boxes and scores that are kept, as exporters gather them
    nodes = [
        helper.make_node("NonMaxSuppression", names, ["kept"], center_point_box=center),
        helper.make_node("Split", ["kept"], ["image", "class", "box"], axis=1, num_outputs=3),
        helper.make_node("Concat", ["image", "box"], ["place"], axis=1),
        helper.make_node("GatherND", ["boxes", "place"], ["chosen"]),
        helper.make_node("GatherND", ["scores", "kept"], ["theirs"]),
    ]
    m = model(nodes, ins, ["kept", "chosen", "theirs"])
    pair, rng = Pair(m), np.random.default_rng(0)
    for b, c, n in ((1, 1, 1), (2, 3, 60), (1, 2, 500)):
        for box_limit, iou, score in ((100, 0.5, 0.2), (3, 0.3, 0.0), (7, 0.0, 2.0), (0, 0.5, 0.5)):
            boxes = (rng.random((b, n, 4)) * 5).astype(np.float32)
            scores = np.round(rng.random((b, c, n)), 1 if n < 100 else 5).astype(np.float32)
            values = boxes, scores, np.asarray([box_limit]), np.array([iou], np.float32), np.array([score], np.float32)
            pair.check(dict(zip(names, values, strict=False)))


def doubling() -> onnx.GraphProto:
    """x -> 2 x as long as that is below `limit`; stacks 2 x."""
    nodes = [
        helper.make_node("Add", ["x", "x"], ["y"]),
        helper.make_node("Less", ["y", "limit"], ["go"]),
        helper.make_node("Identity", ["y"], ["row"]),
    ]
    scalar = {"i": T.INT64, "c": T.BOOL, "x": T.FLOAT, "go": T.BOOL, "y": T.FLOAT, "row": T.FLOAT}
    infos = {name: helper.make_tensor_value_info(name, kind, ()) for name, kind in scalar.items()}
    return helper.make_graph(nodes, "body", [infos[n] for n in ("i", "c", "x")], [infos[n] for n in ("go", "y", "row")])


@pytest.mark.parametrize("trips", [None, 3, 1 << 62])
def test_loop_that_ends_itself_and_stacks(trips: int | None) -> None:
    """As many rows as there were turns; an endless one is an error that names the bound."""
    nodes = [
        helper.make_node("Loop", ["" if trips is None else "m", "start", "x0"], ["last", "rows"], body=doubling()),
        helper.make_node("Mul", ["rows", "rows"], ["squares"]),
    ]
    if trips is not None:
        nodes.insert(0, helper.make_node("Constant", [], ["m"], value=helper.make_tensor("m", T.INT64, (), [trips])))
    ins: list[Info] = [("x0", T.FLOAT, ()), ("limit", T.FLOAT, ()), ("start", T.BOOL, ())]
    pair = Pair(model(nodes, ins, ["last", "rows", "squares"]))

    def feeds(x: float, condition: bool) -> dict[str, np.ndarray]:
        return {"x0": np.asarray(x, np.float32), "limit": np.asarray(10, np.float32), "start": np.asarray(condition)}

    for x, has_next in ((1.0, True), (5.0, True), (9.0, False), (0.001, True)):
        pair.check(feeds(x, has_next), 1e-6)
    if trips != 3:
        with pytest.raises(InputError, match=r"size \$turns0: expected 0 to 1024, got 1025"):
            pair.ours(**feeds(0.0, True))


def test_detector() -> None:
    """A detector's head as exporters write it: boxes from centers, suppression per class, the best of what stays."""
    names = ("most", "iou", "score")
    nodes = [
        helper.make_node("Split", ["y"], ["centers", "sizes", "scores"], axis=2),
        helper.make_node("Concat", ["centers", "sizes"], ["boxes"], axis=2),
        helper.make_node("Constant", [], ["split"], value=helper.make_tensor("s", T.INT64, (3,), [2, 2, 6])),
        helper.make_node("Transpose", ["scores"], ["by_class"], perm=[0, 2, 1]),
        helper.make_node("NonMaxSuppression", ["boxes", "by_class", *names], ["kept"], center_point_box=1),
        helper.make_node("Gather", ["kept", "places"], ["where"], axis=1),
        helper.make_node("GatherND", ["boxes", "where"], ["chosen"]),
        helper.make_node("GatherND", ["by_class", "kept"], ["confidence"]),
        helper.make_node("Shape", ["confidence"], ["count"]),
        helper.make_node("Min", ["count", "five"], ["k"]),
        helper.make_node("TopK", ["confidence", "k"], ["best", "order"], axis=0),
        helper.make_node("Gather", ["chosen", "order"], ["result"], axis=0),
    ]
    nodes[0].input.append("split")
    nodes.insert(0, nodes.pop(2))
    constants = {"most": [100], "places": [0, 2], "five": [5]}
    for name, value in constants.items():
        tensor = helper.make_tensor(name, T.INT64, (len(value),), value)
        nodes.insert(0, helper.make_node("Constant", [], [name], value=tensor))
    ins: list[Info] = [("y", T.FLOAT, (1, "n", 10)), ("iou", T.FLOAT, (1,)), ("score", T.FLOAT, (1,))]
    pair, rng = Pair(model(nodes, ins, ["kept", "result", "best"])), np.random.default_rng(0)
    for n in (1, 20, 400):
        for score in (0.3, 0.9, 2.0):
            y = rng.random((1, n, 10)).astype(np.float32)
            y[..., :2] *= 5
            pair.check({"y": y, "iou": np.full(1, 0.4, np.float32), "score": np.full(1, score, np.float32)})
