"""What of a file is trained: weights wherever exporters put them, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import ingot
from ingot import optim
from ingot.frontends.onnx.trainable import import_trainable
from ingot.support.errors import InputError

torch = pytest.importorskip("torch")
F = torch.nn.functional
rng = np.random.default_rng(0)


def model(text: str, opset: int = 18, ir: int = 10, **tensors: Any) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(f'<ir_version: {ir}, opset_import: ["" : {opset}]> m {text}')
    proto.graph.ClearField("initializer")
    for name, value in tensors.items():
        t = numpy_helper.from_array(np.asarray(value), name)
        proto.graph.initializer.append(t)
        if ir < 4:
            proto.graph.input.append(onnx.helper.make_tensor_value_info(name, t.data_type, t.dims))
    return proto


def floats(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def learned(proto: onnx.ModelProto, patterns: tuple[str, ...] | None = None) -> tuple[set[str], set[str]]:
    result = import_trainable(proto, None, patterns)
    return {*result.parameters}, {*result.buffers}


TWO_NORMS = """(float[n,2,5] x) => (float[n,3,5] y) <float[3,2,1] w, float[3] one, float[3] zero, float[3,3,1] v>
    { a = Conv (x, w) b = BatchNormalization (a, one, zero, zero, one) c = Relu (b)
      d = Conv (c, v, zero) shift = Identity (zero) y = BatchNormalization (d, one, shift, shift, one) }"""


@pytest.mark.parametrize(("opset", "ir"), [(18, 10), (11, 3)])
def test_what_an_exporter_merged_is_apart(opset: int, ir: int) -> None:
    """A net that has not learned yet: all ones are one tensor, and all zeros."""
    w, v = floats(3, 2, 1), floats(3, 3, 1)
    proto = model(TWO_NORMS, opset, ir, w=w, one=np.ones(3, np.float32), zero=np.zeros(3, np.float32), v=v)
    parameters, buffers = learned(proto)
    assert len(parameters) == 2 + 1 + 4
    assert len(buffers) == 4
    assert {"w", "v", "one", "zero", "shift"} <= parameters
    step = ingot.train(proto, "mse", optim.SGD(lr=0.5), threads=1)
    leaves = [
        torch.tensor(a, requires_grad=True) for a in (w, v, *[np.ones(3, np.float32), np.zeros(3, np.float32)] * 2)
    ]
    bias = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.SGD([*leaves, bias], 0.5)
    x, y = floats(4, 2, 5), floats(4, 3, 5)
    for _ in range(4):
        kernel, other, s, t, s2, t2 = leaves
        h = F.batch_norm(F.conv1d(torch.tensor(x), kernel), None, None, s, t, True).relu()
        want = F.mse_loss(F.batch_norm(F.conv1d(h, other, bias), None, None, s2, t2, True), torch.tensor(y))
        optimizer.zero_grad()
        want.backward()
        optimizer.step()
        assert float(step(x, target=y)[0]) == pytest.approx(want.item(), rel=1e-5)
    trained_model = step.trained()
    onnx.checker.check_model(trained_model)
    values = {t.name: numpy_helper.to_array(t) for t in trained_model.graph.initializer}
    assert values.keys() == parameters | buffers
    np.testing.assert_allclose(values["shift"], leaves[5].detach().numpy(), atol=1e-6)


def test_a_layer_that_is_called_twice_stays_one() -> None:
    """Its weights are no repeated number; each call has statistics of its own."""
    text = """(float[n,3,5] x) => (float[n,3,5] y) <float[3,3,1] w, float[3] s, float[3] t, float[3] m, float[3] v>
        { a = Conv (x, w) b = BatchNormalization (a, s, t, m, v)
          m2 = Identity (m) v2 = Identity (v) c = Conv (b, w) y = BatchNormalization (c, s, t, m2, v2) }"""
    one, zero = np.ones(3, np.float32), np.zeros(3, np.float32)
    proto = model(text, w=floats(3, 3, 1), s=one, t=zero, m=floats(3), v=one + 1)
    assert learned(proto) == ({"w", "s", "t"}, {"m", "v", "m2", "v2"})
    slopes = """(float[n,3] x) => (float[n,3] y) <float[3,3] w, float[3] slope>
        { a = PRelu (x, slope) b = MatMul (a, w) y = PRelu (b, slope) }"""
    assert learned(model(slopes, w=floats(3, 3), slope=np.full(3, 0.25, np.float32)))[0] == {"w", "slope"}


@pytest.mark.parametrize("dynamo", [False, True])
def test_a_new_norm_that_is_called_twice_stays_one(dynamo: bool, tmp_path: Path) -> None:
    """PyTorch's exporters tell it from two norms, which have the same ones and zeros."""
    pytest.importorskip("onnxscript")

    class Net(torch.nn.Module):
        def __init__(self, second: bool) -> None:
            super().__init__()
            self.first, self.body = torch.nn.LayerNorm(4), torch.nn.Linear(4, 4)
            self.second = torch.nn.LayerNorm(4) if second else None

        def forward(self, x: Any) -> Any:
            return (self.second or self.first)(self.body(self.first(x)).tanh())

    for second, count in ((False, 4), (True, 6)):
        path = tmp_path / f"{second}.onnx"
        torch.onnx.export(Net(second).eval(), (torch.ones(2, 4),), path, dynamo=dynamo, verbose=False)
        assert len(learned(onnx.load(path))[0]) == count


