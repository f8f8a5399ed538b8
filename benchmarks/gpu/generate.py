"""Tokens of a Llama of 1.2 billion on a GPU, with weights as GGUF files have them, beside the GPU's own copies.

    python -m benchmarks.gpu.generate [--formats BF16,Q8_0,Q4_0,Q4_K] [--layers 16] [--report FILE]

Weights are random, written to a file first. A line for each format: tokens a second of one stream behind a prompt of
512 tokens, the time to its first token, the bytes of weights that its tokens read a second, beside the GPU's copies
(bytes read and written), and how many of 24 tokens of a small model are those of the CPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ingot.frontends.gguf import FORMATS
from tests.frontends.gguf.builder import (
    ARRAY,
    CODES,
    F32,
    STRING,
    U32,
    array,
    entry,
    file,
    key,
    random_blocks,
    scalar,
    text,
)

REPEATED = 1 << 14  # blocks of random bits, over and over
SIZES = {"width": 2048, "heads": 32, "shared": 8, "inner": 8192, "words": 128256}
SMALL = {"width": 256, "heads": 8, "shared": 2, "inner": 512, "words": 512}


def write(path: Path, form: str, layers: int, *, width: int, heads: int, shared: int, inner: int, words: int) -> int:
    """The bytes of weights that a token reads."""
    format, nbytes = FORMATS[CODES[form]], 0

    def matrix(rows: int, columns: int) -> tuple[str, tuple[int, ...], np.ndarray]:
        nonlocal nbytes
        count = rows * columns // format.elements
        if form == "BF16":
            rng = np.random.default_rng(len(tensors))
            some = (rng.normal(0, 0.02, REPEATED * 32).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
            raw = np.resize(some, rows * columns)
        else:
            raw = np.resize(random_blocks(form, REPEATED, len(tensors)), (count, format.nbytes))
        nbytes += raw.nbytes
        return form, (rows, columns), raw

    tensors: dict[str, Any] = {}
    ones = ("F32", (width,), np.ones(width, np.float32))
    tensors["token_embd.weight"] = matrix(words, width)  # which the output layer shares
    tensors["output_norm.weight"] = ones
    kept = shared * width // heads
    shapes = {"attn_q": (width, width), "attn_k": (kept, width), "attn_v": (kept, width), "attn_output": (width, width)}
    shapes |= {"ffn_gate": (inner, width), "ffn_up": (inner, width), "ffn_down": (width, inner)}
    for i in range(layers):
        for name, shape in shapes.items():
            tensors[f"blk.{i}.{name}.weight"] = matrix(*shape)
        tensors |= {f"blk.{i}.{name}.weight": ones for name in ("attn_norm", "ffn_norm")}
    numbers = {
        "context_length": 4096, "embedding_length": width, "block_count": layers, "feed_forward_length": inner,
        "attention.head_count": heads, "attention.head_count_kv": shared,
    }  # fmt: skip
    keys = [
        key("general.architecture", STRING, text("llama")),
        key("llama.attention.layer_norm_rms_epsilon", F32, scalar(F32, 1e-5)),
        *(key(f"llama.{name}", U32, scalar(U32, value)) for name, value in numbers.items()),
        key("tokenizer.ggml.model", STRING, text("gpt2")),
        key("tokenizer.ggml.tokens", ARRAY, array(STRING, [text(f"t{i}") for i in range(words)])),
    ]
    entries, start = [], 0
    for name, (form, shape, raw) in tensors.items():
        entries.append(entry(name, shape, CODES[form], start))
        start += raw.nbytes  # a multiple of 32 all
    with path.open("wb") as out:
        out.write(file(keys, entries, b""))
        for _, _, raw in tensors.values():
            out.write(raw.data)
    return nbytes


def copy_rate() -> float:
    """Bytes that a copy on the GPU reads and writes a second."""
    import torch

    x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    times: list[float] = []
    for _ in range(10):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        y.copy_(x)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return 2 * x.nbytes / statistics.median(times)


def model(path: Path, target: str, precision: str) -> Any:
    from ingot import LanguageModel

    return LanguageModel(path, context=1024, target=target, precision=precision, threads=None)


def measure(form: str, asked: argparse.Namespace, folder: Path) -> dict[str, object]:
    precision = "bfloat16" if form == "BF16" else asked.precision
    path, small = folder / f"{form}.gguf", folder / f"small-{form}.gguf"
    rng = np.random.default_rng(0)
    write(small, form, 2, **SMALL)
    ids = [int(i) for i in rng.integers(0, SMALL["words"], 40)]
    found: list[list[int]] = []
    for target in (asked.target, "native"):
        found.append([*model(small, target, "float32").generate(ids, max_tokens=24, temperature=0.0, ignore_ends=True)])
    same = next((i for i, (a, b) in enumerate(zip(*found, strict=True)) if a != b), 24)
    nbytes = write(path, form, asked.layers, **SIZES)
    begin = time.perf_counter()
    lm = model(path, asked.target, precision)
    started = time.perf_counter() - begin
    first: list[float] = []
    rates: list[float] = []
    for _ in range(asked.rounds):
        ids = [int(i) for i in rng.integers(0, SIZES["words"], 512)]
        begin = time.perf_counter()
        lm.generate(ids, max_tokens=1, temperature=0.0, ignore_ends=True)
        first.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        answer = lm.generate(ids, max_tokens=1 + asked.tokens, temperature=0.0, ignore_ends=True)
        rates.append(len(answer) / (time.perf_counter() - begin))
    path.unlink()
    rate = statistics.median(rates)
    return {
        "format": form, "precision": precision, "weights_gb": nbytes / 1e9, "started_s": started,
        "tokens_per_s": rate, "first_token_ms": 1e3 * statistics.median(first), "read_gb_per_s": rate * nbytes / 1e9,
        "same_tokens_as_cpu": same,
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", default="BF16,Q8_0,Q4_0,Q4_K")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", default="bfloat16", help="of what quantized weights are widened to")
    parser.add_argument("--target", default="cuda:sm_90a")
    parser.add_argument("--report", default="")
    asked = parser.parse_args(arguments)
    lines = [{"copies_gb_per_s": copy_rate() / 1e9}] if asked.target.startswith("cuda") else []
    print(*map(json.dumps, lines), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for form in asked.formats.split(","):
            try:
                line = measure(form, asked, Path(folder))
            except Exception as error:
                line = {"format": form, "error": f"{type(error).__name__}: {error}"[:800]}
            print(json.dumps(line), flush=True)
            if asked.report:
                with Path(asked.report).open("a") as out:
                    out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
