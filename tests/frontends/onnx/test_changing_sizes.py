"""Values of branches and loops whose sizes change from branch to branch and from turn to turn, as in decoders."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import ingot
from ingot.support.errors import ImportModelError, InputError
from tests.guard import Case, check_all

# of x [t,2]: the body of a loop from the carried w of one row, and the count of turns n; t may be 0
_LOOPS = {
    # w grows by a row each turn; a sum over all its rows decides what comes next
    "rows": "w_out = Concat<axis = 0>(w, mean) go_out = Identity(go)",
    # by two rows, with the number of turns left to a condition
    "by the condition": "w_out = Concat<axis = 0>(w, mean, last) m = ReduceSum<keepdims = 0>(mean) "
    "go_out = Less(m, cap)",
    # by a row where its mean is positive
    "by the values": "m = ReduceSum<keepdims = 0>(mean) p = Greater(m, level) w_out = If(p) <then_branch = then () => "
    "(float[r,2] a) {a = Concat<axis = 0>(w, mean)}, else_branch = other () => (float[s,2] b) {b = Identity(w)}> "
    "go_out = Identity(go)",
    # fewer rows: from the third on one goes away
    "fewer": "w_out = Slice(w, skip, many, axis0) go_out = Identity(go)",
    # only rows of positive sums are kept, and one is added
    "filtered": "s = ReduceSum<keepdims = 0>(w, axis1) p = Greater(s, level) k = Compress<axis = 0>(w, p) "
    "w_out = Concat<axis = 0>(k, mean) go_out = Identity(go)",
}


def _loop(body: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[t,2] x, int64 n, bool start) => (float[u,2] y)
    <int64[1] axis0 = {{0}}, int64[1] axis1 = {{1}}, int64[1] skip = {{1}}, int64[1] many = {{9000}},
     float cap = {{60.0}}, float level = {{0.25}},
     float[1,2] first = {{0.5, -0.25}}, float[1,2] push = {{0.25, 0.5}}> {{
        w0 = Concat<axis = 0>(first, x)
        y = Loop(n, start, w0) <body = body (int64 i, bool go, float[r,2] w) => (bool go_out, float[q,2] w_out) {{
            mean0 = ReduceMean<axes = [0], keepdims = 1>(w)
            f = Cast<to = 1>(i)
            g = Sin(f)
            mean1 = Add(mean0, push)
            mean = Mul(mean1, g)
            last = Sub(push, mean)
            {body}
        }}>
    }}""")


def _run(model: onnx.ModelProto, compiled: Any, **feed: np.ndarray) -> None:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    want: Any = session.run(None, feed)
    results = compiled(**feed)
    for y, expected in zip(results if isinstance(results, tuple) else (results,), want, strict=True):
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5, strict=True)


@pytest.mark.parametrize("kind", _LOOPS)
def test_a_loop(kind: str) -> None:
    model = _loop(_LOOPS[kind])
    compiled = ingot.compile(model, threads=1, cache=False)
    assert compiled.is_one_program
    rng = np.random.default_rng(0)
    cases: dict[str, Case] = {}
    for t, n in ((3, 5), (1, 0), (1, 1), (7, 30)):
        x = rng.standard_normal((t, 2)).astype(np.float32)
        feed = {"x": x, "n": np.asarray(n), "start": np.asarray(True)}
        _run(model, compiled, **feed)
        cases[str((t, n))] = partial(compiled, **feed)
    check_all(cases)


