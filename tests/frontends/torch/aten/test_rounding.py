"""Half precision: a bias is added to f32 sums, which are rounded once, as PyTorch does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ingot.frontends.torch import export_module, import_exported
from tests.frontends.torch.agree import Function, compile_whole, run

X, W = torch.randn(64, 32), torch.randn(48, 32)
IMAGE, KERNEL, CHANNELS = torch.randn(2, 4, 9, 9), torch.randn(6, 4, 3, 3), torch.randn(6) * 3
BIASED: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "linear": (F.linear, (X, W, -F.linear(X[0], W))),  # the first row cancels
    "addmm": (torch.addmm, (-F.linear(X[0], W), X, W.T)),
    "scaled": (lambda b, x, w: torch.addmm(b, x, w, beta=0.5, alpha=0.75), (W[:, 0], X, W.T)),
    "baddbmm": (torch.baddbmm, (-F.linear(X[0], W), X[None], W.T[None])),
    "addmv": (torch.addmv, (X[:, 0], X, W[0])),
    "conv": (F.conv2d, (IMAGE, KERNEL, CHANNELS)),
    "transposed": (F.conv_transpose2d, (IMAGE, KERNEL.mT.swapaxes(0, 1), CHANNELS)),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", BIASED)
def test_a_bias_is_added_before_rounding(name: str, dtype: torch.dtype) -> None:
    function, arguments = BIASED[name]
    narrow = tuple(a.to(dtype) for a in arguments)
    got = run(import_exported(export_module(Function(function).eval(), narrow)), *narrow).double()
    exact = function(*(a.double() for a in narrow))
    # half an ulp of the result, and what the sums of 36 products are off in f32
    ulp = torch.finfo(dtype).eps * 2.0 ** torch.floor(torch.log2(exact.abs().clamp(min=2.0**-14)))
    assert bool(((got - exact).abs() <= ulp / 2 + 1e-5).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_the_gradient_of_gelu_is_rounded_once(approximate: str, dtype: torch.dtype) -> None:
    def gradient(g: Tensor, x: Tensor) -> Tensor:
        return torch.ops.aten.gelu_backward(g, x, approximate=approximate)

    g, x = torch.randn(4096).to(dtype), torch.linspace(-8, 8, 4096).to(dtype)
    got = run(import_exported(export_module(Function(gradient).eval(), (g, x))), g, x).double()
    exact = gradient(g.double(), x.double())
    ulp = torch.finfo(dtype).eps * 2.0 ** torch.floor(torch.log2(exact.abs().clamp(min=2.0**-14)))
    assert bool(((got - exact).abs() <= ulp / 2 + 1e-6).all())


def test_bilinear_of_integers_keeps_their_dtype() -> None:
    a, b, w = (torch.randint(0, 9, s).to(torch.int32) for s in ((3, 4), (3, 5), (2, 4, 5)))
    torch._dynamo.reset()
    got = compile_whole(F.bilinear)(a, b, w)
    assert got.dtype == torch.int32
    assert torch.equal(got, F.bilinear(a, b, w))
