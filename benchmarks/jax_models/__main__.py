"""JAX models beside XLA's CPU client: differences at fixed and at open sizes, and the time of a call.

    python -m benchmarks.jax_models                        all; keras_hub's where it is installed
    python -m benchmarks.jax_models GPT2 Llama viterbi     those whose names hold one of the words
    python -m benchmarks.jax_models --seconds 3 --threads 2     with times: calls of both take turns

An error is the largest difference of an output as a part of its largest number; whole numbers have to be equal. An
output whose standard deviation is below 1e-3 of nothing proves nothing and is told. XLA's threads are those of the
process: for two, run under `taskset -c 0,1`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import jax
import numpy as np

import ingot

from . import libraries, plain
from .case import Case, Sizes

LEAST_DEVIATION = 1e-3


def cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    yield from plain.cases()
    yield from libraries.cases()
    if find_spec("keras_hub") is None:
        print("keras_hub is not installed: its models are left out")
        return
    from . import hub_nets

    yield from hub_nets.cases()


def error(got: Any, want: Any) -> float:
    """The largest of all outputs. Raises ValueError for outputs that differ in kind or prove nothing."""
    worst = 0.0
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        g, w = np.asarray(g), np.asarray(w)
        if g.shape != w.shape or g.dtype != w.dtype:
            raise ValueError(f"{g.dtype}{list(g.shape)} for {w.dtype}{list(w.shape)}")
        if w.dtype.kind in "biu":
            worst = max(worst, float(np.any(g != w)))
            continue
        if w.size > 1 and np.std(w) < LEAST_DEVIATION * np.abs(w).max():
            raise ValueError("an output is almost constant")
        if not np.array_equal(np.isfinite(g), np.isfinite(w)):
            raise ValueError("infinities or NaN elsewhere")
        scale = max(float(np.abs(w[np.isfinite(w)]).max(initial=0.0)), 1e-30)
        worst = max(worst, float(np.abs(np.where(np.isfinite(w), g - w, 0)).max(initial=0.0)) / scale)
    return worst


def compiled(case: Case, dynamic: bool, threads: int) -> Any:
    example = case.inputs(case.sizes[0], np.random.default_rng(0))
    args = (case.weights, *example)
    return ingot.compile(case.fn, args, weights=(0,), dynamic=case.axes if dynamic else None, threads=threads)


def agreement(case: Case, reference: Any, dynamic: bool, threads: int) -> float:
    model = compiled(case, dynamic, threads)
    worst = 0.0
    for i, sizes in enumerate(case.sizes if dynamic else case.sizes[:1]):
        inputs = case.inputs(sizes, np.random.default_rng(i))
        worst = max(worst, error(model(*inputs), reference(case.weights, *inputs)))
    return worst


def times(case: Case, reference: Any, seconds: float, threads: int) -> tuple[float, float]:
    """Least times of a call at the first sizes, in ms: Ingot's, XLA's."""
    sizes: Sizes = case.sizes[0]
    inputs = case.inputs(sizes, np.random.default_rng(0))
    model = compiled(case, False, threads)
    weights = jax.device_put(case.weights)
    calls = (lambda: model(*inputs)), (lambda: jax.block_until_ready(reference(weights, *inputs)))
    least = [float("inf")] * 2
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for i, call in enumerate(calls):
            for _ in range(3):
                start = time.perf_counter()
                call()
                least[i] = min(least[i], time.perf_counter() - start)
    return 1e3 * least[0], 1e3 * least[1]


def told(work: Callable[[], float]) -> str:
    try:
        return f"{work():.1e}"
    except Exception as e:  # of JAX, of a library, or a refusal: the next model is tried
        return " ".join(f"{type(e).__name__}: {e}".split())[:300]


def line(make: Callable[[], Case], seconds: float, threads: int) -> str:
    case = make()
    reference = jax.jit(case.fn)
    fixed = told(lambda: agreement(case, reference, False, threads))
    several = told(lambda: agreement(case, reference, True, threads)) if case.axes else "-"
    text = f"{case.name:32s} fixed {fixed}  dynamic {several}"
    if not seconds:
        return text
    ours, theirs = times(case, reference, seconds, threads)
    return f"{text}  {ours:8.3f} {theirs:8.3f} ms {theirs / ours:5.2f}x"


def main(words: Sequence[str], seconds: float, threads: int) -> None:
    for label, make in cases():
        if words and not any(w.lower() in label.lower() for w in words):
            continue
        try:
            print(line(make, seconds, threads), flush=True)
        except Exception as e:  # as above
            print(f"{label:32s} {type(e).__name__}: {str(e)[:300]}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--seconds", type=float, default=0.0, help="of measuring per model; 0 measures nothing")
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    main(asked.words, asked.seconds, asked.threads)
