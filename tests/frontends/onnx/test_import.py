"""Structure: dynamic dims, opset versions, functions, control flow, errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ingot.frontends.onnx import import_onnx
from ingot.frontends.onnx.inputs import dim_of_name
from ingot.ir.dims import symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph
from ingot.support.errors import ImportModelError, InputError, LimitError, NeedsValues, ShapeError, UnsupportedOpError

F, I, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[tuple[str, int, Sequence[int | str | None]]],
    outputs: Sequence[str] = ("y",),
    constants: Mapping[str, object] | None = None,
    opset: int = 20,
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(n, t, s) for n, t, s in inputs],
        [helper.make_empty_tensor_value_info(o) for o in outputs],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()],
    )
    domains = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("mine", 1)]
    return helper.make_model(graph, opset_imports=domains, functions=list(functions))


def node(op: str, inputs: Sequence[str], outputs: Sequence[str] = ("y",), **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), list(outputs), name=attributes.pop("name", f"the_{op}"), **attributes)


def types(graph: Graph) -> list[str]:
    return [str(n.type) for n in graph.outputs]


# dims


@pytest.mark.parametrize(
    ("text", "expected_name"),
    [
        ("batch", "batch"),
        ("batch-size", "batch_size"),
        ("2*s0", "2*s0"),
        ("past + length", "length+past"),
        ("1x", "d_1x"),
        ("n%0", "n_0"),
        ("n//0", "n__0"),
    ],
)
def test_dim_names(text: str, expected_name: str) -> None:
    assert str(dim_of_name(text)) == expected_name


def test_unnamed_dims_are_fresh_symbols() -> None:
    graph = import_onnx(model([node("Relu", ["x"])], [("x", F, [None, 3, None])]))
    assert types(graph) == ["f32[x_0,3,x_2]"]


def test_shapes_replace_the_models() -> None:
    m = model([node("Relu", ["x"])], [("x", F, ["n", 3])])
    assert types(import_onnx(m, shapes={"x": [4, "c"]})) == ["f32[4,c]"]
    assert types(import_onnx(m, dynamic={"n": 8})) == ["f32[8,3]"]
    assert import_onnx(m, dynamic={"n": (2, 64)}).bounds == (("n", 2, 64),)


def test_requests_that_do_not_fit_are_refused() -> None:
    m = model([node("Relu", ["x"])], [("x", F, ["n", 3])])
    with pytest.raises(InputError, match="names no input"):
        import_onnx(m, shapes={"z": [1]})
    for bound in (-1, (5, 2)):
        with pytest.raises(InputError, match="expected a size, or"):
            import_onnx(m, dynamic={"n": bound})
    with pytest.raises(InputError, match="names no symbol"):
        import_onnx(m, dynamic={"q": 1})
    with pytest.raises(InputError, match="sizes by name"):
        import_onnx(m, dynamic=3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="dynamic dimensions"):
        import_onnx(m, dynamic=False)
    with pytest.raises(InputError, match="wrong rank"):
        import_onnx(m, shapes={"x": [1]})
    with pytest.raises(InputError, match="wrong dtype"):
        import_onnx(m, weights={"x": np.zeros((1, 3))})
    with pytest.raises(InputError, match="wrong dtype: expected f32, got <U3"):
        import_onnx(m, weights={"x": "abc"})  # pyright: ignore[reportArgumentType]
    for shape in ((), (1,), (1, 4), (1, 3, 1)):
        with pytest.raises(InputError, match="'x' has the wrong shape: expected f32"):
            import_onnx(m, weights={"x": np.zeros(shape, np.float32)})


def test_a_range_of_floats_up_to_a_size() -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"]),
        node("Cast", ["n"], ["limit"], to=F),
        node("Range", ["start", "limit", "step"]),
    ]
    constants = {"zero": np.int64(0), "start": np.float32(0), "step": np.float32(1)}
    graph = import_onnx(model(nodes, [("x", F, ["n"])], constants=constants))
    assert types(graph) == ["f32[n]"]


def test_shape_arithmetic_stays_symbolic() -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"]),
        node("Mul", ["n", "two"], ["n2"]),
        node("Unsqueeze", ["n2", "axis"], ["n2u"]),
        node("Concat", ["n2u", "minus"], ["target"], axis=0),
        node("Reshape", ["x", "target"]),
    ]
    constants = {"zero": np.int64(0), "two": np.int64(2), "axis": np.array([0]), "minus": np.array([-1])}
    graph = import_onnx(model(nodes, [("x", F, ["n", 6])], constants=constants))
    assert types(graph) == ["f32[2*n,3]"]
    assert not any("dim" in n.op.name for n in graph.nodes())


def test_reshapes_of_all_multiples_of_a_size() -> None:
    """[b, n] -> [b, n // 16, 16] -> [b, n]: n is a multiple of 16, of which asked sizes and bounds say how many."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Slice", ["s", "one", "two"], ["n"]),
        node("Div", ["n", "each"], ["blocks"]),
        node("Concat", ["zero", "blocks", "each"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["y"]),
        node("Reshape", ["y", "s"], ["back"]),
        node("Add", ["back", "x"], ["z"]),
    ]
    constants = {"zero": np.array([0]), "one": np.array([1]), "two": np.array([2]), "each": np.array([16])}
    proto = model(nodes, [("x", F, ["b", "n"])], ("y", "z"), constants)
    graph = import_onnx(proto, dynamic={"n": (17, 100)})
    assert types(graph) == ["f32[b,n,16]", "f32[b,16*n]"]
    assert graph.bounds == (("n", 2, 6),)
    assert types(import_onnx(proto, dynamic={"n": 48})) == ["f32[b,3,16]", "f32[b,48]"]
    with pytest.raises(ShapeError, match="40"):
        import_onnx(proto, dynamic={"n": 40})
    rest = model([node("Reshape", ["x", "target"])], [("x", F, ["b", "n"])], constants={"target": np.array([-1, 1, 8])})
    assert types(import_onnx(rest)) == ["f32[b*n,1,8]"]
    # the last axis rather than the batch
    assert str(import_onnx(rest).inputs[0].type) == "f32[b,8*n]"


@pytest.mark.parametrize(("target", "expected_size"), [([2, 32, -1, 25], "64*n"), ([-1, 75], "n"), ([6, -1], "2*n")])
def test_a_reshape_asks_for_the_least_multiple(target: list[int], expected_size: str) -> None:
    graph = import_onnx(
        model([node("Reshape", ["x", "t"])], [("x", F, ["n", 3, 25])], constants={"t": np.array(target)})
    )
    assert str(graph.inputs[0].type) == f"f32[{expected_size},3,25]"


@pytest.mark.parametrize("value", [0, 1])
def test_places_of_a_constant_of_dynamic_shape(value: int) -> None:
    full = node("ConstantOfShape", ["s"], ["o"], value=numpy_helper.from_array(np.array([value], np.float32)))
    graph = import_onnx(model([node("Shape", ["x"], ["s"]), full, node("NonZero", ["o"])], [("x", F, ["n", 3])]))
    (got,) = interpret(graph, [np.zeros((4, 3), np.float32)])
    np.testing.assert_array_equal(got, np.nonzero(np.full((4, 3), value)))


@pytest.mark.parametrize("joining_op", ["Add", "Concat"])
def test_images_cut_in_half_and_enlarged_again(joining_op: str) -> None:
    """They meet themselves where their size is a multiple of what they were cut by."""
    half = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        node("MaxPool", ["x"], ["a"], **half),
        node("MaxPool", ["a"], ["b"], **half),
        node("Resize", ["b", "", "scales"], ["c"]),
        node(joining_op, ["a", "c"], ["d"], **({"axis": 1} if joining_op == "Concat" else {})),
        node("Resize", ["d", "", "scales"], ["e"]),
        node(joining_op, ["x", "e"], ["f"], **({"axis": 1} if joining_op == "Concat" else {})),
    ]
    proto = model(nodes, [("x", F, ["b", 3, "h", "w"])], ("f",), {"scales": np.array([1, 1, 2, 2], np.float32)})
    (x,) = import_onnx(proto).inputs
    assert str(x.type) == "f32[b,3,4*h,4*w]"
    assert import_onnx(proto, dynamic={"h": 8, "w": 12}).inputs[0].shape[2:] == (8, 12)
    with pytest.raises(ShapeError, match="expected 5"):
        import_onnx(proto, dynamic={"h": 10})


