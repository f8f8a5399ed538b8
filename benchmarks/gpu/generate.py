"""Tokens of a Llama of 1.2 billion on a GPU, with weights as GGUF files have them, beside the GPU's own copies and
`transformers` with Inductor's CUDA graphs.

    python -m benchmarks.gpu.generate [--formats BF16,Q8_0,Q4_0] [--streams 16] [--report FILE]
    python -m benchmarks.gpu.generate --formats peer

Weights are random, written to files first. A line for each format:
tokens a second of one stream behind a prompt of 512 tokens, the time to its first token, the bytes of weights that its
tokens read a second beside the GPU's copies (bytes read and written), and the tokens a second of several streams by
the engine. `same_tokens`: how many of 24 tokens of a small model are those of the CPU, alone and by the engine;
where there is no compiler for CPUs, they are read from `--expected`, which another machine has written.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ingot import LanguageModel
from ingot.driver.compile import Options
from ingot.driver.language import language_programs
from ingot.frontends.gguf import FORMATS
from ingot.language.engine.paging import Steps
from ingot.runtime.cpu.pool import thread_count
from tests.frontends.gguf.builder import (
    CODES,
    F32,
    STRING,
    U32,
    entry,
    file,
    key,
    random_blocks,
    scalar,
    text,
)

REPEATED = 1 << 14  # blocks of random bits, over and over
SIZES = {"width": 2048, "heads": 32, "shared": 8, "inner": 8192, "words": 128256}
CONTEXT, SMALL_TOKENS, SMALL_STREAMS = 1024, 24, 3
SMALL_OPTIONS = {"precision": "float32", "cache": "float32"}
SMALL = {"width": 256, "heads": 8, "shared": 2, "inner": 512, "words": 512}


def write(path: Path, form: str, layers: int, *, width: int, heads: int, shared: int, inner: int, words: int) -> int:
    """The bytes of weights that a token reads."""
    format, nbytes = FORMATS[CODES[form]], 0

    def matrix(rows: int, columns: int) -> tuple[str, tuple[int, ...], np.ndarray]:
        nonlocal nbytes
        count = rows * columns // format.elements
        if form == "BF16":
            rng = np.random.default_rng(len(tensors))
            some = rng.normal(0, width**-0.5, REPEATED * 32).astype(ml_dtypes.bfloat16).view(np.uint16)
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


def model(path: Path, target: str, **options: Any) -> LanguageModel:
    return LanguageModel(path, context=CONTEXT, target=target, **options)


def small_tokens(path: Path, target: str, *, by_engine: bool) -> list[list[int]]:
    """Greedy answers of a small model to three prompts."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, SMALL["words"], n).tolist() for n in (40, 7, 100)]
    options = {"max_tokens": SMALL_TOKENS, "temperature": 0.0, "ignore_ends": True}
    lm = model(path, target, sequences=SMALL_STREAMS if by_engine else None, **SMALL_OPTIONS)
    if by_engine:
        return lm.generate(prompts, **options)
    return [lm.generate(prompt, **options) for prompt in prompts]


def same_tokens(found: list[list[int]], expected: list[list[int]] | None) -> list[int] | None:
    """How many tokens of each answer are as expected before the first that is not."""
    if expected is None:
        return None
    return [
        next((i for i, (a, b) in enumerate(zip(x, y, strict=True)) if a != b), len(y))
        for x, y in zip(found, expected, strict=True)
    ]


def expected_tokens(form: str, path: Path, file: Path | None) -> list[list[int]] | None:
    known: dict[str, Any] = json.loads(file.read_text()) if file is not None and file.is_file() else {}
    if form in known or importlib.util.find_spec("llvmlite") is None:
        return known.get(form)
    tokens = small_tokens(path, "native", by_engine=False)
    if file is not None:
        file.write_text(json.dumps(known | {form: tokens}))
    return tokens


