"""Sizes as people write them: large ends, other names for equal sizes, reshapes that hold on a range."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

import ingot
from ingot.driver.specialize import ValueSpecialization
from ingot.frontends.onnx import import_onnx
from ingot.ir.interp import interpret
from ingot.support.errors import InputError, NeedsValues, ShapeError
from tests.frontends.onnx.reference import F, X, assert_close, model, one, runtime


def types(m: onnx.ModelProto, **options) -> list[str]:
    graph = import_onnx(m, **options)
    return [str(n.type) for n in (*graph.inputs, *graph.outputs)]


@pytest.mark.parametrize("end", [10**9, 2**31 - 1, 2**63 - 1])
def test_a_slice_to_a_large_end_is_the_rest(end: int) -> None:
    m = model(one("Slice", "x", "a", "b"), [("x", F, ["n"])], initializers=[("a", [0]), ("b", [end])])
    assert types(m) == ["f32[n]", "f32[n]"]


def test_a_slice_that_ends_before_it_starts_is_empty() -> None:
    """No size of the axis makes it longer, and none is required."""
    for start, end in ((3, 2), (3, 3), (-2, -3)):
        m = model(one("Slice", "x", "a", "b"), [("x", F, ["n"])], initializers=[("a", [start]), ("b", [end])])
        compiled = ingot.compile(m, threads=1, cache=False)
        for n in (1, 5):
            assert compiled(np.ones(n, np.float32)).shape == (0,)


def test_a_reshape_of_a_size_that_the_run_finds() -> None:
    """Of what the run finds no multiple can be assumed: the reshape is checked there."""
    nodes = [
        helper.make_node("Resize", ["x", "", "scales"], ["r"], mode="linear"),
        helper.make_node("Reshape", ["r", "rows"], ["z"]),
    ]
    scales = np.array([1, 0.6], np.float32)
    m = model(nodes, [("x", F, ["h", "w"])], initializers=[("rows", [4, -1]), ("scales", scales)])
    compiled = ingot.compile(m, threads=1, cache=False)
    for h, w in ((4, 5), (8, 7), (2, 10)):
        assert compiled(np.ones((h, w), np.float32)).shape == (4, h * int(w * np.float32(0.6)) // 4)


def test_an_input_as_wide_as_what_the_run_finds() -> None:
    """Its size is a condition that the run checks, as no input's size can depend on what the run finds."""
    nodes = [
        helper.make_node("Resize", ["x", "", "scales"], ["r"], mode="linear"),
        helper.make_node("Concat", ["r", "w"], ["z"], axis=0),
    ]
    scales = np.array([1, 0.6], np.float32)
    m = model(nodes, [("x", F, [1, "n"]), ("w", F, ["h", "k"])], initializers=[("scales", scales)])
    compiled = ingot.compile(m, threads=1, cache=False)
    assert compiled(np.ones((1, 10), np.float32), np.ones((2, 6), np.float32)).shape == (3, 6)
    with pytest.raises(InputError):
        compiled(np.ones((1, 10), np.float32), np.ones((2, 7), np.float32))


def test_sizes_without_a_name_are_each_their_own() -> None:
    m = model(one("Identity", "x"), [("x", F, ["?", "?", None, "a.b"])])
    assert types(m)[0] == "f32[x_0,x_1,x_2,a_b]"
    assert types(m, dynamic={"x": {1: 48, -2: (2, 9)}})[0] == "f32[x_0,48,x_2,a_b]"
    assert import_onnx(m, dynamic={"x": {2: (2, 9)}}).bounds == (("x_2", 2, 9),)
    assert types(m, dynamic={"a.b": 3})[0] == "f32[x_0,x_1,x_2,3]"
    with pytest.raises(InputError, match="axes of 4"):
        import_onnx(m, dynamic={"x": {4: 1}})
    with pytest.raises(InputError, match="one of the inputs"):
        import_onnx(m, dynamic={"y": {0: 1}})


