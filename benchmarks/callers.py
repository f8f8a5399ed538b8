"""Throughput of one model that several threads call at once, as in a server; each call computes on one thread.

    python benchmarks/callers.py                                    # 1 and 2 callers, ingot and onnxruntime
    python benchmarks/callers.py --models resnet50 lstm --callers 1 2 4 --rounds 9 --json run.json

Each engine holds the model once, in its own process, and takes bursts in turns with the others.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
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

DEFAULT_PEERS = ["ingot", "onnxruntime"]
# OpenVINO's latency hint makes one stream: its calls at once would take another configuration
PEERS = [name for name in BACKENDS if name != "openvino"]


@dataclass
class Row:
    """One engine on one model: medians of calls per second, by the number of callers."""

    model: str
    peer: str
    calls_per_s: dict[int, float]


def measure(name: str, settings: Settings, callers: Sequence[int]) -> list[Row]:
    """The rows of one model. Raises WorkerFailed."""

    def each(worker: Worker) -> list[float]:
        asked = (worker.ask(do="callers", seconds=settings.seconds, count=count) for count in callers)
        return [answer["calls_per_s"] for answer in asked]

    with running(name, settings) as workers:
        turns = round_robin(workers, settings.rounds, each)
    return [
        Row(name, peer, dict(zip(callers, map(statistics.median, zip(*found, strict=True)), strict=True)))
        for peer, found in turns.items()
    ]


def show(rows: Sequence[Row], callers: Sequence[int]) -> None:
    """A line per engine and model: calls per second, and how many times those of the fewest callers the most make."""
    table = Table("model", "peer", *(f"{count} at once" for count in callers), "gain", title="calls per second")
    for row in rows:
        rates = [row.calls_per_s[count] for count in callers]
        table.add_row(row.model, row.peer, *(f"{rate:.1f}" for rate in rates), f"{rates[-1] / rates[0]:.2f}x")
    console = Console()
    (console if console.is_terminal else Console(width=120)).print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=zoo.names(1), choices=zoo.names(), metavar="NAME")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=DEFAULT_PEERS, metavar="PEER")
    parser.add_argument("--callers", nargs="+", type=int, default=[1, 2], metavar="COUNT")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.4, help="length of a burst")
    parser.add_argument("--json", type=Path, help="write the medians to this file")
    options = parser.parse_args(arguments)
    settings = Settings(tuple(options.peers), 1, 0, 1, options.rounds, options.seconds, False, 900)
    rows: list[Row] = []
    for name in options.models:
        rows += measure(name, settings, options.callers)
        if options.json:
            options.json.write_text(json.dumps([asdict(row) for row in rows]))
    show(rows, options.callers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
