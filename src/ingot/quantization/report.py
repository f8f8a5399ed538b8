"""What was decided and why, as text, JSON and one HTML page."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ingot.quantization.search import Point, frontier
from ingot.support.dataclass import dataclass
from ingot.support.errors import ArtifactError, printable
from ingot.support.files import atomic_write


@dataclass(frozen=True)
class Row:
    """A group: the ops that read one value. seconds: in float32 and in its format. error: what the format alone does to
    the outputs, squared, over their squares. why: what speaks against a faster format."""

    name: str
    ops: int
    format: str
    rounding: str
    seconds: tuple[float, float]
    error: float
    nbytes: int
    why: str


@dataclass(frozen=True)
class Report:
    """A quantized model. scores: of the float model and this one, on samples that the search saw, and that it did not.
    deviations: the largest of each output from the float model's, over the largest float output."""

    machine: str
    threads: int
    seed: int
    metric: str
    at_least: float | None
    rows: tuple[Row, ...]
    float_scores: tuple[float, float]
    scores: tuple[float, float]
    float_seconds: float
    seconds: float
    float_nbytes: int
    nbytes: int
    arena: int
    deviations: dict[str, float]
    samples: tuple[int, int]
    search_seconds: float
    points: tuple[Point, ...]

    def __str__(self) -> str:
        return self.text()

    def text(self) -> str:
        """For a terminal."""
        heads = ("op", "format", "rounding", "float32", "now", "error", "why not lower")
        cells = [
            (
                r.name + (f" and {r.ops - 1} more" if r.ops > 1 else ""), r.format, r.rounding, _ms(r.seconds[0]),
                _ms(r.seconds[1]), f"{r.error:.1e}", r.why,
            )
            for r in self.rows
        ]  # fmt: skip
        widths = [max(len(x) for x in column) for column in zip(heads, *cells, strict=True)]
        lines = ["  ".join(x.ljust(w) for x, w in zip(row, widths, strict=True)).rstrip() for row in (heads, *cells)]
        return printable("\n".join([*lines, "", *self._facts()]))

    def _facts(self) -> list[str]:
        held = f"{self.scores[1]:.6g} of {self.float_scores[1]:.6g} on {self.samples[1]} calls it has not seen"
        gain = self.float_seconds / max(self.seconds, 1e-12)
        worst = max(self.deviations.values(), default=0.0)
        return [
            f"{self.metric}: {self.scores[0]:.6g} of {self.float_scores[0]:.6g} on {self.samples[0]} calls, {held}",
            f"{_ms(self.seconds)} for {_ms(self.float_seconds)} ({gain:.2f}x), "
            f"{self.nbytes / 1e6:.2f} MB for {self.float_nbytes / 1e6:.2f} MB, arena {self.arena / 1e6:.2f} MB",
            f"outputs deviate from float32 by {worst:.1e} at most; {self.machine}, {self.threads} threads, seed "
            f"{self.seed}, searched for {self.search_seconds:.1f} s",
        ]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def of_receipt(text: str) -> Report:
        """What `receipt` gave. Raises ArtifactError for another text: a file is anybody's."""
        try:
            told = json.loads(text)
            rows = tuple(Row(**{**row, "seconds": tuple(row["seconds"])}) for row in told.pop("rows"))
            pairs = {name: tuple(told.pop(name)) for name in ("float_scores", "scores", "samples")}
            report = Report(rows=rows, points=(), **pairs, **told)
            report.text()  # shows each number
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ArtifactError(
                "the receipt of a quantized model", got=str(error), fix="save the model again"
            ) from error
        return report

    def receipt(self) -> str:
        """What an artifact keeps: JSON without the points that were not chosen."""
        return json.dumps({k: v for k, v in asdict(self).items() if k != "points"})

    def write_html(self, path: str | Path) -> None:
        """One page that needs nothing else."""
        atomic_write(Path(path), [self.to_html().encode()])

    def to_html(self) -> str:
        e = html.escape
        rows = "".join(
            f"<tr><td>{e(r.name)}<td>{r.ops}<td>{r.format}<td>{e(r.rounding)}<td>{_ms(r.seconds[0])}"
            f"<td>{_ms(r.seconds[1])}<td>{r.error:.1e}<td>{r.nbytes / 1e3:.1f} kB<td>{e(r.why)}"
            for r in self.rows
        )
        facts = "".join(f"<p>{e(line)}" for line in self._facts())
        heads = "".join(
            f"<th>{h}"
            for h in ("op", "ops", "format", "rounding", "float32", "now", "error", "weights", "why not lower")
        )
        return (
            f'<!doctype html><meta charset="utf-8"><title>Quantized</title><style>{_STYLE}</style>'
            f"<h1>Quantized</h1>{facts}{_plot(self.points, self.scores, self.seconds)}<table><tr>{heads}{rows}</table>"
        )


_STYLE = (
    "body{font:14px system-ui;margin:2em;max-width:75em}table{border-collapse:collapse}"
    "td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid #ddd}svg text{font-size:11px}"
)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"


def _plot(points: Sequence[Point], scores: tuple[float, float], seconds: float) -> str:
    """Score over milliseconds of everything that was measured; the Pareto set is joined."""
    if not points:
        return ""
    width, height, edge = 640, 320, 60
    times, values = [p.seconds for p in points], [p.scores[1] for p in points]
    low, high = min(values), max(values)
    room = (high - low) or abs(high) or 1.0
    most = max(times) * 1.1

    def at(p: Point) -> tuple[float, float]:
        x = edge + (width - 2 * edge) * p.seconds / most
        return x, height - edge - (height - 2 * edge) * (p.scores[1] - low) / room

    best = frontier(points)
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(at, best))
    dots = ""
    for p in points:
        x, y = at(p)
        chosen = p.scores == scores and p.seconds == seconds
        fill = "#c22" if chosen else "#27c" if p in best else "#999"
        dots += f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{6 if chosen else 4}" fill="{fill}"/>'
        dots += f'<text x="{x + 8:.1f}" y="{y - 6:.1f}">{html.escape(p.name)}</text>'
    axes = (
        f'<path d="M{edge} {edge / 2}V{height - edge}H{width - edge / 2}" fill="none" stroke="#444"/>'
        f'<text x="{width / 2}" y="{height - 20}">ms a call, to {most * 1e3:.3g}</text>'
        f'<text x="4" y="{edge / 2}">score, {low:.5g} to {high:.5g}</text>'
    )
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}">{axes}'
        f'<polyline points="{line}" fill="none" stroke="#27c"/>{dots}</svg>'
    )