def test_sizes_that_must_be_equal_are() -> None:
    m = model(one("Add", "x", "y"), [("x", F, ["n", 4]), ("y", F, ["m", 4])])
    assert types(m) == ["f32[n,4]", "f32[n,4]", "f32[n,4]"]
    m = model(one("Add", "x", "y"), [("x", F, ["n"]), ("y", F, [7])])
    assert types(m) == ["f32[7]", "f32[7]", "f32[7]"]
    m = model(one("MatMul", "x", "y"), [("x", F, [2, "past + new"]), ("y", F, ["all", 3]), ("z0", F, ["past", "new"])])
    assert types(m)[1] == "f32[new+past,3]"


def test_a_size_that_is_1_broadcasts_in_the_calls_where_it_is() -> None:
    """x[a] + w[5] makes a 5, unless a call brings 1; x[a] + y[b] likewise."""
    m = model(one("Add", "x", "w"), [("x", F, ["a"])], initializers=[("w", X[0, :5])])
    two = model(one("Add", "x", "y"), [("x", F, ["a", "n"]), ("y", F, ["b", "n"])])
    added, sums = (ingot.compile(source, threads=1, cache=False) for source in (m, two))
    for a, b in ((5, 4), (1, 1)):
        assert_close([added(X[1, :a])], runtime(m, x=X[1, :a]))
        assert_close([sums(X[:b], X[:4])], runtime(two, x=X[:b], y=X[:4]))
    for size in (0, 4):
        with pytest.raises(InputError, match="expected 5"):
            added(X[1, :size])
    with pytest.raises(InputError, match="expected 5"):
        ingot.compile(m, dynamic={"a": (1, 9)}, threads=1, cache=False)(X[1, :1])


def test_a_state_of_batch_1_makes_the_batch_1() -> None:
    w, r = np.zeros((1, 8, 3), np.float32), np.zeros((1, 8, 2), np.float32)
    nodes = [helper.make_node("LSTM", ["x", "w", "r", "", "", "h", "c"], ["z"], hidden_size=2)]
    inputs = [("x", F, ["s", "n", 3]), ("h", F, [1, 1, 2]), ("c", F, [1, 1, 2])]
    m = model(nodes, inputs, (("z", F),), [("w", w), ("r", r)])
    assert types(m) == ["f32[s,1,3]", "f32[1,1,2]", "f32[1,1,2]", "f32[s,1,1,2]"]


