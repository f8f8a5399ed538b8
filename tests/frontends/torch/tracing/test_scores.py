from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ingot.frontends.torch.tracing.partition import joint


class Attention(nn.Module):
    """Attention as GPT-J and Llama write it; with a bias of positions that is trained as T5 does."""

    def __init__(self, has_bias: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.bias = nn.Parameter(torch.randn(1, 2, 9, 9)) if has_bias else None

    def forward(self, x: Tensor, hidden: Tensor | None, fill: float, factor: Tensor | None) -> Tensor:
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        scores = torch.matmul(q, k.transpose(-1, -2)) / 8**0.5
        if hidden is None:
            hidden = torch.ones(9, 9, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, fill)
        if factor is not None:
            scores = scores * factor
        scores = scores if self.bias is None else scores + self.bias
        weights = torch.softmax(scores, -1, dtype=torch.float32).to(v.dtype)
        return (weights @ v).transpose(1, 2).flatten(2)


LOWEST = torch.finfo(torch.bfloat16).min
SAVED = {
    "a bias that is trained": (True, None, LOWEST, None),
    "a condition that the call tells": (False, torch.ones(9, 9, dtype=torch.bool).triu(2), LOWEST, None),
    "a number that scores are not small beside": (False, None, -1e4, None),
    "a factor of each query": (False, None, LOWEST, torch.rand(9, 1)),
}


def saved_scores(net: Attention, *args: object, autocast: bool = False) -> bool:
    """Whether backward reads anything of the scores' shape; its gradients are checked."""
    saved: list[tuple[int, ...]] = []
    cut, x = joint.drop_constants, torch.randn(3, 9, 16)

    def record(forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, results: int) -> None:
        cut(forward, backward, results)
        (end,) = forward.graph.find_nodes(op="output")
        saved.extend(tuple(n.meta["val"].shape) for n in end.args[0][results:])  # type: ignore[index, union-attr]

    gradients: list[list[Tensor]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joint, "drop_constants", record)
        for f in (net, torch.compile(net, backend="ingot", fullgraph=True)):
            net.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                y = f(x, *args)
            y.float().square().sum().backward()
            gradients.append([p.grad.clone() for p in net.parameters() if p.grad is not None])
    for want, got in zip(*gradients, strict=True):
        tolerance = 2e-2 if autocast else 1e-5
        torch.testing.assert_close(got, want, rtol=10 * tolerance, atol=tolerance * want.abs().max().item())
    return any(shape[-2:] == (9, 9) and shape[0] in (3, 6) for shape in saved)


@pytest.mark.parametrize("autocast", [False, True])
def test_backward_recomputes_scores_of_which_only_products_read_the_gradient(autocast: bool) -> None:
    torch.manual_seed(0)
    assert not saved_scores(Attention(False), None, LOWEST, None, autocast=autocast)


@pytest.mark.parametrize("written", SAVED)
def test_scores_that_the_compiler_would_compute_twice_are_saved(written: str) -> None:
    torch.manual_seed(0)
    has_bias, *args = SAVED[written]
    assert saved_scores(Attention(has_bias), *args)
