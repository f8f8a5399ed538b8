"""Sizes that a model computes from its values, as predicted durations: the run finds them, within `Limits(sizes=)`."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

import ingot
from ingot.support.errors import InputError
from tests.frontends.onnx.told import runtime, same

# n frames, from the durations of tokens x [t,2]; l is n as a vector
_DURATIONS = """
    one = Constant<value_int = 1>() zero = Constant<value_int = 0>() first = Constant<value_ints = [0]>()
    second = Constant<value_ints = [1]>() rest = Constant<value_ints = [-1]>()
    ws = Constant<value_floats = [1.0, 0.5]>() wv = Reshape(ws, shape2)
    a = MatMul(x, wv) d = Abs(a) c = Ceil(d) s = ReduceSum<keepdims = 0>(c) n = Cast<to = 7>(s)
    l = Unsqueeze(n, first)
"""
CASES = {
    "range": "y = Range(zero, n, one)",
    "range of floats": "f = Cast<to = 1>(n) z = CastLike(zero, f) o = CastLike(one, f) y = Range(z, f, o)",
    "expand": "t = Concat<axis = 0>(l, shape2) y = Expand(ws, t)",
    "constant_of_shape": "t = Concat<axis = 0>(l, second) y = ConstantOfShape(t)",
    "tile": "y = Tile(ws, l)",
    "slice": "y = Slice(table, first, l, first)",
    "slice behind": "y = Slice(table, l, many, first)",
    "pad": "p = Concat<axis = 0>(first, l) y = Pad(ws, p)",
    "pad of pads": "p = Concat<axis = 0>(l, l) q = Add(p, p) y = Pad(ws, q)",
    "top_k": "f = Flatten<axis = 0>(table) r = Reshape(f, rest) k = Min(l, many) y, at = TopK(r, k)",
    "one_hot": "v = Constant<value_floats = [0.0, 1.0]>() i = Constant<value_ints = [0, 2, 1]>() y = OneHot(i, l, v)",
    "random": "t = ConstantOfShape(l) g = RandomNormalLike<dtype = 1>(t) y = Mul(g, zf)",
    "non_zero": "r = Range(zero, n, one) two = Constant<value_int = 2>() o = Mod(r, two) y = NonZero(o)",
    "reshape": "t = Tile(ws, l) u = Concat<axis = 0>(l, rest) y = Reshape(t, u)",
    "resize": "m = Concat<axis = 0>(second, second, l, l) y = Resize(image, , , m)",
    "twice": "two = Constant<value_int = 2>() m = Mul(n, two) r = Range(zero, m, one) k = Unsqueeze(m, first) "
    "e = ConstantOfShape(k) q = Cast<to = 1>(r) y = Add(q, e)",
    "chosen": "four = Constant<value_int = 4>() b = Greater(n, four) m = Where(b, n, four) y = Range(zero, m, one)",
    # which token a frame is of, as models of speech have it
    "frames": "r = Range(zero, n, one) f = Cast<to = 1>(r) u = Unsqueeze(f, first) e = CumSum(c, zero) "
    "g = Less(u, e) h = Cast<to = 1>(g) k = Transpose(h) y = MatMul(k, x)",
}
X = (np.array([[1.5, 1], [0.25, 0.5], [2, -1]], np.float32), np.array([[0.5, 0.5]], np.float32))


def _model(nodes: str) -> onnx.ModelProto:
    table, image = (", ".join(map(str, range(n))) for n in (27, 9))
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 18]> g (float[t,2] x) => (y)
    <float[9,3] table = {{{table}}}, float[1,1,3,3] image = {{{image}}},
    int64[2] shape2 = {{2, 1}}, int64[1] many = {{9}}, float zf = {{0.0}}> {{ {_DURATIONS} {nodes} }}""")


@pytest.mark.parametrize("name", CASES)
def test_a_computed_size(name: str) -> None:
    model = _model(CASES[name])
    compiled = ingot.compile(model, threads=1, cache=False)
    for x in (*X, np.zeros((2, 2), np.float32)):
        if name in ("resize", "one_hot", "reshape") and not x.any():
            continue  # an error there
        same([compiled(x)], runtime(model, x=x))


def test_a_size_beyond_the_limit_is_refused_by_the_call() -> None:
    compiled = ingot.compile(_model(CASES["range"]), limits=ingot.Limits(sizes=4), threads=1, cache=False)
    assert compiled(X[1]).shape == (1,)
    with pytest.raises(InputError, match="Limits"):
        compiled(X[0] + 9)
