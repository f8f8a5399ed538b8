"""torch.compile with the backend, its compiler replaced by the interpreter."""

from __future__ import annotations

import ast
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed, Unsupported
from torch.nn import functional as F

import ingot
from ingot.frontends.torch import ImportedModel
from ingot.integrations import torch_compile
from ingot.integrations.torch_compile import ingot_backend
from ingot.ops import LSTM
from tests.frontends.torch.agree import Spy, breaks, close, compile_whole, run

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        y = self.norm(self.conv(x)).relu_()
        return {"logits": self.head(y.mean(-1)) * scale, "features": y}


def test_inference() -> None:
    spy, net = Spy(), Net().eval()
    compiled = compile_whole(net, backend=spy.backend)
    with torch.no_grad():
        for x in (torch.randn(2, 3, 8), torch.randn(2, 3, 8)):
            close(compiled(x), net(x))
    assert len(spy.models) == 1
    assert len(spy.models[0].graph.inputs) == 1


def test_dynamic_shapes() -> None:
    spy, net = Spy(), Net().eval()
    compiled = compile_whole(net, backend=spy.backend, dynamic=True)
    with torch.inference_mode():
        for shape in ((2, 3, 8), (5, 3, 11), (3, 3, 20)):
            x = torch.randn(shape)
            close(compiled(x), net(x))
    assert len(spy.models) == 1


def test_numbers_of_which_only_the_negative_is_kept() -> None:
    """The gradient of a roll by n is a roll by -n: from that alone no size n >= 1 can be told."""
    compiled = compile_whole(lambda x, n: x.roll(n, 0) * x, backend="ingot", dynamic=True)
    for count, n in ((5, -1), (5, 2), (7, -3), (0, -1)):
        x = torch.randn(count, 3, requires_grad=True)
        got, want = (torch.autograd.grad(f(x, n).sum(), x)[0] for f in (compiled, lambda x, n: x.roll(n, 0) * x))
        close(got, want)


def test_a_number_that_the_run_finds_is_saved(tmp_path: Path) -> None:
    """It may be as small as -2^62: the plan that says so loads again."""
    models: list[Any] = []

    def compile_model(model: Any, **how: Any) -> Any:
        models.append(ingot.compile(model, threads=1, **how))
        return models[-1]

    backend = partial(ingot_backend, compile_model=compile_model)
    x, at = torch.arange(6.0), torch.tensor(-2)
    close(compile_whole(lambda x, at: x.narrow(0, at, 2) * 2, backend=backend)(x, at), torch.tensor([8.0, 10.0]))
    models[0].save(tmp_path / "m.ingot")
    results = ingot.load(tmp_path / "m.ingot")(*(a.numpy() for a in (x, at)))
    assert [8.0, 10.0] in [r.tolist() for r in (results if isinstance(results, tuple) else (results,))]


