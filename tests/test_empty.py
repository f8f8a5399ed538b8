"""Axes of no elements: a result of none, or an error where frameworks have one; nothing is read that is not there.

Decided by ONNX Runtime. Each case holds for sizes that are 0, bounds that hold 0, and sizes that the run finds to be 0.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx
import onnx.parser
import pytest

import ingot
from ingot.frontends.onnx import import_onnx
from ingot.ir.interp import interpret
from ingot.support.errors import IngotError
from tests.guard import failures

# a node on x[a, 3]; the result's shape where a is 0, None where that is an error
CASES = {
    "y = Gather<axis=0>(x, zeros)": None,
    "y = Gather<axis=1>(x, zeros)": (0, 2),
    "y = Gather<axis=0>(x, nothing)": (0, 3),
    "y = GatherElements<axis=0>(x, rows)": None,
    "y = GatherND(x, pairs)": None,
    "y = ScatterElements<axis=0>(x, rows, ones)": None,
    "y = ArgMax<axis=0>(x)": None,
    "y = ArgMin<axis=1>(x)": (0, 1),
    "y = Hardmax<axis=0>(x)": (0, 3),
    "y = Softmax<axis=0>(x)": (0, 3),
    "y, i = TopK<axis=0>(x, one)": None,
    "y, i = TopK<axis=0>(x, none)": (0, 3),
    'y = Pad<mode="edge">(x, pads)': None,
    'y = Pad<mode="reflect">(x, pads)': None,
    'y = Pad<mode="wrap">(x, pads)': None,
    "y = Pad(x, pads)": (2, 3),
    'y = Pad<mode="edge">(x, columns)': (0, 5),
    'u = Unsqueeze(x, none) y = Resize<mode="linear", axes=[1, 2]>(u, , , four)': None,
    "y = Slice(x, last, end, none)": (0, 3),
    "y = Slice(x, none, last, none)": (0, 3),
    "y = Slice(x, last, first, none, last)": (0, 3),
    "y = ReduceMax<keepdims=0>(x, none)": (3,),
    "y = CumSum(x, axis)": (0, 3),
    "u = Transpose(x) y = MatMul(u, x)": (3, 3),
    "u = Unsqueeze(x, both) y = GlobalMaxPool(u)": None,
}
TEXT = """<ir_version: 8, opset_import: ["" : 19]>
agraph (INPUTS) => (RESULT)
<int64[2] zeros = {0, -1}, int64[0] nothing = {}, int64[2,3] rows = {0, 0, 0, 1, 1, 1}, int64[1,2] pairs = {0, 0},
 float[2,3] ones = {1, 1, 1, 1, 1, 1}, int64[1] one = {1}, int64[1] none = {0}, int64[4] pads = {1, 0, 1, 0},
 int64 axis = {0}, int64[4] columns = {0, 1, 0, 1}, int64[2] four = {4, 4}, int64[1] last = {-1},
 int64[2] both = {0, 1},
 int64[1] end = {9223372036854775807}, int64[1] first = {-9223372036854775807}>
{ NODES }"""


def model(nodes: str, rows: str, *, has_computed_size: bool = False) -> onnx.ModelProto:
    inputs = "float[5,3] all, bool[5] keep" if has_computed_size else f"float[{rows},3] x"
    nodes = f"x = Compress<axis=0>(all, keep) {nodes}" if has_computed_size else nodes
    proto = onnx.parser.parse_model(TEXT.replace("INPUTS", inputs).replace("RESULT", "float y").replace("NODES", nodes))
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    if "ArgM" in nodes:
        proto.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    return proto


def compile_open(nodes: str) -> ingot.CompiledModel:
    return ingot.compile(model(nodes, "a"), dynamic={"a": (0, None)})


def run_on_none(nodes: str) -> np.ndarray:
    return ingot.compile(model(nodes, "", has_computed_size=True))(np.ones((5, 3), np.float32), np.zeros(5, bool))


def interpreted(nodes: str) -> np.ndarray:
    graph = import_onnx(model(nodes, "a"), dynamic={"a": (0, None)})
    return interpret(graph, [np.ones((0, 3), np.float32)])[0]


def check(nodes: str, shape: tuple[int, ...] | None) -> None:
    empty = np.ones((0, 3), np.float32)
    ways = {
        "told": lambda: compile_open(nodes)(empty),
        "static": lambda: ingot.compile(model(nodes, "0"))(empty),
        "found": lambda: run_on_none(nodes),
        "interpreted": lambda: interpreted(nodes),
    }
    for way, run in ways.items():
        try:
            got = run()
        except IngotError as e:
            assert shape is None, f"{way}: {e}"
            continue
        got = got[0] if isinstance(got, tuple) else got
        assert got.shape == shape, f"{way}: expected {shape or 'an error'}, got {got}"
        if got.size:
            assert len(np.unique(got)) == 1 and got.flat[0] in (0, -np.inf), got


@pytest.mark.parametrize("end", ["first", "last"])
def test_an_axis_of_no_elements(end: str) -> None:
    wrong = failures({nodes: partial(check, nodes, shape) for nodes, shape in CASES.items()}, [end])  # type: ignore[list-item]
    assert not wrong, "\n".join(f"{name}: {how}" for name, how in wrong.items())


@pytest.mark.parametrize("rows", [1, 2])
def test_programs_that_hold_for_nothing_hold_for_more(rows: int) -> None:
    x = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
    np.testing.assert_array_equal(compile_open("y = Slice(x, last, end, none)")(x), x[-1:])
    np.testing.assert_array_equal(compile_open("y = Gather<axis=0>(x, zeros)")(x), x[[0, -1]])
    np.testing.assert_array_equal(compile_open('y = Pad<mode="edge">(x, pads)')(x), np.pad(x, ((1, 1), (0, 0)), "edge"))


BRANCH = """<ir_version: 8, opset_import: ["" : 18]>
agraph (float[a,3] x, bool go) => (float[3] y) <float[3] instead = {7, 7, 7}, int64 at = {0}>
{ y = If(go) <
    then_branch = taken () => (float[3] t) { t = Gather<axis=0>(x, at) },
    else_branch = other () => (float[3] e) { e = Identity(instead) }> }"""


@pytest.mark.parametrize("rows", [0, 2])
def test_a_branch_reads_where_it_is_taken(rows: int) -> None:
    compiled = ingot.compile(onnx.parser.parse_model(BRANCH), dynamic={"a": (0, None)})
    x = np.ones((rows, 3), np.float32)
    np.testing.assert_array_equal(compiled(x, np.array(False)), [7, 7, 7])
    if rows:
        np.testing.assert_array_equal(compiled(x, np.array(True)), [1, 1, 1])
        return
    with pytest.raises(IngotError, match="reads past the end of the input"):
        compiled(x, np.array(True))
