"""A step of training: Ingot beside eager PyTorch, Inductor and JAX, in one interleaved run.

    python benchmarks/training.py                          all networks
    python benchmarks/training.py mlp cnn --rounds 15      some
    python benchmarks/training.py --engines backend,eager,inductor   torch.compile(..., backend="ingot")
    python benchmarks/training.py --engines ingot --memory 0.5 --cpu         beside Ingot's step with less memory
    python benchmarks/training.py --parallel --json t.json each network on cores of its own, all at once

All make the same step: the network in training mode without dropout, cross entropy, AdamW (fused in PyTorch; one jitted
function in JAX, `training_jax.py`). Images are channels last in all. Rounds go through the engines in turn, a window
of steps each, until a network's rounds have taken --limit seconds; told are the median over the rounds and the median
of the ratios to the first engine's, with the processor time of the first step. --cpu compares processor time, for
machines that do other work too. With --parallel a process per network has --threads physical cores that no other has;
one that is not through behind two limits is ended. The last line is the geometric mean, over the networks, of the
ratio of the best of others (eager, inductor, jax). Engines that are not installed are left out, and told.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / part) for part in ("", "src")]  # run as a script

import ingot  # noqa: E402
from benchmarks.measure import geometric_mean  # noqa: E402
from benchmarks.models.base import declare_torchvision_ops  # noqa: E402
from ingot.integrations.torch_compile import ingot_backend  # noqa: E402

Step = Callable[[], object]
# `ingot.train`, torch.compile with Ingot behind it, and `ingot.train` with --memory
_OWN = "ingot", "backend", "limited"
_WINDOW = 0.3  # seconds of a window
# a process stays on some CPUs from its first thread on
_PINNED = (
    "import os, sys; os.sched_setaffinity(0, map(int, sys.argv[1].split(','))); os.execv(sys.argv[2], sys.argv[2:])"
)


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
    declare_torchvision_ops()
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


def of_ingot(net: nn.Module, x: torch.Tensor, y: torch.Tensor, threads: int, memory: float | None = None) -> Step:
    step = ingot.train(net, "cross_entropy", ingot.optim.AdamW(), (x,), threads=threads, memory=memory)
    if memory is not None:
        print(f"{step.program.meta['memory']}; {step.arena_bytes / 1e6:.3f} MB are mapped", flush=True)
    return lambda: step(x, y)[0]


def of_torch(net: nn.Module, x: torch.Tensor, y: torch.Tensor, backend: str | Callable[..., Any] | None) -> Step:
    if x.dim() == 4:
        net = cast(Any, net).to(memory_format=torch.channels_last)  # which the stubs do not have
        x = x.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(net(x), y)

    forward = torch.compile(loss_of, backend=backend) if backend else loss_of

    def step() -> object:
        optimizer.zero_grad(set_to_none=True)
        loss = forward(x, y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def of_jax(name: str, net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Step | None:
    try:
        from benchmarks.training_jax import step_of
    except ImportError as error:
        print(f"{name:12} jax       left out: {error}", flush=True)
        return None
    return step_of(name, net, x, y)


def measured(name: str, asked: argparse.Namespace) -> dict[str, dict[str, object]]:
    """By engine: ms of a step, its ratio to Ingot's, processor seconds of the first steps, their losses."""
    torch.manual_seed(0)
    torch._dynamo.reset()  # the networks before would count as recompilations, after eight of which nothing is compiled
    torch.set_num_threads(asked.threads)
    clock = time.process_time if asked.cpu else time.perf_counter
    net, x = NETWORKS[name]()
    net.train()
    shape = net(x).shape
    y = torch.randint(0, shape[1], (shape[0], *shape[2:]))
    makers: dict[str, Callable[[nn.Module], Step | None]] = {
        "ingot": lambda n: of_ingot(n, x, y, asked.threads),
        "limited": lambda n: of_ingot(n, x, y, asked.threads, asked.memory),
        "eager": lambda n: of_torch(n, x, y, None),
        "backend": lambda n: of_torch(n, x, y, ingot_backend),
        "inductor": lambda n: of_torch(n, x, y, "inductor"),
        "jax": lambda n: of_jax(name, n, x, y),
    }
    steps: dict[str, Step] = {}
    found: dict[str, dict[str, object]] = {}
    for engine in (*asked.engines.split(","), *["limited"] * (asked.memory is not None)):
        began = time.process_time()
        step = makers[engine](copy.deepcopy(net))
        if step is None:
            continue
        losses = [float(np.asarray(step()))]
        first = time.process_time() - began
        losses += [float(np.asarray(step())) for _ in range(2)]
        print(f"{name:12} {engine:9} first step {first:6.1f} s  losses {losses}", flush=True)
        steps[engine], found[engine] = step, {"first_s": round(first, 2), "losses": losses}
    times: dict[str, list[float]] = {engine: [] for engine in steps}
    start = time.perf_counter()
    for turn in range(asked.rounds):
        if turn and time.perf_counter() - start > asked.limit:
            break
        for engine, step in steps.items():
            count, began = 0, clock()
            while not count or clock() - began < _WINDOW:
                step()
                count += 1
            times[engine].append((clock() - began) / count)
    for engine, taken in times.items():
        # ratios within a round, so that a neighbour's noise is in both
        ratios = [t / o for t, o in zip(taken, next(iter(times.values())), strict=True)]
        found[engine] |= {
            "ms": statistics.median(taken) * 1e3,
            "ratio": statistics.median(ratios),
            "rounds": len(taken),
        }
    return found


