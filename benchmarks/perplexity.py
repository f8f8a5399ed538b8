"""Perplexity of a language model beside llama.cpp's on the same file: the first 20,000 tokens of `pydoc_data/topics.py`
in windows of 512, each begun anew, their second halves scored.

    pip install llama-cpp-python
    python -m benchmarks.perplexity model.gguf [--windows 39] [--threads 1]
"""

from __future__ import annotations

import argparse
import json
from importlib import import_module
from pathlib import Path
from pydoc_data import topics

import numpy as np

import ingot

WINDOW = 512


def measure(path: Path, windows: int, threads: int) -> dict[str, float]:
    """Perplexities by engine; Ingot's by the type of its activations."""
    models = {
        name: ingot.LanguageModel(path, context=WINDOW, threads=threads, activations=name)
        for name in ("float32", "int8")
    }
    first = models["float32"]
    step = WINDOW - 1  # the begin token comes in front of each window
    text = first.tokenizer.encode(Path(topics.__file__).read_text(), framed=False)[: windows * step]
    begin = first.tokenizer.encode("")[:1]
    llama = import_module("llama_cpp").Llama(str(path), n_ctx=WINDOW, n_threads=threads, verbose=False, logits_all=True)
    sums = dict.fromkeys((*models, "llama.cpp"), 0.0)
    count = 0
    for start in range(0, len(text) - step + 1, step):
        ids = np.array([*begin, *text[start : start + step]])
        scored = slice(WINDOW // 2, WINDOW)  # tokens; each by the logits in front of it
        for name, lm in models.items():
            sums[name] += float(lm.score(ids.tolist()).logprobs[WINDOW // 2 - 1 :].sum())
        llama.reset()
        llama.eval(ids.tolist())
        logits = np.array(llama.scores[WINDOW // 2 - 1 : WINDOW - 1], np.float64)
        logits -= logits.max(1, keepdims=True)
        logprobs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        sums["llama.cpp"] += float(logprobs[np.arange(len(logprobs)), ids[scored]].sum())
        count += len(logprobs)
    return {name: float(np.exp(-total / count)) for name, total in sums.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--windows", type=int, default=39)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    found = measure(options.model, options.windows, options.threads)
    print(json.dumps({name: round(value, 4) for name, value in found.items()}))
    for name in ("float32", "int8"):
        print(f"{name}: {100 * (found[name] / found['llama.cpp'] - 1):+.2f}% of llama.cpp's")


if __name__ == "__main__":
    main()
