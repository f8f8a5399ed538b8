from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ingot.frontends.torch.tracing.partition import joint


class Attention(nn.Module):
    """Attention as GPT-J writes it; with a bias of positions that is trained as T5 does."""

    def __init__(self, has_bias: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.bias = nn.Parameter(torch.randn(1, 2, 9, 9)) if has_bias else None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        scores = torch.matmul(q, k.transpose(-1, -2)) / 8**0.5
        hidden = torch.ones(9, 9, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        weights = torch.softmax(scores if self.bias is None else scores + self.bias, -1)
        return (weights @ v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("has_bias", [False, True])
def test_backward_recomputes_scores_of_which_only_products_read_the_gradient(
    has_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[tuple[int, ...]] = []
    cut = joint.drop_constants

    def record(forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, results: int) -> None:
        cut(forward, backward, results)
        (end,) = forward.graph.find_nodes(op="output")
        saved.extend(tuple(n.meta["val"].shape) for n in end.args[0][results:])  # type: ignore[index, union-attr]

    monkeypatch.setattr(joint, "drop_constants", record)
    torch.manual_seed(0)
    net, x = Attention(has_bias), torch.randn(3, 9, 16)
    compiled = torch.compile(net, backend="ingot")
    gradients: list[list[Tensor]] = []
    for f in (net, compiled):
        net.zero_grad()
        f(x).square().sum().backward()
        gradients.append([p.grad.clone() for p in net.parameters() if p.grad is not None])
    for want, got in zip(*gradients, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert any(shape[-2:] == (9, 9) and shape[0] in (3, 6) for shape in saved) == has_bias
