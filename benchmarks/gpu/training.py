"""Training as people run it, on a machine with an NVIDIA GPU: autocast to bfloat16, fused AdamW, `torch.compile`.

    python -m benchmarks.gpu.training --only vit-s,resnet50 --engine eager,cudagraphs,ingot --file training.jsonl
    python -m benchmarks.gpu.training --only gpt2 --precision float16 --file training.jsonl
    python -m benchmarks.gpu.training --file training.jsonl --table
    python -m benchmarks.gpu.training --losses --file losses.jsonl

Each pair of a network and an engine runs in a process of its own under a time limit and appends one JSON line to the
file: seconds to the first step, the median milliseconds of a step over bursts, peak memory, losses, and the kernels
that take the longest. A later run goes on with the same file. With --warm all are compiled at once before, into the
caches of both engines: the first steps are then those of a second start. Each pair is measured alone on the machine,
as other processes slow the host down. Images are channels last. float16 trains with a GradScaler, float32 with
products as PyTorch is set (TF32 in convolutions alone). --losses: all networks at once; a line for each has the mean
distance of 50 steps' losses from those of eager in float32, of eager and of Ingot under autocast, for three seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ingot.integrations.torch_compile import ingot_backend

BURSTS = 9
BURST_SECONDS = 0.3
LOSS_STEPS = 50
SEEDS = 3
LONGEST_KERNELS = 40
ENGINES: dict[str, dict[str, Any]] = {
    "eager": {},
    "inductor": {"backend": "inductor"},
    "cudagraphs": {"backend": "inductor", "mode": "reduce-overhead"},
    "ingot": {"backend": ingot_backend},
}
PRECISIONS = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
Network = tuple[nn.Module, torch.Tensor, torch.Tensor]


def _timm(name: str, batch: int) -> Network:
    import timm

    net = timm.create_model(name, num_classes=1000)
    return net, torch.randn(batch, 3, 224, 224), torch.randint(0, 1000, (batch,))


class _Logits(nn.Module):
    """A `transformers` model that returns its logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids).logits


def _language(model: str, kind: str, batch: int, length: int, **sizes: Any) -> Network:
    """model: an auto class of `transformers`; kind: its name for the architecture, whose sizes are the rest."""
    import transformers

    settings = transformers.AutoConfig.for_model(kind, **sizes, use_cache=False)
    net = _Logits(getattr(transformers, model).from_config(settings))
    ids = torch.randint(0, settings.vocab_size, (batch, length))
    return net, ids, torch.randint(0, settings.vocab_size, (batch, length))


def _gpt2() -> Network:
    return _language("AutoModelForCausalLM", "gpt2", 8, 256, n_layer=6, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)


