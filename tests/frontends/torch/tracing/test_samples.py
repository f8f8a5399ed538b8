"""Writes that count no version are seen in samples of the elements."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ingot.frontends.torch.tracing.samples import Samples
from tests.frontends.torch.agree import Spy, close, compile_whole


def test_samples() -> None:
    tensors = [torch.full((300,), torch.nan), torch.randn(5, 7).t(), torch.tensor(3), torch.ones(2).expand(4, 2)]
    tensors += [
        torch.randn(9, 4)[:, ::2],
        torch.zeros(0),
        torch.tensor([True, False]),
        torch.ones(3, dtype=torch.bfloat16),
    ]
    samples = Samples([*tensors, torch.randn(3, dtype=torch.complex64)])
    assert not samples.changed()
    for tensor in tensors:
        before = Samples([tensor])
        tensor.data.view(tensor.shape).fill_(0) if tensor.numel() else None
        assert before.changed() == bool(tensor.numel())
    assert samples.changed()


@pytest.mark.usefixtures("fresh_dynamo")
def test_weights_that_are_written_through_data_are_seen() -> None:
    net, x, spy = nn.Linear(40, 30), torch.randn(2, 40), Spy()
    compiled = compile_whole(net, backend=spy.backend)
    for _ in range(2):
        compiled(x).square().sum().backward()
        for p in net.parameters():
            assert p.grad is not None
            p.data -= 0.1 * p.grad
        with torch.no_grad():
            close(compiled(x), net(x))
    with torch.no_grad():
        net.weight.data = torch.randn(30, 40)
        close(compiled(x), net(x))
        count = len(spy.models)
        close(compiled(x), net(x))
        assert len(spy.models) == count
