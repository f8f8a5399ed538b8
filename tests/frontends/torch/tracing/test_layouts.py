"""Results have eager's strides; images that forward keeps for backward lie with their channels last, and what is given
so is not copied."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from ingot.frontends.torch.tracing.layouts import order_of
from tests.frontends.torch.agree import Spy, close, compile_whole

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def test_orders() -> None:
    x = torch.zeros(2, 3, 4, 5)
    assert (
        order_of(x)
        is order_of(x[..., ::2])
        is order_of(x.expand(2, 2, 3, 4, 5))
        is order_of(x.permute(1, 0, 2, 3)[:0])
        is None
    )
    assert order_of(x.to(memory_format=torch.channels_last)) == (0, 2, 3, 1)
    assert order_of(x.transpose(1, 3)) == (0, 3, 2, 1)
    assert order_of(x[:1].to(memory_format=torch.channels_last)) == (0, 2, 3, 1)
    assert order_of(x[:, :1]) is order_of(torch.zeros(3)) is order_of(3) is None


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_gradients_of_leaves_are_not_views_with_gaps(memory_format: torch.memory_format) -> None:
    """autograd would copy them; what is no leaf is given the view."""
    torch.manual_seed(0)
    a, b = (torch.randn(2, n, 5, 3).to(memory_format=memory_format).requires_grad_() for n in (4, 3))
    spy, cotangent = Spy(), torch.randn(2, 7, 5, 3).to(memory_format=memory_format)
    compiled = compile_whole(lambda a, b: torch.cat((a, b), 1), backend=spy.backend)
    for _ in range(3):
        close(torch.autograd.grad(compiled(a, b), [a, b], cotangent), cotangent.split([4, 3], 1))
    assert [len(m.graph.outputs) for m in spy.models] == [1, 2]
    c, d = a * 2, b * 3
    torch._dynamo.reset()
    compiled = compile_whole(lambda a, b: torch.cat((a, b), 1), backend=spy.backend)
    for _ in range(3):
        close(torch.autograd.grad(compiled(c, d), [c, d], cotangent, retain_graph=True), cotangent.split([4, 3], 1))
    assert [len(m.graph.outputs) for m in spy.models[2:]] == [1, 0]


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.second, self.upsample = nn.Conv2d(8, 8, 3, stride=2, groups=2), nn.ConvTranspose2d(8, 4, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = F.relu(self.norm(self.first(x)))
        return self.upsample(F.silu(self.second(y))).sigmoid(), F.max_pool2d(y[..., :8, :8], 2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("dynamic", [None, True])
def test_kept_images(memory_format: torch.memory_format, dynamic: bool | None) -> None:
    torch.manual_seed(0)
    net, x = Images().to(memory_format=memory_format), torch.randn(2, 3, 9, 11).to(memory_format=memory_format)  # type: ignore[call-overload]
    spy, reference = Spy(), deepcopy(net)
    compiled = compile_whole(net, backend=spy.backend, dynamic=dynamic)

    def gradients(f: Any) -> list[Tensor]:
        leaf = x.clone().requires_grad_()
        first, second = f(leaf)
        loss = first.square().sum() + second.sin().sum()
        return [first, second, *torch.autograd.grad(loss, [leaf, *f.parameters()])]

    for got, want in zip(gradients(compiled), gradients(reference), strict=True):
        close(got, want, 1e-4)
    forward, backward = (m.graph for m in spy.models)
    if not dynamic:
        shapes = [n.shape for n in backward.inputs]
        assert (2, 9, 11, 8) in shapes and (2, 8, 9, 11) not in shapes
        assert ((2, 9, 11, 3) in [n.shape for n in forward.inputs]) == (memory_format is torch.channels_last)


def test_kept_rows_of_channels() -> None:
    """Of an image with its channels last as axes, channels are the last axis, not axis 1."""
    torch.manual_seed(0)
    layer, norm = nn.Conv2d(3, 8, 3, padding=1), nn.LayerNorm(8)

    def f(x: Tensor) -> Tensor:
        return norm(layer(x).permute(0, 2, 3, 1)).sin().permute(0, 3, 1, 2) * 2

    x, spy = torch.randn(2, 3, 9, 11), Spy()
    leaves = [*layer.parameters(), *norm.parameters()]
    got = torch.autograd.grad(compile_whole(f, backend=spy.backend)(x).sum(), leaves)
    for mine, want in zip(got, torch.autograd.grad(f(x).sum(), leaves), strict=True):
        close(mine, want, 1e-4)
    shapes = [n.shape for n in spy.models[1].graph.inputs]
    assert (2, 9, 11, 8) in shapes and (2, 11, 8, 9) not in shapes


def test_lines_and_volumes() -> None:
    for layer, x in ((nn.Conv1d(2, 3, 3), torch.randn(2, 2, 7)), (nn.Conv3d(2, 3, 2), torch.randn(2, 2, 3, 4, 5))):
        net = nn.Sequential(layer, nn.Tanh())
        got = torch.autograd.grad(compile_whole(net, backend=Spy().backend)(x).sum(), list(net.parameters()))
        for mine, want in zip(got, torch.autograd.grad(net(x).sum(), list(net.parameters())), strict=True):
            close(mine, want, 1e-5)


def test_results_and_gradients_lie_as_eager_has_them() -> None:
    """Images whose channels lie last, a weight that does, and an input of rows beside it."""
    last = torch.channels_last
    net = cast(Any, nn.Conv2d(4, 6, 3, padding=1)).to(memory_format=last)  # which the stubs do not have
    x = torch.randn(2, 4, 5, 7).to(memory_format=last).requires_grad_()
    rows = torch.randn(2, 6, 5, 7, requires_grad=True)

    def f(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        y = net(x)
        return torch.cat([y, rows], 1).sin(), (rows * 2).cos()

    def results(f: Callable[..., tuple[Tensor, ...]]) -> list[tuple[Tensor, tuple[int, ...]]]:
        for tensor in (x, rows, *net.parameters()):
            tensor.grad = None
        result = f(x, rows)
        sum(y.square().sum() for y in result).backward()  # type: ignore[union-attr]
        grads = [tensor.grad for tensor in (x, rows, *net.parameters())]
        return [(t.detach(), t.stride()) for t in (*result, *grads) if t is not None]

    spy = Spy()
    for (got, strides), (want, as_eager) in zip(
        results(compile_whole(f, backend=spy.backend)), results(f), strict=True
    ):
        assert strides == as_eager
        close(got, want)
    forward, backward = ([n.shape for n in model.graph.outputs] for model in spy.models)
    assert (2, 5, 7, 12) in forward and (6, 3, 3, 4) in backward  # made so, and copied by nobody
    with torch.no_grad():
        assert compile_whole(f, backend=spy.backend)(x, rows)[0].stride() == f(x, rows)[0].stride()


CONV = cast(Any, nn.Conv2d(3, 4, 1)).to(memory_format=torch.channels_last)
IMAGE = (2, 3, 4, 6)
RESULTS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "an image and its tokens": (lambda x: (y := CONV(x), y.flatten(2).transpose(1, 2)), IMAGE),
    "channels apart": (lambda x: CONV(x).unbind(1), IMAGE),
    "every second column": (lambda x: (x * 2)[..., ::2], IMAGE),
    "parts": (lambda x: (x * 2).chunk(3, -1), IMAGE),
    "axes in another order": (lambda x: (x * 2).permute(0, 2, 1), (2, 3, 4)),
    "padding": (lambda x: F.pad(x.sin(), (1, 2, 0, 1), mode="reflect"), IMAGE),
    "a padded volume": (lambda x: F.pad(x, (1, 2, 0, 1, 1, 0), mode="replicate"), (2, 3, 2, 4, 5)),
    "a resized volume": (lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest"), (2, 3, 2, 4, 5)),
    "means": (lambda x: F.avg_pool2d(x, 2), IMAGE),
    "gradients by vmap": (lambda x: torch.vmap(torch.func.grad(lambda v: v.sin().sum()))(x), IMAGE),
    "repeated": (lambda x: (x.mean(0).expand(5, -1, -1, -1), x[:1].sin().expand(3, -1, -1, -1)), IMAGE),
    "twice": (lambda x: ((y := x * 2), y, y.mT), IMAGE),
    "views of the input": (lambda x: (x[1:], x.mT, x.sin().mT.cos()), IMAGE),
    "complex": (lambda x: torch.complex(x, x.sin()).mT, (2, 3, 4)),
    "spectra": (lambda x: torch.stft(x, 4, return_complex=True, window=torch.ones(4)), (2, 12)),
    "sizes": (lambda x: (x.mT.exp(), x.shape[0] * x.shape[1], x.flatten(0, 1).shape), (2, 3, 4)),
    "running logarithms of sums": (lambda x: torch.logcumsumexp(x.mT, 0), IMAGE),
    "offset from the start": (
        lambda x: ((x * 2)[1:].as_strided((2, 2), (3, 1), 2), x[1:].as_strided((2,), (2,), 1)),
        IMAGE,
    ),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize(("f", "shape"), RESULTS.values(), ids=RESULTS)
def test_strides_of_results(f: Callable[..., Any], shape: tuple[int, ...], trains: bool) -> None:
    """Also at a second batch size, which torch takes for an open one; gradients of images have eager's strides too."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(len(shape))
    spy = Spy()
    compiled = compile_whole(f, backend=spy.backend)

    def results(f: Callable[..., Any], x: Tensor) -> list[Any]:
        x = x.clone().requires_grad_(trains)
        result = pytree.tree_leaves(f(x))
        used = [y for y in result if isinstance(y, Tensor)]
        gradients = torch.autograd.grad(used, x, [y.detach().cos() for y in used]) if trains else ()
        return [*(y.detach() if isinstance(y, Tensor) else y for y in result), *gradients]

    for count in (shape[0], shape[0] + 3):
        x = torch.randn(count, *shape[1:])
        x = x if last is None else x.contiguous(memory_format=last)
        with torch.set_grad_enabled(trains):
            got, want = results(compiled, x), results(f, x)
        close(got, want)
        # AOTAutograd gives gradients of other tensors another order
        judged = len(want) - (trains and last is None)
        strides = [[y.stride() for y in matches[:judged] if isinstance(y, Tensor)] for matches in (got, want)]
        assert strides[0] == strides[1]
    assert len(spy.models) == 2 * (1 + trains)


