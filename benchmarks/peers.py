"""Ingot and its peers side by side: the same models, one interleaved run, each peer in its own process.

    python benchmarks/peers.py                                  # tier 1, batch 1, 2 threads, every installed peer
    python benchmarks/peers.py --models resnet50 minilm --peers ingot onnxruntime openvino --threads 1
    python benchmarks/peers.py --batch 8 --json run.json

All peers of a model are compiled first and then take short bursts in turns, in an order that rotates each round, so
that a slow minute of the machine hits them alike. A peer's figure is the median of its bursts' medians; a ratio is the
median over rounds of the two bursts of that round. Every peer's outputs are compared with PyTorch's.
"""

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]  # run as a script: the package and Ingot's sources are not installed

from benchmarks import measure, peer_report, zoo  # noqa: E402
from benchmarks.peer_backends import BACKENDS  # noqa: E402
from benchmarks.peer_report import ModelRun, PeerRun  # noqa: E402
from ingot.bench.round_robin import Worker, WorkerFailed, round_robin  # noqa: E402
from ingot.debug import probe  # noqa: E402

DEFAULT_PEERS = ["ingot", "onnxruntime", "openvino", "inductor", "eager"]


@dataclass(frozen=True)
class Settings:
    """What one run measures: see the command line's help."""

    peers: tuple[str, ...]
    batch: int
    length: int
    threads: int
    rounds: int
    seconds: float
    deploy: bool
    limit: float
    quantized: str = ""


def start(arguments: Sequence[str], settings: Settings, folder: Path) -> Worker:
    environment = {
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src"))),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "HF_HUB_OFFLINE": "1",
    }
    log = folder / f"{arguments[0].strip('-')}.log"
    return Worker(
        "benchmarks.peer_worker", arguments, threads=settings.threads, log=log, environment=environment,
        limit=settings.limit,
    )  # fmt: skip


def start_peers(stack: ExitStack, settings: Settings, folder: Path, runs: dict[str, PeerRun]) -> dict[str, Worker]:
    """Compile every peer, one after the other; those that fail are noted in `runs`."""
    workers: dict[str, Worker] = {}
    for peer in settings.peers:
        process = start((peer, str(folder)), settings, folder)
        stack.enter_context(process)
        try:
            started = process.answer()
        except WorkerFailed as failure:
            runs[peer].failure = str(failure)
            continue
        runs[peer].compile_s = started["compile_s"]
        runs[peer].first_call_s = started["first_call_s"]
        runs[peer].import_s = started["import_s"]
        runs[peer].error = started["error"]
        workers[peer] = process
    return workers


@contextmanager
def running(name: str, settings: Settings) -> Iterator[dict[str, Worker]]:
    """Workers that hold model `name`, by peer. Raises WorkerFailed."""
    folder = Path(tempfile.mkdtemp(prefix="ingot-bench-"))
    try:
        prepare(name, settings, folder)
        with ExitStack() as stack:
            yield start_peers(stack, settings, folder, {peer: PeerRun() for peer in settings.peers})
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def deploy(workers: dict[str, Worker], settings: Settings, folder: Path, runs: dict[str, PeerRun]) -> None:
    """Save each peer's artifact and start it in a fresh process: size, time to ready, memory."""
    for peer, process in workers.items():
        run = runs[peer]
        try:
            written = process.ask(do="save")
            if not written["artifact"]:
                continue
            run.artifact_bytes = written["bytes"]
            arguments = (peer, str(folder), written["artifact"])
            with start(arguments, settings, folder) as fresh:
                started = fresh.answer()
        except WorkerFailed as failure:
            run.deploy_failure = str(failure)
            continue
        run.load_s = started["compile_s"] + started["first_call_s"]
        run.load_peak_rss = started["peak_rss"]


def prepare(name: str, settings: Settings, folder: Path) -> dict:
    """Write the task of model `name` into `folder`; returns its gflop, batch and length. Raises WorkerFailed."""
    sizes = (str(settings.batch), str(settings.length), str(settings.threads))
    with start(("--prepare", str(folder), name, *sizes, settings.quantized), settings, folder) as process:
        return process.answer()


