"""Branches, loops, scans and sequences beside ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import ingot
from ingot.frontends.onnx import import_onnx
from ingot.ir.interp import interpret
from tests.frontends.onnx.reference import B, F, I, assert_close, model, runtime

X = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
Infos = Sequence[tuple[str, int, Sequence[int | str]]]


def body(nodes: Sequence[onnx.NodeProto], inputs: Infos, outputs: Infos) -> onnx.GraphProto:
    input_infos, output_infos = ([helper.make_tensor_value_info(*i) for i in infos] for infos in (inputs, outputs))
    return helper.make_graph(nodes, "body", input_infos, output_infos)


def agree(m: onnx.ModelProto, **inputs: np.ndarray) -> None:
    graph = import_onnx(m)
    assert_close(interpret(graph, inputs), runtime(m, **inputs))


def doubling(*, stacked: bool) -> onnx.GraphProto:
    """v -> v + v while its largest element is below 20, and what it was."""
    nodes = [
        helper.make_node("Add", ["v", "v"], ["v_out"]),
        helper.make_node("ReduceMax", ["v_out"], ["top"], keepdims=0),
        helper.make_node("Less", ["top", "limit"], ["go_out"]),
        helper.make_node("Identity", ["v"], ["seen"]),
    ]
    results = [("go_out", B, []), ("v_out", F, [4, 3]), ("seen", F, [4, 3])]
    return body(nodes, [("i", I, []), ("go", B, []), ("v", F, [4, 3])], results[: 2 + stacked])


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("count", [0, 2, 50])
def test_a_loop_ends_by_its_condition_or_its_count(count: int, stacked: bool) -> None:
    outputs = ["y", "all"][: 1 + stacked]
    loop = helper.make_node("Loop", ["most", "yes", "x"], outputs, body=doubling(stacked=stacked))
    m = model(
        [loop], [("x", F, [4, 3]), ("limit", F, [])], [(name, F) for name in outputs],
        [("most", np.int64(count)), ("yes", np.bool_(True))],
    )  # fmt: skip
    for limit in (20.0, 0.0, 1e9):
        agree(m, x=X, limit=np.asarray(limit, np.float32))


@pytest.mark.parametrize("backwards", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_scan_along_either_axis_and_way(axis: int, backwards: int) -> None:
    size = X.shape[1 - axis]
    nodes = [
        helper.make_node("Mul", ["total", "half"], ["less"]),
        helper.make_node("Add", ["less", "part"], ["sum"]),
        helper.make_node("Identity", ["sum"], ["out"]),
    ]
    step = body(nodes, [("total", F, [size]), ("part", F, [size])], [("sum", F, [size]), ("out", F, [size])])
    scan = helper.make_node(
        "Scan", ["start", "x"], ["last", "all"], body=step, num_scan_inputs=1, scan_input_axes=[axis],
        scan_input_directions=[backwards], scan_output_axes=[axis], scan_output_directions=[backwards],
    )  # fmt: skip
    constants = [("start", np.arange(size, dtype=np.float32)), ("half", np.float32(0.5))]
    agree(model([scan], [("x", F, ["n", "m"])], [("last", F), ("all", F)], constants), x=X)


def test_a_branch_by_a_value_and_one_inside_it() -> None:
    def branch(op: str, name: str) -> onnx.GraphProto:
        return body([helper.make_node(op, ["x"], [name])], [], [(name, F, ["n", 3])])

    inner = helper.make_node("If", ["q"], ["c"], then_branch=branch("Neg", "a"), else_branch=branch("Exp", "b"))
    deep = body([inner], [], [("c", F, ["n", 3])])
    outer = helper.make_node("If", ["p"], ["z"], then_branch=deep, else_branch=branch("Abs", "d"))
    m = model([outer], [("x", F, ["n", 3]), ("p", B, []), ("q", B, [])])
    for p, q in ((True, True), (True, False), (False, True)):
        agree(m, x=X, p=np.asarray(p), q=np.asarray(q))


def test_sequences_are_made_changed_and_joined() -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x", "sizes"], ["parts"], axis=0),
        helper.make_node("SequenceAt", ["parts", "last"], ["end"]),
        helper.make_node("SequenceErase", ["parts", "last"], ["fewer"]),
        helper.make_node("SequenceInsert", ["fewer", "end", "first"], ["turned"]),
        helper.make_node("SequenceLength", ["turned"], ["count"]),
        helper.make_node("ConcatFromSequence", ["turned"], ["z"], axis=0),
    ]
    constants = [("sizes", np.array([1, 2, 1])), ("last", np.int64(-1)), ("first", np.int64(0))]
    m = model(nodes, [("x", F, [4, 3])], [("z", F), ("count", I)], constants)
    agree(m, x=X)
    (z, count) = interpret(import_onnx(m), {"x": X})
    np.testing.assert_array_equal(z, X[[3, 0, 1, 2]])
    assert count == 3


def test_a_loop_whose_sequence_grows_by_a_value() -> None:
    """As many members as only the run knows, 1,024 at most."""
    info = helper.make_tensor_sequence_value_info
    grow = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["go_out"]), helper.make_node("SequenceInsert", ["s", "x"], ["s_out"])],
        "body",
        [helper.make_tensor_value_info("i", I, []), helper.make_tensor_value_info("go", B, []), info("s", F, [4, 3])],
        [helper.make_tensor_value_info("go_out", B, []), info("s_out", F, [4, 3])],
    )
    nodes = [
        helper.make_node("SequenceEmpty", [], ["none"], dtype=TensorProto.FLOAT),
        helper.make_node("Loop", ["n", "", "none"], ["s"], body=grow),
        helper.make_node("ConcatFromSequence", ["s"], ["z"], axis=0),
    ]
    m = model(nodes, [("x", F, [4, 3]), ("n", I, [])])
    compiled = ingot.compile(m, threads=1, cache=False)
    for n in (3, 1, 200):
        np.testing.assert_array_equal(compiled(X, np.asarray(n)), np.concatenate([X] * n))
    graph = import_onnx(m, weights={"n": np.asarray(3)})
    np.testing.assert_array_equal(interpret(graph, {"x": X})[0], np.concatenate([X] * 3))
