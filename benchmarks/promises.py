"""Whether `ingot.quantize` keeps what it promises: small models, seeds, and data that no search has seen.

    python -m benchmarks.promises [--seeds 20] [--seconds 5] [MODEL ...]

Each model is trained on scikit-learn's digits with each seed, and quantized with 150 samples under two constraints:
0.98 of the float model's accuracy, and `--slack` times the float model's latency (on a busy machine more than once).
The accuracy is then counted on 700 other samples, and the latency compared with the float model's: least times by
turns. A refusal (`ConstraintError`) promises nothing, and is told apart.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from sklearn.datasets import load_digits  # pyright: ignore[reportMissingImports]
from torch import nn

import ingot
from ingot.quantization.search import ConstraintError

BATCH, SEEN, UNSEEN = 16, 150, 700


class Attentive(nn.Module):
    """Rows of an image attend to each other."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 64)
        self.layer = nn.TransformerEncoderLayer(64, 4, 256, 0.0, batch_first=True)
        self.outer = nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(self.layer(self.inner(x[:, 0])).flatten(1))


def _convolutions(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.LazyLinear(10))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)),
    "deep mlp": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 10)
    ),
    "cnn": lambda: _convolutions(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1)),
    "normed cnn": lambda: _convolutions(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.SiLU(), nn.Conv2d(32, 32, 3), nn.BatchNorm2d(32)
    ),
    "depthwise": lambda: _convolutions(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1, groups=32), nn.Conv2d(32, 64, 1)
    ),
    "attention": Attentive,
}


def trained(name: str, seed: int, x: torch.Tensor, y: torch.Tensor) -> nn.Module:
    torch.manual_seed(seed)
    net = MODELS[name]()
    net(x[:2])
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
    for _ in range(200):
        at = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[at]), y[at]).backward()
        optimizer.step()
    return net.eval().requires_grad_(False)


def accuracy(outputs: list[np.ndarray], labels: list[np.ndarray]) -> float:
    return float((np.concatenate(outputs).argmax(1) == np.concatenate(labels)).mean())


def latency(model: Callable[..., object], x: torch.Tensor, calls: int = 200) -> float:
    """Median milliseconds."""
    times = []
    for _ in range(calls):
        began = time.perf_counter()
        model(x)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3


def beside(model: Callable[..., object], other: Callable[..., object], x: torch.Tensor, turns: int = 40) -> float:
    """The least time of a call over the other's, by turns: what else runs makes calls slower, never faster."""
    least = [float("inf")] * 2
    for _ in range(turns):
        for i, m in enumerate((model, other)):
            for _ in range(3):
                began = time.perf_counter()
                m(x)
                least[i] = min(least[i], time.perf_counter() - began)
    return least[0] / least[1]


def kept(name: str, seed: int, seconds: float, slack: float) -> tuple[float, float] | None:
    """(part of the float model's accuracy, part of the promised latency) on unseen samples; None: it was refused."""
    data = load_digits()
    order = np.random.default_rng(seed).permutation(len(data.target))
    x = torch.from_numpy((data.images[order, None] / 16).astype(np.float32))
    y = torch.from_numpy(data.target[order].astype(np.int64))
    net = trained(name, seed, x[SEEN + UNSEEN :], y[SEEN + UNSEEN :])
    calls = [(x[i : i + BATCH],) for i in range(0, SEEN // BATCH * BATCH, BATCH)]
    labels = [y[i : i + BATCH].numpy() for i in range(0, SEEN // BATCH * BATCH, BATCH)]
    plain = ingot.compile(net, (x[:BATCH],), threads=1)
    promise = latency(plain, x[:BATCH])
    try:
        model = ingot.quantize(
            net, calls, labels, metric=accuracy, at_least=0.98, latency_ms=slack * promise, seconds=seconds,
            example_inputs=(x[:BATCH],), threads=1, seed=seed,
        )  # fmt: skip
    except ConstraintError:
        return None
    tests = range(SEEN, SEEN + UNSEEN // BATCH * BATCH, BATCH)
    truth = [y[i : i + BATCH].numpy() for i in tests]
    got = accuracy([model(x[i : i + BATCH]).numpy() for i in tests], truth)
    want = accuracy([net(x[i : i + BATCH]).numpy() for i in tests], truth)
    return got / want, beside(model, plain, x[:BATCH]) / slack


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--slack", type=float, default=1.0)
    args = parser.parse_args()
    for name in args.models:
        found = [kept(name, seed, args.seconds, args.slack) for seed in range(args.seeds)]
        held = [f for f in found if f is not None]
        scores, times = [f[0] for f in held], [f[1] for f in held]
        print(
            f"{name:12} {len(found)} seeds, {len(found) - len(held)} refused; accuracy kept in "
            f"{sum(s >= 0.98 for s in scores)} (least {min(scores, default=0):.4f}), latency in "
            f"{sum(t <= 1.1 for t in times)} (worst {max(times, default=0):.2f}, median "
            f"{statistics.median(times) if times else 0:.2f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
