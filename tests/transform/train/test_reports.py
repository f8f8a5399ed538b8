"""Kinds of training steps that trackers of Lightning and Accelerate have reports of, beside eager PyTorch's losses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import ingot  # noqa: E402

Batch = tuple[Tensor, Tensor]


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3))


class Within(nn.Module):
    """A perceptron in what `wrapper` makes of its call."""

    def __init__(self, wrapper: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.net, self.wrapper = _mlp(), wrapper

    def forward(self, x: Tensor) -> Tensor:
        return self.wrapper(self.net, x)


class FrozenNorm(nn.Module):
    """Whose batch norm stays in evaluation mode while the rest is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 3)
        self.norm.requires_grad_(False).eval()
        self.norm.register_buffer("running_mean", torch.full((16,), 0.5))

    def train(self, mode: bool = True) -> FrozenNorm:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x)).relu())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner, self.head = nn.Embedding(3, 8), nn.Linear(8, 8), nn.Linear(8, 3, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(self.table((x[:, 0] > 0).long())).relu())


def _cast(net: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return net(x).float()


def _ignoring(batches: list[Batch]) -> list[Batch]:
    return [(x, torch.where(torch.arange(4) < i % 4 + 1, y, -100)) for i, (x, y) in enumerate(batches)]


def _soft(batches: list[Batch]) -> list[Batch]:
    return [(x, F.one_hot(y, 3).float() * 0.5 + x.abs()[:, :3].softmax(-1) * 0.5) for x, y in batches]


# (network, asked of the step, batches, loss)
CASES: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], Callable[..., list[Batch]], Callable[..., Any]]] = {
    "clip of the accumulated gradient": (_mlp, {"accumulate": 3, "clip_norm": 0.1}, list, F.cross_entropy),
    "another number of ignored labels in each batch": (_mlp, {}, _ignoring, F.cross_entropy),
    "soft labels, smoothed": (_mlp, {}, _soft, partial(F.cross_entropy, label_smoothing=0.1)),
    "tied embedding with weight decay": (Tied, {}, list, F.cross_entropy),
    "norm frozen in evaluation mode": (FrozenNorm, {}, list, F.cross_entropy),
    "checkpointed activations": (partial(Within, partial(checkpoint, use_reentrant=False)), {}, list, F.cross_entropy),
    "autocast in forward": (partial(Within, _cast), {}, list, F.cross_entropy),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CASES)
def test_losses_are_eagers(name: str) -> None:
    settings, options, changed, loss = CASES[name]
    generator = torch.Generator().manual_seed(0)
    batches = changed(
        [(torch.randn(4, 8, generator=generator), torch.randint(0, 3, (4,), generator=generator)) for _ in range(6)]
    )
    torch.manual_seed(1)
    module = settings()
    torch.manual_seed(1)
    net = settings()
    interval = options.get("accumulate", 1)
    optimizer = torch.optim.AdamW(module.parameters(), 1e-2, weight_decay=0.1)
    ours = ingot.optim.AdamW(lr=1e-2, weight_decay=0.1)
    step = ingot.train(net, loss, ours, (batches[0][0],), batches[0][1], **options)
    near = 2e-3 if name == "autocast in forward" else 5e-6  # a rounding to bfloat16 is 4e-3
    for i, (x, y) in enumerate(batches):
        want = loss(module(x), y)
        (want / interval).backward()
        if (i + 1) % interval == 0:
            if "clip_norm" in options:
                nn.utils.clip_grad_norm_(module.parameters(), options["clip_norm"])
            optimizer.step()
            optimizer.zero_grad()
        got, _ = step(x, y)
        torch.testing.assert_close(torch.as_tensor(got), want.detach(), rtol=0, atol=near)
    trained = step.trained()
    for (key, value), other in zip(module.state_dict().items(), trained.state_dict().values(), strict=True):
        torch.testing.assert_close(other, value, rtol=0, atol=20 * near, msg=key)
