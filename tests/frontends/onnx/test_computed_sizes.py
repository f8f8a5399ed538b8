"""Sizes that a model computes from its values, as predicted durations: the run finds them, within `Limits(sizes=)`."""

from __future__ import annotations

import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import ingot
from ingot.support.errors import IngotError, InputError
from tests.frontends.onnx.reference import assert_close, runtime
from tests.guard import Case, check_all
from tests.modeling import modeling

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
    "places": "o = Greater(d, zf) q = NonZero(o) k = ReduceMax<keepdims = 0>(q) m = Add(k, one) "
    "y = Range(zero, m, one)",
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
        if name in ("resize", "one_hot", "reshape", "places") and not x.any():
            continue  # an error there
        assert_close([compiled(x)], runtime(model, x=x))


HOSTILE = (np.nan, np.inf, 1e30, 4e18, 7e4, 0.0)


def _run_hostile(compiled: Any, x: np.ndarray) -> None:
    with suppress(IngotError):
        compiled(x)


def test_no_value_leads_outside_of_memory() -> None:
    """Sizes beyond all bounds, and what is no integer, under guard pages: an error or an answer."""
    cases: dict[str, Case] = {}
    for name in ("slice", "slice behind", "pad of pads", "top_k", "reshape", "frames", "non_zero"):
        compiled = ingot.compile(_model(CASES[name]), limits=ingot.Limits(sizes=64), threads=1, cache=False)
        for value in HOSTILE:
            x = np.array([[value, 0.5], [0.25, -1], [1, 1]], np.float32)
            cases[f"{name}, {value}"] = partial(_run_hostile, compiled, x)
    check_all(cases)


def test_a_size_that_is_no_number_is_refused_by_the_call() -> None:
    """Also where no result has it: NaN becomes the smallest integer."""
    model = _model("y0 = Range(zero, n, one) y = ReduceSum<keepdims = 0>(y0)")
    compiled = ingot.compile(model, threads=1, cache=False)
    assert_close([compiled(X[0])], runtime(model, x=X[0]))
    for value in (np.nan, -np.inf):
        with pytest.raises(InputError, match="size"):
            compiled(X[0] * np.float32(value))


def test_a_size_beyond_the_limit_is_refused_by_the_call() -> None:
    compiled = ingot.compile(_model(CASES["range"]), limits=ingot.Limits(sizes=4), threads=1, cache=False)
    assert compiled(X[1]).shape == (1,)
    with pytest.raises(InputError, match="Limits"):
        compiled(X[0] + 9)


@pytest.mark.slow
@pytest.mark.parametrize("is_stochastic", [False, True], ids=["durations", "durations by flows"])
def test_speech_of_open_length(is_stochastic: bool, tmp_path: Path) -> None:
    """VITS: texts of any length, and as many samples as the model predicts."""
    vits = modeling("vits")
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 1, "ffn_dim": 32, "flow_size": 16,
        "spectrogram_bins": 17, "upsample_initial_channel": 16, "upsample_rates": [4, 2],
        "upsample_kernel_sizes": [8, 4], "resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3]],
        "duration_predictor_flow_bins": 4, "duration_predictor_num_flows": 2, "duration_predictor_filter_channels": 16,
        "prior_encoder_num_flows": 2, "prior_encoder_num_wavenet_layers": 2, "posterior_encoder_num_wavenet_layers": 2,
    }  # fmt: skip
    config = vits.VitsConfig(use_stochastic_duration_prediction=is_stochastic, **sizes)
    net = vits.VitsModel(config).eval().requires_grad_(False)
    net.noise_scale = net.noise_scale_duration = 0.0

    class Waveform(torch.nn.Module):
        def forward(self, ids: Any, mask: Any) -> Any:
            return net(input_ids=ids, attention_mask=mask).waveform

    path = tmp_path / "vits.onnx"
    example = torch.ones(1, 9, dtype=torch.long)
    axes = {"ids": {1: "t"}, "mask": {1: "t"}, "y": {1: "n"}}
    options = {"dynamic_axes": axes, "opset_version": 17, "dynamo": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Waveform(), (example, example), path, input_names=["ids", "mask"], output_names=["y"], **options
        )
    compiled, session = ingot.compile(path, threads=1, cache=False), onnxruntime.InferenceSession(path)
    rng = np.random.default_rng(0)
    for length in (9, 5, 13):
        feed = {"ids": rng.integers(1, 20, (1, length)), "mask": np.ones((1, length), np.int64)}
        want: Any = session.run(None, feed)[0]
        np.testing.assert_allclose(compiled(**feed), want, atol=1e-4)
