"""Gradients that compilers are known to get silently wrong (numbers are PyTorch's issues), beside eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402

import ingot  # noqa: E402
from tests.frontends.torch.agree import Function, Spy, breaks, compile_whole  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fresh_dynamo")]
Tensor = torch.Tensor


class Twice(torch.autograd.Function):
    """Of two inputs, which may be one tensor (183604)."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b + a + b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * (b + 1), g * (a + 1)


class HeadLoss(torch.autograd.Function):
    """A loss that computes its gradients on the way (180642)."""

    @staticmethod
    def forward(ctx, x, w, labels):
        logits = x @ w.T
        g = torch.softmax(logits, -1) - F.one_hot(labels, len(w))
        ctx.save_for_backward(g @ w, g.T @ x)
        return F.cross_entropy(logits, labels, reduction="sum")

    @staticmethod
    def backward(ctx, g):
        of_x, of_w = ctx.saved_tensors
        return g * of_x, g * of_w, None


def _modulated(x: Tensor, table: Tensor) -> Tensor:  # 193061
    shift, scale, shift2, scale2 = table.chunk(4, -1)
    h = F.layer_norm(x, x.shape[-1:]) * (1 + scale) + shift
    return F.layer_norm(x + h, x.shape[-1:]) * (1 + scale2) + shift2


def _pooled(x: Tensor, w: Tensor, b: Tensor) -> Tensor:  # 185509
    y = F.interpolate(x, scale_factor=(1.5, 1.25), mode="bilinear", align_corners=False)[:, :, 1:7, 1:8]
    c = F.conv2d(y, w, b, padding=1)
    p = F.max_pool2d(c, 3, 1, 1)
    return torch.where(c > p.mean((2, 3), keepdim=True), c, p)


def _recurrence(xs: Tensor, state: Tensor, w: Tensor) -> Tensor:  # 106321
    states = []
    for x in xs:
        state = x + state * w
        states.append(state)
    return torch.cat(states)


def _channel_softmax(x: Tensor, kernel: Tensor, scale: Tensor) -> Tensor:  # 178080
    y = F.conv2d(x, kernel).exp()
    return y / y.sum(1, keepdim=True) * scale


def _filtered(x: Tensor, w: Tensor) -> Tensor:
    spectrum = torch.fft.rfft(x)
    filtered = torch.zeros_like(spectrum)
    filtered[:, :3] = spectrum[:, :3] * torch.view_as_complex(w)
    return torch.fft.irfft(filtered, n=x.shape[-1])


ZEROS = torch.tensor([[1.0, 0, 3], [0, 0, 2], [1, 2, 3]])
CASES: dict[str, tuple[Callable[..., Tensor], tuple[Any, ...]]] = {  # shapes, and tensors themselves
    "gradients made forward": (lambda x, w: HeadLoss.apply(x.relu(), w, torch.arange(6) % 5), ((6, 4), (5, 4))),
    "diagonal_scatter": (lambda x, s: torch.diagonal_scatter(x, s, 0).sum(), ((8, 8), (8,))),  # 182012
    "slice_scatter": (lambda x, y: torch.slice_scatter(x, y, 1, 0, 6).sum(1), ((4, 13, 33), (4, 6, 33))),  # 180164
    "slice_scatter of a line": (lambda x, y: torch.slice_scatter(x, y, 0, 1, 4).sum(), ((6,), (3,))),  # 183898
    "detached in place": (lambda x: ((x * 2).detach_() + 1) * x, ((4,),)),  # 176854
    "norms by one table": (_modulated, ((3, 7, 8), (3, 1, 32))),
    "pools of resized images": (_pooled, ((2, 3, 6, 7), (4, 3, 3, 3), (4,))),
    "shares of channels": (_channel_softmax, ((3, 4, 5, 6), (17, 4, 1, 1), (1, 17, 1, 1))),
    "recurrence": (_recurrence, ((5, 3, 7), (3, 7), (7,))),
    "product with zeros": (lambda x: x.prod(1), (ZEROS,)),
    "running product with zeros": (lambda x: x.cumprod(1), (ZEROS,)),
    "norm at zero": (lambda x: torch.linalg.vector_norm(x, 2, 1), (torch.zeros(2, 3),)),
    "largest of equals": (lambda x: x.amax(1), (torch.tensor([[1.0, 1, 0], [2, 3, 3]]),)),
    "added to one place": (
        lambda x, v: x.index_put((torch.tensor([0, 0, 2]),), v, accumulate=True), ((4, 3), (3, 3)),
    ),
    "modes written into a spectrum": (_filtered, ((4, 9), (3, 2))),
    "times an imaginary number": (lambda x: (x + 1j * x).exp().imag, ((5,),)),
    "conjugates and their parts": (
        lambda x: (lambda z: (z @ z.mH).conj().imag + (z * z.conj()).real)(torch.view_as_complex(x)), ((3, 3, 2),),
    ),
    "overlapping view of heads": (
        lambda x: x.transpose(0, 1).as_strided((2, 3, 4, 5), (5, 20, 10, 1)).cos(), ((8, 2, 5),),
    ),
    "overlapping view": (lambda x: x.as_strided((3, 3), (1, 1)) * 1.5, ((5,),)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_eager(name: str) -> None:
    f, inputs = CASES[name]
    torch.manual_seed(0)
    values = [x if isinstance(x, Tensor) else torch.randn(x) for x in inputs]
    _check_same(compile_whole(f), f, values)


def _check_same(compiled: Callable[..., Tensor], f: Callable[..., Tensor], values: list[Tensor]) -> None:
    results = []
    for fn in (f, compiled):
        xs = [v.clone().requires_grad_() for v in values]
        y = fn(*xs)
        (y * torch.linspace(-1, 2, y.numel()).view(y.shape)).sum().backward()
        results.append([y.detach(), *(x.grad for x in xs)])
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5 * float(want.abs().max()))


def test_a_function_of_one_tensor_twice() -> None:
    """Dynamo leaves its call and its gradient to eager PyTorch; a loss that Ingot differentiates may have one."""

    def f(x: Tensor) -> Tensor:
        return Twice.apply(x, x)

    spy, x = Spy(), torch.randn(5)
    _check_same(torch.compile(f, backend=spy.backend, fullgraph=False), f, [x])
    assert len(spy.models) == 1  # `Twice.forward`, by itself
    assert breaks() == {"autograd.Function.apply: duplicate tensor input"}
    (got,) = ingot.grad(Function(lambda x: f(x).square().sum()), (x,))(x).values()
    torch.testing.assert_close(got, torch.func.grad(lambda x: (x * x + x + x).square().sum())(x))


def test_writes_under_func_grad() -> None:  # 136662
    def g(x: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        y[:, 0] += x[:, 2].abs()
        y[:, 0] += x[:, 2].abs()
        return y.sum()

    x = torch.tensor([[1.0, 2, -3], [4, 5, 6]])
    torch.testing.assert_close(compile_whole(torch.func.grad(g))(x), torch.func.grad(g)(x))