def test_a_size_needed_as_a_value() -> None:
    nodes = [node("Shape", ["x"], ["s"]), node("Cast", ["s"], ["f"], to=F), node("Div", ["total", "f"])]
    graph = import_onnx(model(nodes, [("x", F, ["n", 4])], constants={"total": np.float32(12)}))
    np.testing.assert_allclose(interpret(graph, [np.zeros((3, 4), np.float32)])[0], [4, 3])


def test_resize_sizes_through_float_arithmetic() -> None:
    nodes = [
        node("Shape", ["x"], ["s"], start=2),
        node("Cast", ["s"], ["f"], to=F),
        node("Mul", ["f", "half"], ["h"]),
        node("Floor", ["h"], ["fl"]),
        node("Cast", ["fl"], ["hw"], to=I),
        node("Concat", ["nc", "hw"], ["sizes"], axis=0),
        node("Resize", ["x", "", "", "sizes"], mode="nearest"),
    ]
    constants = {"half": np.float32(0.5), "nc": np.array([1, 3])}
    graph = import_onnx(model(nodes, [("x", F, [1, 3, "h", "w"])], constants=constants))
    assert types(graph) == ["f32[1,3,(h//2),(w//2)]"]


def test_resized_sizes_are_products_in_f32() -> None:
    """20 * 0.7 is 14, as in ONNX Runtime, though 0.7 in f32 is less than 7 / 10."""
    constants = {"scales": np.array([1, 1, 0.7, 1.3], np.float32)}
    nodes = [node("Resize", ["x", "", "scales"], mode="linear")]
    graph = import_onnx(model(nodes, [("x", F, [1, 3, 20, 30])], constants=constants))
    assert types(graph) == ["f32[1,3,14,39]"]


