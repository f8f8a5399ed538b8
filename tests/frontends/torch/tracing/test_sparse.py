"""Sparse gradients of tables, the compiler replaced by the interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ingot.support.errors import UnsupportedOpError
from tests.frontends.torch.agree import Spy, close, compile_whole

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Words(nn.Module):
    def __init__(self, padding: int | None = None) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(9, 4, padding_idx=padding, sparse=True), nn.Embedding(7, 4)
        self.kinds, self.out = nn.Embedding(3, 4, sparse=True), nn.Linear(4, 2)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[-1])
        return self.out(self.words(ids) * self.places(places) + self.kinds(ids % 3))


@pytest.mark.parametrize("padding", [None, 2])
def test_tables(padding: int | None) -> None:
    spy, net = Spy(), Words(padding)
    # a graph that cannot be traced would else run eagerly
    compiled = compile_whole(net, backend=spy.backend)
    # rows that come twice, another number of rows, none
    for ids in (torch.tensor([[1, 2, 2], [0, 8, 1]]), torch.tensor([[5, 2], [2, 2], [3, 4]]), torch.empty(0, 3).long()):
        results: list[list[Tensor]] = []
        for f in (net, compiled):
            net.zero_grad()
            f(ids).square().sum().backward()
            results.append([p.grad for p in net.parameters() if p.grad is not None])
        for want, got in zip(*results, strict=True):
            assert got.layout == want.layout
            close(got.to_dense(), want.to_dense(), 1e-5)
    # forward and backward: of the first sizes, of open ones, of no rows
    assert len(spy.models) == 6


def test_a_sum_is_refused() -> None:
    table = torch.randn(5, 2, requires_grad=True)
    ids = torch.tensor([3, 1])

    def twice(table: Tensor) -> Tensor:
        return F.embedding(ids, table, sparse=True) + F.embedding(ids + 1, table, sparse=True)

    with pytest.raises(UnsupportedOpError, match="sparse_coo_tensor"):
        compile_whole(twice, backend=Spy().backend)(table).sum().backward()
