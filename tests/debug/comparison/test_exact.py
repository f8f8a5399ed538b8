"""What float64 says of results that are apart."""

from pathlib import Path

import numpy as np
import pytest

from ingot import ops
from ingot.debug.comparison import compare as comparing
from ingot.debug.comparison.exact import exactly
from ingot.debug.comparison.reference import Reference
from ingot.debug.source import open_source
from ingot.ir.dims import symbol
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType, f32, i32


def _graph(make) -> Graph:
    x = Input("x", TensorType(f32, (4,)))()
    return Graph((x,), (make(x),))


def _thirds(x: Node) -> Node:
    three = const(np.full(4, 3, np.float32))
    return ops.Floor()(ops.Mul()(ops.Div()(x, three), three))


def test_a_floor_of_what_rounding_decides_is_unsettled() -> None:
    exact = exactly(_graph(_thirds), [np.array([1, 2.5, 3, 7], np.float32)])
    assert exact.is_settled[0].tolist() == [False, True, True, False]
    right = np.array([1, 2, 3, 7], np.float32)
    other = np.array([0, 2, 3, 6], np.float32)
    assert exact.judge(0, right, other) == "unsettled"
    assert exact.judge(0, right, other + 1) == "ours"
    assert exact.judge(0, other - 1, right) == "theirs"
    assert exact.judge(0, other - 1, right[:3]) == "neither"


def test_what_is_not_rounded_is_settled_and_sums_that_cancel_are_not() -> None:
    half = _graph(lambda x: ops.Floor()(ops.Mul()(x, const(np.full(4, 0.5, np.float32)))))
    assert exactly(half, [np.array([1, 2, 3, 4], np.float32)]).is_settled[0].all()
    total = exactly(_graph(lambda x: ops.Reduce("sum", (0,))(x)), [np.array([1e6, 0.1, 0.3, -1e6], np.float32)])
    assert abs(total.values[0] - 0.4) < 1e-6 and not total.is_settled[0].any()


def test_an_op_without_a_form_in_f64_runs_in_its_own_type() -> None:
    graph = _graph(lambda x: ops.BitcastConvert(i32)(x))
    data = np.array([1, -2, 0.5, 0], np.float32)
    assert exactly(graph, [data]).values[0].tolist() == data.view(np.int32).tolist()


def test_such_an_op_in_a_branch_of_open_size_is_built_anew_for_each_size() -> None:
    x, which = Input("x", TensorType(f32, (symbol("n"),)))(), Input("i", TensorType(i32, ()))()
    bits = Graph((x,), (ops.BitcastConvert(i32)(x),))
    graph = Graph((which, x), (ops.Case((bits, bits))(which, x),))
    data = np.array([1, -2, 0.5], np.float32)
    assert exactly(graph, [np.array(0, np.int32), data]).values[0].tolist() == data.view(np.int32).tolist()


@pytest.mark.parametrize("error", [0, 1])
def test_compare_blames_nobody_where_rounding_decides(
    error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other program rounds a third down where Ingot may round it up; with an `error`, it is wrong elsewhere as
    well."""
    onnx = pytest.importorskip("onnx")
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[999] x) => (float[999] z) {
        three = Constant <value = float {3}> ()
        a = Floor (x) b = Div (a, three) c = Mul (b, three) y = Floor (c) z = Add (y, a)
    }"""
    (tmp_path / "m.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())

    def other(feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        x = np.floor(feeds["x"])
        return [x + np.where(x % 3 == 0, x + error, x - 1)]

    monkeypatch.setattr(comparing, "reference", lambda source: Reference("other", other))
    comparison = comparing.compare(open_source(tmp_path / "m.onnx"), interpreter=False, threads=1)
    assert comparison.ok == (not error) and (comparison.blame is None) == (not error)
    assert error or comparison.checks[0].agreement.note.startswith("rounding alone decides")