def test_a_table_sliced_by_a_size_bounds_it() -> None:
    nodes = [
        node("Shape", ["x"], ["s"], start=1, end=2),
        node("Slice", ["table", "zero", "s"], ["rows"]),
        node("Add", ["x", "rows"]),
    ]
    constants = {"table": np.ones(512, np.float32), "zero": np.array([0])}
    graph = import_onnx(model(nodes, [("x", F, ["n", "length"])], constants=constants))
    assert types(graph) == ["f32[n,length]"]
    assert graph.bounds == (("length", 1, 512),)


def _clamped(at: int, size: int, low: int, high: int) -> int:
    return min(max(at + size if at < 0 else at, low), high)


@pytest.mark.parametrize(
    ("start", "end", "step"),
    [
        (-3, -1, 1), (-3, 4, 1), (-5, 2, 2), (1, 3, 2), (-(2**31), 2**31 - 1, 1), (0, -(2**63) + 1, 1),
        (-1, -(2**63) + 1, -1), (2**31 - 1, -(2**31), -1), (2, -(2**31), -1), (-4, -(2**63) + 1, -2), (3, 1, -1),
        (-2, -12, -3), (-2, 1, -1), (-2, 0, -1),
        (-1, -6, -3), (1, 5, -1), (3, 2**40, 1), (3, 2**63 - 1, 2), (3, 100, 3),
    ],
)  # fmt: skip
def test_slices_of_a_dynamic_size(start: int, end: int, step: int) -> None:
    """For all of its sizes, clamped as ONNX has it: a start that goes backwards to the first and last element."""
    constants = {k: np.asarray([v], np.int64) for k, v in (("s", start), ("e", end), ("a", 0), ("p", step))}
    proto = model([node("Slice", ["x", "s", "e", "a", "p"])], [("x", F, ["n"])], constants=constants)
    assert all(low == 1 and high is not None and high >= 10**9 for _, low, high in import_onnx(proto).bounds)
    graph = import_onnx(proto, dynamic={"n": (0, 64)})
    ((_, least, _),) = graph.bounds
    for n in (least or 0, 1, 2, 3, 4, 5, 9):
        x = np.arange(n, dtype=np.float32)
        ends = (0, n, 0, n) if step > 0 else (0, n - 1, -1, n - 1)
        at = range(_clamped(start, n, *ends[:2]), _clamped(end, n, *ends[2:]), step)
        np.testing.assert_array_equal(interpret(graph, [x])[0], x[list(at)])