def test_a_loop_in_a_loop() -> None:
    """A transducer's: for each frame up to two symbols are appended, to a vector and to a list."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    g (float[t,3] x) => (int64[u] y, float[v] z, bool[w] p)
    <int64 zero = {0}, int64 two = {2}, int64[1] first = {0}, int64[1] start = {7}, bool true = {1}, bool[1] bit = {1},
     float half = {0.5}> {
        none = SequenceEmpty<dtype = 1>()
        s = Shape(x) t1 = Gather(s, first) t = Squeeze(t1, first)
        y, p, l = Loop(t, , start, bit, none) <body = outer
            (int64 i, bool go, int64[a] k, bool[b] m, seq(float[c]) l0) =>
            (bool go_out, int64[d] k_out, bool[e] m_out, seq(float[f]) l_out) {
            row = Gather(x, i)
            k_out, m_out, l_out = Loop(two, , k, m, l0) <body = inner
                (int64 j, bool go1, int64[a1] k1, bool[b1] m1, seq(float[c1]) l1) =>
                (bool go2, int64[d1] k2, bool[e1] m2, seq(float[f1]) l2) {
                n = Size(k1) nf = Cast<to = 1>(n) r = Add(row, nf) q = Sin(r) best0 = ArgMax(q) value = ReduceMax(q)
                hit0 = Greater(value, half) hit = Squeeze(hit0, first) best = Identity(best0)
                k2, m2, l2 = If(hit) <
                    then_branch = then () => (int64[g1] k3, bool[h1] m3, seq(float[i1]) l3) {
                        k3 = Concat<axis = 0>(k1, best) nm = Not(hit0) m3 = Concat<axis = 0>(m1, nm, hit0)
                        l3 = SequenceInsert(l1, value) },
                    else_branch = other () => (int64[g2] k4, bool[h2] m4, seq(float[i2]) l4) {
                        k4 = Identity(k1) m4 = Identity(m1) l4 = Identity(l1) }>
                go2 = Identity(go1)
            }>
            go_out = Identity(go)
        }>
        z = ConcatFromSequence<axis = 0>(l)
    }""")
    compiled: Any = ingot.compile(model, threads=1, cache=False)
    assert compiled.is_one_program
    rng = np.random.default_rng(0)
    feeds = [rng.standard_normal((t, 3)).astype(np.float32) for t in (1, 4, 33)]
    for x in feeds:
        tokens, values, bits = [7], [], [True]
        for row in x:
            for _ in range(2):
                q = np.sin(row + np.float32(len(tokens)))
                if q.max() > 0.5:
                    tokens, values, bits = [*tokens, int(q.argmax())], [*values, q.max()], [*bits, False, True]
        y, z, p = compiled(x)
        assert y.tolist() == tokens and p.tolist() == bits
        np.testing.assert_allclose(z, values, rtol=1e-5)
    check_all({str(i): partial(compiled, x) for i, x in enumerate(feeds)})


@pytest.mark.parametrize("kind", ["rows", "by the values", "filtered"])
def test_more_turns_than_there_is_room_for_are_refused(kind: str) -> None:
    """By the call, which writes nothing outside of its buffers until then."""
    limits = ingot.Limits(iterations=4, sizes=6)
    compiled = ingot.compile(_loop(_LOOPS[kind]), threads=1, cache=False, limits=limits)
    x = np.ones((1, 2), np.float32)
    assert compiled(x, np.asarray(4), np.asarray(True)).shape[0] <= 6

    def refused(n: int) -> None:
        with pytest.raises(InputError, match="Limits"):
            compiled(x, np.asarray(n), np.asarray(True))

    check_all({str(n): partial(refused, n) for n in (9, 50, 2**62)})


_BRANCHES = {
    "sizes": ("a = Concat<axis = 0>(x, x)", "b = Slice(x, one, many)"),
    "a size and one that is found": ("a = Compress<axis = 0>(x, p)", "b = Concat<axis = 0>(x, row)"),
    "two sizes that are found": ("a = Compress<axis = 0>(x, p)", "np = Not(p) b = Compress<axis = 0>(x, np)"),
    "nothing": ("a = Slice(x, one, one)", "b = Identity(x)"),
}


