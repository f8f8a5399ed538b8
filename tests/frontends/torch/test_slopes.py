"""Where a function's own formula has no slope, gradients are PyTorch's: norms of zeros, probabilities of 1, ties."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ingot

ROWS = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 2.0], [2.0, 2.0, 2.0], [-1.0, 0.0, 0.5]])
SURE = torch.tensor([0.0, 1.0, 1.0, 0.25])
FUNCTIONS = {
    "normalize": (F.normalize, ROWS),
    "norm of three": (lambda x: x.norm(3.0, 1), ROWS),
    "cdist": (lambda x: torch.cdist(x, x), ROWS),
    "std": (lambda x: x.std(1), ROWS),
    "max": (lambda x: x.max(1)[0], ROWS),
    "spectrum": (lambda x: torch.fft.rfft(x).abs(), ROWS),
    "certain": (lambda x: F.binary_cross_entropy(x, torch.tensor([0.0, 1.0, 0.0, 1.0])), SURE),
    "weighted": (lambda x: F.binary_cross_entropy(x, 1 - x, torch.linspace(0.5, 2, 4)), SURE / 2 + 0.2),
    "factorials": (lambda x: torch.lgamma(x + 2) + torch.erfc(x), ROWS),
    "fake quantized": (lambda x: torch.fake_quantize_per_tensor_affine(x, 0.3, 0, -4, 3), ROWS),
    "by channel": (
        lambda x: torch.fake_quantize_per_channel_affine(
            x, torch.ones(3) / 3, torch.zeros(3, dtype=torch.int32), 1, 0, 5
        ),
        ROWS,
    ),
    "exponential": (lambda x: torch.matrix_exp(x @ x.T / 9), ROWS),
    "elu": (lambda x: F.elu(x) + F.selu(x) + F.celu(x), torch.tensor([1e30, 0.0, -1.0, math.inf])),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_slopes_are_those_of_autograd(name: str) -> None:
    function, x = FUNCTIONS[name]

    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = function(x)
            return (y * torch.cos(torch.arange(y.numel(), dtype=y.dtype)).reshape(y.shape)).sum()

    learned = x.clone().requires_grad_()
    (want,) = torch.autograd.grad(Net()(learned), learned)
    _, results = ingot.value_and_grad(Net(), (x,), threads=1)(x)
    assert torch.isfinite(want).all()
    np.testing.assert_allclose(results["x"], want, rtol=1e-5, atol=1e-6)
