"""A language model beside llama.cpp on the same file: milliseconds a token, by turns.

    pip install llama-cpp-python        # builds llama.cpp for this machine
    python -m benchmarks.llama_cpp model.gguf [more.gguf] [--threads 1] [--work decode,128,512] [--json FILE]

decode: tokens one after another behind a prompt of nine; a number: a prompt of so many tokens, read at once. Ingot runs
with activations in float32 and in 8 bits, which are llama.cpp's own. Ids are random. The ratio is the median over pairs
of turns; of one thread, time is that of the processor, which other processes change less.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import ingot
from benchmarks.measure import cpu_name

TOKENS = 24  # of a turn's decoding
BEFORE = 9  # tokens in front of them
CONTEXT = 1024


def measure(path: Path, threads: int, work: list[str], rounds: int) -> list[dict[str, Any]]:
    clock = time.process_time if threads == 1 else time.perf_counter
    llama = import_module("llama_cpp").Llama(
        str(path), n_ctx=CONTEXT, n_batch=512, n_threads=threads, n_threads_batch=threads, verbose=False
    )
    models = {
        name: ingot.LanguageModel(path, context=CONTEXT, threads=threads, activations=name)
        for name in ("int8", "float32")
    }
    rng = np.random.default_rng(0)

    def ids(count: int) -> list[int]:
        return [int(i) for i in rng.integers(100, min(30000, llama.n_vocab()), count)]

    def timed(call: Callable[[], object]) -> float:
        begin = clock()
        call()
        return clock() - begin

    def of_ingot(lm: ingot.LanguageModel, what: str) -> float:
        options: dict[str, Any] = {"temperature": 0.0, "ignore_ends": True}
        if what != "decode":
            prompt = ids(int(what))
            return timed(lambda: lm.generate(prompt, max_tokens=1, **options)) / len(prompt)
        prompt = ids(BEFORE)
        lm.generate(prompt, max_tokens=1, **options)
        return timed(lambda: lm.generate(prompt, max_tokens=1 + TOKENS, **options)) / TOKENS

    def of_llama(what: str) -> float:
        llama.reset()
        if what != "decode":
            prompt = ids(int(what))
            return timed(lambda: llama.eval(prompt)) / len(prompt)
        llama.eval(ids(BEFORE))
        return timed(lambda: [llama.eval([i]) for i in ids(TOKENS)]) / TOKENS

    lines: list[dict[str, Any]] = []
    for what in work:
        turns = [
            {"llama.cpp": of_llama(what), **{name: of_ingot(lm, what) for name, lm in models.items()}}
            for _ in range(rounds + 1)
        ][1:]
        found = {f"{name} ms": 1e3 * median(turn[name] for turn in turns) for name in turns[0]}
        gains = {f"{name} gain": median(turn["llama.cpp"] / turn[name] for turn in turns) for name in models}
        lines.append({"model": path.stem, "threads": threads, "work": what, **found, **gains})
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--work", default="decode,128,512")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(cpu_name(), flush=True)
    lines: list[dict[str, Any]] = []
    for path in options.models:
        for line in measure(path, options.threads, options.work.split(","), options.rounds):
            print(json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in line.items()}), flush=True)
            lines.append(line)
    if options.json:
        options.json.write_text(json.dumps(lines))


if __name__ == "__main__":
    main()
