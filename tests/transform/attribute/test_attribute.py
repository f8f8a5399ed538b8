"""`ingot.attribute` on files, fixed and open batches, other targets, and arguments that do not fit."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ingot.ir.interp import interpret
from ingot.support.errors import InputError
from ingot.transform.attribute.methods import _in_iterations
from ingot.transform.attribute.run import METHODS, _default_window

onnx = pytest.importorskip("onnx")

RNG = np.random.default_rng(0)
W, V = RNG.standard_normal((6, 8), np.float32), RNG.standard_normal((8, 4), np.float32)


def model(batch: str = "n", body: str = "h = MatMul(x, w) t = Tanh(h) y = MatMul(t, v)", class_count: str = "4") -> Any:
    text = (
        f'<ir_version: 10, opset_import: ["" : 18]> m (float[{batch},6] x) => (float[{batch},{class_count}] y)'
        f"<float[6,8] w, float[8,4] v> {{ {body} }}"
    )
    parsed = onnx.parser.parse_model(text)
    del parsed.graph.initializer[:]
    parsed.graph.initializer.extend([onnx.numpy_helper.from_array(a, n) for a, n in ((W, "w"), (V, "v"))])
    return parsed


def scores(x: np.ndarray) -> np.ndarray:
    return np.tanh(x @ W) @ V


def gradient(x: np.ndarray, target: int) -> np.ndarray:
    """d scores[:, target] / d x, in float64."""
    h = np.tanh(x.astype(np.float64) @ W)
    return ((1 - h * h) * V[:, target]) @ W.T


def integrated(x: np.ndarray, base: np.ndarray, target: int, steps: int = 50) -> np.ndarray:
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    mean = sum(w / 2 * gradient(base + (a + 1) / 2 * (x - base), target) for a, w in zip(nodes, weights, strict=True))
    return (x - base) * mean


@pytest.mark.parametrize("batch", ["n", "3", "1"])
@pytest.mark.parametrize("steps", [1, 7, 50])
def test_integrated_gradients_of_open_and_fixed_batches(batch: str, steps: int) -> None:
    """A fixed batch takes one point after the other, an open one several at once."""
    x = RNG.standard_normal((1 if batch == "1" else 3, 6), np.float32)
    base = RNG.standard_normal(6, np.float32)
    got = ingot.attribute(model(batch), x, target=2, baseline=base, steps=steps, threads=1)
    np.testing.assert_allclose(got, integrated(x, base, 2, steps), atol=2e-6)


def test_attributions_sum_to_the_change_of_the_score() -> None:
    x, base = RNG.standard_normal((2, 5, 6), np.float32)
    got = ingot.attribute(model(), x, target=1, baseline=base, threads=1)
    np.testing.assert_allclose(got.sum(1), (scores(x) - scores(base))[:, 1], atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("batch", ["n", "3"])
def test_no_target_is_the_class_of_the_largest_score(method: Any, batch: str) -> None:
    x = RNG.standard_normal((3, 6), np.float32)
    program = ingot.attribution(model(batch), method=method, steps=5, threads=1)
    largest = scores(x).argmax(1)
    assert len({*largest}) > 1
    np.testing.assert_array_equal(program(x), program(x, target=largest))
    assert np.isnan(program.flat()(x, np.full(3, 4))).all()  # a class that is not there
    with pytest.raises(InputError, match="input 'x'"):
        program(x[:0])


@pytest.mark.parametrize("method", METHODS)
def test_the_graph_means_what_the_program_computes(method: Any) -> None:
    """Compiled code beside the interpreter of the graph, with NaN and infinity among the inputs."""
    from ingot.driver.compile import Options
    from ingot.driver.open import Request, open_model
    from ingot.transform.attribute.run import Settings, attribution_graph, attribution_model
    from ingot.transform.attribute.scores import find_variables, scores_of

    settings, x = Settings(method, steps=3), RNG.standard_normal((4, 6), np.float32)
    x[1, 2], x[2, 0] = np.nan, np.inf
    graph = open_model(model(), Request()).graph
    variables = find_variables(graph, None)
    attributed = attribution_graph(graph, variables, scores_of(graph, variables, 0), settings)
    target = np.asarray([0, 1, 2, 3])
    (want,) = interpret(attributed, [x, target])
    got = attribution_model(model(), Request(), settings, Options(threads=1))(x, target=target)
    np.testing.assert_allclose(got, want, atol=1e-6)
    assert np.isfinite(got[[0, 3]]).all() and np.isnan(got[1]).any()


def test_scores_of_several_axes() -> None:
    body = "h = MatMul(x, w) t = Tanh(h) z = MatMul(t, v) s = Constant <value_ints = [-1, 2, 2]> () y = Reshape(z, s)"
    x = RNG.standard_normal((3, 6), np.float32)
    program = ingot.attribution(model(body=body, class_count="2,2"), method="gradient_x_input", threads=1)
    np.testing.assert_allclose(program(x, target=(1, 0)), x * gradient(x, 2), atol=2e-6)
    per_target = program(x, target=[[0, 0], [0, 1], [1, 1]])
    np.testing.assert_allclose(
        per_target, x * np.stack([gradient(x, c)[i] for i, c in enumerate((0, 1, 3))]), atol=2e-6
    )
    with pytest.raises(InputError, match=r"indices below \(2, 2\), got none; a tuple of 2 indices"):
        program(x)
    with pytest.raises(InputError, match="target"):
        program(x, target=(0, 2))


def test_occlusion_of_an_open_length() -> None:
    text = '<ir_version: 10, opset_import: ["" : 18]> m (float[n,l] x) => (float[n] y)'
    text += "{ q = Mul(x, x) y = ReduceSum <keepdims = 0> (q, axes) }"
    parsed = onnx.parser.parse_model(text)
    parsed.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray([1]), "axes"))
    program = ingot.attribution(parsed, method="occlusion", threads=1)
    for length in (1, 5, 40):
        x = RNG.standard_normal((2, length), np.float32)
        np.testing.assert_allclose(program(x), x * x, atol=1e-4)
    wide = ingot.attribution(parsed, method="occlusion", window=4, stride=3, threads=1)
    for length in (1, 3, 9):
        x = np.ones((1, length), np.float32)
        starts = range(0, max(1, -(-(length - 4) // 3) + 1) * 3, 3)
        cover = np.stack([(np.arange(length) >= s) & (np.arange(length) < s + 4) for s in starts]).astype(float)
        np.testing.assert_allclose(wide(x)[0], cover.T @ cover.sum(1) / cover.sum(0), atol=1e-5)


def test_noise_is_repeated_by_its_seed() -> None:
    x = RNG.standard_normal((3, 6), np.float32)
    first, repeated, other = (
        ingot.attribute(model(), x, target=0, method="smoothgrad", seed=s, threads=1) for s in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, repeated)
    assert (first != other).any()
    still = ingot.attribute(model(), x, target=0, method="smoothgrad", stdev=0, threads=1)
    np.testing.assert_allclose(still, gradient(x, 0), atol=2e-6)


@pytest.mark.parametrize("batch", ["n", "3"])
def test_an_input_that_all_examples_share(batch: str) -> None:
    """It gets the sum over the examples, and NaN if one of them has no such class."""
    types = f"(float s, float[{batch},6] x, float[6] w) => (float[{batch},6] y)"
    head = '<ir_version: 10, opset_import: ["" : 18]> m'
    parsed = onnx.parser.parse_model(f"{head} {types} {{ z = Mul(x, w) y = Mul(z, s) }}")
    x, w, target = RNG.standard_normal((3, 6), np.float32), RNG.standard_normal(6, np.float32), np.asarray([1, 4, 1])
    scores_of_targets = 2 * x * w * (np.arange(6) == target[:, None])
    want = scores_of_targets.sum(), scores_of_targets, scores_of_targets.sum(0)
    for method in ("gradient_x_input", "occlusion"):
        program = ingot.attribution(parsed, method=method, threads=1)
        got = program(np.float32(2), x, w, target=target)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)
        partly = program.run([np.float32(2), x, w, np.asarray([1, 9, 1])])
        assert np.isnan(partly[0]) and np.isnan(partly[1][1]).all() and np.isnan(partly[2]).all()
        assert np.isfinite(partly[1][::2]).all()


def test_without_a_batch() -> None:
    """A class is given as one index; noise has the range of all elements."""
    parsed = model()
    for value in (parsed.graph.input[0], parsed.graph.output[0]):
        del value.type.tensor_type.shape.dim[0]
    x = RNG.standard_normal(6, np.float32)
    for target in (2, np.int64(2), np.asarray(2)):
        got = ingot.attribute(parsed, x, target=target, threads=1)
        np.testing.assert_allclose(got, integrated(x[None], np.zeros(6), 2)[0], atol=2e-6)
    noisy, still = (ingot.attribute(parsed, x, method="smoothgrad", stdev=s, threads=1) for s in (None, 0))
    assert np.abs(noisy - still).max() > 1e-3


def test_several_results_and_inputs() -> None:
    text = '<ir_version: 10, opset_import: ["" : 18]> m (float[n,6] a, float[n,6] b) => (float[n,6] y, float[n,6] z)'
    parsed = onnx.parser.parse_model(text + "{ y = Mul(a, b) z = Sub(y, b) }")
    a, b = RNG.standard_normal((2, 3, 6), np.float32)
    got = ingot.attribute(parsed, {"b": b, "a": a}, target=4, method="gradient_x_input", output="z", threads=1)
    at = np.eye(6)[4]
    assert isinstance(got, tuple)
    np.testing.assert_allclose(got[0], a * b * at, atol=1e-6)
    np.testing.assert_allclose(got[1], b * (a - 1) * at, atol=1e-6)
    only = ingot.attribute(parsed, (a, b), target=4, method="gradient_x_input", output=1, wrt=["b"], threads=1)
    np.testing.assert_array_equal(only, got[1])


def test_c_for_any_compiler(tmp_path: Path) -> None:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs gcc")
    program = ingot.attribution(model("2"), steps=6, dynamic=False, compile_target="c", threads=1)
    program.save(tmp_path / "a.c")
    header = (tmp_path / "a.h").read_text()
    assert "target" in header
    subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", "-o", tmp_path / "a.so", tmp_path / "a.c", "-lm"], check=True, timeout=60
    )
    library = ctypes.CDLL(str(tmp_path / "a.so"))
    x, target, got = RNG.standard_normal((2, 6), np.float32), np.asarray([1, 3]), np.empty((2, 6), np.float32)
    library.a_run(*(ctypes.c_void_p(v.ctypes.data) for v in (x, target, got)))
    want = np.stack([integrated(x, np.zeros(6), c, 6)[i] for i, c in enumerate(target)])
    np.testing.assert_allclose(got, want, atol=2e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": 4}, "target: expected an index below 4, got .4."),
        ({"target": -1}, "target: expected an index below 4"),
        ({"target": 1.5}, "target"),
        ({"target": [0, 1]}, "for all examples or for each"),
        ({"method": "lime"}, "method: expected one of integrated_gradients, smoothgrad"),
        ({"baseline": np.nan}, "the baseline of x: expected finite numbers of float32, got NaN or infinity"),
        ({"baseline": 1e300}, "the baseline of x: expected finite numbers of float32"),
        ({"baseline": np.zeros(5)}, r"the baseline of x: expected a shape that fits \[3, 6\], got \[5\]"),
        ({"baseline": {"z": 0}}, "baseline: expected names of x"),
        ({"baseline": 0, "method": "smoothgrad"}, "smoothgrad has none"),
        ({"steps": 0}, "steps"),
        ({"stdev": 1}, "stdev: expected none: only smoothgrad has it"),
        ({"stdev": -1, "method": "smoothgrad"}, "stdev: expected a number of at least 0"),
        ({"window": 2}, "window: expected none: only occlusion has it"),
        ({"window": (1, 2), "method": "occlusion"}, r"window: expected 1 positive sizes for x\[6\]"),
        ({"window": 2, "stride": 3, "method": "occlusion"}, "stride: expected at most the window"),
        ({"window": True, "method": "occlusion"}, "window: expected 1 positive sizes"),
        ({"window": 2.0, "method": "occlusion"}, "window: expected 1 positive sizes"),
        ({"wrt": "x"}, r"wrt: expected a list of names: \['x'\]"),
        ({"wrt": ["y"]}, "wrt: expected some of x"),
        ({"output": 1}, "output: expected 0 to 0"),
        ({"output": None}, "output: expected 0 to 0, or a name, got None"),
        ({"output": "z"}, "output: expected one of y"),
    ],
)
def test_arguments_that_do_not_fit(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ingot.attribute(model(), np.zeros((3, 6), np.float32), threads=1, **arguments)


def test_models_without_a_score_or_a_gradient() -> None:
    head = '<ir_version: 10, opset_import: ["" : 18]> m '
    integers = onnx.parser.parse_model(head + "(int64[n] x) => (int64[n] y) { y = Neg(x) }")
    with pytest.raises(InputError, match="inputs of floats, or of indices into tables"):
        ingot.attribute(integers, np.zeros(3, np.int64))
    labels = onnx.parser.parse_model(head + "(float[n,6] x) => (int64[n,1] y) { y = ArgMax <axis = 1> (x) }")
    with pytest.raises(InputError, match="the result to explain: expected floats"):
        ingot.attribute(labels, np.zeros((3, 6), np.float32))


def test_turns_are_equal() -> None:
    for steps in range(1, 70):
        places, weights, count = _in_iterations(np.arange(steps), np.ones(steps), 16)
        assert count <= 16 and len(places) % count == 0 and weights.sum() == steps
        assert len(places) - steps < len(places) // count


def test_default_windows() -> None:
    assert _default_window((9,)) == [1]
    assert _default_window((3, 224, 224)) == [3, 7, 7]
    assert _default_window((0, 4)) == [1, 1]
