"""The report of a quantization: the formats and the reasons, as text, JSON and an HTML page."""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from ingot.support.dataclass import dataclass
from ingot.support.energy.measure import joules_text
from ingot.support.errors import ArtifactError, printable
from ingot.support.files import atomic_write
from ingot.transform.quantize.formats import FLOAT
from ingot.transform.quantize.search import Option, Point, frontier


@dataclass(frozen=True)
class Row:
    """A group of ops that read the same value. seconds: in float32, and in its format. error: the relative squared
    error of the outputs with this format alone. why: the reason against a faster format."""

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
    """A quantized model. float_scores, scores: of the float model and of this one, on the search samples and on the
    held-out ones. joules: of a call, where they were constrained. deviations: the largest deviation of each output from
    the float model's, relative to the largest float output. rounding: a bound of the distance of each output of the
    float program from the real numbers, on one call; or why there is none."""

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
    rounding: dict[str, float] | str = ""
    float_joules: float | None = None
    joules: float | None = None

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
        held_out = f"{self.scores[1]:.6g} of {self.float_scores[1]:.6g} on {self.samples[1]} calls it has not seen"
        gain = self.float_seconds / max(self.seconds, 1e-12)
        worst = max(self.deviations.values(), default=0.0)
        energy = []
        if self.joules is not None:
            of_float = "" if self.float_joules is None else f" for {joules_text(self.float_joules)}"
            energy = [f"energy of a call: {joules_text(self.joules)}{of_float}"]
        rounding = (
            f"none: {self.rounding}"
            if isinstance(self.rounding, str)
            else ", ".join(f"{name} {error:.1e}" for name, error in self.rounding.items())
        )
        return [
            f"{self.metric}: {self.scores[0]:.6g} of {self.float_scores[0]:.6g} on {self.samples[0]} calls, {held_out}",
            f"a call: {_ms(self.seconds)} for {_ms(self.float_seconds)} ({gain:.2f}x), "
            f"{self.nbytes / 1e6:.2f} MB for {self.float_nbytes / 1e6:.2f} MB, arena {self.arena / 1e6:.2f} MB",
            *energy,
            f"outputs deviate from float32 by {worst:.1e} at most; {self.machine}, {self.threads} threads, seed "
            f"{self.seed}, searched for {self.search_seconds:.1f} s",
            *(
                [f"bounds of float32's own rounding, in any order of sums, on one call: {rounding}"]
                if self.rounding
                else []
            ),
        ]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def of_receipt(text: str) -> Report:
        """The report from the text of `receipt`. Raises ArtifactError for invalid text: files are untrusted."""
        try:
            told = json.loads(text)
            rows = tuple(Row(**{**row, "seconds": tuple(row["seconds"])}) for row in told.pop("rows"))
            pairs = {name: tuple(told.pop(name)) for name in ("float_scores", "scores", "samples")}
            report = Report(rows=rows, points=(), **pairs, **told)
            report.text()  # fails if a field is not of the right type
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ArtifactError(
                "the receipt of a quantized model", got=str(error), fix="save the model again"
            ) from error
        return report

    def receipt(self) -> str:
        """The JSON that an artifact stores: without the points that were not chosen."""
        return json.dumps({k: v for k, v in asdict(self).items() if k != "points"})

    def write_html(self, path: str | Path) -> None:
        """Write a self-contained page."""
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
        deviations = [(name, f"{value:.1e}") for name, value in self.deviations.items()]
        return (
            '<!doctype html><html lang="en"><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width"><title>Quantized</title>'
            f"<style>{_STYLE}</style><h1>Quantized</h1>{facts}{self._plot()}"
            + _table("Measured models", ("model", "score, seen", "score, unseen", "a call", "size", ""), tried)
            + _table("Ops", heads, ops)
            + _table("Largest deviation from float32, over the largest output", ("output", "deviation"), deviations)
            + "</html>"
        )

    def _formats(self) -> str:
        """The number of ops in each format, and the constraint on the score."""
        counts = Counter[str]()
        for r in self.rows:
            counts[r.format] += r.ops
        constraint = "" if self.at_least is None else f"; at least {self.at_least:g} of float32's score asked for"
        return ", ".join(f"{count} ops in {form}" for form, count in counts.most_common()) + constraint

    def _chose(self, p: Point) -> bool:
        return p.scores == self.scores and p.seconds == self.seconds

    def _plot(self) -> str:
        """A plot of score over milliseconds of all measured models, with a line through the Pareto set."""
        points = self.points
        if not points:
            return ""
        width, height, edge = 720, 340, 60
        values = [p.scores[1] for p in points]
        min_score = None if self.at_least is None or self.float_scores[1] <= 0 else self.at_least * self.float_scores[1]
        low, high = min(*values, *(() if min_score is None else (min_score,)), max(values)), max(values)
        score_range = (high - low) or abs(high) or 1.0
        max_seconds = max(p.seconds for p in points) * 1.1

        def y_of(score: float) -> float:
            return height - edge - (height - 2 * edge) * (score - low) / score_range

        def position(p: Point) -> tuple[float, float]:
            return edge + (width - 3 * edge) * p.seconds / max_seconds, y_of(p.scores[1])

        best = frontier(points)
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(position, best))
        dots, labels = "", list[tuple[float, float]]()
        for p in sorted(points, key=position):
            x, y = position(p)
            row = y - 6
            while any(
                abs(row - b) < 12 and x - a < 7 * _LABEL_CHARS for a, b in labels
            ):  # labels stand below each other
                row += 12
            labels.append((x, row))
            fill = "#c22" if self._chose(p) else "#27c" if p in best else "#999"
            dots += f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{6 if self._chose(p) else 4}" fill="{fill}">'
            dots += f"<title>{html.escape(str(p))}</title></circle>"
            dots += f'<text x="{x + 8:.1f}" y="{row:.1f}">{html.escape(p.name[:_LABEL_CHARS])}</text>'
        right = width - edge
        axes = f'<path d="M{edge} {edge / 2}V{height - edge}H{right}" fill="none" stroke="#888"/>'
        for i in range(5):
            x, y = edge + (width - 3 * edge) * i / 4, y_of(low + score_range * i / 4)
            axes += (
                f'<text x="{x:.1f}" y="{height - edge + 16}" text-anchor="middle">{max_seconds * i / 4e-3:.3g}</text>'
            )
            axes += f'<text x="{edge - 6}" y="{y + 4:.1f}" text-anchor="end">{low + score_range * i / 4:.5g}</text>'
        axes += f'<text x="{right}" y="{height - 20}" text-anchor="end">ms a call</text>'
        axes += f'<text x="4" y="16">score, unseen samples ({html.escape(self.metric)})</text>'
        if min_score is not None:
            y = y_of(min_score)
            axes += f'<path d="M{edge} {y:.1f}H{right}" stroke="#a60" stroke-dasharray="4"/>'
            axes += f'<text x="{right}" y="{y + 12:.1f}" text-anchor="end">asked for</text>'
        legend = "red: chosen; blue: no other is better in score, time and size; gray: beaten"
        return (
            f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">{axes}'
            f'<polyline points="{line}" fill="none" stroke="#27c"/>{dots}</svg><p>{legend}'
        )


