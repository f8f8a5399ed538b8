"""Train for epochs over arrays: batches in an order that depends on seed and epoch, checkpoints, the loss curve."""

from __future__ import annotations

import html
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ingot.runtime.training import TrainingStep
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError
from ingot.transform.train.losses import IGNORED_CLASS

_LOSSES, _PLAN = "losses", "plan"
_WIDTH, _HEIGHT, _LEFT_MARGIN, _BOTTOM_MARGIN = 720, 320, 60, 30
_MAX_CURVE_POINTS = 1000  # a longer curve shows means of neighboring points


@dataclass(frozen=True)
class Plan:
    """A training run. data: arrays by the names of the step's inputs, samples along the first axis. batch: the samples
    of a call; an incomplete batch is dropped. checkpoint: the file to write after every `every` calls and at the end;
    None: no checkpoint."""

    data: Mapping[str, np.ndarray]
    batch: int
    epochs: int
    seed: int = 0
    checkpoint: Path | None = None
    every: int = 100

    @property
    def samples(self) -> int:
        return len(next(iter(self.data.values())))

    @property
    def calls(self) -> int:
        return self.epochs * (self.samples // self.batch)

    def check(self, step: TrainingStep) -> None:
        """Raise InputError unless the arrays are the step's inputs, of one length, for one batch at least."""
        names = [s.name for s in step.inputs[:-1]]  # the last is the learning rate
        if {*names} != self.data.keys():
            raise InputError("data", expected=f"arrays named {', '.join(names)}", got=", ".join(self.data))
        lengths = {name: len(a) if a.ndim else 0 for name, a in self.data.items()}
        if len(set(lengths.values())) != 1 or not self.samples:
            raise InputError("data", expected="the same number of samples in each array, at least one", got=lengths)
        if step.training.classes is not None:
            _check_labels(self.data[names[-1]], step.training.classes)
        if not 1 <= self.batch <= self.samples:
            raise InputError("batch", expected=f"1 to {self.samples} samples", got=self.batch)

    def rows(self, call: int) -> np.ndarray:
        """The samples of a call."""
        epoch, index = divmod(call, self.samples // self.batch)
        order = np.random.default_rng((self.seed, epoch)).permutation(self.samples)
        return order[index * self.batch : (index + 1) * self.batch]

    def fingerprint(self) -> np.ndarray:
        """The values that must be the same to resume a run."""
        return np.asarray([self.samples, self.batch, self.seed], np.int64)


def _check_labels(labels: np.ndarray, classes: int) -> None:
    """Raise InputError for a label that is not a class: its loss would be NaN. The step refuses labels of other
    types."""
    if labels.dtype.kind not in "biu":
        return
    wrong = np.flatnonzero(((labels < 0) & (labels != IGNORED_CLASS)) | (labels >= classes))
    if wrong.size:
        got = f"{labels.flat[wrong[0]]}" + (f" and {wrong.size - 1} more" if wrong.size > 1 else "")
        raise InputError("labels", expected=f"0 to {classes - 1}, or {IGNORED_CLASS} for none", got=got)


Report = Callable[[int, float, Mapping[str, float]], None]  # calls so far, the loss, metrics


def run(step: TrainingStep, plan: Plan, report: Report, *, resume: bool = False) -> list[float]:
    """Train. Returns the losses of all calls, including those before the checkpoint that the run resumes from.

    Raises InputError for data that do not fit, or a checkpoint of other data, batches or another seed.
    """
    plan.check(step)
    losses = _resume(step, plan) if resume else []
    arrays = [plan.data[s.name] for s in step.inputs[:-1]]  # positional: a name may clash with a parameter of the call
    for call in range(len(losses), plan.calls):
        rows = plan.rows(call)
        loss, measured = step(*(array[rows] for array in arrays))
        losses.append(float(np.asarray(loss)))
        report(call + 1, losses[-1], {k: float(np.asarray(v)) for k, v in measured.items()})
        if plan.checkpoint is not None and ((call + 1) % plan.every == 0 or call + 1 == plan.calls):
            step.save_checkpoint(plan.checkpoint, {_LOSSES: np.asarray(losses), _PLAN: plan.fingerprint()})
    return losses


def _resume(step: TrainingStep, plan: Plan) -> list[float]:
    if plan.checkpoint is None or not os.path.exists(plan.checkpoint):
        return []
    notes = step.load_checkpoint(plan.checkpoint)
    if _PLAN not in notes or not np.array_equal(notes[_PLAN], plan.fingerprint()):
        names = ("samples", "batch", "seed")
        expected = dict(zip(names, plan.fingerprint().tolist(), strict=True))
        got = dict(zip(names, notes[_PLAN].tolist(), strict=False)) if _PLAN in notes else "none"
        raise InputError(f"checkpoint {plan.checkpoint}", expected=f"one of {expected}", got=got)
    return notes[_LOSSES].tolist()


def curve(losses: Sequence[float], title: str) -> str:
    """The loss over the calls as an SVG; values that are not finite are gaps."""
    width = max(1, math.ceil(len(losses) / _MAX_CURVE_POINTS))
    means = [float(np.mean(losses[i : i + width])) for i in range(0, len(losses), width)]
    finite = [v for v in means if math.isfinite(v)] or [0.0]
    low, high = min(finite), max(finite)
    span = (high - low) or 1.0
    right, top = _WIDTH - 10, 20

    def point(i: int, v: float) -> str:
        x = _LEFT_MARGIN + (right - _LEFT_MARGIN) * i / max(1, len(means) - 1)
        return f"{x:.1f},{top + (_HEIGHT - _BOTTOM_MARGIN - top) * (high - v) / span:.1f}"

    lines: list[list[str]] = [[]]
    for i, v in enumerate(means):
        if math.isfinite(v):
            lines[-1].append(point(i, v))
        elif lines[-1]:
            lines.append([])
    polylines = "".join(
        f'<polyline points="{" ".join(p)}" fill="none" stroke="#27c" stroke-width="1.5"/>' for p in lines if p
    )
    bottom = _HEIGHT - _BOTTOM_MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif"'
        f' font-size="12"><title>{html.escape(title)}</title><rect width="100%" height="100%" fill="#fff"/>'
        f'<path d="M{_LEFT_MARGIN} {top}V{bottom}H{right}" fill="none" stroke="#999"/>{polylines}'
        f'<text x="{_LEFT_MARGIN - 6}" y="{top + 4}" text-anchor="end">{high:.4g}</text>'
        f'<text x="{_LEFT_MARGIN - 6}" y="{bottom}" text-anchor="end">{low:.4g}</text>'
        f'<text x="{_LEFT_MARGIN}" y="{_HEIGHT - 8}">0</text>'
        f'<text x="{right}" y="{_HEIGHT - 8}" text-anchor="end">{len(losses)} calls</text>'
        f'<text x="{_LEFT_MARGIN}" y="14">{html.escape(title)}: loss</text></svg>\n'
    )