def test_a_slice_from_a_place_before_the_middle() -> None:
    """DeBERTa's relative positions: table[512 - n : 512 + n]."""
    nodes = [
        node("Shape", ["x"], ["n"]),
        node("Sub", ["middle", "n"], ["low"]),
        node("Add", ["middle", "n"], ["high"]),
        node("Slice", ["table", "low", "high"], ["near"]),
        node("Add", ["near", "twice"], ["y"]),
    ]
    constants = {"middle": np.array([512]), "table": np.zeros(1024, np.float32)}
    graph = import_onnx(model(nodes, [("x", F, ["n"]), ("twice", F, ["2*n"])], ("y",), constants))
    assert types(graph) == ["f32[2*n]"]
    assert graph.bounds == (("n", 1, 512),)


def test_a_slice_that_may_be_empty_keeps_the_bounds_asked_for() -> None:
    constants = {k: np.asarray([v], np.int64) for k, v in (("s", 5), ("e", 2**40), ("a", 0), ("p", 1))}
    m = model([node("Slice", ["x", "s", "e", "a", "p"])], [("x", F, ["n"])], constants=constants)
    assert import_onnx(m, dynamic={"n": (0, 64)}).bounds == (("n", 0, 64),)


@pytest.mark.parametrize("source", [np.float32, np.float64])
def test_casts_of_floats(source: type[np.floating]) -> None:
    """As ONNX Runtime has them on x86; ONNX leaves open what numbers become that do not fit."""
    x = np.array([-1.0, -1.7, 255.9, 256.0, 300.0, -129.0, -40000.0, 70000.0, np.nan, np.inf, -np.inf, 1e19], source)
    names = ("UINT8", "INT8", "UINT16", "INT16", "INT32", "INT64", "UINT64")
    nodes = [node("Cast", ["x"], [name], to=getattr(TensorProto, name), name=name) for name in names]
    code = helper.np_dtype_to_tensor_dtype(np.dtype(source))
    proto = model(nodes, [("x", code, [x.size])], outputs=names)
    got = interpret(import_onnx(proto), [x])
    ort, proto.ir_version = pytest.importorskip("onnxruntime"), 10
    expected = ort.InferenceSession(proto.SerializeToString()).run(names, {"x": x})
    for g, w in zip(got, expected, strict=True):
        np.testing.assert_array_equal(g, w)


def test_a_reversed_axis_keeps_its_size() -> None:
    constants = {k: np.asarray([v], np.int64) for k, v in (("s", -1), ("e", -(2**63) + 1), ("a", 0), ("p", -1))}
    nodes = [node("Slice", ["x", "s", "e", "a", "p"], ["r"]), node("Add", ["x", "r"])]
    assert types(import_onnx(model(nodes, [("x", F, ["n"])], constants=constants))) == ["f32[n]"]