def test_slices_that_only_their_source_sizes() -> None:
    def halves(x: Tensor, y: Tensor) -> Tensor:
        z = x.clone()
        z[:, x.shape[1] // 2 :] = y[:, : (x.shape[1] + 1) // 2]
        return z

    def last(x: Tensor, y: Tensor) -> Tensor:
        return torch.slice_scatter(x, y, 1, x.shape[1] - y.shape[1], None)

    for f in (halves, last):
        spy = Spy()
        compiled = compile_whole(f, backend=spy.backend, dynamic=True)
        with torch.no_grad():
            for sizes in ((12, 6), (21, 11), (5, 3)):
                x, y = (torch.randn(2, n) for n in sizes)
                close(compiled(x, y), f(x, y))
        assert len(spy.models) == 1


def test_sizes_that_a_tensor_held() -> None:
    """Behind `tolist` dynamo goes on with sizes that it knows only together."""

    def experts(x: Tensor, counts: Tensor, places: Tensor) -> Tensor:
        parts = [p * (i + 1) for i, p in enumerate(x.split(counts.tolist()))]
        return torch.zeros_like(x).index_add(0, places, torch.cat(parts))

    compiled = compile_whole(experts, backend=Spy().backend)
    with torch.no_grad():
        for counts in ([3, 4, 2], [2, 5, 2], [0, 2, 7], [4, 4, 1]):
            x, places = torch.randn(9, 3), torch.randperm(9)
            close(compiled(x, torch.tensor(counts), places), experts(x, torch.tensor(counts), places))


def test_options() -> None:
    calls: list[dict[str, Any]] = []

    def compiler(model: ImportedModel, **options: Any) -> Callable[..., Any]:
        calls.append(options)
        return partial(run, model)

    net, x = nn.Linear(3, 2).eval(), torch.randn(4, 3)
    backend = partial(ingot_backend, compile_model=compiler)
    with torch.no_grad():
        close(compile_whole(net, backend=backend, options={"threads": 1})(x), net(x))
        assert calls == [{"threads": 1}]
        torch._dynamo.reset()
        with pytest.raises(BackendCompilerFailed, match="threads, cache, fast_math, fallback, got speed"):
            compile_whole(net, backend=backend, options={"speed": 2})(x)


def test_a_mode_is_taken_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    torch_compile._tell_mode.cache_clear()
    spy = Spy()
    with torch.no_grad():
        for x in (torch.ones(2), torch.ones(2, 3)):
            close(compile_whole(torch.exp, backend=spy.backend, mode="max-autotune", dynamic=False)(x), x.exp())
    assert len(spy.models) == 2
    assert [r.getMessage() for r in caplog.records if r.name == torch_compile.__name__] == [
        "torch.compile(mode='max-autotune') has no effect: Ingot has a single mode; "
        "options= takes precision, activations, threads, cache, fast_math, fallback"
    ]


def test_results_of_no_inputs_are_tensors_of_pytorchs_own() -> None:
    y, z = compile_whole(lambda: (torch.arange(3), torch.ones(2, dtype=torch.bfloat16)))()
    close((y.resize_(2), z), (torch.arange(2), torch.ones(2, dtype=torch.bfloat16)))
    assert z.untyped_storage().resizable()


class Attends(nn.Module):
    """What torch runs as single ops: an encoder layer, attention of other keys with its weights, a bilinear layer."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first, activation="gelu")
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.pair = nn.Bilinear(8, 8, 3)

    def forward(self, x: Tensor, keys: Tensor, padded: Tensor) -> tuple[Tensor, ...]:
        x = self.layer(x, src_key_padding_mask=padded)
        itself = self.attention(x, x, x, average_attn_weights=False)
        return *self.attention(x, keys, keys), *itself, self.pair(x, x)


@pytest.mark.parametrize("norm_first", [False, True])
def test_composites_and_equal_sizes(norm_first: bool) -> None:
    spy, net = Spy(), Attends(norm_first).eval()
    compiled = compile_whole(net, backend=spy.backend, dynamic=True)
    with torch.inference_mode():
        for batch, length, keys in ((2, 5, 7), (3, 4, 6)):
            inputs = (torch.randn(batch, length, 8), torch.randn(batch, keys, 8), torch.rand(batch, length) > 0.7)
            inputs[2][:, 0] = False
            close(compiled(*inputs), net(*inputs))


class Biased(nn.Module):
    """A bias per pair of positions: the sizes of its table fix those of the grid, behind a stride."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.bias = nn.Parameter(torch.randn(5))
        self.register_buffer("index", torch.arange(36 * 36).reshape(36, 36) % 5)
        self.index: Tensor

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x).flatten(2)
        return torch.softmax(y.transpose(1, 2) @ y + self.bias[self.index], -1)


def test_sizes_that_parameters_fix() -> None:
    spy, net = Spy(), Biased().eval()
    compiled = compile_whole(net, backend=spy.backend, dynamic=True)
    with torch.no_grad():
        for shape in ((2, 3, 12, 12), (3, 3, 12, 12), (2, 3, 11, 11)):
            x = torch.randn(shape)
            close(compiled(x), net(x))
    assert len(spy.models) == 1


def test_pools_of_channels_last() -> None:
    spy, net = Spy(), nn.Sequential(nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 2, 1)).eval()
    compiled = compile_whole(net, backend=spy.backend, dynamic=True)
    with torch.no_grad():
        for batch in (2, 3):
            x = torch.randn(batch, 3, 5, 6).to(memory_format=torch.channels_last)
            close(compiled(x), net(x))