def test_a_reshape_that_holds_on_a_range_is_checked_by_the_call() -> None:
    """A size of 16 to 31 is one block of 16, and 48 rows are wanted whatever it is."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[1, 16], strides=[1, 16]),
        helper.make_node("Reshape", ["p", "s"], ["z"]),
    ]
    m = model(nodes, [("x", F, [1, "n", 3, "h"])], initializers=[("s", [-1, 3])])
    graph = import_onnx(m)
    for n, h in ((2, 16), (5, 31)):
        x = np.random.default_rng(n).standard_normal((1, n, 3, h)).astype(np.float32)
        assert_close(interpret(graph, {"x": x}), runtime(m, x=x))
    m = model(nodes, [("x", F, [1, "n", 3, "h"])], initializers=[("s", [1, 0, 3])])
    graph = import_onnx(m)
    x = np.ones((1, 4, 3, 40), np.float32)
    assert_close(interpret(graph, {"x": x[..., :20]}), runtime(m, x=x[..., :20]))
    with pytest.raises(InputError, match="h"):
        interpret(graph, {"x": x})


def test_sizes_that_are_never_equal_are_refused() -> None:
    with pytest.raises(ShapeError, match="sizes differ"):
        import_onnx(model(one("Add", "x", "y"), [("x", F, [5]), ("y", F, [7])]))
    m = model([helper.make_node("Concat", ["x", "two"], ["p"], axis=0), *one("Add", "x", "p")], [("x", F, ["n"])],
              initializers=[("two", np.zeros(2, np.float32))])  # fmt: skip
    with pytest.raises(ShapeError, match="sizes differ"):
        import_onnx(m)


def test_a_squeeze_of_an_open_axis_asks_for_1() -> None:
    m = model(one("Squeeze", "x", "axes"), [("x", F, ["n", "m"])], initializers=[("axes", np.array([1]))])
    graph = import_onnx(m)
    x = np.ones((3, 1), np.float32)
    assert_close(interpret(graph, {"x": x}), runtime(m, x=x))
    with pytest.raises(InputError):
        interpret(graph, {"x": np.ones((3, 2), np.float32)})


def test_a_branch_knows_its_condition() -> None:
    """What `x.squeeze(1)` is exported as: two programs, by what the size is."""

    def branch(name: str, op: str, *inputs_: str) -> onnx.GraphProto:
        info = helper.make_tensor_value_info(name, F, None)
        return helper.make_graph([helper.make_node(op, ["x", *inputs_], [name])], name, [], [info])

    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "one"], ["n"]),
        helper.make_node("Equal", ["n", "one"], ["is_one"]),
        helper.make_node("If", ["is_one"], ["y"], then_branch=branch("a", "Squeeze", "axes"),
                         else_branch=branch("b", "Identity")),
        helper.make_node("Neg", ["y"], ["z"]),
    ]  # fmt: skip
    m = model(nodes, [("x", F, ["b", "n"])], initializers=[("one", np.int64(1)), ("axes", np.array([1]))])
    compiled = ingot.compile(m, cache=False, threads=1)
    assert not compiled.is_one_program
    for shape in ((3, 1), (3, 5), (2, 2), (7, 1)):
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        assert_close([compiled(x)], runtime(m, x=x))
    programs = compiled._executable
    assert isinstance(programs, ValueSpecialization) and len(programs._programs) == 2
    assert types(m, dynamic={"n": 1}) == ["f32[b,1]", "f32[b]"]
    assert types(m, example={"x": [4, 9]}) == ["f32[b,n]", "f32[b,n]"]
    with pytest.raises(NeedsValues, match="dynamic="):
        import_onnx(m)


def test_an_open_axis_is_split_into_equal_parts() -> None:
    """As a gated linear unit does; a size that is odd is refused by the call."""
    nodes = [helper.make_node("Split", ["x"], ["a", "b"], axis=1), helper.make_node("Mul", ["a", "b"], ["z"])]
    m, x = model(nodes, [("x", F, [2, "n"])], opset=13), np.arange(16, dtype=np.float32).reshape(2, 8)
    compiled = ingot.compile(m)
    assert_close(runtime(m, x=x), [compiled(x)])
    with pytest.raises(InputError, match="expected \\(\\(2 \\* \\(n // 2"):
        compiled(x[:, :5])


@pytest.mark.parametrize("n", [2, 7, 8, 9])
def test_the_last_of_the_parts_may_be_smaller(n: int) -> None:
    nodes = [
        helper.make_node("Split", ["x"], ["a", "b", "c"], num_outputs=3),
        helper.make_node("Concat", ["c", "b", "a"], ["z"], axis=0),
    ]
    m, x = model(nodes, [("x", F, ["n"])], opset=18), np.arange(n, dtype=np.float32)
    assert_close(runtime(m, x=x), [ingot.compile(m)(x)])


def test_parts_say_what_an_open_axis_is() -> None:
    nodes = [helper.make_node("Split", ["x", "s"], ["a", "b"]), helper.make_node("Concat", ["b", "a"], ["z"], axis=0)]
    m = model(nodes, [("x", F, ["n"])], initializers=[("s", [3, 5])])
    compiled, x = ingot.compile(m), np.arange(8, dtype=np.float32)
    assert_close(runtime(m, x=x), [compiled(x)])
    with pytest.raises(InputError):
        compiled(x[:5])


@pytest.mark.parametrize(("first", "last"), [("i", "i + 2"), ("i + 3", "i + 5")])
def test_a_slice_that_a_loop_moves(first: str, last: str) -> None:
    def place(name: str, text: str) -> str:
        return f"{name}k = Constant <value = int64 {{{(text + ' + 0').split()[2]}}}> () {name}s = Add (i, {name}k)"

    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (int64 n, float[8,3] x, float[2,3] start) => (float[2,3] y, float[t,2,3] each) {{
        yes = Constant <value = bool {{1}}> ()
        y, each = Loop (n, yes, start)
        <body = b (int64 i, bool go, float[2,3] v) => (bool go_on, float[2,3] w, float[2,3] z) {{
            go_on = Identity (go)
            axis = Constant <value = int64[1] {{0}}> ()
            {place("a", first)} {place("b", last)}
            a = Unsqueeze (as, axis) b = Unsqueeze (bs, axis)
            z = Slice (x, a, b, axis)
            w = Add (v, z)
        }}>
    }}"""
    m = onnx.parser.parse_model(text)
    data = {"x": np.arange(24, dtype=np.float32).reshape(8, 3), "start": np.ones((2, 3), np.float32)}
    compiled = ingot.compile(m, threads=1)
    for trip_count in (0, 1, 4):
        arrays = {"n": np.array(trip_count), **data}
        assert_close(compiled(**arrays), runtime(m, **arrays))