def test_symbols_broadcast_to_1_or_are_one() -> None:
    graph = import_onnx(model([node("Add", ["a", "b"])], [("a", F, ["n"]), ("b", F, ["m"])]))
    assert graph.inputs[1].shape == graph.outputs[0].shape == (symbol("n"),)
    graph = import_onnx(model([node("Add", ["a", "b"])], [("a", F, ["n", 1]), ("b", F, ["m"])]))
    assert graph.outputs[0].shape == (symbol("n"), symbol("m"))


# versions


def test_softmax_before_13_sees_a_matrix() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    y = interpret(import_onnx(model([node("Softmax", ["x"], axis=1)], [("x", F, [2, 3, 4])], opset=11)), [x])[0]
    np.testing.assert_allclose(y.sum((1, 2)), [1, 1], rtol=1e-6)
    y = interpret(import_onnx(model([node("Softmax", ["x"], axis=1)], [("x", F, [2, 3, 4])], opset=13)), [x])[0]
    np.testing.assert_allclose(y.sum(1), np.ones((2, 4)), rtol=1e-6)


@pytest.mark.parametrize("opset", [7, 8, 9])
def test_attributes_that_became_inputs(opset: int) -> None:
    nodes = [
        node("Unsqueeze", ["x"], ["a"], axes=[0]),
        node("Slice", ["a"], ["b"], starts=[0, 1], ends=[1, 3], axes=[0, 1]),
        node("Pad", ["b"], ["c"], pads=[0, 1, 0, 0], value=5.0),
        node("Clip", ["c"], ["d"], min=0.0, max=6.0),
        node("ReduceSum", ["d"], ["e"], axes=[0], keepdims=0),
        node("Dropout", ["e"], ["f"], ratio=0.5),
        node("Squeeze", ["f"], ["y"]),
    ]
    graph = import_onnx(model(nodes, [("x", F, [4])], opset=opset))
    np.testing.assert_allclose(interpret(graph, [np.array([1, -2, 3, 9], np.float32)])[0], [5, 0, 3])


@pytest.mark.parametrize("opset", [0, 10_000])
def test_other_opsets_are_refused(opset: int) -> None:
    with pytest.raises(ImportModelError, match="unsupported opset"):
        import_onnx(model([node("Relu", ["x"])], [("x", F, [2])], opset=opset))


def test_an_opset_beyond_numbers_of_versions_is_refused() -> None:
    proto = model([node("Relu", ["x"])], [("x", F, [2])])
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1 << 40))
    with pytest.raises(ImportModelError, match="no version"):
        import_onnx(proto)


# functions and control flow


def test_local_functions_are_inlined_with_their_attributes() -> None:
    leaky = helper.make_node("LeakyRelu", ["a"], ["b"], name="inner")
    leaky.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    function = helper.make_function("mine", "Soft", ["a"], ["b"], [leaky], [helper.make_opsetid("", 20)], ["slope"])
    call = node("Soft", ["x"], domain="mine", slope=0.25)
    graph = import_onnx(model([call], [("x", F, [2])], functions=[function]))
    np.testing.assert_allclose(interpret(graph, [np.array([-4, 4], np.float32)])[0], [-1, 4])


def test_a_function_that_calls_itself_is_refused() -> None:
    body = helper.make_node("Loopy", ["a"], ["b"], domain="mine")
    function = helper.make_function("mine", "Loopy", ["a"], ["b"], [body], [helper.make_opsetid("mine", 1)])
    with pytest.raises(ImportModelError, match="nested too deeply"):
        import_onnx(model([node("Loopy", ["x"], domain="mine")], [("x", F, [2])], functions=[function]))


def _branch(name: str, op: str) -> onnx.GraphProto:
    info = helper.make_tensor_value_info(f"{name}_y", F, [3])
    return helper.make_graph([helper.make_node(op, ["x"], [f"{name}_y"])], name, [], [info])


