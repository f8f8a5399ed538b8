"""Samples that fit, and those that are refused."""

from __future__ import annotations

import numpy as np
import pytest

from ingot.ir.node import Graph, Input
from ingot.ir.types import TensorType, bf16
from ingot.support.errors import InputError
from ingot.transform.quantize.samples import first_call, read_samples
from tests.transform.quantize import nets

X = nets.normal(0, 20, 33)


def test_a_mapping_is_cut_and_a_sequence_taken():
    graph = nets.mlp()
    cut = read_samples(graph, {"x": X}, list(range(20)), 3)
    assert [c[0].shape for c in cut.calls] == [(3, 33)] * 6
    assert cut.labels is not None and cut.labels[1] == [3, 4, 5]
    for data in (
        [{"x": X[i : i + 2]} for i in range(4)],
        [(X[i : i + 2],) for i in range(4)],
        [X[i : i + 2] for i in range(4)],
    ):
        samples = read_samples(graph, data, None, 1)
        np.testing.assert_array_equal(samples.calls[1][0], X[1:3])


def test_what_is_kept_apart_is_apart():
    samples = read_samples(nets.mlp(), {"x": X}, list(range(20)), 1)
    calibration, holdout = samples.split(0.3, 5)
    assert (len(calibration), len(holdout)) == (14, 6)
    assert calibration.labels and holdout.labels
    assert not {v[0] for v in calibration.labels} & {v[0] for v in holdout.labels}
    assert samples.split(0.3, 5)[1].labels == holdout.labels != samples.split(0.3, 6)[1].labels


BAD = X.copy()
BAD[7, 2] = np.nan


@pytest.mark.parametrize(
    ("samples", "text"),
    [
        ({"x": X[:3]}, "at least 4 calls, got 3"),
        ({"x": np.ones_like(X)}, "calls that differ"),
        ({"x": BAD}, r"sample 7, input 'x': expected finite numbers, got NaN"),
        ({"x": X[:, :5]}, "sample 0"),
        ({"x": X.astype(np.float64)}, r"convert it with \.astype\(float32\)"),
        ({"y": X}, r"an array for each of \['x'\]"),
        ([X, X], "at least 4 calls"),
        ([{"y": X}] * 4, r"sample 0: expected values of \['x'\]"),
        ([(X, X)] * 4, "got 2 values"),
        (3, "a mapping from inputs to arrays, or a sequence of calls, got int"),
        ({"x": np.float32(1)}, "at least 4 calls"),
    ],
)
def test_what_does_not_fit_is_refused(samples: object, text: str):
    with pytest.raises(InputError, match=text):
        read_samples(nets.mlp(), samples, None, 1)


@pytest.mark.parametrize(("samples", "got"), [([], "got 0"), (None, "got NoneType"), ("x.npy", "got str")])
def test_no_call_to_trace_a_module_with_is_told_of_the_samples(samples: object, got: str):
    with pytest.raises(InputError, match=f"samples: expected .*{got}"):
        first_call(samples, 1)


def test_tensors_of_types_that_numpy_lacks():
    torch = pytest.importorskip("torch")
    x = Input("x", TensorType(bf16, (1, 33)))()
    data = [{"x": torch.from_numpy(row[None]).bfloat16().requires_grad_()} for row in X]
    samples = read_samples(Graph((x,), (x,)), data, None, 1)
    assert samples.calls[3][0].astype(np.float32) == pytest.approx(X[3:4], rel=2**-8)


def test_labels_are_one_for_each():
    with pytest.raises(InputError, match="labels: expected at least 20"):
        read_samples(nets.mlp(), {"x": X}, [1, 2], 1)
    with pytest.raises(InputError, match="one for each of 4 calls, got 2"):
        read_samples(nets.mlp(), [X[i : i + 1] for i in range(4)], [1, 2], 1)
