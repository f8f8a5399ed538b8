"""Tensors that are compiled in while they stay, beside eager PyTorch."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from ingot.integrations import torch_compile
from tests.frontends.torch.agree import Spy, close, compile_whole

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Adapted(nn.Module):
    """A frozen layer that is used twice, with a trained one between, and a frozen norm behind."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.trained = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.frozen.requires_grad_(False)
        self.norm.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.frozen(self.trained(self.frozen(x)).tanh()))


def _load(net: Adapted, value: float) -> None:
    state = copy.deepcopy(net.state_dict())
    state["frozen.weight"].fill_(value)
    net.load_state_dict(state)


def _copy(net: Adapted, value: float) -> None:
    with torch.no_grad():
        net.frozen.weight.copy_(torch.full((4, 4), value))


def _data(net: Adapted, value: float) -> None:
    net.frozen.weight.data -= value


def _other(net: Adapted, value: float) -> None:
    net.frozen.weight.data = torch.full((4, 4), value)


def _statistics(net: Adapted, value: float) -> None:
    assert net.norm.running_mean is not None
    net.norm.running_mean.add_(value)


@pytest.mark.parametrize("write", [_load, _copy, _data, _other, _statistics])
def test_frozen_tensors_are_constants_until_they_change_again(write: Callable[[Adapted, float], None]) -> None:
    torch.manual_seed(0)
    spy, net = Spy(), Adapted()
    eager = copy.deepcopy(net)
    compiled = compile_whole(net, backend=spy.backend)
    counts: list[int] = []
    for step in range(5):
        if step:
            for n in (net, eager):
                write(n, 0.25 * step)
        for _ in range(2):
            x = torch.randn(3, 4)
            results: list[Tensor] = []
            for run, n in ((compiled, net), (eager, eager)):
                n.zero_grad()
                results.append(run(x))
                results[-1].square().sum().backward()
                assert n.frozen.weight.grad is None
            close(results[0], results[1])
            close(net.trained.weight.grad, eager.trained.weight.grad)
            close(net.trained.bias.grad, eager.trained.bias.grad)
        counts.append(len(spy.models))
    forward, backward = spy.models[:2]
    assert len(forward.graph.inputs) == 3  # x, the trained weight and bias
    assert (4, 4) not in {n.shape for n in backward.graph.inputs}
    assert counts[0] == 2
    # twice anew, for the second time as inputs
    assert counts[2] == counts[-1] <= 6
    assert len(spy.models[counts[1]].graph.inputs) > 3


def test_a_layer_that_thaws_is_trained() -> None:
    spy, net = Spy(), Adapted()
    eager = copy.deepcopy(net)
    compiled = compile_whole(net, backend=spy.backend)
    for frozen in (True, False, True):
        for n in (net, eager):
            n.frozen.requires_grad_(not frozen)
        x = torch.randn(3, 4)
        for run, n in ((compiled, net), (eager, eager)):
            n.zero_grad()
            run(x).square().sum().backward()
            with torch.no_grad():
                for p in n.parameters():
                    if p.grad is not None:
                        p -= 0.1 * p.grad
        assert (net.frozen.weight.grad is None) == frozen
        for ours, theirs in zip(net.parameters(), eager.parameters(), strict=True):
            close(ours, theirs)


def test_inference_between_updates_takes_weights_as_inputs() -> None:
    """The net that acts while it is trained: it is not compiled again for each update."""
    spy, net = Spy(), Adapted()
    compiled = compile_whole(net, backend=spy.backend)
    for _ in range(6):
        with torch.no_grad():
            for p in net.parameters():
                p += 0.1
            x = torch.randn(3, 4)
            close(compiled(x), net(x))
    assert len(spy.models) == 3
    # the norm's statistics stay
    assert [len(m.graph.inputs) for m in spy.models] == [1, 1, 7]


def test_models_of_two_threads_keep_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both run one graph of dynamo's. A model that is compiled slowly does not take the place of the other's."""
    nets = [nn.Linear(4, 4).eval().requires_grad_(False) for _ in range(3)]
    run = compile_whole(lambda net, x: net(x))
    x, is_under_way, convert = torch.randn(2, 4), threading.Event(), torch_compile.import_flat
    close(run(nets[0], x), nets[0](x))

    def slow(module: fx.GraphModule, constants: dict[int, Tensor], *others: Any) -> Any:
        if any(t is nets[1].weight for t in constants.values()):
            is_under_way.set()
            time.sleep(0.3)
        return convert(module, constants, *others)

    monkeypatch.setattr(torch_compile, "import_flat", slow)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(lambda: run(nets[1], x))
        assert is_under_way.wait(60)
        close(run(nets[2], x), nets[2](x))
        close(other.result(), nets[1](x))
        close(run(nets[2], x), nets[2](x))