_LABEL_CHARS = 24  # characters of a model's name beside its dot
_STYLE = (
    ":root{color-scheme:light dark}body{font:14px system-ui;margin:2em;max-width:80em}"
    "table{border-collapse:collapse;display:block;overflow-x:auto;white-space:nowrap}"
    "td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid #8884}"
    "svg{max-width:100%;height:auto}svg text{font-size:11px;fill:currentColor}"
)


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    if not rows:
        return ""
    header = "".join(f"<th>{h}" for h in heads)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(str(cell))}" for cell in row) for row in rows)
    return f"<h2>{title}</h2><table><tr>{header}{body}</table>"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"


def reason_of(selected: Option, options: Sequence[Option], has_no_range: bool) -> str:
    """The reason against the next faster format. has_no_range: whether levels were requested but have no range."""
    faster = [o for o in options if o.seconds < selected.seconds and o.error > selected.error]
    if faster:
        best = min(faster, key=lambda o: o.error)
        return f"{best.form} errs by {best.error:.1e}"
    if has_no_range and selected.form == FLOAT:
        return "its values have no finite range"
    return "none is faster"


def deviation(expected: np.ndarray, got: np.ndarray) -> float:
    if expected.dtype.kind in "biu" or not expected.size:
        return float((expected != got).mean()) if expected.size else 0.0
    is_finite = np.isfinite(expected)
    largest = float(np.abs(expected[is_finite]).max()) if is_finite.any() else 0.0
    error = np.abs(got[is_finite].astype(np.float64) - expected[is_finite]) if is_finite.any() else np.zeros(1)
    return float(error.max()) / (largest or 1.0)