@pytest.mark.parametrize(
    "places",
    [
        "a = Unsqueeze (i, axis) b = Mul (a, a)",
        # int(x + 1) is int(x) + 1 where no sign changes, int(x + 0.5) now and then
        "f = Unsqueeze (v, axis) h = Add (f, one) a = Cast <to = 7> (f) b = Cast <to = 7> (h)",
        "f = Cast <to = 1> (i) g = Unsqueeze (f, axis) h = Add (g, half) a = Unsqueeze (i, axis) b = Cast <to = 7> (h)",
    ],
)
def test_a_slice_of_another_length_at_each_turn_is_refused(places: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (int64 n, float[8] x, float s) => (float y) {{
        yes = Constant <value = bool {{1}}> ()
        y = Loop (n, yes, s) <body = b (int64 i, bool go, float v) => (bool go_on, float w) {{
            go_on = Identity (go)
            axis = Constant <value = int64[1] {{0}}> ()
            one = Constant <value = float[1] {{1.0}}> () half = Constant <value = float[1] {{0.5}}> ()
            {places}
            z = Slice (x, a, b, axis)
            total = ReduceSum <keepdims = 0> (z)
            w = Add (v, total)
        }}>
    }}"""
    m = onnx.parser.parse_model(text)
    compiled = ingot.compile(m, threads=1, cache=False)
    for trip_count, s in ((0, 1.0), (1, 2.0), (4, 0.5), (9, 1.5)):
        arrays = {"n": np.array(trip_count), "x": np.arange(1, 9, dtype=np.float32), "s": np.array(s, np.float32)}
        assert_close([compiled(**arrays)], runtime(m, **arrays))


WHILE = """<ir_version: 8, opset_import: ["" : 18]>
g (float[n,2] x, float a, float b) => (float[m,2] y, float[k,2] w, int64 last, float[l] both)
<int64 one={1}, int64 two={2}, int64 z={0}, bool t={1}, float fone={1.0}, float fz={0.0}> {
   s = Shape<start=0,end=1>(x)
   n0 = Squeeze(s)
   e1, u = Loop("", t, z) <body = b1 (int64 i, bool c, int64 s1) => (bool c2, int64 s2, float[2] t1) {
        r = Gather(x, s1)
        t1 = Add(r, r)
        s2 = Add(s1, one)
        c2 = Less(s2, n0)
     }>
   last, w = Loop("", t, z) <body = b2 (int64 j, bool d, int64 p1) => (bool d2, int64 p2, float[2] t2) {
        t2 = Gather(x, p1)
        p2 = Add(p1, two)
        d2 = Greater(n0, p2)
     }>
   e3, q = Loop("", t, fz) <body = b3 (int64 i3, bool c3, float q1) => (bool c4, float q2, float t3) {
        q2 = Add(q1, fone)
        c4 = Less(q2, a)
        t3 = Mul(q2, q2)
     }>
   e4, v = Loop("", t, fz) <body = b4 (int64 i4, bool c5, float v1) => (bool c6, float v2, float t4) {
        v2 = Add(v1, fone)
        c6 = Less(v2, b)
        t4 = Sqrt(v2)
     }>
   y = Mul(u, x)
   both = Add(q, v)
}"""


def test_loops_that_count_and_loops_of_as_many_turns() -> None:
    """A counter that is compared with a size tells the turns; two loops of which only the run knows must agree."""
    model = onnx.parser.parse_model(WHILE)
    compiled = ingot.compile(model, cache=False)
    assert [str(o) for o in compiled.outputs][:2] == ["y: f32[n, 2]", "w: f32[((n + 1) // 2), 2]"]
    for n, a in ((1, 3), (4, 1), (5, 6)):
        bound = np.array(a, np.float32)
        inputs = {"x": np.random.rand(n, 2).astype(np.float32), "a": bound, "b": bound}
        assert_close(compiled(**inputs), runtime(model, **inputs))
    with pytest.raises(InputError, match=r"\$turns0 = 3, \$turns1 = 5"):
        compiled(np.ones((2, 2), np.float32), np.float32(3), np.float32(5))


BLOCKS = """<ir_version: 8, opset_import: ["" : 18]> g (float[n,2,h,w] x, float[2,2,3,3] k) => (y)
<int64[2] two={2,2}, int64[2] zero2={0,0}, int64[1] big={2147483647}, int64[2] base={2,2}, int64[1] m1={-1},
 int64[2] axes={2,3}, int64[1] i0={0}, int64[1] i1={1},
 int64[1] i2={2}, int64[1] i3={3}, int64[4] z4={0,0,0,0}> {
 s = Shape(x) hw = Gather(s, axes) padded = Add(hw, base) padded2 = Add(padded, base)
 r = Mod(padded2, two) q = Sub(two, r) extra = Mod(q, two)
 high = Add(base, extra)
 pads = Concat<axis=0>(zero2, base, zero2, high) xp = Pad(x, pads)
 sp = Shape(xp) N = Gather(sp, i0) C = Gather(sp, i1) hp = Gather(sp, i2) wp = Gather(sp, i3)
 hb = Div(hp, i2) wb = Div(wp, i2)
 t1 = Concat<axis=0>(N, C, hb, i2, wb, i2) a = Reshape(xp, t1) b = Transpose<perm=[3,5,0,1,2,4]>(a)
 t2 = Concat<axis=0>(m1, C, hb, wb) d = Reshape(b, t2)
 e = Conv<kernel_shape=[3,3]>(d, k)
 se = Shape(e) O = Gather(se, i1) he = Gather(se, i2) we = Gather(se, i3)
 t3 = Concat<axis=0>(i2, i2, N, O, he, we) f = Reshape(e, t3) u = Transpose<perm=[2,3,4,0,5,1]>(f)
 hm = Mul(he, i2) wm = Mul(we, i2)
 t4 = Concat<axis=0>(N, O, hm, wm) v = Reshape(u, t4)
 none = Equal(extra, zero2) bits = Cast<to=7>(none) far = Mul(bits, big) ends = Sub(far, extra)
 cut = Slice(v, zero2, ends, axes)
 y = Add(cut, x)
}"""


def test_a_dilated_convolution_by_blocks() -> None:
    """As tf2onnx writes it, for images of any size: a crop of nothing ends at INT_MAX."""
    m = onnx.parser.parse_model(BLOCKS)
    compiled = ingot.compile(m, threads=1, cache=False)
    rng = np.random.default_rng(0)
    k = rng.random((2, 2, 3, 3), np.float32)
    for shape in ((1, 2, 7, 5), (2, 2, 6, 6), (1, 2, 8, 9), (1, 2, 1, 4)):
        x = rng.random(shape, np.float32)
        np.testing.assert_allclose(compiled(x, k), runtime(m, x=x, k=k)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", [0.7, 1.1, 1 / 3, 2.3])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("is_computed", [False, True])
def test_a_resize_by_what_is_no_ratio(scale: float, mode: str, is_computed: bool) -> None:
    """Sizes are rounded as floats round them: 20 * 0.7 is 14."""
    nodes_ = [
        helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Cast", ["s"], ["f"], to=F),
        helper.make_node("Mul", ["f", "k"], ["m"]), helper.make_node("Floor", ["m"], ["r"]),
        helper.make_node("Cast", ["r"], ["n"], to=TensorProto.INT64),
        helper.make_node("Resize", ["x", "", "", "n"], ["z"], mode=mode),
    ]  # fmt: skip
    nodes = nodes_ if is_computed else one("Resize", "x", "", "k", mode=mode)
    scales = np.array([1, 1, scale, scale], np.float32)
    m = model(nodes, [("x", F, [1, 1, "h", "w"])], initializers=[("k", scales)])
    compiled = ingot.compile(m, threads=1, cache=False)
    for h, w in ((20, 10), (12, 7), (3, 31)):
        x = np.random.default_rng(h).random((1, 1, h, w), np.float32)
        np.testing.assert_allclose(compiled(x), runtime(m, x=x)[0], rtol=1e-5, atol=1e-5)
