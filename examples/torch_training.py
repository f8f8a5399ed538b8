"""Train a PyTorch module compiled by Ingot: torch.compile with another backend, the loop as it was.

python examples/torch_training.py --steps 200
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn import functional as F


def spirals(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points [count, 2] of two spirals, and which of them each is on."""
    labels = torch.arange(count) % 2
    radius = torch.rand(count).sqrt()
    angle = 6 * radius + torch.pi * labels
    points = radius[:, None] * torch.stack([angle.cos(), angle.sin()], 1)
    return points + 0.02 * torch.randn(count, 2), labels


def train(steps: int) -> tuple[float, float]:
    """The first loss and the last one."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2))
    compiled = torch.compile(net, backend="ingot")  # add options={"fallback": "eager"} for ops that Ingot lacks
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    losses: list[float] = []
    for _ in range(steps):
        x, y = spirals(256)
        loss = F.cross_entropy(compiled(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses[0], losses[-1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    first, last = train(parser.parse_args().steps)
    print(f"loss {first:.3f} -> {last:.3f}")