class Trial:
    """The programs of one format."""

    def __init__(self, form: str, asked: argparse.Namespace, folder: Path) -> None:
        self.form, self.asked = form, asked
        self.precision = "bfloat16" if form == "BF16" else asked.precision
        self.path, self.small = folder / f"{form}.gguf", folder / f"small-{form}.gguf"
        self.nbytes = write(self.path, form, asked.layers, **SIZES)
        write(self.small, form, 2, **SMALL)

    def compile(self) -> dict[str, object]:
        """Compile all programs into the disk cache."""
        begin = time.perf_counter()
        for path, options in ((self.path, self._options), (self.small, SMALL_OPTIONS)):
            programs = language_programs(
                path,
                CONTEXT,
                options["cache"],
                (),
                Options(self.asked.target, thread_count(None), precision=options["precision"]),
            )
            for what in ("generate", Steps(self.asked.streams if path == self.path else SMALL_STREAMS)):
                programs(what)
        return {"format": self.form, "compiled_s": time.perf_counter() - begin}

    @property
    def _options(self) -> dict[str, str]:
        return {"precision": self.precision, "cache": self.asked.cache}

    def open(self, sequences: int | None = None) -> Any:
        return model(self.path, self.asked.target, sequences=sequences, **self._options)

    def line(self, copies: float) -> dict[str, object]:
        line: dict[str, object] = {"format": self.form, "precision": self.precision, "weights_gb": self.nbytes / 1e9}
        parts = {"same": self._same, "stream": lambda: self._stream(copies), "streams": self._streams}
        for part in (parts[name] for name in self.asked.parts.split(",")):
            try:
                line |= part()
            except Exception as error:
                line["error"] = f"{line.get('error', '')} {type(error).__name__}: {error}"[:800]
        return line

    def _same(self) -> dict[str, object]:
        expected = expected_tokens(self.form, self.small, self.asked.expected)
        found = (small_tokens(self.small, self.asked.target, by_engine=by_engine) for by_engine in (False, True))
        return {"same_tokens": [same_tokens(tokens, expected) for tokens in found]}

    def _stream(self, copies: float) -> dict[str, object]:
        rng = np.random.default_rng(0)
        begin = time.perf_counter()
        lm = self.open()
        started = time.perf_counter() - begin
        options = {"temperature": 0.0, "ignore_ends": True}
        first: list[float] = []
        seconds: list[float] = []
        for _ in range(self.asked.rounds):
            ids = rng.integers(0, SIZES["words"], 512).tolist()
            begin = time.perf_counter()
            lm.generate(ids, max_tokens=1, **options)
            first.append(time.perf_counter() - begin)
            begin = time.perf_counter()
            answer = lm.generate(ids, max_tokens=self.asked.tokens, **options)
            seconds.append((time.perf_counter() - begin) / len(answer))
        rate = 1 / statistics.median(seconds)
        read = rate * self.nbytes
        return {
            "started_s": started, "tokens_per_s": rate, "first_token_ms": 1e3 * statistics.median(first),
            "read_gb_per_s": read / 1e9, "share_of_copies": read / copies if copies else None,
        }  # fmt: skip

    def _streams(self) -> dict[str, object]:
        """From where each answer has its first token to the end of all."""
        rng = np.random.default_rng(1)
        lm, count = self.open(self.asked.streams), self.asked.streams
        rates: list[float] = []
        first: list[float] = []
        with lm.engine(prefill_chunk=512) as engine:

            def submit(prompt_tokens: int, tokens: int) -> Any:
                ids = rng.integers(0, SIZES["words"], prompt_tokens).tolist()
                return engine.submit(ids, lm.request(max_tokens=tokens, temperature=0.0, ignore_ends=True))

            for _ in range(self.asked.rounds):
                begin = time.perf_counter()
                _wait([submit(512, 1)], 1)
                first.append(time.perf_counter() - begin)
                answers = [submit(128, self.asked.tokens) for _ in range(count)]
                _wait(answers, 1)
                begin, already = time.perf_counter(), sum(answer.generated_tokens for answer in answers)
                _wait(answers, self.asked.tokens)
                rates.append((count * self.asked.tokens - already) / (time.perf_counter() - begin))
        return {
            "streams": count, "streams_tokens_per_s": statistics.median(rates),
            "engine_first_token_ms": 1e3 * statistics.median(first),
        }  # fmt: skip


def _wait(answers: Sequence[Any], tokens: int) -> None:
    while any(answer.generated_tokens < tokens for answer in answers):
        time.sleep(2e-4)


def peer(asked: argparse.Namespace, batch: int, prompt: int) -> dict[str, object]:
    """`transformers` with a static cache, whose step Inductor compiles to a CUDA graph; bfloat16."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=SIZES["words"], hidden_size=SIZES["width"], intermediate_size=SIZES["inner"],
        num_hidden_layers=asked.layers, num_attention_heads=SIZES["heads"], num_key_value_heads=SIZES["shared"],
        max_position_embeddings=4096, tie_word_embeddings=True,
    )  # fmt: skip
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        net: Any = LlamaForCausalLM(config).eval()

    def seconds(tokens: int) -> float:
        ids = torch.randint(0, SIZES["words"], (batch, prompt), device="cuda")
        torch.cuda.synchronize()
        begin = time.perf_counter()
        net.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False,
            cache_implementation="static", pad_token_id=0,
        )  # fmt: skip
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    line: dict[str, object] = {"peer": "transformers, Inductor's CUDA graphs", "streams": batch, "prompt": prompt}
    try:
        started = seconds(8)
        first = statistics.median(seconds(1) for _ in range(asked.rounds))
        whole = statistics.median(seconds(asked.tokens) for _ in range(asked.rounds))
    except Exception as error:
        return line | {"error": f"{type(error).__name__}: {error}"[:300]}
    rate = batch * (asked.tokens - 1) / (whole - first)
    return line | {"started_s": started, "tokens_per_s": rate, "first_token_ms": 1e3 * first}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", default="BF16,Q8_0,Q4_0,peer", help="peer: transformers")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=256, help="of an answer")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cache", default="bfloat16")
    parser.add_argument("--precision", default="bfloat16", help="of what quantized weights are widened to")
    parser.add_argument("--target", default="cuda:sm_90a")
    parser.add_argument("--parts", default="same,stream,streams", help="what is measured")
    parser.add_argument("--compile-only", action="store_true", help="into the disk cache, without a GPU")
    parser.add_argument("--expected", type=Path, help="tokens of the small models as a CPU has them")
    parser.add_argument("--report", type=Path)
    asked = parser.parse_args(arguments)

    def write_line(line: dict[str, object]) -> None:
        print(json.dumps(line), flush=True)
        if asked.report:
            with asked.report.open("a") as out:
                out.write(json.dumps(line) + "\n")

    forms = [form for form in asked.formats.split(",") if form != "peer"]
    with tempfile.TemporaryDirectory() as folder:
        trials = [Trial(form, asked, Path(folder)) for form in forms]
        if asked.compile_only:
            for trial in trials:
                write_line(trial.compile())
            return
        copies = copy_rate() if asked.target.startswith("cuda") else 0.0
        write_line({"copies_gb_per_s": copies / 1e9})
        for trial in trials:
            write_line(trial.line(copies))
        if "peer" in asked.formats.split(","):
            for batch, prompt in ((1, 512), (asked.streams, 128)):
                write_line(peer(asked, batch, prompt))


if __name__ == "__main__":
    main()
