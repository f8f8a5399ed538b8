"""One token of a language model against a cache of keys and values: share of the machine's reading speed.

python -m benchmarks.decode [llama-160m gpt2] [--past 256] [--threads 2] [--json FILE]

The caches are inputs and the new keys and values outputs, as a server that keeps its own cache would have it. Bytes are
those of all weights that a token needs (the rows of an untied embedding are not) and of the caches, read once. The
machine's reading speed, Ingot and PyTorch take turns.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache

import ingot
from benchmarks import zoo
from benchmarks.bandwidth import read_kernel, rounds, stream_model
from benchmarks.machine import host_machine
from benchmarks.measure import cpu_name, deviation
from ingot.ir.types import f32


class Decode(nn.Module):
    """(ids [1, 1], keys and values [1, heads, past, depth] per layer) -> logits, and what each cache gains."""

    def __init__(self, model: Any, past: int) -> None:
        super().__init__()
        self.model, self.past = model, past

    def forward(self, ids: Tensor, past: list[Tensor]) -> tuple[Tensor, ...]:
        cache = DynamicCache()
        for i in range(0, len(past), 2):
            cache.update(past[i], past[i + 1], i // 2)
        at = torch.full((1, 1), self.past)
        out = self.model(input_ids=ids, past_key_values=cache, use_cache=True, position_ids=at)
        gained = [t[:, :, -1:] for layer in out.past_key_values.layers for t in (layer.keys, layer.values)]
        return out.logits, *gained


def run(name: str, past: int, threads: int, seconds: float) -> dict[str, float | str]:
    model: Any = zoo.get(name).to_torch()
    while not hasattr(model, "config"):
        model = next(model.children())
    config = model.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    depth = config.hidden_size // config.num_attention_heads
    torch.manual_seed(0)
    caches = [torch.randn(1, heads, past, depth) / 2 for _ in range(2 * config.num_hidden_layers)]
    ids, step = torch.tensor([[5]]), Decode(model, past).eval()
    compiled = ingot.compile(torch.export.export(step, (ids, caches), strict=False), threads=threads, cache=False)
    error = deviation(compiled(ids, caches)[0].numpy(), step(ids, caches)[0].numpy())
    embedding = model.get_input_embeddings().weight
    nbytes = sum(p.nbytes for p in [*model.parameters(), *caches])
    if model.get_output_embeddings().weight is not embedding:
        nbytes -= embedding.nbytes
    size = 256 << 20
    calls = {
        "read": stream_model(read_kernel(host_machine().lanes(f32)), size, threads),
        "ingot": lambda: compiled(ids, caches),
        "torch": lambda: step(ids, caches),
    }
    times = rounds(calls, seconds)
    share = (nbytes / times["ingot"]) / (size / times["read"])
    return {
        "name": name, "past": past, "megabytes": nbytes / 1e6, "share": float(np.median(share)), "error": error,
        "read GB/s": float(np.median(size / times["read"])) / 1e9,
        "ingot ms": float(np.median(times["ingot"])) * 1e3, "torch ms": float(np.median(times["torch"])) * 1e3,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="one-token decode against the machine's reading speed")
    parser.add_argument("names", nargs="*", default=["llama-160m", "gpt2"])
    parser.add_argument("--past", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    print(f"{cpu_name()}, {options.threads} threads")
    results = [run(name, options.past, options.threads, options.seconds) for name in options.names]
    for r in results:
        print("  ".join(f"{key} {value:.3g}" if isinstance(value, float) else f"{value}" for key, value in r.items()))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
