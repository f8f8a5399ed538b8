"""Whether `ingot.quantize` keeps what it promises: small models, seeds, and data that no search has seen.

    python -m benchmarks.promises --out FILE [--seeds 20] [--seconds 5] [--slack 1] [MODEL ...]

Each model is trained on scikit-learn's digits with each seed, and quantized with 150 samples under two constraints:
0.98 of the float model's accuracy, and `--slack` times the float model's latency. The accuracy is then counted on 700
other samples, and the latency compared with the float model's: least times by turns. A refusal (`ConstraintError`)
promises nothing: it is told apart, and the model quantized for its accuracy alone. A latency is only judged where the
machine was quiet: calls took no more of the clock than of the processor. It is measured up to `TRIES` times for that.
What was found is a line in FILE, and a second run goes on behind the last one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits  # pyright: ignore[reportMissingImports]
from torch import nn

import ingot
from ingot.transform.quantize.search import ConstraintError

torch.set_num_threads(1)  # of tiny networks, beside what else runs
BATCH, SEEN, UNSEEN = 16, 150, 700
TRIES, QUIET = 3, 1.05  # of a latency; and how much of the clock a processor second may be


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


def beside(model: Callable[..., object], other: Callable[..., object], x: torch.Tensor) -> tuple[float, bool]:
    """The least time of a call over the other's, by turns, and whether the machine was quiet: what else runs makes
    calls slower, never faster."""
    found: list[tuple[float, bool]] = []
    while len(found) < TRIES and not (found and found[-1][1]):
        found.append(_turns(model, other, x))
    return min(ratio for ratio, _ in found), found[-1][1]


def _turns(
    model: Callable[..., object], other: Callable[..., object], x: torch.Tensor, turns: int = 40
) -> tuple[float, bool]:
    least = [float("inf")] * 2
    clock, spent = time.perf_counter(), time.thread_time()
    for _ in range(turns):
        for i, m in enumerate((model, other)):
            for _ in range(3):
                began = time.perf_counter()
                m(x)
                least[i] = min(least[i], time.perf_counter() - began)
    quiet = time.perf_counter() - clock <= QUIET * (time.thread_time() - spent)
    return least[0] / least[1], quiet


def kept(name: str, seed: int, seconds: float, slack: float) -> dict[str, Any]:
    """What became of the promises, on unseen samples. accuracy: a part of the float model's; latency: of the promised
    one, None where it was refused."""
    pixels, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(digits))
    x = torch.from_numpy((pixels[order].reshape(-1, 1, 8, 8) / 16).astype(np.float32))
    y = torch.from_numpy(digits[order].astype(np.int64))
    net = trained(name, seed, x[SEEN + UNSEEN :], y[SEEN + UNSEEN :])
    calls = [(x[i : i + BATCH],) for i in range(0, SEEN // BATCH * BATCH, BATCH)]
    labels = [y[i : i + BATCH].numpy() for i in range(0, SEEN // BATCH * BATCH, BATCH)]
    plain = ingot.compile(net, (x[:BATCH],), threads=1)
    given: dict[str, Any] = {
        "metric": accuracy, "at_least": 0.98, "seconds": seconds, "example_inputs": (x[:BATCH],), "threads": 1,
        "seed": seed,
    }  # fmt: skip
    refused = False
    try:
        model = ingot.quantize(net, calls, labels, latency_ms=slack * latency(plain, x[:BATCH]), **given)
    except ConstraintError:
        refused, model = True, ingot.quantize(net, calls, labels, **given)
    tests = range(SEEN, SEEN + UNSEEN // BATCH * BATCH, BATCH)
    truth = [y[i : i + BATCH].numpy() for i in tests]
    got = accuracy([model(x[i : i + BATCH]).numpy() for i in tests], truth)
    want = accuracy([net(x[i : i + BATCH]).numpy() for i in tests], truth)
    ratio, quiet = beside(model, plain, x[:BATCH])
    formats = sorted({row.format for row in model.report.rows})
    return {
        "model": name, "seed": seed, "slack": slack, "refused": refused, "accuracy": got / want,
        "latency": None if refused else ratio / slack, "quiet": quiet, "formats": formats,
    }  # fmt: skip


def told(name: str, found: Sequence[dict[str, Any]]) -> str:
    scores = [f["accuracy"] for f in found]
    times = [f["latency"] for f in found if not f["refused"]]
    quiet = [f["latency"] for f in found if not f["refused"] and f["quiet"]]
    return (
        f"{name:12} {len(found)} seeds: accuracy kept in {sum(s >= 0.98 for s in scores)}, least {min(scores):.4f}; "
        f"{len(found) - len(times)} latencies refused, {sum(t <= 1.1 for t in times)} of {len(times)} within 10% "
        f"(median {statistics.median(times) if times else 0:.2f}, worst {max(times, default=0):.2f}; "
        f"{sum(t <= 1.1 for t in quiet)} of {len(quiet)} measured on a quiet machine)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--out", type=Path, default=Path("promises.jsonl"))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--slack", type=float, default=1.0)
    args = parser.parse_args()
    found = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    known = {(f["model"], f["seed"], f["slack"]) for f in found}
    for seed in range(args.seeds):
        for name in args.models:
            if (name, seed, args.slack) not in known:
                found.append(kept(name, seed, args.seconds, args.slack))
                with args.out.open("a") as file:
                    file.write(json.dumps(found[-1]) + "\n")
    for name in args.models:
        print(told(name, [f for f in found if f["model"] == name and f["slack"] == args.slack]), flush=True)


if __name__ == "__main__":
    main()
