"""What a run of the peers found, and its tables."""

import math
import statistics
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from benchmarks.measure import geometric_mean

TOLERANCE = 1e-4


@dataclass
class PeerRun:
    """One peer on one model; seconds and bytes, None where not measured.

    Attributes:
        bursts_s: the median of each round's burst.
        error: largest absolute deviation from PyTorch over the output's largest magnitude.
        load_s: from the artifact to the first result, in a fresh process, imports not counted.
    """

    bursts_s: list[float] = field(default_factory=list)
    import_s: float | None = None
    compile_s: float | None = None
    first_call_s: float | None = None
    load_s: float | None = None
    artifact_bytes: int | None = None
    peak_rss: int | None = None
    load_peak_rss: int | None = None
    error: float | None = None
    failure: str = ""
    deploy_failure: str = ""

    @property
    def median_s(self) -> float | None:
        return statistics.median(self.bursts_s) if self.bursts_s and not self.failure else None


@dataclass
class ModelRun:
    """Every peer on one model; other_cores: how many cores other processes kept busy meanwhile."""

    name: str
    batch: int
    length: int
    gflop: float
    peers: dict[str, PeerRun]
    other_cores: float = math.nan

    def best(self, without: str = "") -> str | None:
        """The peer with the smallest median, `without` left out."""
        timed = {peer: run.median_s for peer, run in self.peers.items() if run.median_s and peer != without}
        return min(timed, key=lambda peer: timed[peer] or 0.0) if timed else None

    def ratio(self, peer: str, against: str) -> float | None:
        """How many times as fast as `against` the peer is: the median over rounds of the two bursts of each round."""
        mine, other = self.peers[peer], self.peers[against]
        if mine.median_s is None or other.median_s is None:
            return None
        return statistics.median(b / a for a, b in zip(mine.bursts_s, other.bursts_s, strict=True))


@dataclass
class Report:
    machine: dict[str, str | int | float]
    versions: dict[str, str]
    models: list[ModelRun] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)


def _cell(value: float | None, form: str = "{:.2f}") -> str:
    return "-" if value is None else form.format(value)


def _noise(cores: float) -> str:
    text = f"{cores:.2f} cores"
    return f"[bold red]{text}[/]" if cores > 0.1 else text


def _mean(ratios: list[float], models: int) -> str:
    """Geometric mean; says of how many models where some are missing, as such a mean compares with no other."""
    if not ratios:
        return "-"
    share = "" if len(ratios) == models else f" ({len(ratios)} of {models})"
    return f"{geometric_mean(ratios):.2f}x{share}"


def _latency(report: Report, peers: list[str]) -> Table:
    """Medians in ms, the rate of the fastest, and each peer's speed relative to the best of the *others*."""
    title = "median ms (x: times as fast as the best other peer)"
    table = Table("model", "GFLOP", *peers, "best GFLOP/s", "other load", title=title)
    ratios: dict[str, list[float]] = {peer: [] for peer in peers}
    for model in report.models:
        cells = []
        for peer in peers:
            run = model.peers.get(peer, PeerRun(failure="absent"))
            rival = model.best(without=peer)
            ratio = model.ratio(peer, rival) if rival and peer in model.peers else None
            if ratio is not None:
                ratios[peer].append(ratio)
            text = "failed" if run.failure else _cell(run.median_s and run.median_s * 1e3)
            cells.append(text if ratio is None else f"{text} ({ratio:.2f}x)")
        best = model.best()
        seconds = model.peers[best].median_s if best else None
        rate = model.gflop / seconds if seconds else None
        shape = f"{model.name} b{model.batch}" + (f" l{model.length}" if model.length else "")
        table.add_row(shape, f"{model.gflop:.2f}", *cells, _cell(rate, "{:.0f}"), _noise(model.other_cores))
    means = [_mean(values, len(report.models)) for values in ratios.values()]
    table.add_section()
    table.add_row("geometric mean", "", *means, "", "")
    return table


def _costs(report: Report, peers: list[str]) -> Table:
    columns = ("compile s", "first call ms", "load s", "artifact MB", "peak MB", "peak MB, loaded", "error")
    table = Table("model", "peer", *columns, title="costs (load: artifact to first result in a fresh process)")
    for model in report.models:
        for peer in peers:
            run = model.peers.get(peer)
            if run is None or run.failure:
                continue
            error = _cell(run.error, "{:.1e}")
            if run.error is not None and run.error > TOLERANCE:
                error = f"[bold red]{error}[/]"
            table.add_row(
                model.name, peer,
                _cell(run.compile_s), _cell(run.first_call_s and run.first_call_s * 1e3, "{:.1f}"),
                _cell(run.load_s, "{:.3f}"), _cell(run.artifact_bytes and run.artifact_bytes / 1e6, "{:.1f}"),
                _cell(run.peak_rss and run.peak_rss / 1e6, "{:.0f}"),
                _cell(run.load_peak_rss and run.load_peak_rss / 1e6, "{:.0f}"),
                error,
            )  # fmt: skip
        table.add_section()
    return table


def show(report: Report) -> None:
    """Print the machine, the latencies, the costs and everything that failed."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    machine = report.machine
    console.print(
        f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads; "
        f"FMA peak {machine['fma_gflops']:.0f} GFLOP/s, memory {machine['gb_s']:.0f} GB/s"
    )
    console.print(", ".join(f"{peer} {version}" for peer, version in report.versions.items()))
    peers = [peer for peer, version in report.versions.items() if version != "not installed"]
    console.print(_latency(report, peers))
    console.print(_costs(report, peers))
    for model in report.models:
        for peer, run in model.peers.items():
            for failure in filter(None, (run.failure, run.deploy_failure)):
                console.print(f"[red]{model.name}, {peer}:[/] {failure}", markup=True, highlight=False)
    for name, failure in report.failures.items():
        console.print(f"[red]{name}: preparing failed:[/] {failure}", highlight=False)