@pytest.mark.parametrize("kind", _BRANCHES)
def test_branches_of_other_sizes(kind: str) -> None:
    then, other = _BRANCHES[kind]
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[t,2] x) => (float[u,2] y, float z)
    <int64[1] one = {{1}}, int64[1] many = {{9000}}, int64[1] axis1 = {{1}}, float zero = {{0.0}},
     float[1,2] row = {{0.5, -0.25}}> {{
        s = ReduceSum<keepdims = 0>(x)
        go = Greater(s, zero)
        r = ReduceSum<keepdims = 0>(x, axis1)
        p = Greater(r, zero)
        y = If(go) <then_branch = then () => (float[v,2] a) {{ {then} }},
                    else_branch = other () => (float[w,2] b) {{ {other} }}>
        z = ReduceSum<keepdims = 0>(y)
    }}""")
    compiled = ingot.compile(model, threads=1, cache=False)
    assert compiled.is_one_program
    rng = np.random.default_rng(0)
    feeds = [rng.standard_normal((t, 2)).astype(np.float32) * sign for t in (1, 2, 9) for sign in (1, -1)]
    for x in feeds:
        _run(model, compiled, x=x)
    check_all({str(i): partial(compiled, x) for i, x in enumerate(feeds)})


_LISTS = {
    "of rows, stacked": ("m = Mul(r, f)", "y = ConcatFromSequence<axis = 1, new_axis = 1>(s)"),
    "of rows, joined": ("m = Mul(r, f)", "y = ConcatFromSequence<axis = -1>(s)"),
    "of parts of other sizes": ("z = Range(zero, i, one) m = Cast<to = 1>(z)", "y = ConcatFromSequence<axis = 0>(s)"),
    "of which one is taken": ("m = Mul(r, f)", "k = SequenceLength(s) h = Div(k, two) y = SequenceAt(s, h)"),
    "of which the last is taken": ("m = Mul(r, f)", "back = Neg(one) y = SequenceAt(s, back)"),
}


@pytest.mark.parametrize("kind", _LISTS)
def test_a_list_that_a_loop_appends_to(kind: str) -> None:
    member, use = _LISTS[kind]
    rank = "[a]" if "stacked" not in kind else "[a,b]"
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[t] r, int64 n) => (float{rank} y)
    <int64 zero = {{0}}, int64 one = {{1}}, int64 two = {{2}}> {{
        none = SequenceEmpty<dtype = 1>()
        s = Loop(n, , none) <body = body (int64 i, bool go, seq(float[c]) l) => (bool go_out, seq(float[c]) l_out) {{
            f = Cast<to = 1>(i)
            {member}
            l_out = SequenceInsert(l, m)
            go_out = Identity(go)
        }}>
        {use}
    }}""")
    compiled = ingot.compile(model, threads=1, cache=False, limits=ingot.Limits(sizes=1000))
    assert compiled.is_one_program
    feeds = [{"r": np.arange(1, t + 1, dtype=np.float32), "n": np.asarray(n)} for t, n in ((3, 4), (1, 1), (5, 40))]
    for feed in feeds:
        _run(model, compiled, **feed)
    check_all({str(i): partial(compiled, **feed) for i, feed in enumerate(feeds)})


def _lists_of_branches(then: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[t] x) => (seq(float[a]) y) <float zero = {{0.0}}, float[2] pair = {{1.0, 2.0}}> {{
        total = ReduceSum<keepdims = 0>(x)
        p = Greater(total, zero)
        y = If(p) <then_branch = then () => (seq(float[b]) yes) {{{then}}},
        else_branch = other () => (seq(float[c]) no) {{
            twice = Add(pair, pair)
            no = SequenceConstruct(twice, pair)
        }}>
    }}""")


@pytest.mark.parametrize("sign", [1, -1])
def test_branches_that_return_lists_of_the_same_types(sign: int) -> None:
    model = _lists_of_branches("back = Neg(pair) yes = SequenceConstruct(pair, back)")
    x = np.full(3, sign, np.float32)
    results: Any = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    (want,), got = results, ingot.compile(model, cache=False)(x)
    assert len(got) == len(want) == 2 and all(np.array_equal(g, w) for g, w in zip(got, want, strict=True))


def test_a_result_that_is_a_list_of_open_length() -> None:
    with pytest.raises(ImportModelError, match=r"the output 'y'.*ConcatFromSequence"):
        ingot.compile(_lists_of_branches("yes = SequenceConstruct(pair)"), cache=False)(np.ones(3, np.float32))