class Diagonals(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return x.diagonal(0, -2, -1), x.diagonal(1, -2, -1), x.diagonal(-2, 1, 2), x[0].trace()


def test_diagonals_of_sizes_that_change() -> None:
    spy, net = Spy(), Diagonals().eval()
    compiled = compile_whole(net, backend=spy.backend, dynamic=True)
    with torch.no_grad():
        for shape in ((2, 5, 7), (3, 6, 9), (2, 4, 4), (2, 8, 6)):
            x = torch.randn(shape)
            close(compiled(x), net(x))


def test_changed_weights_are_seen() -> None:
    spy, net = Spy(), Net().eval()
    compiled = compile_whole(net, backend=spy.backend)
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        close(compiled(x), net(x))
        net.head.weight.mul_(2)
        close(compiled(x), net(x))
    assert len(spy.models) == 2


def test_inputs_that_are_written() -> None:
    def function(x: Tensor, n: int) -> Tensor:
        x.add_(n)
        return x.view(-1, n).sum(0)

    compiled = compile_whole(function, backend=Spy().backend, dynamic=True)
    for n in (2, 3, 4):
        a, b = torch.ones(5 * n), torch.ones(5 * n)
        close(compiled(a, n), function(b, n))
        close(a, b)


class Counter(nn.Module):
    """Writes a buffer at every call, and a place of another that an argument chooses."""

    count: Tensor
    cache: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(4))
        self.register_buffer("cache", torch.zeros(1, 8, 4))
        self.project = nn.Linear(4, 4)

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        self.count.add_(1)
        self.cache[:, at] = self.project(x)
        return self.cache.sum(1) + self.count


def test_buffers_that_the_model_writes_are_state_and_no_constants() -> None:
    spy, net = Spy(), Counter().eval()
    twin = deepcopy(net)
    compiled = compile_whole(net, backend=spy.backend)
    with torch.no_grad():
        for step in range(4):
            x, at = torch.randn(1, 4), torch.tensor([step])
            close(compiled(x, at), twin(x, at))
            close(net.count, twin.count)
            close(net.cache, twin.cache)
    assert len(spy.models) == 1


class Tagger(nn.Module):
    def __init__(self, bidirectional: bool = False, bias: bool = True) -> None:
        super().__init__()
        self.layers = nn.LSTM(4, 6, 2, bias, batch_first=True, bidirectional=bidirectional)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        return self.layers(x, state)


@pytest.mark.parametrize(("bidirectional", "bias"), [(False, True), (True, True), (False, False)])
def test_recurrent_layers_stay_whole(bidirectional: bool, bias: bool) -> None:
    """Where dynamo is told to take them at all."""
    spy, net = Spy(), Tagger(bidirectional, bias).eval()
    with torch.no_grad(), torch._dynamo.config.patch(allow_rnn=True):
        compiled = compile_whole(net, backend=spy.backend)
        x = torch.randn(2, 5, 4)
        close(compiled(x), net(x))
        state = net(x)[1]
        close(compiled(x, state), net(x, state))
    layers = [n for n in spy.models[0].graph.nodes() if isinstance(n.op, LSTM)]
    assert len(layers) == (4 if bidirectional else 2)


def test_inputs_that_the_backward_pass_reads_are_not_copied() -> None:
    spy, net = Spy(), nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    x = torch.randn(2, 4, requires_grad=True)
    result = compile_whole(net, backend=spy.backend)(x)
    results = torch.autograd.grad(result.sum(), [x, *net.parameters()])
    for got, want in zip(results, torch.autograd.grad(net(x).sum(), [x, *net.parameters()]), strict=True):
        close(got, want)
    forward = spy.models[0].graph
    assert not set(forward.inputs) & set(forward.outputs)
    assert len(forward.outputs) == 2  # the result, and what the layer between is


def test_keyword_arguments_choose_what_is_compiled() -> None:
    def function(x: Tensor, *, scale: float = 1.0, mode: str = "plus", extras: dict[str, Tensor] | None = None) -> Any:
        y = x * scale if mode == "plus" else -x
        return {"y": y, "more": None if extras is None else y + extras["bias"]}

    spy = Spy()
    compiled = compile_whole(function, backend=spy.backend)
    calls: list[dict[str, Any]] = [{}, {"scale": 2.0}, {"mode": "minus"}, {"extras": {"bias": torch.ones(3)}}]
    for named in calls:
        x = torch.randn(2, 3)
        close(compiled(x, **named), function(x, **named))


def test_the_second_size_makes_it_dynamic() -> None:
    spy, net = Spy(), Net().eval()
    compiled = compile_whole(net, backend=spy.backend)
    with torch.no_grad():
        for batch in (3, 4, 5, 9):
            x = torch.randn(batch, 3, 8)
            close(compiled(x), net(x))
    assert len(spy.models) == 2


def test_a_graph_without_inputs_gives_tensors() -> None:
    def masked(x: Tensor) -> Tensor:
        mask = torch.full((3, 3), -torch.inf).triu(1)
        torch._dynamo.graph_break()
        return x + mask.to(x.dtype)

    x = torch.randn(3, 3)
    # one thread: behind a graph break torch keeps what it compiled, with its workers
    spy = Spy(partial(ingot.compile, threads=1))
    compiled = torch.compile(masked, backend=spy.backend, fullgraph=False)
    with torch.no_grad():
        assert torch.equal(compiled(x), masked(x))
    assert [len(m.graph.inputs) for m in spy.models] == [0, 2]
    assert breaks() == {"Call to `torch._dynamo.graph_break()`"}


