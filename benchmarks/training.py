"""A step of training: Ingot beside eager PyTorch, Inductor and JAX, in one interleaved run.

    python benchmarks/training.py                          all networks
    python benchmarks/training.py mlp cnn --rounds 15      some; engines: --engines ingot,eager,inductor,jax

All make the same step: the network in training mode without dropout, cross entropy, AdamW (fused in PyTorch; in one
jitted function in JAX, for which all but the vision networks are written in `training_jax.py`). Rounds go through the
engines in turn, a window of steps each; told are the median over the rounds and the median of the ratios to Ingot's,
with the processor time of the first steps. --cpu compares processor time, for machines that do other work too.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import ingot

Step = Callable[[], object]
_WINDOW = 0.3  # seconds of a window


def mlp() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)), torch.randn(64, 64)


def cnn() -> tuple[nn.Module, torch.Tensor]:
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16, 10)), torch.randn(64, 3, 32, 32)


def lstm() -> tuple[nn.Module, torch.Tensor]:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.out = nn.LSTM(32, 128, 2, batch_first=True), nn.Linear(128, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.lstm(x)[0][:, -1])

    return Recurrent(), torch.randn(16, 32, 32)


def transformer(causal: bool) -> tuple[nn.Module, torch.Tensor]:
    """4 layers of 256 with 4 heads on 8 x 128 tokens; a score for each token."""

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.place = nn.Embedding(1000, 256), nn.Parameter(torch.randn(128, 256) * 0.02)
            layer = nn.TransformerEncoderLayer(256, 4, 1024, 0.0, "gelu", batch_first=True, norm_first=causal)
            self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
            self.out = nn.Linear(256, 1000)
            mask = torch.full((128, 128), float("-inf")).triu(1) if causal else None
            self.register_buffer("mask", mask)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.out(self.layers(self.embed(ids) + self.place, mask=self.mask, is_causal=causal)).transpose(1, 2)

    return Encoder(), torch.randint(0, 1000, (8, 128))


def vision(name: str) -> tuple[nn.Module, torch.Tensor]:
    import timm

    return timm.create_model(name, pretrained=False, num_classes=1000), torch.randn(8, 3, 224, 224)


NETWORKS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "mlp": mlp,
    "cnn": cnn,
    "lstm": lstm,
    "bert-mini": lambda: transformer(False),
    "gpt-mini": lambda: transformer(True),
    "resnet18": lambda: vision("resnet18"),
    "mobilenetv2": lambda: vision("mobilenetv2_100"),
}


def of_ingot(net: nn.Module, x: torch.Tensor, y: torch.Tensor, threads: int) -> Step:
    step = ingot.train(net, "cross_entropy", ingot.optim.AdamW(), (x,), threads=threads)
    return lambda: step(x, y)[0]


def of_torch(net: nn.Module, x: torch.Tensor, y: torch.Tensor, compiled: bool) -> Step:
    if x.dim() == 4:
        net, x = net.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    forward = torch.compile(net) if compiled else net

    def step() -> object:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(forward(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def of_jax(name: str, net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Step | None:
    from benchmarks.training_jax import step_of

    return step_of(name, net, x, y)


def measured(name: str, engines: list[str], rounds: int, threads: int, clock: Callable[[], float]) -> None:
    torch.manual_seed(0)
    net, x = NETWORKS[name]()
    net.train()
    shape = net(x).shape
    y = torch.randint(0, shape[1], (shape[0], *shape[2:]))
    makers: dict[str, Callable[[nn.Module], Step | None]] = {
        "ingot": lambda n: of_ingot(n, x, y, threads),
        "eager": lambda n: of_torch(n, x, y, False),
        "inductor": lambda n: of_torch(n, x, y, True),
        "jax": lambda n: of_jax(name, n, x, y),
    }
    steps: dict[str, Step] = {}
    for engine in engines:
        began = time.process_time()
        step = makers[engine](copy.deepcopy(net))
        if step is None:
            continue
        losses = [float(np.asarray(step())) for _ in range(3)]
        print(f"{name:12} {engine:9} first steps {time.process_time() - began:6.1f} s  losses {losses}", flush=True)
        steps[engine] = step
    times: dict[str, list[float]] = {engine: [] for engine in steps}
    for _ in range(rounds):
        for engine, step in steps.items():
            count, began = 0, clock()
            while not count or clock() - began < _WINDOW:
                step()
                count += 1
            times[engine].append((clock() - began) / count)
    ours = times.get("ingot")
    for engine, found in times.items():
        # ratios within a round, so that a neighbour's noise is in both
        ratio = statistics.median(t / o for t, o in zip(found, ours, strict=True)) if ours else float("nan")
        print(f"{name:12} {engine:9} {statistics.median(found) * 1e3:9.3f} ms   {ratio:5.2f}x of ingot's", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", choices=[*NETWORKS, []], help="by default all")
    parser.add_argument("--engines", default="ingot,eager,inductor,jax")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu", action="store_true", help="processor time of the process, not time")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    for name in asked.networks or NETWORKS:
        measured(
            name,
            asked.engines.split(","),
            asked.rounds,
            asked.threads,
            time.process_time if asked.cpu else time.perf_counter,
        )


if __name__ == "__main__":
    main()
