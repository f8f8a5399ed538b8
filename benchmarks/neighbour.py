"""What a busy neighbour costs: every engine alone and beside one other busy process, in turns.

    python benchmarks/neighbour.py                                  # tier 1, 2 threads, ingot, onnxruntime and openvino
    python benchmarks/neighbour.py --models resnet50 lstm --rounds 12 --json run.json

The neighbour is a plain loop, bound to no core, that sleeps (SIGSTOP) while an engine is measured alone. It is in the
engines' session, so that the kernel shares the cores between threads: with 2 threads and one neighbour on 2 cores a
fair share costs 1.5x. Each engine takes bursts of calls in its own process, alone and beside, one after the other, in
an order that rotates each round. Where the kernel puts the neighbour varies from burst to burst: many short bursts say
more than few long ones. The mean is what throughput loses, the median and the 90th percentile what a caller sees.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]  # run as a script: the package and Ingot's sources are not installed

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from benchmarks import zoo  # noqa: E402
from benchmarks.peer_backends import BACKENDS  # noqa: E402
from benchmarks.peers import Settings, running  # noqa: E402
from ingot.bench.round_robin import Worker, round_robin  # noqa: E402

DEFAULT_PEERS = ["ingot", "onnxruntime", "openvino"]
SETTLE = 0.03  # seconds for the kernel to spread the threads after the neighbour has come


def percentile(times: Sequence[float], share: float) -> float:
    """The smallest of `times` that at least this share of them does not exceed."""
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass
class Row:
    """One engine on one model: seconds of every call, alone and beside the neighbour."""

    model: str
    peer: str
    alone_s: list[float]
    beside_s: list[float]

    def slowdowns(self) -> tuple[float, float, float]:
        """(median, mean, 90th percentile) beside the neighbour over the same alone."""
        return (
            statistics.median(self.beside_s) / statistics.median(self.alone_s),
            statistics.fmean(self.beside_s) / statistics.fmean(self.alone_s),
            percentile(self.beside_s, 0.9) / percentile(self.alone_s, 0.9),
        )


class Neighbour:
    """A busy process that sleeps unless `awake`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        self._process.send_signal(signal.SIGSTOP)

    @contextmanager
    def awake(self) -> Iterator[None]:
        self._process.send_signal(signal.SIGCONT)
        time.sleep(SETTLE)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGSTOP)

    def __enter__(self) -> "Neighbour":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def measure(name: str, settings: Settings) -> list[Row]:
    """The rows of one model. Raises WorkerFailed."""
    with running(name, settings) as workers, Neighbour() as neighbour:

        def both(worker: Worker) -> tuple[list[float], list[float]]:
            alone = burst(worker, settings)
            with neighbour.awake():
                return alone, burst(worker, settings)

        turns = round_robin(workers, settings.rounds, both)
    return [
        Row(name, peer, [t for alone, _ in found for t in alone], [t for _, beside in found for t in beside])
        for peer, found in turns.items()
    ]


def burst(worker: Worker, settings: Settings) -> list[float]:
    return worker.ask(do="burst", seconds=settings.seconds)["times_s"]


def show(rows: Sequence[Row]) -> None:
    """A line per engine and model: medians in ms, and the slow-downs."""
    columns = ("model", "peer", "alone ms", "beside ms", "median", "mean", "p90")
    table = Table(*columns, title="beside one busy process (slow-downs; a fair share of 2 cores costs 1.5x)")
    for row in rows:
        medians = (f"{statistics.median(times) * 1e3:.2f}" for times in (row.alone_s, row.beside_s))
        table.add_row(row.model, row.peer, *medians, *(f"{ratio:.2f}x" for ratio in row.slowdowns()))
    console = Console()
    (console if console.is_terminal else Console(width=120)).print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=zoo.names(1), choices=zoo.names(), metavar="NAME")
    parser.add_argument("--peers", nargs="+", choices=list(BACKENDS), default=DEFAULT_PEERS, metavar="PEER")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.25, help="length of a burst")
    parser.add_argument("--json", type=Path, help="write every call's seconds to this file")
    options = parser.parse_args(arguments)
    if (os.cpu_count() or 1) != options.threads:
        print(f"a fair share is not 1.5x: {options.threads} threads on {os.cpu_count()} cores", file=sys.stderr)
    settings = Settings(tuple(options.peers), 1, 0, options.threads, options.rounds, options.seconds, False, 900)
    rows: list[Row] = []
    for name in options.models:
        rows += measure(name, settings)
        if options.json:
            options.json.write_text(json.dumps([asdict(row) for row in rows]))
    show(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