def run_model(name: str, settings: Settings) -> ModelRun:
    folder = Path(tempfile.mkdtemp(prefix="ingot-bench-"))
    runs = {peer: PeerRun() for peer in settings.peers}
    try:
        meta = prepare(name, settings, folder)
        result = ModelRun(name, meta["batch"], meta["length"], meta["gflop"], runs)
        with ExitStack() as stack:
            workers = start_peers(stack, settings, folder, runs)
            load = measure.OtherLoad([process.process.pid for process in workers.values()])

            def failed(peer: str, failure: WorkerFailed) -> None:
                runs[peer].failure = str(failure)

            def burst(worker: Worker) -> float:
                return worker.ask(do="burst", seconds=settings.seconds)["median_s"]

            for peer, medians in round_robin(workers, settings.rounds, burst, failed).items():
                runs[peer].bursts_s = medians
            result.other_cores = load.cores()
            for peer, process in workers.items():
                runs[peer].peak_rss = process.ask(do="memory")["peak_rss"]
            if settings.deploy:
                deploy(workers, settings, folder, runs)
        return result
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def installed(peer: str) -> str | None:
    """Version of the peer's package, or None."""
    package = {"ingot": "ingot-compiler", "onnxruntime": "onnxruntime", "openvino": "openvino"}.get(peer, "torch")
    try:
        return version(package)
    except PackageNotFoundError:
        here = (ROOT / "src" / "ingot" / "__init__.py").exists()
        return "source tree" if peer == "ingot" and here else None


def machine(threads: int) -> dict[str, str | int | float]:
    """What a table of timings must say about where it came from."""
    rates = probe.measure(threads)
    return {
        "cpu": measure.cpu_name(),
        "cores": os.cpu_count() or 1,
        "threads": threads,
        "system": platform.platform(),
        "python": platform.python_version(),
        "fma_gflops": rates.gflops,
        "gb_s": rates.gbytes,
    }


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=zoo.names(1), metavar="NAME", help="default: tier 1 of the zoo")
    parser.add_argument("--peers", nargs="+", choices=list(BACKENDS), default=DEFAULT_PEERS, metavar="PEER",
                        help=f"of {', '.join(BACKENDS)}; default: {' '.join(DEFAULT_PEERS)}")  # fmt: skip
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seq", type=int, default=0, help="length of text or audio; default: the model's own")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=0.15, help="length of a burst")
    parser.add_argument("--no-deploy", action="store_true", help="skip saving and loading artifacts")
    parser.add_argument("--limit", type=float, default=900, help="seconds that one step of one peer may take")
    parser.add_argument("--quantized", choices=("static", "dynamic", "weights"), default="", metavar="STYLE",
                        help="models in 8 bits, or of weights in 4 (benchmarks/quantize.py)")  # fmt: skip
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    versions = {peer: installed(peer) for peer in options.peers}
    present = tuple(peer for peer in options.peers if versions[peer])
    settings = Settings(
        present, options.batch, options.seq, options.threads, options.rounds, options.seconds,
        not options.no_deploy, options.limit, options.quantized,
    )  # fmt: skip
    unknown = [name for name in options.models if name not in zoo.names()]
    if unknown:
        print(f"no model {', '.join(unknown)} in the zoo; expected of: {', '.join(zoo.names())}", file=sys.stderr)
        return 2
    told = {peer: found or "not installed" for peer, found in versions.items()}
    report = peer_report.Report(machine(options.threads), told)
    for name in options.models:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            report.models.append(run_model(name, settings))
        except WorkerFailed as failure:
            print(f"{name}: preparing failed: {failure}", file=sys.stderr)
            report.failures[name] = str(failure)
        if options.json:
            options.json.write_text(json.dumps(asdict(report), indent=1))
    again = machine(options.threads)  # the better of two: a neighbour may have disturbed the first
    for key in ("fma_gflops", "gb_s"):
        report.machine[key] = max(float(report.machine[key]), float(again[key]))
    if options.json:
        options.json.write_text(json.dumps(asdict(report), indent=1))
    peer_report.show(report)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
