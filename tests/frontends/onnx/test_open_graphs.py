"""Graphs as other exporters write them, with open sizes, beside ONNX Runtime and under guard pages."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import ingot
from tests.frontends.onnx.reference import runtime
from tests.guard import check_all

_RNG = np.random.default_rng(0)


def _w(*shape: int, scale: float = 1) -> np.ndarray:
    return (_RNG.standard_normal(shape) * scale / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def _sizes(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def _floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


AXES = {f"at{k}": _sizes(k) for k in range(9)} | {"at01": _sizes(0, 1), "at12": _sizes(1, 2), "at23": _sizes(2, 3)}
Graph = tuple[str, dict[str, Any], list[tuple[int, ...]]]
GRAPHS: dict[str, Graph] = {
    # scores and boxes of a map, what is left of overlapping boxes, five of it at most
    "detector": ("""(float[1,3,h,w] x) => (float[k,4] boxes, float[k] scores, int64[k] classes) {
        f0 = Conv<strides=[2,2], pads=[1,1,1,1]>(x, w0) f = Relu(f0) b0 = Conv<pads=[1,1,1,1]>(f, wb)
        bt = Transpose<perm=[0,2,3,1]>(b0) b1 = Reshape(bt, b_shape) b2 = Sigmoid(b1) lo = Slice(b2, at0, at2, at2)
        size = Slice(b2, at2, at4, at2) hi = Add(lo, size) b = Concat<axis=2>(lo, hi) c0 = Conv<pads=[1,1,1,1]>(f, wc)
        ct = Transpose<perm=[0,2,3,1]>(c0) c1 = Reshape(ct, c_shape) c2 = Sigmoid(c1) c = Transpose<perm=[0,2,1]>(c2)
        kept = NonMaxSuppression(b, c, most, overlap, level) class1 = Slice(kept, at1, at2, at1)
        class = Squeeze(class1, at1) place1 = Slice(kept, at2, at3, at1) place = Squeeze(place1, at1)
        bs = Squeeze(b, at0) bb = Gather<axis=0>(bs, place) cs = Squeeze(c, at0) pair = Concat<axis=1>(class1, place1)
        sc = GatherND(cs, pair) n = Shape(sc) k = Min(n, at5) scores, order = TopK(sc, k)
        boxes = Gather<axis=0>(bb, order) classes = Gather<axis=0>(class, order) }""",
        {"w0": _w(8, 3, 3, 3), "wb": _w(8, 8, 3, 3, scale=3), "wc": _w(6, 8, 3, 3, scale=5),
         "b_shape": _sizes(1, -1, 4), "c_shape": _sizes(1, -1, 3), "most": _sizes(10), "overlap": _floats(0.3),
         "level": _floats(0.55)},
        [(1, 3, 16, 20), (1, 3, 1, 1), (1, 3, 33, 17)]),
    # proposals, the best 20 at most, cut out of the map and classified
    "two stages": ("""(float[1,3,h,w] x) => (float[r,5] y, float[r,4] rois) {
        f0 = Conv<strides=[2,2], pads=[1,1,1,1]>(x, w0) f = Relu(f0) o0 = Conv(f, wo) o1 = Reshape(o0, flat)
        d0 = Conv(f, wd) dt = Transpose<perm=[0,2,3,1]>(d0) d = Reshape(dt, fours) ds = Sigmoid(d)
        lo = Slice(ds, at0, at2, at1) sz = Slice(ds, at2, at4, at1) hi = Add(lo, sz) b0 = Concat<axis=1>(lo, hi)
        b = Mul(b0, eight) n = Shape(o1) k = Min(n, twenty) s, at = TopK(o1, k) bk = Gather<axis=0>(b, at)
        b3 = Unsqueeze(bk, at0) s3 = Unsqueeze(s, at01) kept = NonMaxSuppression(b3, s3, at8, overlap)
        i1 = Slice(kept, at2, at3, at1) i = Squeeze(i1, at1) rois = Gather<axis=0>(bk, i) rs = Shape(i)
        bf = ConstantOfShape(rs) batch = Cast<to=7>(bf) p = RoiAlign<output_height=3, output_width=3, sampling_ratio=2,
        spatial_scale=0.5>(f, rois, batch) q = Flatten(p) y = Gemm(q, wy) }""",
        {"w0": _w(8, 3, 3, 3), "wo": _w(2, 8, 1, 1), "wd": _w(8, 8, 1, 1, scale=3), "flat": _sizes(-1),
         "fours": _sizes(-1, 4), "eight": np.float32(8), "twenty": _sizes(20), "overlap": _floats(0.5),
         "wy": _w(72, 5)},
        [(1, 3, 16, 20), (1, 3, 2, 2), (1, 3, 33, 17)]),
    # a dilated convolution of TensorFlow's: SpaceToBatchND, convolution, BatchToSpaceND that crops to INT_MAX
    "dilated": ("""(float[1,h,w,4] x) => (float[1,oh,ow,4] y) {
        s = Shape(x) hw = Slice(s, at1, at3) plus = Add(hw, fours) r = Mod(plus, twos) r1 = Sub(twos, r)
        extra = Mod(r1, twos) after = Add(twos, extra) pads = Concat<axis=0>(at0, twos, at0, at0, after, at0)
        px = Pad(x, pads) ps = Shape(px) phw = Slice(ps, at1, at3) half = Div(phw, twos) ph = Slice(half, at0, at1)
        pw = Slice(half, at1, at2) r6 = Concat<axis=0>(at1, ph, at2, pw, at2, at4) x6 = Reshape(px, r6)
        t6 = Transpose<perm=[2,4,0,1,3,5]>(x6) r4 = Concat<axis=0>(at4, ph, pw, at4) x4 = Reshape(t6, r4)
        xn = Transpose<perm=[0,3,1,2]>(x4) c = Conv(xn, w0, b0) cr = Relu(c) cn = Transpose<perm=[0,2,3,1]>(cr)
        cs = Shape(cn) ch = Slice(cs, at1, at2) cw = Slice(cs, at2, at3) r7 = Concat<axis=0>(at2, at2, at1, ch, cw, at4)
        y6 = Reshape(cn, r7) y6t = Transpose<perm=[2,3,0,4,1,5]>(y6) ch2 = Mul(ch, at2) cw2 = Mul(cw, at2)
        r8 = Concat<axis=0>(at1, ch2, cw2, at4) y4 = Reshape(y6t, r8) none = Equal(extra, zeros)
        many = Cast<to=7>(none) far = Mul(many, int_max) end = Sub(far, extra) y = Slice(y4, zeros, end, at12) }""",
        {"fours": _sizes(4, 4), "twos": _sizes(2, 2), "zeros": _sizes(0, 0), "int_max": _sizes(2**31 - 1, 2**31 - 1),
         "w0": _w(4, 4, 3, 3), "b0": _w(4)},
        [(1, 8, 8, 4), (1, 1, 1, 4), (1, 7, 11, 4)]),
    # down by 0.7 and 1/3 as scales, and by 0.7 as Shape, Mul, Floor; up again to the image's own size
    "pyramid": ("""(float[n,3,h,w] x) => (float[n,4,h,w] y, float[n,4,a,b] z) {
        f = Conv<pads=[1,1,1,1]>(x, w0) a = Resize<mode="linear">(f, , s07) b = Resize<mode="nearest",
        coordinate_transformation_mode="asymmetric", nearest_mode="floor">(f, , s13) s = Shape(f)
        hw = Slice(s, at2, at4) nc = Slice(s, at0, at2) hf = Cast<to=1>(hw) hm = Mul(hf, f07) hl = Floor(hm)
        hi = Cast<to=7>(hl) hi1 = Max(hi, ones) sizes = Concat<axis=0>(nc, hi1) c = Resize<mode="linear",
        coordinate_transformation_mode="align_corners">(f, , , sizes) z = Relu(c) a1 = Conv<pads=[1,1,1,1]>(a, w1)
        a2 = Resize<mode="linear">(a1, , , s) b1 = Resize<mode="nearest">(b, , , s) ab = Add(a2, b1)
        c1 = Resize<mode="cubic">(z, , , s) y = Add(ab, c1) }""",
        {"w0": _w(4, 3, 3, 3), "w1": _w(4, 4, 3, 3), "s07": _floats(1, 1, 0.7, 0.7), "ones": _sizes(1, 1),
         "s13": _floats(1, 1, 1 / 3, 1 / 3), "f07": np.float32(0.7)},
        [(1, 3, 16, 20), (2, 3, 3, 3), (1, 3, 33, 17)]),
    "segments with auto_pad": ("""(float[n,3,h,w] x) => (float[n,2,a,b] y) {
        a0 = Conv<strides=[2,2], auto_pad="SAME_UPPER">(x, w0) a = Relu(a0) b0 = MaxPool<kernel_shape=[3,3],
        strides=[2,2], auto_pad="SAME_UPPER">(a) b = Conv<auto_pad="SAME_LOWER">(b0, w1) c0 = ConvTranspose<
        strides=[2,2], auto_pad="SAME_UPPER">(b, w2) as = Shape(a) ahw = Slice(as, at2, at4)
        c1 = Slice(c0, zeros, ahw, at23) c = Add(a, c1) y = ConvTranspose<strides=[2,2], auto_pad="SAME_LOWER">(c, w3)
        }""",
        {"w0": _w(8, 3, 3, 3), "w1": _w(8, 8, 3, 3), "w2": _w(8, 8, 3, 3), "w3": _w(8, 2, 4, 4), "zeros": _sizes(0, 0)},
        [(1, 3, 16, 20), (1, 3, 1, 1), (2, 3, 33, 17)]),
    # distinct values and their counts, and sums of as many bins as the largest value says
    "histogram": ("""(int64[n] x) => (int64[u] values, int64[u] counts, float[b] bins) {
        values, first, inverse, counts = Unique<sorted=1>(x) top = ReduceMax<keepdims=0>(x) size0 = Add(top, one)
        size = Unsqueeze(size0, at0) zeros = ConstantOfShape(size) shape = Shape(x) ones = Expand(onef, shape)
        bins0 = ScatterElements<axis=0, reduction="add">(zeros, x, ones) bins = CumSum(bins0, zero) }""",
        {"one": np.int64(1), "zero": np.int64(0), "onef": _floats(1)}, [(50,), (1,), (300,)]),
    # such an end would be of more than a hundred elements, but the product takes twenty: the slice is empty
    "an end beyond what a product takes": ("""(float[a,b,c,7] x) => (float[7,5] y, float[a,d,c,7] z) {
        rows = Flatten<axis=3>(x) y = Gemm<transA=1>(rows, w) z = Slice(x, at1, far, at1, at3) }""",
        {"w": _w(20, 5), "far": _sizes(-100)}, [(4, 1, 5, 7), (2, 10, 1, 7)]),
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph(name: str) -> None:
    text, weights, shapes = GRAPHS[name]
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> g {text}')
    read = {n for node in model.graph.node for n in node.input}
    values = {n: v for n, v in (AXES | weights).items() if n in read}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(v), n) for n, v in values.items())
    compiled: Any = ingot.compile(model, threads=1, cache=False)
    assert compiled.is_one_program
    rng = np.random.default_rng(1)
    inputs = [
        rng.integers(0, 9, s) if name == "histogram" else rng.standard_normal(s).astype(np.float32) for s in shapes
    ]
    for x in inputs:
        results = compiled(x)
        for y, want in zip(results if isinstance(results, tuple) else (results,), runtime(model, x=x), strict=True):
            np.testing.assert_allclose(y, want, rtol=1e-5, atol=2e-5, strict=True)
    check_all({str(x.shape): partial(compiled, x) for x in inputs})