@pytest.mark.parametrize("trains", [True, False])
def test_strides_of_shuffled_channels(trains: bool) -> None:
    """Of results; gradients lie row by row."""
    compiled = compile_whole(lambda x: F.channel_shuffle(x, 2), backend="ingot")
    for count in (2, 5):
        for memory_format in (torch.channels_last, torch.contiguous_format):
            x = torch.randn(count, 4, 5, 6).contiguous(memory_format=memory_format).requires_grad_(trains)
            got, want = compiled(x), F.channel_shuffle(x, 2)
            assert torch.equal(got, want) and got.stride() == want.stride()
            if trains:
                cotangent = torch.randn_like(want)
                got_gradient, want_gradient = (torch.autograd.grad(y, x, cotangent)[0] for y in (got, want))
                close(got_gradient, want_gradient)


def test_results_that_share_memory_in_eager_do() -> None:
    spy = Spy()
    with torch.no_grad():
        y, transposed, part = compile_whole(lambda x: (y := x * 2, y.mT, y[1:]), backend=spy.backend)(torch.ones(2, 3))
        row = compile_whole(lambda x: (x * 2)[1:, :2], backend=spy.backend)(torch.ones(3, 3))
    y.zero_()
    assert not transposed.any() and not part.any()
    assert [[n.shape for n in m.graph.outputs] for m in spy.models] == [[(2, 3)], [(2, 2)]]  # what is used, once
    assert row.stride() == (3, 1)


