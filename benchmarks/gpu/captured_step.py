"""A whole training step in one CUDA graph, on a machine with an NVIDIA GPU: `torch.cuda.graph` around compiled calls.

    python -m benchmarks.gpu.captured_step [--only vit-s,resnet50] [--engine eager,inductor,ingot] [--compile-optimizer]

Forward and backward pass under autocast to bfloat16 and AdamW (fused, or compiled by the same backend with
`--compile-optimizer`), as `benchmarks.gpu.training` has them. A line for each network and engine, each in a process of
its own: milliseconds a step by calls and by replays, the largest distance between losses of calls and of replays from
the same start, of the losses' magnitude, and the first and the last loss.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.gpu.training import BURSTS, ENGINES, NETWORKS, _burst

WARM_STEPS = 3
STEPS = 20


def measure(name: str, engine: str, compiles_optimizer: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    net, x, y = NETWORKS[name]()
    net, x, y = net.cuda().train(), x.cuda(), y.cuda()
    if x.dim() == 4:
        net, x = net.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)  # type: ignore[call-overload]
    forward = torch.compile(net, **ENGINES[engine]) if ENGINES[engine] else net
    start = {key: value.clone() for key, value in net.state_dict().items()}

    def begin() -> Callable[[], torch.Tensor]:
        """A step from the start."""
        with torch.no_grad():
            for key, value in net.state_dict().items():
                value.copy_(start[key])
        net.zero_grad(set_to_none=True)
        rate = torch.tensor(1e-4, device="cuda") if compiles_optimizer else 1e-4
        optimizer = torch.optim.AdamW(net.parameters(), lr=rate, fused=not compiles_optimizer, capturable=True)
        update = torch.compile(optimizer.step, **ENGINES[engine]) if compiles_optimizer else optimizer.step

        def step() -> torch.Tensor:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.bfloat16):
                logits = forward(x)
            loss = F.cross_entropy(logits.float().flatten(0, -2), y.flatten())
            loss.backward()
            update()
            return loss.detach()

        return step

    step = begin()
    losses = [float(step()) for _ in range(WARM_STEPS + STEPS)]
    called = statistics.median(_burst(step, 20) for _ in range(BURSTS))
    step, side = begin(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        again = [float(step()) for _ in range(WARM_STEPS)]
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    for _ in range(STEPS):
        graph.replay()
        again.append(float(loss))
    replayed = statistics.median(_burst(graph.replay, 20) for _ in range(BURSTS))
    distance = max(abs(a - b) for a, b in zip(losses, again, strict=True)) / max(map(abs, losses))
    return {
        "network": name, "engine": engine, "compiled_optimizer": compiles_optimizer, "call_ms": round(1e3 * called, 3),
        "replay_ms": round(1e3 * replayed, 3), "distance": distance, "losses": [again[0], again[-1]],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="vit-s,resnet50", help="networks, by comma")
    parser.add_argument("--engine", default="eager,inductor,ingot", help="engines, by comma")
    parser.add_argument("--compile-optimizer", action="store_true")
    parser.add_argument("--seconds", type=float, default=120.0, help="of one network and engine")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.only, options.engine, options.compile_optimizer)))
        return
    for name in options.only.split(","):
        for engine in options.engine.split(","):
            command = [sys.executable, "-m", "benchmarks.gpu.captured_step", "--measure", "--only", name]
            command += ["--engine", engine, *(["--compile-optimizer"] if options.compile_optimizer else [])]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=options.seconds, check=False)
                lines, errors = done.stdout.strip().splitlines(), done.stderr.strip().splitlines()
            except subprocess.TimeoutExpired:
                lines, errors = [], [f"longer than {options.seconds:.0f} s"]
            failed = {"network": name, "engine": engine, "error": " | ".join(errors[-3:])[:600]}
            print(lines[-1] if lines else json.dumps(failed), flush=True)


if __name__ == "__main__":
    main()
