"""On a machine with an NVIDIA GPU: steps of training, right and how fast.

    python -m benchmarks.gpu.ingot_train [--networks mlp,cnn] [--precisions float32,bfloat16] [--minutes 4]

Networks are those of `benchmarks.training`, resnet18 with 32 images. First all of them at once, each in a process of
its own, which fills the caches of compiled kernels: five steps of AdamW by `ingot.train` and by `torch.compile` with
Ingot behind it beside eager's losses (float32 without TF32, or autocast to bfloat16), a file and a checkpoint that go
on with the same bits, arrays of the host, a step inside of a captured graph. Then one after another: a step of each
beside eager (fused AdamW) and Inductor (with CUDA graphs, too) in interleaved windows, and which kernels Ingot's takes
longest for.

A line is a JSON object, written as soon as it is known. A process that takes longer than its share is killed with all
that it started.
"""

from __future__ import annotations

import argparse
import copy
import faulthandler
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import ingot
from benchmarks import training
from ingot.integrations.torch_compile import ingot_backend
from ingot.runtime.training import SECTIONS

TARGET = "cuda:sm_90a"
NETWORKS = ("mlp", "cnn", "bert-mini", "gpt-mini", "resnet18", "lstm")
STEPS = 5
WINDOW = 0.05  # seconds
KERNELS = 12  # told of a step
CHECK, TIME = 130.0, 45.0  # seconds that a process may take

Step = Callable[[], Any]


def tell(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def made(name: str) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """The network, a batch and its targets, the same each time, on the host."""
    torch.manual_seed(0)
    if name == "resnet18":
        import torchvision

        net, x = torchvision.models.resnet18(), torch.randn(32, 3, 224, 224)
    else:
        net, x = training.NETWORKS[name]()
    shape = copy.deepcopy(net)(x[:2]).shape
    return net.train(), x, torch.randint(0, shape[1], (len(x), *shape[2:]))


def of_ingot(net: nn.Module, x: torch.Tensor, y: torch.Tensor, precision: str) -> tuple[Any, Step]:
    step = ingot.train(net, "cross_entropy", ingot.optim.AdamW(), (x,), target=TARGET, precision=precision)
    there = x.cuda(), y.cuda()
    return step, lambda: step(*there)[0]


def of_torch(net: nn.Module, x: torch.Tensor, y: torch.Tensor, precision: str, **compiled: Any) -> Step:
    """compiled: what torch.compile is told, eager without."""
    net, x, y = net.cuda(), x.cuda(), y.cuda()
    narrow = precision != "float32"
    if narrow and x.dim() == 4:  # what cuDNN's convolutions of 16 bits are fastest with
        layout: Any = {"memory_format": torch.channels_last}
        net, x = net.to(**layout), x.contiguous(**layout)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16) if narrow else nullcontext():
            return F.cross_entropy(net(x).float(), y)

    forward = torch.compile(loss_of, **compiled) if compiled else loss_of

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = forward(x, y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def makers(name: str, precision: str) -> dict[str, Callable[[], Step]]:
    net, x, y = made(name)
    told: dict[str, dict[str, Any]] = {
        "backend": {"backend": ingot_backend}, "eager": {}, "inductor": {"backend": "inductor"},
        "reduce-overhead": {"backend": "inductor", "mode": "reduce-overhead"},
    }  # fmt: skip
    own = {"ingot": lambda: of_ingot(copy.deepcopy(net), x, y, precision)[1]}
    return own | {k: partial(of_torch, copy.deepcopy(net), x, y, precision, **v) for k, v in told.items()}


def tried(name: str, precision: str, what: str, act: Callable[[], dict[str, object]]) -> None:
    """A line of what was found, or of why not."""
    begin = time.perf_counter()
    try:
        found = act()
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}"[:600]}
    tell(network=name, precision=precision, what=what, **found, seconds=round(time.perf_counter() - begin, 1))


def check(name: str, precision: str) -> None:
    """Losses beside eager's, files, Inductor for its cache; a capture, whose failure may end the rest, comes last."""
    by = makers(name, precision)
    step = by["eager"]()
    want = [float(step()) for _ in range(STEPS)]
    tell(network=name, precision=precision, what="losses of eager", losses=want)

    def losses(engine: str) -> dict[str, object]:
        step = by[engine]()
        got = [float(step()) for _ in range(STEPS)]
        apart = max(abs(a - b) / max(abs(b), 1.0) for a, b in zip(got, want, strict=True))
        return {"apart": apart if np.isfinite(got).all() else "not finite", "losses": got}

    for engine in ("ingot", "backend"):
        tried(name, precision, f"losses of {engine}", partial(losses, engine))
    tried(name, precision, "the same bits", lambda: same_bits(name, precision))
    for engine in ("inductor", "reduce-overhead"):
        tried(name, precision, f"losses of {engine}", partial(losses, engine))
    tried(name, precision, "captured", lambda: captured(name, precision))


