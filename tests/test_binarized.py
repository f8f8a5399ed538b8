"""Binarized networks of PyTorch and ONNX, end to end: words of signs, a thirty-second of the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import ingot

torch = pytest.importorskip("torch")
nn = torch.nn

RNG = np.random.default_rng(4)


class Signed(nn.Module):
    """A convolution and a product of signs, activations by one of the usual forms."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.conv, self.norm, self.linear = nn.Conv2d(64, 96, 3, padding=1), nn.BatchNorm2d(96), nn.Linear(96 * 9, 10)
        self.norm.running_mean = torch.randn(96)

    def sign(self, x: Any) -> Any:
        match self.form:
            case "sign":
                return torch.sign(x)
            case "where":
                return torch.where(x >= 0, 1.0, -1.0)
            case "larq":
                return torch.sign(torch.sign(x) + 0.1)
        return (x > 0).float() * 2 - 1

    def forward(self, x: Any) -> Any:
        y = nn.functional.conv2d(self.sign(x), torch.sign(self.conv.weight), padding=1)
        y = self.sign(self.norm(y)).flatten(1)
        return nn.functional.linear(y, torch.sign(self.linear.weight))


@pytest.mark.parametrize("form", ["sign", "where", "larq", "arithmetic"])
def test_from_pytorch(form: str) -> None:
    torch.manual_seed(1)
    net, x = Signed(form).eval(), torch.randn(2, 64, 3, 3)
    with torch.no_grad():
        want = net(x)
        model = ingot.compile(net, (x,))
        np.testing.assert_array_equal(np.asarray(model(x)), want.numpy())
    signs = 96 * 64 * 9 + 96 * 9 * 10
    borders = 4 * 96 * 9  # what zeros around the image leave out
    assert model.program.weights.nbytes < 2 * signs / 8 + borders + 4096


def test_from_qonnx(tmp_path: Path) -> None:
    """Brevitas's and FINN's op, for values and weights."""
    w = RNG.standard_normal((12, 100)).astype(np.float32)
    initializers = [numpy_helper.from_array(np.asarray(v), n) for n, v in (("w", w), ("half", np.float32(0.5)))]
    domain = "qonnx.custom_op.general"
    nodes = [
        helper.make_node("BipolarQuant", ["x", "half"], ["a"], domain=domain),
        helper.make_node("BipolarQuant", ["w", "half"], ["b"], domain=domain),
        helper.make_node("Gemm", ["a", "b"], ["y"], transB=1),
    ]
    values = [helper.make_tensor_value_info(n, 1, s) for n, s in (("x", (5, 100)), ("y", (5, 12)))]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], initializers)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), str(tmp_path / "m.onnx"))
    x = RNG.standard_normal((5, 100)).astype(np.float32)
    model = ingot.compile(tmp_path / "m.onnx")
    want = np.where(x >= 0, 0.5, -0.5) @ np.where(w >= 0, 0.5, -0.5).T
    np.testing.assert_array_equal(np.asarray(model(x)), want)
    assert model.program.weights.nbytes < w.nbytes / 3
