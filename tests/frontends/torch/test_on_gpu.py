"""torch.compile on a GPU: inference, training, capture in CUDA graphs, streams. Skipped where there is none."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ingot
from ingot.support.errors import InputError
from tests.frontends.torch.agree import close, compile_whole

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.usefixtures("fresh_dynamo"),
]


class Mixer(nn.Module):
    """A convolution, attention with its dropout, and a head."""

    def __init__(self, dropout: float = 0.0, causal: bool = False) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 32, 4, 4), nn.BatchNorm2d(32)
        self.qkv, self.out, self.norm = nn.Linear(32, 96), nn.Linear(32, 32), nn.LayerNorm(32)
        self.head = nn.Linear(32, 10)
        self.dropout, self.causal = dropout, causal

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.conv(x))).flatten(2).mT
        q, k, v = (t.unflatten(-1, (2, 16)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        p = self.dropout if self.training else 0.0
        a = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=self.causal)
        x = self.norm(x + self.out(a.transpose(1, 2).flatten(2)))
        return self.head(F.gelu(x).mean(1))


@pytest.fixture(autouse=True)
def exact() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float16, 2e-3)])
def test_inference(dtype: torch.dtype, tolerance: float) -> None:
    net = Mixer().eval().to("cuda", dtype)
    compiled = compile_whole(net, dynamic=True)
    with torch.no_grad():
        for batch in (2, 3, 7):
            x = torch.randn(batch, 3, 32, 32, device="cuda", dtype=dtype)
            got = compiled(x)
            assert got.is_cuda
            close(got.cpu(), net(x).cpu(), tolerance)
        net.head.weight.mul_(2)  # what changes is seen
        close(compiled(x).cpu(), net(x).cpu(), tolerance)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training(causal: bool, dtype: torch.dtype) -> None:
    nets = [Mixer(causal=causal).cuda()]
    nets.append(deepcopy(nets[0]))
    calls = [nets[0], compile_whole(nets[1])]
    steps = [torch.optim.SGD(net.parameters(), 0.05) for net in nets]
    for _ in range(4):
        x, y = torch.randn(8, 3, 32, 32, device="cuda"), torch.randint(10, (8,), device="cuda")
        losses: list[Tensor] = []
        for call, step in zip(calls, steps, strict=True):
            step.zero_grad()
            with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
                loss = F.cross_entropy(call(x), y)
            loss.backward()
            step.step()
            losses.append(loss.detach().cpu())
        close(losses[1], losses[0], 1e-4 if dtype == torch.float32 else 1.5e-2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("dtype", "size", "tolerance"), [(torch.bfloat16, 64, 2e-2), (torch.float16, 128, 4e-3)])
def test_gradients_of_long_attention(causal: bool, dtype: torch.dtype, size: int, tolerance: float) -> None:
    shape = (2, 3, 333, size)
    leaves = [torch.randn(shape, device="cuda", dtype=dtype).requires_grad_() for _ in range(3)]
    g = torch.randn(shape, device="cuda", dtype=dtype)

    def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    result = compile_whole(attended)(*leaves)
    wide = [x.detach().float().requires_grad_() for x in leaves]
    want = attended(*wide)
    gradients = torch.autograd.grad(result, leaves, g), torch.autograd.grad(want, wide, g.float())
    for a, b in zip((result, *gradients[0]), (want, *gradients[1]), strict=True):
        assert float((a.float() - b).norm() / b.norm()) < tolerance


def test_dropout_in_training_is_that_of_the_gradient() -> None:
    """Along a line in a parameter the loss moves as its gradient says, where the same numbers are drawn."""
    net = Mixer(dropout=0.5).cuda().train()
    compiled = compile_whole(net)
    x = torch.randn(4, 3, 32, 32, device="cuda")

    def loss() -> Tensor:
        torch.manual_seed(3)
        return compiled(x).square().sum()

    loss().backward()
    assert net.qkv.weight.grad is not None
    of_values = net.qkv.weight.grad[64:].clone()
    length = of_values.norm()
    with torch.no_grad():
        net.qkv.weight[64:] += 1e-2 * of_values / length
    loss_before = loss().item()
    with torch.no_grad():
        net.qkv.weight[64:] -= 2e-2 * of_values / length
    assert (loss_before - loss().item()) / 2e-2 == pytest.approx(length.item(), rel=2e-2)


def test_a_captured_call_replays_on_new_values() -> None:
    net = Mixer().eval().cuda()
    compiled = compile_whole(net)
    x = torch.randn(2, 3, 32, 32, device="cuda")
    with torch.no_grad():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            compiled(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = compiled(x)
            z = compiled(x * 2)
        for _ in range(3):
            x.copy_(torch.randn_like(x))
            graph.replay()
            close(y.cpu(), net(x).cpu(), 1e-4)
            close(z.cpu(), net(x * 2).cpu(), 1e-4)
        close(compiled(x).cpu(), net(x).cpu(), 1e-4)


@pytest.mark.parametrize("compiles_optimizer", [False, True])
def test_a_captured_training_step_is_that_of_calls(compiles_optimizer: bool) -> None:
    nets = [Mixer().cuda().train()]
    nets.append(deepcopy(nets[0]))
    x, y = torch.randn(8, 3, 32, 32, device="cuda"), torch.randint(10, (8,), device="cuda")
    losses: list[list[float]] = [[], []]
    for net, net_losses, captures in zip(nets, losses, (False, True), strict=True):
        run = compile_whole(net)
        rate = torch.tensor(1e-3, device="cuda") if compiles_optimizer else 1e-3
        optimizer = torch.optim.AdamW(net.parameters(), lr=rate, fused=not compiles_optimizer, capturable=True)
        update = (
            torch.compile(optimizer.step, backend="ingot", fullgraph=False) if compiles_optimizer else optimizer.step
        )

        def step(run=run, optimizer=optimizer, update=update) -> Tensor:  # type: ignore[no-untyped-def]
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(run(x), y)
            loss.backward()
            update()
            return loss.detach()

        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            net_losses += [float(step()) for _ in range(3)]
        torch.cuda.current_stream().wait_stream(side)
        if not captures:
            net_losses += [float(step()) for _ in range(5)]
            continue
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = step()
        for _ in range(5):
            graph.replay()
            net_losses.append(float(loss))
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_a_captured_call_draws_anew() -> None:
    run = compile_whole(nn.Dropout(0.5).cuda().train())
    x = torch.ones(999, device="cuda")
    run(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = run(x)
    drawn: list[Tensor] = []
    for seed in (3, None, 3):
        if seed is not None:
            torch.manual_seed(seed)
        graph.replay()
        drawn.append(y.clone())
    assert torch.equal(drawn[0], drawn[2]) and not torch.equal(drawn[0], drawn[1])
    assert 0.3 < float((y == 0).float().mean()) < 0.7


def test_calls_from_stream_to_stream() -> None:
    net = Mixer().eval().cuda()
    compiled = ingot.compile(deepcopy(net).cpu(), (torch.randn(64, 3, 64, 64),), target="cuda:sm_90a")
    streams = [torch.cuda.Stream() for _ in range(3)]
    inputs = [torch.randn(64, 3, 64, 64, device="cuda") for _ in range(3)]
    torch.cuda.synchronize()
    results: list[list[Tensor]] = [[], [], []]
    for _ in range(10):
        for x, stream, result in zip(inputs, streams, results, strict=True):
            with torch.cuda.stream(stream):
                result.append(compiled(x))
    torch.cuda.synchronize()
    with torch.no_grad():
        for x, result in zip(inputs, results, strict=True):
            for y in result:
                close(y.cpu(), net(x).cpu(), 1e-4)


def test_numbers_and_results_on_the_host() -> None:
    def f(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        return x * scale, x.sum().cpu()

    compiled = compile_whole(f)
    x, scale = torch.randn(5, 4, device="cuda"), torch.tensor(3.0)
    with torch.no_grad():
        a, b = compiled(x, scale)
    assert a.is_cuda and not b.is_cuda
    close(a.cpu(), (x * 3).cpu())
    close(b, x.sum().cpu(), 1e-5)


def test_times_of_kernels() -> None:
    net = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).eval()
    x = torch.randn(256, 512)
    compiled = ingot.compile(net, (x,), target="cuda:sm_90a")
    times = compiled.profile(x.cuda())
    assert all(0 < seconds < 1e-2 for _, seconds in times)
    close(compiled(x.cuda()).cpu(), net(x).detach(), 1e-4)
    if torch.cuda.device_count() > 1:
        with pytest.raises(InputError, match="cuda:0"):
            compiled(x.to("cuda:1"))


def target() -> str:
    major, minor = torch.cuda.get_device_capability()
    return f"cuda:sm_{major}{minor}{'a' if major >= 9 else ''}"


class Chosen(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        places = torch.nonzero(x > 0)
        return places, x[places[:, 0], places[:, 1]] * 2 + places.shape[0]


def test_sizes_that_the_data_gives() -> None:
    """None, some and all, from GPU memory and from the host; a wrong size is not remembered."""
    net = Chosen()
    model = ingot.compile(net, (torch.randn(5, 7),), target=target())
    for shift in (0.0, -9.0, 9.0, 9.0, 0.5):
        x = torch.randn(5, 7) + shift
        for data in (x.cuda(), x):
            for got, want in zip(model(data), net(x), strict=True):
                assert got.device == data.device
                close(got.cpu(), want, 1e-6)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_are_one_graph(kind: Callable[..., nn.RNNBase]) -> None:
    """A loop's turns lie in it one behind the other; a stream that is captured takes them, too."""
    net = kind(16, 32, num_layers=2).eval()
    model = ingot.compile(net, (torch.randn(9, 2, 16),), target=target(), dynamic={"input": {0: "n"}})
    assert "1 CUDA graph" in model.plan()
    net = net.cuda()
    with torch.no_grad():
        for length in (1, 9, 40, 9):
            x = torch.randn(length, 2, 16, device="cuda")
            close(model(x)[0].cpu(), net(x)[0].cpu(), 1e-4)
        x, graph = torch.randn(9, 2, 16, device="cuda"), torch.cuda.CUDAGraph()
        model(x)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            y = model(x)[0]
        x.copy_(torch.randn_like(x))
        graph.replay()
        close(y.cpu(), net(x)[0].cpu(), 1e-4)
