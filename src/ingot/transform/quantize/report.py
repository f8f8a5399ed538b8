"""The report of a quantization: the formats and the reasons, as text, JSON and an HTML page."""

from __future__ import annotations

import html
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from ingot.debug.drawing import bytes_text, time_text
from ingot.debug.report import bar, page, tiles
from ingot.runtime.cpu.pool import threads_text
from ingot.support.dataclass import dataclass
from ingot.support.energy.measure import joules_text
from ingot.support.errors import ArtifactError, printable
from ingot.support.files import atomic_write
from ingot.transform.quantize.formats import FLOAT
from ingot.transform.quantize.search import Option, Point, frontier

_STYLE = Path(__file__).with_name("report.css").read_text()
Cell = tuple[str, float | None]  # a text, and the number to sort by


@dataclass(frozen=True)
class Row:
    """A group of ops that read the same value. seconds: in float32, and in its format. error: the relative squared
    error of the outputs with this format alone. reason: the reason against a faster format."""

    name: str
    ops: int
    format: str
    rounding: str
    seconds: tuple[float, float]
    error: float
    nbytes: int
    reason: str


@dataclass(frozen=True)
class Report:
    """A quantized model. float_scores, scores: of the float model and of this one, on the search samples and on the
    held-out ones, of which `samples` has the numbers. joules: of a call, where they were constrained. deviations: the
    largest deviation of each output from the float model's, relative to the largest float output. rounding: a bound of
    the distance of each output of the float program from the real numbers, on one call; or why there is none."""

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
                _ms(r.seconds[1]), f"{r.error:.1e}", r.reason,
            )
            for r in self.rows
        ]  # fmt: skip
        widths = [max(len(x) for x in column) for column in zip(heads, *cells, strict=True)]
        lines = ["  ".join(x.ljust(w) for x, w in zip(row, widths, strict=True)).rstrip() for row in (heads, *cells)]
        return printable("\n".join([*lines, "", *self._facts()]))

    def _quality(self) -> str:
        """ "cosine 0.9999 on 22 samples, 0.9998 on 10 held out", and float32's where they are not 1."""
        seen_count, held_out = self.samples
        text = (
            f"{self.metric} {self.scores[0]:.6g} on {seen_count} samples, {self.scores[1]:.6g} on {held_out} held out"
        )
        floats = [f"{score:.6g}" for score in self.float_scores]
        return text if floats == ["1", "1"] else f"{text}; float32 has {floats[0]} and {floats[1]}"

    def _facts(self) -> list[str]:
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
            self._quality(),
            f"a call: {_ms(self.seconds)} for {_ms(self.float_seconds)} ({gain:.2f}x), "
            f"{self.nbytes / 1e6:.2f} MB for {self.float_nbytes / 1e6:.2f} MB, arena {self.arena / 1e6:.2f} MB",
            *energy,
            f"outputs deviate from float32 by {worst:.1e} at most; {self.machine}, {threads_text(self.threads)}, seed "
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
            fields = json.loads(text)
            rows = tuple(Row(**{**row, "seconds": tuple(row["seconds"])}) for row in fields.pop("rows"))
            pairs = {name: tuple(fields.pop(name)) for name in ("float_scores", "scores", "samples")}
            report = Report(rows=rows, points=(), **pairs, **fields)
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
        gain = self.float_seconds / max(self.seconds, 1e-12)
        summary = (
            f"{self._quality()}. A call takes {time_text(self.seconds)} in place of {time_text(self.float_seconds)}, "
            f"code and weights {bytes_text(self.nbytes)} in place of {bytes_text(self.float_nbytes)}."
        )
        if self.at_least is not None:
            summary += f" Asked for: at least {self.at_least:g} of float32's score."
        figures = [
            (f"{self.scores[1]:.6g}", f"{self.metric}, {self.samples[1]} held out"),
            (f"{gain:.2f}x", "as fast as float32"),
            (time_text(self.seconds), "a call"),
            (bytes_text(self.nbytes), "code and weights"),
            (bytes_text(self.arena), "arena"),
            (f"{max(self.deviations.values(), default=0.0):.1e}", "largest deviation"),
            (f"{self.search_seconds:.0f} s", "of search"),
        ]
        if self.joules is not None:
            figures.append((joules_text(self.joules), "energy of a call"))
        counts = Counter[str]()
        for r in self.rows:
            counts[r.format] += r.ops
        formats = bar(
            (f"{form}: {counts[form]} ops,", _format_class(form), n / counts.total()) for form, n in counts.items()
        )
        details = "".join(f"<p><small>{html.escape(line)}</small></p>" for line in self._facts()[2:])
        heads = ("model", "score, seen", "score, held out", "a call", "size", "")
        op_heads = ("op", "format", "a call, float32", "now", "error", "weights", "rounding", "why not lower")
        deviations = [((name, None), (f"{value:.1e}", value)) for name, value in self.deviations.items()]
        body = (
            f'<p class="summary">{html.escape(summary)}</p>{tiles(figures)}<h2>Number formats</h2>{formats}'
            + self._plot()
            + _table("Measured models", "the fastest first; click a head to sort", heads, self._tried_points())
            + _table("Ops", "error: of the outputs with this format alone", op_heads, self._ops())
            + _table("Outputs", "largest deviation over the largest float output", ("output", "deviation"), deviations)
            + details
        )
        about = html.escape(f"{self.machine} · {threads_text(self.threads)} · seed {self.seed}")
        return page("Quantized model", "quantize", about, body, json.loads(self.to_json()), _STYLE)

    def _tried_points(self) -> list[tuple[Cell, ...]]:
        best = frontier(self.points)
        return [
            ((p.name, None), (f"{p.scores[0]:.6g}", p.scores[0]), (f"{p.scores[1]:.6g}", p.scores[1]),
             (time_text(p.seconds), p.seconds), (bytes_text(p.nbytes), p.nbytes),
             ("chosen" if self._chose(p) else "none is better in all three" if p in best else "", None))
            for p in sorted(self.points, key=lambda p: p.seconds)
        ]  # fmt: skip

    def _ops(self) -> list[tuple[Cell, ...]]:
        return [
            ((r.name + (f" and {r.ops - 1} more" if r.ops > 1 else ""), None), (r.format, None),
             (time_text(r.seconds[0]), r.seconds[0]), (time_text(r.seconds[1]), r.seconds[1]),
             (f"{r.error:.1e}", r.error), (bytes_text(r.nbytes), r.nbytes), (r.rounding, None), (r.reason, None))
            for r in sorted(self.rows, key=lambda r: -r.seconds[1])
        ]  # fmt: skip

    def _chose(self, p: Point) -> bool:
        return p.scores == self.scores and p.seconds == self.seconds

    def _plot(self) -> str:
        """A plot of score over time of all measured models, with a line through those that no other beats. Their names
        stand in a column at the right, one below the other."""
        if not self.points:
            return ""
        best = frontier(self.points)
        named = [p for p in self.points if p in best or self._chose(p)]
        required_score = (
            None if self.at_least is None or self.float_scores[1] <= 0 else self.at_least * self.float_scores[1]
        )
        frame = _Frame.around(self.points, required_score, len(named) + 1)
        drawn = [frame.axes(self.metric)]
        labels = [(p.name[:_LABEL_CHARS], *frame.place(p)) for p in named]
        if required_score is not None:
            labels.append(("asked for", _RIGHT, frame.height_of(required_score)))
            drawn.append(f'<path class="wanted" d="M{_LEFT} {frame.height_of(required_score):.1f}H{_RIGHT}"/>')
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(frame.place, best))
        drawn.append(f'<polyline class="best" points="{line}"/>')
        row = 0.0
        for name, x, y in sorted(labels, key=lambda label: label[2]):
            row = max(y, row + 16)
            drawn.append(f'<path class="leader" d="M{x:.1f} {y:.1f}L{_NAMES - 6} {row:.1f}"/>')
            drawn.append(f'<text x="{_NAMES}" y="{row + 4:.1f}">{html.escape(name)}</text>')
        for p in self.points:
            x, y = frame.place(p)
            kind = "chosen" if self._chose(p) else "best" if p in best else "beaten"
            drawn.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{6 if kind == "chosen" else 4}">')
            drawn.append(f"<title>{html.escape(str(p))}</title></circle>")
        height = max(frame.bottom + 44, row + 20)
        legend = "".join(f'<span><i class="dot {kind}"></i>{text}</span>' for kind, text in _LEGEND.items())
        return (
            "<h2>Score over time <small>on samples that the search has not seen; each dot is a model</small></h2>"
            f'<div class="scroll plot-box"><svg class="plot" viewBox="0 0 760 {height:.0f}" role="img">'
            f'{"".join(drawn)}</svg></div><div class="legend">{legend}</div>'
        )