def told(name: str, found: dict[str, dict[str, object]]) -> None:
    for engine, it in found.items():
        timed = (
            f"{it['ms']:9.3f} ms   {it['ratio']:5.2f}x of the first   {it['rounds']} rounds"
            if "ms" in it
            else "no time"
        )
        print(f"{name:12} {engine:9} {timed}   first step {it['first_s']} s", flush=True)


def core_sets(width: int) -> Iterator[list[int]]:
    """CPUs of this process, one of each physical core, `width` at a time."""
    seen: dict[str, int] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        seen.setdefault(siblings.read_text() if siblings.exists() else str(cpu), cpu)
    cores = list(seen.values())
    yield from (cores[i : i + width] for i in range(0, len(cores) - width + 1, width))


def side_by_side(names: list[str], asked: argparse.Namespace) -> dict[str, dict[str, dict[str, object]]]:
    """A process a network, each on cores of its own."""
    free = list(core_sets(asked.threads))
    if not free:
        raise SystemExit(
            f"--parallel: {asked.threads} physical cores expected, found {len(os.sched_getaffinity(0))} CPUs"
        )

    def one(name: str) -> dict[str, dict[str, object]]:
        cpus = free.pop()
        options = [f"--{n}={getattr(asked, n)}" for n in ("engines", "rounds", "threads", "limit")]
        options += ["--cpu"] * asked.cpu + [f"--memory={asked.memory}"] * (asked.memory is not None)
        command = [sys.executable, str(Path(__file__).resolve()), name, *options, "--json=-"]
        # jax and torch are to see no GPU; compilers no more workers than cores
        few = dict.fromkeys(("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"), str(asked.threads))
        env = os.environ | few | {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
        pinned = subprocess.Popen(
            [sys.executable, "-c", _PINNED, ",".join(map(str, cpus)), *command],
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        try:
            out, _ = pinned.communicate(timeout=2 * asked.limit)
        except subprocess.TimeoutExpired:
            pinned.kill()
            out, _ = pinned.communicate()
        finally:
            free.append(cpus)
        lines = out.splitlines()
        print("\n".join(line for line in lines if not line.startswith("{")), flush=True)
        return json.loads(lines[-1])[name] if lines and lines[-1].startswith("{") else {}

    with ThreadPoolExecutor(len(free)) as pool:
        return dict(zip(names, pool.map(one, names), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", choices=[*NETWORKS, []], help="by default all")
    parser.add_argument("--engines", default="ingot,eager,inductor,jax")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limit", type=float, default=200.0, help="seconds that a network's rounds may take")
    parser.add_argument("--memory", type=float, help="the limit of one more step of Ingot's, told with what it came to")
    parser.add_argument("--cpu", action="store_true", help="processor time of the process, not time")
    parser.add_argument("--parallel", action="store_true", help="a process a network, on cores of its own")
    parser.add_argument("--json", help="where to write what was measured; - for the last line")
    asked = parser.parse_args()
    names = asked.networks or list(NETWORKS)
    # the longest first
    found = side_by_side(names[::-1], asked) if asked.parallel else {}
    for name in names:
        if not asked.parallel:
            found[name] = measured(name, asked)
        if asked.json != "-":
            told(name, found[name])
    best = {
        n: min(cast(float, it["ratio"]) for e, it in by.items() if e not in _OWN)
        for n, by in found.items()
        if set(by) - set(_OWN) and next(iter(by)) in _OWN
    }
    if len(best) > 1:
        print(f"the best other over Ingot, {len(best)} networks: {geometric_mean(list(best.values())):.2f}x, ", end="")
        print(", ".join(f"{n} {r:.2f}x" for n, r in best.items()), flush=True)
    text = json.dumps(found)
    if asked.json == "-":
        print(text, flush=True)
    elif asked.json:
        Path(asked.json).write_text(text)


if __name__ == "__main__":
    main()