def test_weights_of_one_number_and_what_is_no_weight() -> None:
    """A layer of one input and output; masks of minus infinity, first states and settings."""
    text = """(float[n,1] x) => (float[n,2] y) <float[1,1] w, float[1,2] mask, int64 depth, float[2] low>
        { a = MatMul (x, w) i = ArgMax <axis = 1, keepdims = 0> (a) o = OneHot (i, depth, low)
          b = Add (a, mask) y = Add (b, o) }"""
    mask, low = np.array([[0, -np.inf]], np.float32), np.array([0, 1], np.float32)
    proto = model(text, w=floats(1, 1), mask=mask, depth=np.int64(2), low=low)
    assert learned(proto)[0] == {"w"}
    lstm = """(float[t,2,3] x) => (float[t,1,2,4] y) <float[1,16,3] w, float[1,16,4] r, float[1,2,4] h>
        { y = LSTM <hidden_size = 4> (x, w, r, , , h, h) }"""
    proto = model(lstm, w=floats(1, 16, 3), r=floats(1, 16, 4), h=np.zeros((1, 2, 4), np.float32))
    assert learned(proto)[0] == {"w", "r"}
    assert learned(proto, ("h",))[0] == {"h"}


def test_weights_in_constant_nodes_and_functions() -> None:
    text = """(float[2, 2] x) => (float[2, 2] y)
        { w = Constant <value: tensor = float[2, 2] {1, 2, 3, 4}> () half = Constant <value: tensor = float {0.5}> ()
          a = MatMul (x, w) y = Mul (a, half) }"""
    step = ingot.train(model(text), "mse", optim.SGD(lr=0.1), threads=1)
    assert step.training.parameters == ("w",)
    x, y = floats(2, 2), floats(2, 2)
    step(x, y)
    (t,) = step.trained().graph.initializer
    w = np.array([[1, 2], [3, 4]], np.float32)
    slope = x.T @ (2 * (0.5 * x @ w - y) / 4) * 0.5
    np.testing.assert_allclose(numpy_helper.to_array(t), w - 0.1 * slope, atol=1e-6)
    called = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18, "own" : 1]> m (float[n,3,5] x) => (float[n,3,5] y)'
        "<float[3] s = {1, 2, 3}, float[3] t = {3, 1, 2}, float[3] m = {0, 1, 0}, float[3] v = {1, 1, 2}>"
        "{ y = own.norm (x, s, t, m, v) }"
        '<opset_import: ["" : 18], domain: "own"> norm (x, s, t, m, v) => (y)'
        "{ y = BatchNormalization (x, s, t, m, v) }"
    )
    assert learned(called) == ({"s", "t"}, {"m", "v"})


def test_dropout_of_old_files_drops() -> None:
    text = "(float[64,64] x) => (float[64,64] y) <float[64,64] w> { a = MatMul (x, w) y = Dropout <ratio = 0.25> (a) }"
    step = ingot.train(model(text, 11, w=np.eye(64, dtype=np.float32)), "mse", optim.SGD(lr=0.0), threads=1)
    x = np.ones((64, 64), np.float32)
    loss = float(step(x, np.zeros_like(x))[0])  # (4/3)^2 where a number stays
    assert loss / (16 / 9) == pytest.approx(0.75, abs=0.03)


def test_a_pattern_takes_floats() -> None:
    text = (
        "(float[n,2] x) => (float[n,2] y) <float[2,2] w, int64[2] shape> { a = MatMul (x, w) y = Reshape (a, shape) }"
    )
    proto = model(text, w=floats(2, 2), shape=np.array([-1, 2]))
    assert learned(proto, ("*",))[0] == {"w"}
    with pytest.raises(InputError, match="leave integers out"):
        learned(proto, ("sh*",))
