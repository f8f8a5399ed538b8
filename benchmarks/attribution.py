"""Attributions beside captum's: processor time in one interleaved run, memory in a process for each.

    python benchmarks/attribution.py                      five models, integrated gradients of 64 points
    python benchmarks/attribution.py cnn --method occlusion --rounds 9

Told are the medians over the rounds of both engines' processor time and of their ratio, the largest difference, and by
how much a process's peak of resident memory grows from the model being ready to two calls later. captum is installed
without its dependencies (`pip install captum --no-deps`), but for matplotlib.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / part) for part in ("", "src")]  # run as a script

import ingot  # noqa: E402

STEPS = 64
METHODS = ("integrated_gradients", "gradient_x_input", "occlusion")


class Patches(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.patch, self.position = nn.Conv2d(3, width, 8, 8), nn.Parameter(torch.randn(1, 64, width) / 8)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.patch(x).flatten(2).transpose(1, 2) + self.position).mean(1))


class Text(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.word, self.position = nn.Embedding(1000, width), nn.Parameter(torch.randn(1, 48, width) / 8)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.word(x) + self.position)[:, 0])


class Series(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(16, 64, 2, batch_first=True), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def cnn() -> nn.Module:
    layers: list[nn.Module] = []
    for i, o in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def tabular() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 10))


# the model, its input for one example, the window of an occlusion
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], tuple[int, ...]]] = {
    "cnn": (cnn, lambda: torch.randn(1, 3, 64, 64), (3, 8, 8)),
    "vit": (Patches, lambda: torch.randn(1, 3, 64, 64), (3, 8, 8)),
    "bert": (Text, lambda: torch.randint(1, 1000, (1, 48)), (1,)),
    "lstm": (Series, lambda: torch.randn(1, 48, 16), (4, 16)),
    "tabular": (tabular, lambda: torch.randn(16, 32), (1,)),
}


def engines(name: str, method: Any, which: tuple[str, ...] = ("ingot", "captum")) -> dict[str, Callable[[], Any]]:
    """One call of each engine, ready to run."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    make, example, window = MODELS[name]
    net, x = make().eval(), example()
    found: dict[str, Callable[[], Any]] = {}
    if "ingot" in which:
        sizes: dict[str, Any] = {"window": window, "stride": window} if method == "occlusion" else {}
        program = ingot.attribution(net, (x,), method=method, steps=STEPS, threads=1, **sizes)
        found["ingot"] = lambda: program(x, target=3)
    if "captum" in which:
        captum: Any = import_module("captum.attr")  # an extra

        has_ids = not x.is_floating_point()
        if method == "occlusion":
            found["captum"] = lambda: captum.Occlusion(net).attribute(x, window, window, target=3)
        elif method == "gradient_x_input":
            layer = captum.LayerGradientXActivation(net, net.word) if has_ids else captum.InputXGradient(net)
            if has_ids:
                found["captum"] = lambda: layer.attribute(x, 3).sum(-1)
            else:
                found["captum"] = lambda: layer.attribute(x.clone().requires_grad_(), 3)
        elif has_ids:
            path = captum.LayerIntegratedGradients(net, net.word)
            found["captum"] = lambda: path.attribute(x, target=3, n_steps=STEPS).sum(-1)
        else:
            found["captum"] = lambda: captum.IntegratedGradients(net).attribute(x, target=3, n_steps=STEPS)
    return found


def peak_mb(name: str, method: str, engine: str) -> float:
    """Megabytes that two calls add to the peak, in a process of its own."""
    command = [sys.executable, __file__, name, "--method", method, "--peak", engine]
    return float(subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout.split()[-1])


def tell_peak(name: str, method: str, engine: str) -> None:
    call = engines(name, method, (engine,))[engine]
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew: compiling took more
    before = _peak_kb()
    call()
    call()
    print((_peak_kb() - before) / 1024)


def _peak_kb() -> int:
    return next(int(s.split()[1]) for s in Path("/proc/self/status").read_text().splitlines() if s.startswith("VmHWM"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL")
    parser.add_argument("--method", choices=METHODS, default=METHODS[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peak", choices=("ingot", "captum"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        tell_peak(options.models[0], options.method, options.peak)
        return
    print(f"{options.method}: model, ms of ingot, ms of captum, ratio, difference, MB of ingot, MB of captum")
    for name in options.models:
        calls = engines(name, options.method)
        results = {engine: np.asarray(call().detach()) for engine, call in calls.items()}
        times: dict[str, list[float]] = {engine: [] for engine in calls}
        for _ in range(options.rounds):
            for engine, call in calls.items():
                start = time.process_time()
                call()
                times[engine].append(1e3 * (time.process_time() - start))
        ratio = statistics.median(a / b for a, b in zip(times["ingot"], times["captum"], strict=True))
        ms = [statistics.median(t) for t in times.values()]
        gap = np.abs(results["ingot"] - results["captum"]).max()
        mb = [peak_mb(name, options.method, engine) for engine in calls]
        print(f"{name:8} {ms[0]:8.2f} {ms[1]:8.2f} {ratio:6.3f} {gap:9.1e} {mb[0]:7.1f} {mb[1]:7.1f}", flush=True)


if __name__ == "__main__":
    main()