def test_if_on_a_known_condition_is_inlined() -> None:
    call = node("If", ["p"], then_branch=_branch("t", "Neg"), else_branch=_branch("e", "Abs"))
    graph = import_onnx(model([call], [("x", F, [3])], constants={"p": np.array(True)}))
    assert [n.op.name for n in graph.nodes()] == ["input", "negate"]


def test_if_on_a_value() -> None:
    call = node("If", ["p"], then_branch=_branch("t", "Neg"), else_branch=_branch("e", "Abs"))
    graph = import_onnx(model([call], [("p", B, []), ("x", F, [3])]))
    x = np.array([-1, 2, -3], np.float32)
    np.testing.assert_array_equal(interpret(graph, [np.array(True), x])[0], -x)
    np.testing.assert_array_equal(interpret(graph, [np.array(False), x])[0], abs(x))


def _loop_body() -> onnx.GraphProto:
    """v' = v + x (captured), stacking v'."""
    nodes = [
        helper.make_node("Identity", ["go"], ["go_out"]),
        helper.make_node("Add", ["v", "x"], ["v_out"]),
        helper.make_node("Identity", ["v_out"], ["seen"]),
    ]
    inputs = [("i", I, []), ("go", B, []), ("v", F, [2])]
    outputs = [("go_out", B, []), ("v_out", F, [2]), ("seen", F, [2])]
    input_infos, output_infos = (
        [helper.make_tensor_value_info(n, t, s) for n, t, s in group] for group in (inputs, outputs)
    )
    return helper.make_graph(nodes, "body", input_infos, output_infos)


@pytest.mark.parametrize("trips", [0, 3, 200])
def test_loop_of_known_length(trips: int) -> None:
    call = node("Loop", ["m", "", "v0"], ["v", "stack"], body=_loop_body())
    constants = {"m": np.int64(trips), "v0": np.zeros(2, np.float32)}
    graph = import_onnx(model([call], [("x", F, [2])], ["v", "stack"], constants))
    has_while = any(n.op.name == "while" for n in graph.nodes())
    assert has_while == (trips > 64)
    x = np.array([1, -2], np.float32)
    last, stack = interpret(graph, [x])
    np.testing.assert_array_equal(last, trips * x)
    np.testing.assert_array_equal(stack, np.arange(1, trips + 1)[:, None] * x)


def test_loop_over_a_dynamic_length() -> None:
    nodes = [
        node("Shape", ["t"], ["s"]),
        node("Squeeze", ["s"], ["m"]),
        node("Loop", ["m", "", "v0"], ["v", "stack"], body=_loop_body()),
    ]
    constants = {"v0": np.zeros(2, np.float32)}
    graph = import_onnx(model(nodes, [("x", F, [2]), ("t", F, ["n"])], ["v", "stack"], constants))
    assert types(graph) == ["f32[2]", "f32[n,2]"]
    x = np.array([1, -2], np.float32)
    np.testing.assert_array_equal(interpret(graph, [x, np.zeros(5, np.float32)])[0], 5 * x)


def test_loop_with_a_trip_count_from_an_input() -> None:
    body = _loop_body()
    del body.output[2]
    graph = import_onnx(
        model([node("Loop", ["m", "", "v0"], ["y"], body=body)], [("m", I, []), ("v0", F, [2]), ("x", F, [2])])
    )
    x = np.array([1, -2], np.float32)
    np.testing.assert_array_equal(interpret(graph, [np.array(4), x, x])[0], 5 * x)


# errors