def _bert() -> Network:
    sizes = {"num_hidden_layers": 6, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return _language("AutoModelForMaskedLM", "bert", 16, 128, **sizes)


def _llama() -> Network:
    sizes = {"num_hidden_layers": 12, "hidden_size": 768, "intermediate_size": 2048, "vocab_size": 32000}
    heads = {"num_attention_heads": 12, "num_key_value_heads": 4}
    return _language("AutoModelForCausalLM", "llama", 8, 512, **sizes, **heads)


NETWORKS: dict[str, Callable[[], Network]] = {
    "gpt2": _gpt2,
    "resnet50": lambda: _timm("resnet50", 32),
    "bert": _bert,
    "vit-s": lambda: _timm("vit_small_patch16_224", 32),
    "efficientnet-b0": lambda: _timm("efficientnet_b0", 32),
    "resnet18": lambda: _timm("resnet18", 128),
    "llama": _llama,
}


def network(name: str) -> Network:
    """One of NETWORKS, `timm:NAME` with 32 images, or 6 layers of `transformers:ARCHITECTURE` with 8x256 tokens."""
    library, _, model = name.partition(":")
    if library == "timm" and model:
        return _timm(model, 32)
    if library == "transformers" and model:
        return _language("AutoModelForCausalLM", model, 8, 256, num_hidden_layers=6)
    return NETWORKS[name]()


def _on_gpu(name: str) -> Network:
    net, x, y = network(name)
    net, x, y = net.cuda().train(), x.cuda(), y.cuda()
    if x.dim() == 4:
        net, x = net.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return net, x, y


def _step(
    forward: Callable[..., torch.Tensor], net: nn.Module, x: torch.Tensor, y: torch.Tensor, dtype: torch.dtype
) -> Callable[[], torch.Tensor]:
    """A function that trains `net` by one step and returns the loss. forward: `net`, or its compiled form."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
            logits = forward(x)
        loss = F.cross_entropy(logits.float().flatten(0, -2), y.flatten())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


def distances(name: str) -> dict[str, Any]:
    """The mean distance of a network's losses from those of eager in float32, of eager and of Ingot in bfloat16, a
    pair for each seed."""
    torch.manual_seed(0)
    net, _, _ = _on_gpu(name)
    compiled = torch.compile(net, **ENGINES["ingot"])
    ways = {"float32": (net, torch.float32), "eager": (net, torch.bfloat16), "ingot": (compiled, torch.bfloat16)}
    pairs = []
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        start, x, y = _on_gpu(name)
        losses = {}
        for way, (forward, dtype) in ways.items():
            net.load_state_dict(start.state_dict())
            step = _step(forward, net, x, y, dtype)
            losses[way] = torch.stack([step() for _ in range(LOSS_STEPS)])
        pairs.append([round(float((losses[w] - losses["float32"]).abs().mean()), 6) for w in ("eager", "ingot")])
    return {"network": name, "distances": pairs, "ratio": round(sum(p[1] for p in pairs) / sum(p[0] for p in pairs), 3)}


def measure(name: str, engine: str, precision: str, seed: int, steps: int = LOSS_STEPS) -> dict[str, Any]:
    """One network under one engine: the figures of its line. steps: whose losses are told; 1: the first alone."""
    torch.manual_seed(seed)
    dtype = PRECISIONS[precision]
    net, x, y = _on_gpu(name)
    forward = torch.compile(net, **ENGINES[engine]) if ENGINES[engine] else net
    step = _step(forward, net, x, y, dtype)
    torch.cuda.synchronize()
    start = time.perf_counter()
    losses = [float(step())]
    first = time.perf_counter() - start
    if steps == 1:
        return {"network": name, "engine": engine, "first_s": round(first, 1)}
    losses += [float(step()) for _ in range(steps - 1)]
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    count = max(3, round(BURST_SECONDS / (time.perf_counter() - start)))
    times = [_burst(step, count) for _ in range(BURSTS)]
    free, total = torch.cuda.mem_get_info()
    return {
        "network": name, "engine": engine, "precision": precision, "seed": seed,
        "ms": round(1e3 * statistics.median(times), 3), "first_s": round(first, 1),
        "allocated_mb": round(torch.cuda.max_memory_allocated() / 1e6), "device_mb": round((total - free) / 1e6),
        "skips": _cudagraph_skips() if engine == "cudagraphs" else 0, "losses": losses, **_kernels(step),
    }  # fmt: skip


def _burst(step: Callable[[], Any], count: int) -> float:
    """Seconds of a step, over `count` of them."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / count


def _cudagraph_skips() -> int:
    from torch._dynamo.utils import counters

    return counters["inductor"]["cudagraph_skips"]


def _kernels(step: Callable[[], Any]) -> dict[str, Any]:
    """The busy milliseconds of a step, its kernels, and those that take the longest with their counts."""
    from torch.profiler import ProfilerActivity, profile

    steps = 3
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    total: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    for event in trace.events() or ():
        if str(event.device_type).endswith("CUDA"):
            total[event.name] += event.device_time / 1e3 / steps
            calls[event.name] += 1
    order = sorted(total, key=lambda n: -total[n])[:LONGEST_KERNELS]
    longest = [[round(total[n], 3), round(calls[n] / steps, 1), n[:100]] for n in order]
    return {"busy_ms": round(sum(total.values()), 3), "kernels": sum(calls.values()) // steps, "longest": longest}


def run(pairs: Sequence[tuple[str, str]], options: argparse.Namespace) -> None:
    """Measure networks under engines, each alone in a process, which is killed with its children after
    `options.seconds`."""
    if options.warm:
        processes = [_start(pair, options, "--compile") for pair in pairs]
        end = time.monotonic() + options.seconds
        for (name, engine), process in zip(pairs, processes, strict=True):
            print(f"{name}, {engine}: {_line(process, end)[:200]}", flush=True)
    for name, engine in pairs:
        line = _line(_start((name, engine), options, "--measure"), time.monotonic() + options.seconds)
        if not line.startswith("{"):
            row = {"network": name, "engine": engine, "precision": options.precision, "error": line[:300]}
            line = json.dumps(row)
        with options.file.open("a") as f:
            f.write(line + "\n")
        print(line[:400], flush=True)


def run_losses(names: Sequence[str], options: argparse.Namespace) -> None:
    """The distances of all networks' losses, each in a process, all at the same time."""
    processes = [_start((name, "ingot"), options, "--distances") for name in names]
    end = time.monotonic() + options.seconds
    for name, process in zip(names, processes, strict=True):
        line = _line(process, end)
        with options.file.open("a") as f:
            f.write((line if line.startswith("{") else json.dumps({"network": name, "error": line[:300]})) + "\n")
        print(line[:400], flush=True)


def _start(pair: tuple[str, str], options: argparse.Namespace, what: str) -> subprocess.Popen[str]:
    name, engine = pair
    command = [sys.executable, "-m", "benchmarks.gpu.training", what, "--only", name, "--engine", engine]
    command += ["--precision", options.precision, "--seed", str(options.seed)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def _line(process: subprocess.Popen[str], end: float) -> str:
    """The line of a measurement, or its error."""
    try:
        out, err = process.communicate(timeout=max(end - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return "killed, as the time was over"
    text = out if process.returncode == 0 else err
    return (text.strip().splitlines() or ["no output"])[-1]


def table(file: Path) -> str:
    """The newest line of each pair as a table in Markdown: ms a step, first step, memory, and Ingot over the best
    other."""
    newest: dict[tuple[str, str], dict[str, Any]] = {}
    for line in file.read_text().splitlines():
        row = json.loads(line)
        precision = row.get("precision", "bfloat16")
        newest[row["network"] + f", {precision}" * (precision != "bfloat16"), row["engine"]] = row
    rows = ["| network | " + " | ".join(ENGINES) + " | Ingot over the best | memory, MB (best / Ingot) |"]
    rows.append("|---" * (len(ENGINES) + 3) + "|")
    for name in dict.fromkeys(n for n, _ in newest):
        by = {e: newest.get((name, e), {}) for e in ENGINES}
        cells = [f"{by[e]['ms']} ({by[e]['first_s']} s)" if "ms" in by[e] else by[e].get("error", "") for e in ENGINES]
        others = [e for e in ENGINES if e != "ingot" and "ms" in by[e]]
        ratio, memory = "", ""
        if others and "ms" in by["ingot"]:
            ratio = f"{min(by[e]['ms'] for e in others) / by['ingot']['ms']:.2f}"
            if all(by[e]["device_mb"] for e in (*others, "ingot")):
                memory = f"{min(by[e]['device_mb'] for e in others)} / {by['ingot']['device_mb']}"
        rows.append(f"| {name} | " + " | ".join(cells) + f" | {ratio} | {memory} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", default=",".join(NETWORKS), help="networks, by comma; also timm:NAME, transformers:ARCHITECTURE"
    )
    parser.add_argument("--engine", default=",".join(ENGINES), help="engines, by comma")
    parser.add_argument("--file", type=Path, default=Path("training.jsonl"))
    parser.add_argument("--seconds", type=float, default=120.0, help="of one network and engine")
    parser.add_argument("--precision", choices=PRECISIONS, default="bfloat16")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--table", action="store_true", help="print the table of the file")
    parser.add_argument("--warm", action="store_true", help="compile all at once first, into the caches")
    parser.add_argument("--losses", action="store_true", help="how far losses are from those in float32")
    parser.add_argument("--distances", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--compile", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure or options.compile:
        steps = 1 if options.compile else LOSS_STEPS
        print(json.dumps(measure(options.only, options.engine, options.precision, options.seed, steps)))
    elif options.distances:
        print(json.dumps(distances(options.only)))
    elif options.losses:
        run_losses(options.only.split(","), options)
    elif options.table:
        print(table(options.file))
    else:
        run([(n, e) for n in options.only.split(",") for e in options.engine.split(",")], options)


if __name__ == "__main__":
    main()
