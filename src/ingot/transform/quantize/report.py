"""What was decided and why, as text, JSON and one HTML page."""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ingot.support.dataclass import dataclass
from ingot.support.errors import ArtifactError, printable
from ingot.support.files import atomic_write
from ingot.transform.quantize.search import Point, frontier


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
            f"a call: {_ms(self.seconds)} for {_ms(self.float_seconds)} ({gain:.2f}x), "
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
        facts = "".join(f"<p>{html.escape(line)}" for line in (*self._facts(), self._formats()))
        ops = [
            (r.name, r.ops, r.format, r.rounding, _ms(r.seconds[0]), _ms(r.seconds[1]), f"{r.error:.1e}",
             f"{r.nbytes / 1e3:.1f} kB", r.why)
            for r in self.rows
        ]  # fmt: skip
        heads = ("op", "ops", "format", "rounding", "float32", "now", "error", "weights", "why not lower")
        best = frontier(self.points)
        tried = [
            (p.name, f"{p.scores[0]:.6g}", f"{p.scores[1]:.6g}", _ms(p.seconds), f"{p.nbytes / 1e6:.2f} MB",
             "chosen" if self._chose(p) else "Pareto" if p in best else "")
            for p in sorted(self.points, key=lambda p: p.seconds)
        ]  # fmt: skip
        off = [(name, f"{value:.1e}") for name, value in self.deviations.items()]
        return (
            '<!doctype html><html lang="en"><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width"><title>Quantized</title>'
            f"<style>{_STYLE}</style><h1>Quantized</h1>{facts}{self._plot()}"
            + _table("Measured models", ("model", "score, seen", "score, unseen", "a call", "size", ""), tried)
            + _table("Ops", heads, ops)
            + _table("Largest deviation from float32, over the largest output", ("output", "deviation"), off)
            + "</html>"
        )

    def _formats(self) -> str:
        """How many ops have which format, and what was asked for."""
        counts = Counter[str]()
        for r in self.rows:
            counts[r.format] += r.ops
        asked = "" if self.at_least is None else f"; at least {self.at_least:g} of float32's score asked for"
        return ", ".join(f"{count} ops in {form}" for form, count in counts.most_common()) + asked

    def _chose(self, p: Point) -> bool:
        return p.scores == self.scores and p.seconds == self.seconds

    def _plot(self) -> str:
        """Score over milliseconds of everything that was measured; the Pareto set is joined."""
        points = self.points
        if not points:
            return ""
        width, height, edge = 720, 340, 60
        values = [p.scores[1] for p in points]
        wanted = None if self.at_least is None or self.float_scores[1] <= 0 else self.at_least * self.float_scores[1]
        low, high = min(*values, *(() if wanted is None else (wanted,)), max(values)), max(values)
        room = (high - low) or abs(high) or 1.0
        most = max(p.seconds for p in points) * 1.1

        def down(score: float) -> float:
            return height - edge - (height - 2 * edge) * (score - low) / room

        def at(p: Point) -> tuple[float, float]:
            return edge + (width - 3 * edge) * p.seconds / most, down(p.scores[1])

        best = frontier(points)
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(at, best))
        dots, taken = "", list[tuple[float, float]]()
        for p in sorted(points, key=at):
            x, y = at(p)
            row = y - 6
            while any(abs(row - b) < 12 and x - a < 7 * _LABEL for a, b in taken):  # labels stand below each other
                row += 12
            taken.append((x, row))
            fill = "#c22" if self._chose(p) else "#27c" if p in best else "#999"
            dots += f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{6 if self._chose(p) else 4}" fill="{fill}">'
            dots += f"<title>{html.escape(str(p))}</title></circle>"
            dots += f'<text x="{x + 8:.1f}" y="{row:.1f}">{html.escape(p.name[:_LABEL])}</text>'
        right = width - edge
        axes = f'<path d="M{edge} {edge / 2}V{height - edge}H{right}" fill="none" stroke="#888"/>'
        for i in range(5):
            x, y = edge + (width - 3 * edge) * i / 4, down(low + room * i / 4)
            axes += f'<text x="{x:.1f}" y="{height - edge + 16}" text-anchor="middle">{most * i / 4e-3:.3g}</text>'
            axes += f'<text x="{edge - 6}" y="{y + 4:.1f}" text-anchor="end">{low + room * i / 4:.5g}</text>'
        axes += f'<text x="{right}" y="{height - 20}" text-anchor="end">ms a call</text>'
        axes += f'<text x="4" y="16">score, unseen samples ({html.escape(self.metric)})</text>'
        if wanted is not None:
            y = down(wanted)
            axes += f'<path d="M{edge} {y:.1f}H{right}" stroke="#a60" stroke-dasharray="4"/>'
            axes += f'<text x="{right}" y="{y + 12:.1f}" text-anchor="end">asked for</text>'
        legend = "red: chosen; blue: no other is better in score, time and size; gray: beaten"
        return (
            f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">{axes}'
            f'<polyline points="{line}" fill="none" stroke="#27c"/>{dots}</svg><p>{legend}'
        )


_LABEL = 24  # characters of a model's name beside its dot
_STYLE = (
    ":root{color-scheme:light dark}body{font:14px system-ui;margin:2em;max-width:80em}"
    "table{border-collapse:collapse;display:block;overflow-x:auto;white-space:nowrap}"
    "td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid #8884}"
    "svg{max-width:100%;height:auto}svg text{font-size:11px;fill:currentColor}"
)


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    if not rows:
        return ""
    told = "".join(f"<th>{h}" for h in heads)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(str(cell))}" for cell in row) for row in rows)
    return f"<h2>{title}</h2><table><tr>{told}{body}</table>"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"