def test_all_unsupported_ops_are_listed_at_once() -> None:
    nodes = [
        node("StringSplit", ["x"], ["a"], name="first"),
        node("Relu", ["a"], ["b"]),
        node("TfIdfVectorizer", ["x"], ["c"], name="second"),
        node("Teleport", ["x"], ["d"], name="third", domain="elsewhere"),
    ]
    with pytest.raises(UnsupportedOpError) as e:
        import_onnx(model(nodes, [("x", F, [1, 2, 3])], ["b", "c", "d"], opset=20))
    assert [(o.name, o.where) for o in e.value.ops] == [
        ("StringSplit", "first"),
        ("TfIdfVectorizer", "second"),
        ("elsewhere.Teleport", "third"),
    ]


def test_an_axis_from_data_names_the_input_to_fix() -> None:
    m = model([node("Unsqueeze", ["x", "axes"])], [("x", F, [6]), ("axes", I, [1])])
    with pytest.raises(NeedsValues, match="pass weights=") as e:
        import_onnx(m)
    assert e.value.inputs == ("axes",) and [*e.value.signature] == ["x", "axes"]
    assert types(import_onnx(m, weights={"axes": np.array([1])})) == ["f32[6,1]"]


@pytest.mark.parametrize(
    "bad",
    [
        node("Concat", [], axis=0),
        node("Add", ["x"]),
        node("TopK", ["x", "two"], ("y", "z")),
        node("Loop", ["one", "", "x"], body=helper.make_graph([], "body", [], [])),
        node("Scan", ["x"], body=helper.make_graph([], "body", [], []), num_scan_inputs=1 << 40),
        node("Split", ["x"], num_outputs=1 << 40, axis=0),
        node("DFT", ["x", "many"], axis=0),
        node("Range", ["zero", "infinite", "half"]),
        node("SplitToSequence", ["x"], axis=5),
        node("Slice", ["", "one", "one"]),
    ],
    ids=lambda n: n.op_type,
)
def test_malformed_nodes_are_refused_without_much_time_or_memory(bad: onnx.NodeProto) -> None:
    constants: dict[str, object] = {"one": np.int64(1), "two": np.array([1, 2]), "many": np.int64(1 << 40)}
    constants |= {"zero": np.float32(0.5), "half": np.float32(0.5), "infinite": np.float32(np.inf)}
    with pytest.raises((ImportModelError, UnsupportedOpError, ShapeError)):
        import_onnx(model([bad], [("x", F, [4, 1])], constants=constants, opset=19))


@pytest.mark.parametrize(("inverse", "onesided", "parts"), [(0, 0, 1), (0, 1, 1), (0, 0, 2), (1, 0, 2), (1, 1, 2)])
def test_fourier_transforms_of_symbolic_length(inverse: int, onesided: int, parts: int) -> None:
    op = node("DFT", ["x", "", "axis"], inverse=inverse, onesided=onesided)
    graph = import_onnx(model([op], [("x", F, [2, "n", parts])], constants={"axis": np.int64(1)}))
    for n in (2, 7, 48):
        x = np.random.default_rng(n).standard_normal((2, n, parts)).astype(np.float32)
        z = x[..., 0] + 1j * x[..., -1] if parts == 2 else x[..., 0]
        if inverse and onesided:
            want = np.fft.irfft(z, 2 * (n - 1), 1)[..., None]
        else:
            z = (np.fft.ifft if inverse else np.fft.fft)(z, axis=1)[:, : n // 2 + 1 if onesided else n]
            want = np.stack([z.real, z.imag], -1)
        (got,) = interpret(graph, [x])
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())


def test_fourier_transforms_cut_or_pad_to_a_symbolic_length() -> None:
    nodes = [node("Shape", ["like"], ("shape",)), node("Squeeze", ["shape"], ("n",)), node("DFT", ["x", "n", "axis"])]
    graph = import_onnx(model(nodes, [("x", F, [2, 8, 1]), ("like", F, ["n"])], constants={"axis": np.int64(1)}))
    x = np.random.default_rng(0).standard_normal((2, 8, 1)).astype(np.float32)
    for n in (3, 8, 13):
        (got,) = interpret(graph, [x, np.zeros(n, np.float32)])
        np.testing.assert_allclose(got[..., 0] + 1j * got[..., 1], np.fft.fft(x[..., 0], n, 1), rtol=0, atol=1e-5)


