"""torch.compile with the backend, its compiler replaced by the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ingot.frontends.torch import ImportedModel
from ingot.frontends.torch.dynamo import ingot_backend
from tests.frontends.torch.agree import close, run


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


class Spy:
    """Compiles by interpretation and counts."""

    def __init__(self) -> None:
        self.models: list[ImportedModel] = []

    def __call__(self, model: ImportedModel) -> Callable[..., Any]:
        self.models.append(model)
        return partial(run, model)

    @property
    def backend(self) -> Callable[..., Any]:
        return partial(ingot_backend, compile_model=self)


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
    compiled = torch.compile(net, backend=spy.backend)
    with torch.no_grad():
        for x in (torch.randn(2, 3, 8), torch.randn(2, 3, 8)):
            close(compiled(x), net(x))
    assert len(spy.models) == 1
    assert len(spy.models[0].graph.inputs) == 1


def test_dynamic_shapes() -> None:
    spy, net = Spy(), Net().eval()
    compiled = torch.compile(net, backend=spy.backend, dynamic=True)
    with torch.inference_mode():
        for shape in ((2, 3, 8), (5, 3, 11), (3, 3, 20)):
            x = torch.randn(shape)
            close(compiled(x), net(x))
    assert len(spy.models) == 1


def test_changed_weights_are_seen() -> None:
    spy, net = Spy(), Net().eval()
    compiled = torch.compile(net, backend=spy.backend)
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        close(compiled(x), net(x))
        net.head.weight.mul_(2)
        close(compiled(x), net(x))
    assert len(spy.models) == 2


def test_training_is_refused() -> None:
    compiled = torch.compile(Net().eval(), backend=Spy().backend)
    with pytest.raises(Exception, match="inference only"):
        compiled(torch.randn(2, 3, 8))


def test_inputs_that_are_written() -> None:
    def function(x: Tensor, n: int) -> Tensor:
        x.add_(n)
        return x.view(-1, n).sum(0)

    compiled = torch.compile(function, backend=Spy().backend, dynamic=True)
    for n in (2, 3, 4):
        a, b = torch.ones(5 * n), torch.ones(5 * n)
        close(compiled(a, n), function(b, n))
        close(a, b)
