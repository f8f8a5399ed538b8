"""Buffers that a program writes whole become its results without torch's decompositions; results and state agree."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ingot
from ingot.frontends.torch import program as programs
from ingot.frontends.torch.export import export_module
from ingot.frontends.torch.tracing.buffers import buffers_as_results
from ingot.support.errors import ImportModelError


class Writes(nn.Module):
    def __init__(self, write: Callable[[Any, Tensor], Any], **buffers: Tensor) -> None:
        super().__init__()
        self._write = write
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor)

    def forward(self, x: Tensor) -> Any:
        return self._write(self, x)


class Norms(nn.Module):
    """A batch norm behind in-place activations, and one that is called twice."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.first, self.twice = nn.BatchNorm1d(6, **options), nn.BatchNorm1d(6, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.twice(torch.relu_(self.twice(torch.relu_(self.first(x)) + 1)))


def read_before_and_after(m: Any, x: Tensor) -> Tensor:
    y = x + m.held
    m.held.mul_(0.5).add_(1)
    return y * m.held


def returned(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    m.held.copy_(x.sum(0))
    return x - m.held, m.held


def clamped(m: Any, x: Tensor) -> Tensor:
    m.count += 1
    m.held.lerp_(x.mean(0), 0.1).clamp_(min=-0.5)
    return x * m.held / m.count


def by_keyword(m: Any, x: Tensor) -> Tensor:
    m.held.addcmul_(x[0], x[1], value=2)
    return x * m.held


def part(m: Any, x: Tensor) -> Tensor:
    m.held[0] = x.mean()
    return x + m.held


def by_a_view(m: Any, x: Tensor) -> Tensor:
    tail = m.held[1:]
    m.held.add_(1)
    return x[:, 1:] + tail


def twice(m: Any, x: Tensor) -> Tensor:
    first = m.held.add_(1)
    m.held.add_(1)
    return x + first


def vector() -> Tensor:
    return torch.linspace(-1, 1, 6)


WHOLE = {
    "norms": Norms,
    "norms without weights": lambda: Norms(affine=False, momentum=0.3),
    "read before and after": lambda: Writes(read_before_and_after, held=vector()),
    "returned": lambda: Writes(returned, held=vector()),
    "twice": lambda: Writes(twice, held=vector()),
    "by keyword": lambda: Writes(by_keyword, held=vector()),
    "clamped": lambda: Writes(clamped, held=vector(), count=torch.tensor(0)),
}
OTHERWISE = {
    "part": lambda: Writes(part, held=vector()),
    "by a view": lambda: Writes(by_a_view, held=vector()),
}


def agrees(net: Any) -> None:
    torch.manual_seed(0)
    batches = [torch.randn(5, 6) for _ in range(3)]
    compiled = ingot.compile(copy.deepcopy(net), (batches[0],))
    for x in batches:
        want, got = net(x), compiled(x)
        for w, g in zip(*((r if isinstance(r, tuple) else (r,)) for r in (want, got)), strict=True):
            torch.testing.assert_close(g, w)
    for name, tensor in compiled.state().items():
        torch.testing.assert_close(tensor, net.state_dict()[name])


@pytest.mark.parametrize("name", WHOLE)
def test_whole_buffers_take_no_decomposition(name: str, monkeypatch: pytest.MonkeyPatch):
    def never(*_: Any) -> Any:
        raise AssertionError("decomposed")

    monkeypatch.setattr(programs, "decomposed", never)
    agrees(WHOLE[name]())


@pytest.mark.parametrize("name", OTHERWISE)
def test_other_writes_are_left_to_torch(name: str):
    program = export_module(OTHERWISE[name](), (torch.randn(5, 6),))
    assert buffers_as_results(program) is program
    agrees(OTHERWISE[name]())


def test_the_results_are_those_that_torch_makes():
    program = export_module(Norms(), (torch.randn(5, 6),))
    result, want = buffers_as_results(program), program.run_decompositions()
    kinds = [[(s.kind, s.target) for s in p.graph_signature.output_specs] for p in (result, want)]
    assert kinds[0] == kinds[1]
    (end,) = (n for n in result.graph.nodes if n.op == "output")
    values = [n.meta["val"] for n in end.args[0]]
    (end,) = (n for n in want.graph.nodes if n.op == "output")
    assert [(v.dtype, v.shape) for v in values] == [(n.meta["val"].dtype, n.meta["val"].shape) for n in end.args[0]]


def test_names_are_of_one_node_each():
    class Largest(Norms):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).max(1)[0]

    program = buffers_as_results(export_module(Largest(), (torch.randn(5, 6),)))
    names = [n.name for n in program.graph.nodes]
    assert len({*names}) == len(names)


def test_a_buffer_that_gets_another_shape_is_left_to_torch():
    def transpose(m: Any, x: Tensor) -> Tensor:
        return x.sum() + m.held.t_()

    with pytest.raises(ImportModelError, match="torch cannot decompose"):
        ingot.compile(Writes(transpose, held=torch.ones(6, 4)), (torch.randn(5, 6),))


def test_a_program_that_writes_nothing_is_left_as_it_is():
    program = export_module(nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True)), (torch.randn(5, 6),))
    assert buffers_as_results(program) is program


def test_gradients_and_statistics_beside_eager():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(288, 4))
    x, y = torch.randn(6, 3, 8, 8), torch.randint(0, 4, (6,))
    eager = copy.deepcopy(net)
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.1)
    step = ingot.train(net, "cross_entropy", ingot.optim.SGD(0.1), (x,))
    for _ in range(4):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(eager(x), y)
        loss.backward()
        optimizer.step()
        got, _ = step(x, y)
        assert abs(float(got) - loss.item()) < 1e-5
    trained = step.trained().state_dict()
    for name, tensor in eager.state_dict().items():
        torch.testing.assert_close(trained[name], tensor, rtol=1e-4, atol=1e-5)