class Views(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        doubled = x * 2
        return x.chunk(2, 1)[-1], x[1:].mT, x, doubled, doubled.chunk(2, 1)[-1]


@pytest.mark.parametrize("dynamic", [False, True])
def test_views_of_inputs(dynamic: bool) -> None:
    compiled = compile_whole(Views().eval(), backend=Spy().backend, dynamic=dynamic)
    with torch.no_grad():
        for x in (torch.randn(4, 6), torch.randn(5, 8), torch.randn(6, 4).mT):
            close(compiled(x), Views()(x))


@pytest.mark.parametrize("n", [3, 1, 0, -1])
def test_ints_that_are_no_sizes(n: int) -> None:
    def function(x: Tensor, n: int) -> tuple[Tensor, ...]:
        return x * n + n, torch.roll(x, n, 0), x[n:], torch.triu(x, n), x.sum(n if n < 2 else 0)

    compiled = compile_whole(function, backend=Spy().backend, dynamic=True)
    x = torch.randn(5, 4)
    close(compiled(x, n), function(x, n))


def test_ints_of_either_sign_share_one_trace() -> None:
    compiled = compile_whole(lambda x, n: x * n, backend=Spy().backend, dynamic=True)
    x = torch.randn(3)
    for n in (2, 3, 0, -5, 7, -5, 0):
        close(compiled(x, n), x * n)


@pytest.mark.parametrize(("stride", "padding"), [(2, 1), (3, 0)])
def test_strides_and_paddings_of_the_call(stride: int, padding: int) -> None:
    def function(x: Tensor, w: Tensor, stride: int, padding: int) -> tuple[Tensor, ...]:
        return F.conv2d(x, w, None, stride, padding), F.conv_transpose2d(x, w.swapaxes(0, 1), None, stride, padding)

    x, w = torch.randn(1, 2, 9, 8), torch.randn(3, 2, 3, 3)
    compiled = compile_whole(function, backend=Spy().backend, dynamic=True)
    close(compiled(x, w, stride, padding), function(x, w, stride, padding), 1e-4)


class Averaged(nn.Module):
    """Beside the mean of what a layer was, which forward keeps as momentum encoders do: each time in new memory."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.mean = nn.Parameter(torch.zeros(3, 3), requires_grad=False)
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.data = self.mean.data * 0.5 + self.layer.weight.data * 0.5
        self.calls += 1
        return self.layer(x) + x @ self.mean + self.calls


def test_parameters_that_are_given_other_memory() -> None:
    spy, net = Spy(), Averaged()
    other = deepcopy(net)
    before = other.mean.data
    compiled = compile_whole(other, backend=spy.backend)
    optimizers = [torch.optim.SGD(n.layer.parameters(), 0.1) for n in (net, other)]
    x = torch.randn(2, 3)
    for _ in range(3):
        for model, optimizer in zip((net, compiled), optimizers, strict=True):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        close(other.state_dict(), net.state_dict())
    with torch.no_grad():
        close(compiled(x), net(x))
    assert other.mean.data_ptr() != before.data_ptr()
    assert not before.any()
    assert len(spy.models) == 3  # forward and backward, and inference


def test_backward_in_a_step_that_is_compiled_in_pieces() -> None:
    """The backward pass is made where dynamo compiles what lies behind the break at `backward()`."""
    net = nn.Linear(3, 2)

    def step(net: nn.Linear, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    spy, losses = Spy(), []
    for compiled in (step, torch.compile(step, backend=spy.backend, fullgraph=False)):
        mine = deepcopy(net)
        optimizer = torch.optim.SGD(mine.parameters(), 0.1)
        losses.append([compiled(mine, optimizer, torch.ones(4, 3)) for _ in range(3)])
    close(losses[1], losses[0])
    assert len(spy.models) == 4  # forward, backward, the update, the loss behind it


def test_compiled_autograd_runs_hooks_of_modules() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    net[2].register_full_backward_hook(lambda module, grad_input, grad_output: (grad_input[0] * 2,))

    def step(net: nn.Module, x: Tensor) -> Tensor:
        loss = net(x).square().mean()
        loss.backward()
        return loss.detach()

    other, spy = deepcopy(net), Spy()
    with torch._dynamo.config.patch(compiled_autograd=True):
        compiled = torch.compile(step, backend=spy.backend, fullgraph=False)
        for x in torch.randn(3, 5, 3):
            close(compiled(other, x), step(net, x))
    close([p.grad for p in other.parameters()], [p.grad for p in net.parameters()])
    assert len(spy.models) == 4


def test_a_gradient_penalty_in_one_program() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    other, spy = deepcopy(net), Spy()

    def penalty(net: nn.Module, x: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        return (slope.norm(dim=1) - 1).square().mean()

    x = torch.randn(5, 3, requires_grad=True)
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        compile_whole(penalty, backend=spy.backend)(other, x).backward()
    penalty(net, x).backward()
    close([p.grad for p in other.parameters()], [p.grad for p in net.parameters()])
    assert len(spy.models) == 2


def test_what_dynamo_leaves_to_eager_is_an_error() -> None:
    """Of `compile_whole`: all of a recurrent layer, and a part of a function."""
    with torch.no_grad(), pytest.raises(Unsupported, match="RNN"):
        compile_whole(Tagger(), backend=Spy().backend)(torch.randn(2, 5, 4))
    with pytest.raises(Unsupported, match="graph_break"):
        compile_whole(lambda x: (x * 2, torch._dynamo.graph_break(), x + 1), backend=Spy().backend)(torch.randn(2))


def test_no_test_takes_eager_results_for_those_of_programs() -> None:
    """Tests and tools that call torch.compile itself say whether graphs may break, as it does not raise by default."""
    silent: list[str] = []
    for path in (p for folder in ("tests", "tools") for p in (ROOT / folder).rglob("*.py")):
        if "torch.compile" not in (text := path.read_text()):
            continue
        nodes = list(ast.walk(ast.parse(text)))
        facts = [c for c in nodes if isinstance(c, ast.Call) and any(k.arg == "fullgraph" for k in c.keywords)]
        parts = {part for call in facts for part in (call.func, *call.args)}
        named = [n for n in nodes if isinstance(n, ast.Attribute) and ast.unparse(n) == "torch.compile"]
        silent += [f"{path.relative_to(ROOT)}:{n.lineno}" for n in named if n not in parts]
    assert not silent


class ThreeLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(600, 600) for _ in range(3))  # 1.4 MB each

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def test_distributed_data_parallel_splits_a_network_into_buckets(tmp_path: Path) -> None:
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    parts: list[Any] = []

    def count(module: Any, inputs: Any) -> Any:
        parts.append(module)
        return ingot_backend(module, inputs)

    torch.manual_seed(0)
    net = ThreeLayers()
    x = torch.randn(4, 600)
    net(x).square().sum().backward()
    want = [p.grad for p in net.parameters()]
    net.zero_grad()
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        compiled = torch.compile(DistributedDataParallel(net, bucket_cap_mb=1), backend=count, fullgraph=False)
        for _ in range(2):
            net.zero_grad()
            y = compiled(x)
            y.square().sum().backward()
            torch.testing.assert_close(y, net(x))
            torch.testing.assert_close([p.grad for p in net.parameters()], want)
        assert len(parts) > 1
    finally:
        distributed.destroy_process_group()


def test_compiles_are_told_in_the_log(caplog: pytest.LogCaptureFixture):
    net = torch.compile(torch.nn.Linear(3, 2), backend="ingot", fullgraph=True)
    with torch.no_grad(), caplog.at_level("INFO", "ingot"):
        net(torch.zeros(2, 3))
        net(torch.zeros(2, 3))
    facts = [r.getMessage() for r in caplog.records if r.name == "ingot.integrations.torch_compile"]
    assert len(facts) == 1 and facts[0].startswith("compiled a graph of ")


def test_matrices_of_large_models_on_a_gpu_stay_where_they_are() -> None:
    def parameter(*shape: int, gpu: bool = True) -> SimpleNamespace:
        return SimpleNamespace(is_cuda=gpu, dim=lambda: len(shape), numel=lambda: prod(shape), element_size=lambda: 2)

    large, vector, image = parameter(1 << 15, 1 << 14), parameter(1 << 20), parameter(64, 64, 3, 3)
    everyone = frozenset(range(3))
    assert torch_compile._large_matrices(everyone, [large, vector, image]) == {0}
    assert not torch_compile._large_matrices(everyone, [parameter(1 << 14, 1 << 14), vector, image])
    assert not torch_compile._large_matrices(everyone, [parameter(1 << 16, 1 << 14, gpu=False), vector, image])