def same_bits(name: str, precision: str) -> dict[str, object]:
    """A checkpoint and a file go on as the step did; arrays of the host give what tensors on the GPU do."""
    net, x, y = made(name)
    step, call = of_ingot(net, x, y, precision)
    first = [float(call()) for _ in range(2)]
    with tempfile.TemporaryDirectory() as folder:
        step.save_checkpoint(Path(folder) / "c.safetensors")
        step.save(Path(folder) / "s.ingot")
        there = x.cuda(), y.cuda()
        want = [float(step(*there)[0]) for _ in range(2)]
        end = step.state()
        loaded: Any = ingot.load(Path(folder) / "s.ingot")
        from_file = [float(loaded(x.numpy(), y.numpy())[0]) for _ in range(2)]
        file_state = loaded.state()
        loaded.load_checkpoint(Path(folder) / "c.safetensors")
        resumed = [float(loaded(*there)[0]) for _ in range(2)]
        rest = loaded.state()
    step.trained()

    def alike(state: Any) -> bool:
        return all(a.tobytes() == end[k].tobytes() for k, a in state.items())

    return {
        "checkpoint": resumed == want and alike(rest), "file_and_host": from_file == want and alike(file_state),
        "losses": [*first, *want], "state_mb": round(sum(a.nbytes for a in end.values()) / 1e6, 1),
        "arena_mb": round(step.arena_bytes / 1e6, 1),
    }  # fmt: skip


def captured(name: str, precision: str) -> dict[str, object]:
    """Replays of a captured step go on as calls do."""
    net, x, y = made(name)
    step, call = of_ingot(net, x, y, precision)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        losses = [float(call()) for _ in range(2)]
        kept = step.state()
        want = [float(call()) for _ in range(3)]
        step.set_state(kept)
        graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        loss = call()
    got: list[float] = []
    for _ in range(3):
        graph.replay()
        torch.cuda.synchronize()
        got.append(float(loss))
    return {"alike": got == want, "losses": [*losses, *got]}


def timed(name: str, precision: str) -> None:
    """A line of each engine's milliseconds, and Ingot's kernels."""
    steps: dict[str, Step] = {}
    for engine, make in makers(name, precision).items():
        try:
            step = make()
            for _ in range(3):
                step()
            torch.cuda.synchronize()
            steps[engine] = step
        except Exception as error:
            tell(network=name, precision=precision, what=f"time of {engine}", error=str(error)[:400])
    counts: dict[str, int] = {}
    for engine, step in steps.items():
        counts[engine] = max(1, round(WINDOW / window(step, 3)))
    times: dict[str, list[float]] = {engine: [] for engine in steps}
    for _ in range(15):
        for engine, step in steps.items():
            times[engine].append(1e3 * window(step, counts[engine]))
    ms = {engine: statistics.median(taken) for engine, taken in times.items()}
    ratios = {e: statistics.median(b / a for a, b in zip(times["ingot"], times[e], strict=True)) for e in ms}
    tell(network=name, precision=precision, what="time", ms=ms, over_ingot={e: round(r, 3) for e, r in ratios.items()})
    tried(name, precision, "kernels", lambda: kernels(name, precision))


def window(step: Step, count: int) -> float:
    """Seconds of a step."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(count):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / count


def kernels(name: str, precision: str) -> dict[str, object]:
    """Microseconds of the sections and of the longest kernels, one behind the other."""
    net, x, y = made(name)
    step, _ = of_ingot(net, x, y, precision)
    there = x.cuda(), y.cuda()
    runs = [step.profile(*there) for _ in range(7)]
    took = np.median([[t for _, t in run] for run in runs], axis=0) * 1e6
    sections: dict[str, float] = {}
    for letter, t in zip(step.program.meta[SECTIONS], took, strict=True):
        sections[letter] = sections.get(letter, 0.0) + float(t)
    order = np.argsort(-took)[:KERNELS]
    longest = [[round(float(took[i]), 1), int(i), step.program.steps[i].kernel, runs[0][i][0][:110]] for i in order]
    return {"us": round(float(took.sum()), 1), "sections": sections, "count": len(took), "longest": longest}


class Process:
    """A part of the run, in a group of its own."""

    def __init__(self, part: str, name: str, precision: str, seconds: float) -> None:
        own = ["--part", part, "--networks", name, "--precisions", precision, "--seconds", str(seconds)]
        self.told = {"network": name, "precision": precision, "what": part}
        self.end = time.monotonic() + seconds
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu.ingot_train", *own], start_new_session=True
        )

    def wait(self) -> None:
        try:
            ended = f"exit {self._process.wait(max(0.0, self.end - time.monotonic()))}"
        except subprocess.TimeoutExpired:
            ended = "killed behind its limit"
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if ended != "exit 0":
            tell(**self.told, error=ended)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--precisions", default="float32,bfloat16")
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--part", choices=["check", "time"], help="of one network, in this process")
    parser.add_argument("--seconds", type=float, default=TIME, help="of a part, until it tells where it hangs")
    asked = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    names, precisions = asked.networks.split(","), asked.precisions.split(",")
    if asked.part:
        faulthandler.dump_traceback_later(max(1.0, asked.seconds - 3), exit=True)
        torch._dynamo.config.recompile_limit = 64  # type: ignore[attr-defined]  # each engine compiles the same lines
        {"check": check, "time": timed}[asked.part](names[0], precisions[0])
        return
    end = time.monotonic() + 60 * asked.minutes
    for precision in precisions:
        left = end - time.monotonic()
        running = [Process("check", name, precision, min(CHECK, left)) for name in names if left > 0]
        for process in running:
            process.wait()
        for name in names:
            if (left := end - time.monotonic()) > 5:
                Process("time", name, precision, min(TIME, left)).wait()
            else:
                tell(network=name, precision=precision, what="time", error="no time is left")


if __name__ == "__main__":
    main()