def test_results_can_be_written_in_place() -> None:
    """Autograd forbids it for views that a custom Function makes."""
    x = torch.randn(IMAGE).to(memory_format=torch.channels_last)
    for f in (CONV, lambda x: CONV(x).flatten(2).transpose(1, 2), lambda x: CONV(x)[:, 1:]):
        y, want = compile_whole(f, backend=Spy().backend)(x), f(x)
        for result in (y, want):
            result.relu_()
        close(torch.autograd.grad(y.sum(), CONV.weight), torch.autograd.grad(want.sum(), CONV.weight))


def test_memory_of_inputs() -> None:
    """What an input is a view of is read from where it starts at each call."""
    numbers = torch.arange(24.0)
    compiled = compile_whole(lambda x: x[1:].as_strided((2,), (1,), 2) * 2, backend=Spy().backend)
    for start in (0, 3, 7):
        assert compiled(numbers[start : start + 6].view(2, 3)).tolist() == [4.0, 6.0]


def test_views_at_places_that_the_run_finds() -> None:
    """Views of an input and of a result are replayed at the place that the model finds, which may be negative."""

    def f(x: torch.Tensor, at: torch.Tensor, count: int) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return x.narrow(1, at, count), y, y.narrow(1, at, count), at * 1

    compiled = compile_whole(f, backend="ingot", dynamic=True)
    x = torch.arange(35.0).reshape(5, 7)
    for at, count in ((2, 2), (0, 3), (-1, 1), (-3, 3), (4, 3), (-7, 2)):
        inputs = x, torch.tensor(at), count
        for got, want in zip(compiled(*inputs), f(*inputs), strict=True):
            assert (got.stride(), got.tolist()) == (want.stride(), want.tolist())
        assert compiled(*inputs)[0]._is_view() or compiled(*inputs)[0].data_ptr() >= x.data_ptr()


def test_strides_of_two_open_sizes() -> None:
    """min(n, m) of a diagonal is computed from both."""
    compiled = compile_whole(lambda x: torch.diagonal_copy(x, 2, 0, 1), backend="ingot", dynamic=True)
    for n, m in ((5, 6), (10, 5), (3, 9)):
        x = torch.randn(n, m, 5, requires_grad=True)
        got, want = compiled(x), torch.diagonal_copy(x, 2, 0, 1)
        assert got.stride() == want.stride()
        close(torch.autograd.grad(got.sum(), x), torch.autograd.grad(want.sum(), x))


def test_rolls_and_norms_of_images_in_other_orders() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        norm = F.batch_norm(x, torch.zeros(4), torch.ones(4))
        return x.roll((1, 1), (2, 3)), x.roll(1, 1), x.roll(3), norm

    compiled = compile_whole(f, backend="ingot", dynamic=True)
    for n, h in ((2, 5), (1, 5), (3, 6)):
        x = torch.randn(n, 4, h, 7)
        for data in (x, x.to(memory_format=torch.channels_last), x.mT.contiguous().mT):
            for got, want in zip(compiled(data), f(data), strict=True):
                assert got.stride() == want.stride()
                torch.testing.assert_close(got, want)