def test_empty_constants_keep_their_shape() -> None:
    empty = np.zeros((2, 0, 4), np.int64)
    graph = import_onnx(model([node("Concat", ["empty", "empty"], axis=0)], [], constants={"empty": empty}))
    assert types(graph) == ["i64[4,0,4]"]


def test_a_value_that_nothing_computes_is_refused() -> None:
    with pytest.raises(ImportModelError, match="nothing before it computes"):
        import_onnx(model([node("Relu", ["z"])], [("x", F, [2])]))


def test_nodes_in_any_order() -> None:
    """Converters to float16 put the casts of inputs at the end."""
    add = helper.make_node("Add", ["b", "a"], ["y"])
    nodes = [add, helper.make_node("Neg", ["a"], ["b"]), helper.make_node("Exp", ["x"], ["a"])]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [helper.make_empty_tensor_value_info("y")]))
    np.testing.assert_array_equal(interpret(import_onnx(model), [np.ones(2, np.float32)])[0], np.zeros(2))
    circle = [add, helper.make_node("Neg", ["y"], ["b"]), nodes[2]]
    model = helper.make_model(helper.make_graph(circle, "g", [x], [helper.make_empty_tensor_value_info("y")]))
    with pytest.raises(ImportModelError, match="nothing before it computes"):
        import_onnx(model)


def test_tensors_that_no_machine_holds_are_refused() -> None:
    with pytest.raises(LimitError, match="too large"):
        import_onnx(model([node("Relu", ["x"])], [("x", F, [2**62, 2])]))


def test_names_given_twice_are_refused() -> None:
    node, x = helper.make_node("Relu", ["x"], ["y"]), helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])
    y = helper.make_empty_tensor_value_info("y")
    for inputs, outputs, what in (([x], [y, y], "outputs"), ([x, x], [y], "inputs")):
        model = helper.make_model(helper.make_graph([node], "g", inputs, outputs))
        with pytest.raises(ImportModelError, match=f"{what} share a name"):
            import_onnx(model)


def test_nodes_carry_their_onnx_name() -> None:
    graph = import_onnx(model([node("Softplus", ["x"], name="block/softplus")], [("x", F, [2])]))
    values = {*graph.inputs}
    values |= {n for n in graph.nodes() if not values.isdisjoint(n.inputs)}
    # other graphs may have the same constants, whose names they keep
    assert {n.loc for n in values - {*graph.inputs}} == {"block/softplus"} == {graph.outputs[0].loc}


def test_unused_nodes_are_not_imported() -> None:
    m = model([node("Relu", ["x"]), node("Teleport", ["x"], ["z"], domain="elsewhere")], [("x", F, [2])])
    assert types(import_onnx(m)) == ["f32[2]"]


def test_a_function_that_onnx_cannot_write_out_is_refused() -> None:
    """FlexAttention's body is a text that onnx parses, names of the modifier and all."""
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 2, 4, 8]) for n in "qkvy"]
    scores, result = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["B", "H", "L", "S"]) for n in "so")
    one = helper.make_tensor("o\0ne", TensorProto.FLOAT, [], [1.0])
    add = helper.make_node("Add", ["s", "o\0ne"], ["o"])
    modifier = helper.make_graph([add], "modifier", [scores], [result], [one])
    flex = helper.make_node("FlexAttention", ["q", "k", "v"], ["y"], domain="ai.onnx.preview", score_mod=modifier)
    opsets = [helper.make_opsetid("", 26), helper.make_opsetid("ai.onnx.preview", 1)]
    model = helper.make_model(helper.make_graph([flex], "g", info[:3], info[3:]), opset_imports=opsets, ir_version=11)
    with pytest.raises(UnsupportedOpError, match="FlexAttention"):
        import_onnx(model)
