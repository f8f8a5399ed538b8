"""On a machine with an NVIDIA GPU: some models through `target="cuda"`, right and how fast.

    python -m benchmarks.gpu.models [--models resnet50_b1,bert_b1] [--inductor] [--report report.json]
    python -m benchmarks.gpu.models --compile-only            into the cache, for runs with --cached

Models run in float16 (Llama in bfloat16) beside PyTorch: eager and, with --inductor, torch.compile with CUDA graphs, in
turns in one run.
Wall times are medians of a call and a synchronization.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

import ingot
from benchmarks.gpu.diffusion import unet
from benchmarks.gpu.llama import llama
from ingot.support.errors import IngotError

TOLERANCE = 2e-3  # of the largest magnitude, in float16
Model = tuple[torch.nn.Module, tuple[torch.Tensor, ...]]


class _Hidden(torch.nn.Module):
    """The last hidden state of a transformer."""

    def __init__(self, net: torch.nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.net(ids).last_hidden_state


def models() -> dict[str, Callable[[], Model]]:
    import torchvision
    import transformers

    def image(build: Callable[[], torch.nn.Module], batch: int) -> Callable[[], Model]:
        return lambda: (build(), (torch.randn(batch, 3, 224, 224),))

    def bert() -> torch.nn.Module:
        return _Hidden(transformers.BertModel(transformers.BertConfig()))

    def gpt2() -> torch.nn.Module:
        return _Hidden(transformers.GPT2Model(transformers.GPT2Config(use_cache=False)))

    def vit() -> torch.nn.Module:
        net = torchvision.models.vit_b_16()
        head = net.get_parameter("heads.head.weight")  # it begins with zeros, which prove nothing
        torch.nn.init.normal_(head, std=0.02)
        return net

    vision = torchvision.models
    found: dict[str, Callable[[], Model]] = {}
    for batch in (1, 32):
        found[f"resnet50_b{batch}"] = image(vision.resnet50, batch)
        found[f"vit_b_b{batch}"] = image(vit, batch)
        found[f"bert_b{batch}"] = lambda batch=batch: (bert(), (torch.randint(0, 1000, (batch, 128)),))
    found["gpt2_s512"] = lambda: (gpt2(), (torch.randint(0, 1000, (1, 512)),))
    found["llama1b_s512"] = lambda: llama(512)
    found["llama1b_token"] = lambda: llama(1, 513)
    found["unet_b1"] = lambda: unet(1)
    found["efficientnet_b0_b1"] = image(vision.efficientnet_b0, 1)
    found["convnext_tiny_b1"] = image(vision.convnext_tiny, 1)
    found["mobilenet_v3_b1"] = image(vision.mobilenet_v3_large, 1)
    return found


def in_turns(calls: dict[str, Callable[[], object]], rounds: int = 40) -> dict[str, float]:
    """Median milliseconds of each call, one after another in each round."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 3):
        for name, call in calls.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            call()
            torch.cuda.synchronize()
            if number >= 3:
                times[name].append(1e3 * (time.perf_counter() - begin))
    return {name: statistics.median(found) for name, found in times.items()}


def _host(call: Callable[[], object], calls: int = 20) -> float:
    """Median microseconds until a call returns, of few, which the GPU's queue takes at once."""
    taken: list[float] = []
    for _ in range(calls):
        begin = time.perf_counter()
        call()
        taken.append(1e6 * (time.perf_counter() - begin))
    torch.cuda.synchronize()
    return statistics.median(taken)


def varied(net: torch.nn.Module) -> torch.nn.Module:
    """Random statistics of normalized batches: with those of a new network deep ones answer a constant."""
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.get_buffer("running_mean").uniform_(-0.2, 0.2)
            module.get_buffer("running_var").uniform_(0.7, 1.3)
    return net


def prepared(build: Callable[[], Model]) -> Model:
    """The same each time, in a 16-bit type."""
    torch.manual_seed(0)
    net, inputs = build()
    net = varied(net).eval()
    if next(net.parameters()).dtype == torch.float32:
        net, inputs = net.half(), tuple(x.half() if x.is_floating_point() else x for x in inputs)
    return net, inputs


def compiled_ahead(name: str, build: Callable[[], Model], target: str) -> dict[str, object]:
    net, inputs = prepared(build)
    begin, processor = time.perf_counter(), time.process_time()
    ingot.compile(net, inputs, target=target)
    taken = {"compile_s": time.perf_counter() - begin, "own_process_s": time.process_time() - processor}
    print(json.dumps({"model": name, **taken}), flush=True)
    return {"model": name, **taken}


def measure(name: str, build: Callable[[], Model], target: str, inductor: bool, cached: bool) -> dict[str, object]:
    net, inputs = prepared(build)
    begin = time.perf_counter()
    compiled = ingot.compile(net, inputs, target=target, cache=cached)
    seconds = time.perf_counter() - begin
    net, own = net.cuda(), tuple(x.cuda() for x in inputs)
    with torch.no_grad():
        want = net(*own).float()
        got = compiled(*own).float()
        calls: dict[str, Callable[[], object]] = {"ingot": lambda: compiled(*own), "eager": lambda: net(*own)}
        if inductor:
            graphed = torch.compile(net, mode="reduce-overhead")
            for _ in range(3):
                graphed(*own)
            calls["inductor"] = lambda: graphed(*own)
        times = in_turns(calls)
        host = _host(calls["ingot"])
    deviation = ((got - want).abs().max() / want.abs().max()).item()
    best = min(t for peer, t in times.items() if peer != "ingot")
    if want.std().item() < 1e-3:
        raise IngotError(f"{name}: outputs that do not vary prove nothing")
    row = {"model": name, **times, "ratio": best / times["ingot"], "deviation": deviation, "host_us": host}
    row["compile_s"] = seconds
    print(json.dumps({k: round(v, 5) if isinstance(v, float) else v for k, v in row.items()}), flush=True)
    return row


def chosen(names: str) -> Iterator[tuple[str, Callable[[], Model]]]:
    known = models()
    for name in names.split(",") if names != "all" else known:
        yield name, known[name]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="cuda:sm_90a")
    parser.add_argument("--models", default="all", help="names with commas, or all")
    parser.add_argument("--inductor", action="store_true")
    parser.add_argument("--cached", action="store_true", help="take compiled models from the cache")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--report", type=Path)
    asked = parser.parse_args()
    rows: list[dict[str, object]] = []
    failed = 0
    for name, build in chosen(asked.models):
        try:
            if asked.compile_only:
                compiled_ahead(name, build, asked.target)
            else:
                rows.append(measure(name, build, asked.target, asked.inductor, asked.cached))
        except IngotError as e:
            failed += 1
            print(f"{name}: {type(e).__name__}: {str(e)[:600]}", flush=True)
    if rows:
        ratios = [float(str(row["ratio"])) for row in rows]
        print(f"geometric mean of the ratios to the best other: {statistics.geometric_mean(ratios):.2f}")
    if asked.report:
        found = {"rows": rows, "gpu": torch.cuda.get_device_name()}
        asked.report.write_text(json.dumps(found))
    if not asked.compile_only:
        print(f"{len(rows)} measured, {failed} failed")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