_LEFT, _TOP, _RIGHT, _NAMES = 84, 34, 560, 590  # pixels: the axes, and the column of names
_LEGEND = {"chosen": "chosen", "best": "no other is better in score, time and size", "beaten": "beaten"}


@dataclass(frozen=True)
class _Frame:
    """The axes of the plot: seconds from 0 to `slowest`, scores from `low` over `span`; pixels down to `bottom`."""

    slowest: float
    low: float
    span: float
    bottom: float

    @staticmethod
    def around(points: Sequence[Point], required_score: float | None, names: int) -> _Frame:
        scores = [p.scores[1] for p in points] + ([] if required_score is None else [required_score])
        span = (max(scores) - min(scores)) or abs(scores[0]) or 1.0
        return _Frame(1.1 * max(p.seconds for p in points) or 1.0, min(scores), span, max(300, _TOP + 20 * names))

    def height_of(self, score: float) -> float:
        return self.bottom - (self.bottom - _TOP) * (score - self.low) / self.span

    def place(self, p: Point) -> tuple[float, float]:
        return _LEFT + (_RIGHT - _LEFT) * p.seconds / self.slowest, self.height_of(p.scores[1])

    def axes(self, metric: str) -> str:
        digits = max(0, math.ceil(1 - math.log10(self.span / 4)))  # tell neighbouring ticks apart
        texts = [
            (8, 14, "start", f"{metric}, held out"), (_RIGHT, self.bottom + 36, "end", "time of a call"),
            *((_LEFT - 8, self.height_of(y) + 4, "end", f"{y:.{digits}f}")
              for y in (self.low + self.span * i / 4 for i in range(5))),
            *((_LEFT + (_RIGHT - _LEFT) * i / 4, self.bottom + 18, "middle", _tick(self.slowest * i / 4))
              for i in range(5)),
        ]  # fmt: skip
        ticks = "".join(
            f'<text class="dim" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'
            for x, y, anchor, text in texts
        )
        return f'<path class="axis-line" d="M{_LEFT} {_TOP - 10}V{self.bottom}H{_RIGHT}"/>{ticks}'


_LABEL_CHARS = 26  # of a model's name in the plot


def _tick(seconds: float) -> str:
    return time_text(seconds) if seconds else "0"


def _format_class(form: str) -> str:
    """The class of CSS with the colour of a format: whole bytes, few bits, half floats, floats."""
    kinds = {"int8": "k-pointwise", "int16": "k-pointwise", "weight": "k-rows", "bfloat16": "k-contraction"}
    kinds["float16"] = "k-contraction"
    return next((kind for start, kind in kinds.items() if form.startswith(start)), "k-other")


def _table(title: str, about: str, heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    if not rows:
        return ""
    kinds = ["text" if value is None else "number" for _, value in rows[0]]
    header = "".join(f'<th class="{kind}">{head}</th>' for head, kind in zip(heads, kinds, strict=True))
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    small = f" <small>{about}</small>"
    return (
        f'<h2>{title}{small}</h2><div class="scroll table"><table class="facts"><thead><tr>{header}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(cell: Cell) -> str:
    text, value = cell
    attributes = 'class="text"' if value is None else f'class="number" data-v="{value}"'
    return f"<td {attributes}>{html.escape(text)}</td>"


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
