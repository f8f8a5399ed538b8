"""Epochs over arrays: batches in an order that the seed and the epoch give, checkpoints, the curve of the loss."""

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
from ingot.transform.train.losses import IGNORED

_LOSSES, _PLAN = "losses", "plan"
_WIDTH, _HEIGHT, _LEFT, _BELOW = 720, 320, 60, 30
_POINTS = 1000  # of a curve: more are means of neighbours


@dataclass(frozen=True)
class Plan:
    """data: by the names of the step's inputs, samples along the first axis. A batch that would not be full is left
    out. checkpoint: written behind every `every` calls, and at the end; None for none."""

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
        wanted = [s.name for s in step.inputs[:-1]]  # the last is the learning rate
        if {*wanted} != self.data.keys():
            raise InputError("data", expected=f"arrays named {', '.join(wanted)}", got=", ".join(self.data))
        lengths = {name: len(a) if a.ndim else 0 for name, a in self.data.items()}
        if len(set(lengths.values())) != 1 or not self.samples:
            raise InputError("data", expected="as many samples in each array, at least one", got=lengths)
        if step.training.classes is not None:
            _check_labels(self.data[wanted[-1]], step.training.classes)
        if not 1 <= self.batch <= self.samples:
            raise InputError("batch", expected=f"1 to {self.samples} samples", got=self.batch)

    def rows(self, call: int) -> np.ndarray:
        """The samples of a call."""
        epoch, at = divmod(call, self.samples // self.batch)
        order = np.random.default_rng((self.seed, epoch)).permutation(self.samples)
        return order[at * self.batch : (at + 1) * self.batch]

    def fixed(self) -> np.ndarray:
        """What has to be the same when a run goes on."""
        return np.asarray([self.samples, self.batch, self.seed], np.int64)


def _check_labels(labels: np.ndarray, classes: int) -> None:
    """Raise InputError for one that no class has: its loss would be NaN. What is no number the step refuses."""
    if labels.dtype.kind not in "biu":
        return
    wrong = np.flatnonzero(((labels < 0) & (labels != IGNORED)) | (labels >= classes))
    if wrong.size:
        got = f"{labels.flat[wrong[0]]}, of {wrong.size} such"
        raise InputError("labels", expected=f"0 to {classes - 1}, or {IGNORED} for none", got=got)


Told = Callable[[int, float, Mapping[str, float]], None]  # calls so far, the loss, metrics


def run(step: TrainingStep, plan: Plan, told: Told, *, resume: bool = False) -> list[float]:
    """Train; the losses of all calls, with those before a checkpoint that the run goes on from.

    Raises InputError for data that do not fit, or a checkpoint of other data, batches or another seed.
    """
    plan.check(step)
    losses = _resumed(step, plan) if resume else []
    arrays = [plan.data[s.name] for s in step.inputs[:-1]]  # in order: one may be named as an argument of the call is
    for call in range(len(losses), plan.calls):
        rows = plan.rows(call)
        loss, measured = step(*(array[rows] for array in arrays))
        losses.append(float(np.asarray(loss)))
        told(call + 1, losses[-1], {k: float(np.asarray(v)) for k, v in measured.items()})
        if plan.checkpoint is not None and ((call + 1) % plan.every == 0 or call + 1 == plan.calls):
            step.save_checkpoint(plan.checkpoint, {_LOSSES: np.asarray(losses), _PLAN: plan.fixed()})
    return losses


def _resumed(step: TrainingStep, plan: Plan) -> list[float]:
    if plan.checkpoint is None or not os.path.exists(plan.checkpoint):
        return []
    notes = step.load_checkpoint(plan.checkpoint)
    if _PLAN not in notes or not np.array_equal(notes[_PLAN], plan.fixed()):
        names = ("samples", "batch", "seed")
        expected = dict(zip(names, plan.fixed().tolist(), strict=True))
        got = dict(zip(names, notes[_PLAN].tolist(), strict=False)) if _PLAN in notes else "none"
        raise InputError(f"checkpoint {plan.checkpoint}", expected=f"one of {expected}", got=got)
    return notes[_LOSSES].tolist()


def curve(losses: Sequence[float], title: str) -> str:
    """The loss over the calls as one SVG; values that are not finite are gaps."""
    width = max(1, math.ceil(len(losses) / _POINTS))
    means = [float(np.mean(losses[i : i + width])) for i in range(0, len(losses), width)]
    known = [v for v in means if math.isfinite(v)] or [0.0]
    low, high = min(known), max(known)
    span = (high - low) or 1.0
    right, top = _WIDTH - 10, 20

    def place(i: int, v: float) -> str:
        x = _LEFT + (right - _LEFT) * i / max(1, len(means) - 1)
        return f"{x:.1f},{top + (_HEIGHT - _BELOW - top) * (high - v) / span:.1f}"

    lines: list[list[str]] = [[]]
    for i, v in enumerate(means):
        if math.isfinite(v):
            lines[-1].append(place(i, v))
        elif lines[-1]:
            lines.append([])
    drawn = "".join(
        f'<polyline points="{" ".join(p)}" fill="none" stroke="#27c" stroke-width="1.5"/>' for p in lines if p
    )
    bottom = _HEIGHT - _BELOW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif"'
        f' font-size="12"><title>{html.escape(title)}</title><rect width="100%" height="100%" fill="#fff"/>'
        f'<path d="M{_LEFT} {top}V{bottom}H{right}" fill="none" stroke="#999"/>{drawn}'
        f'<text x="{_LEFT - 6}" y="{top + 4}" text-anchor="end">{high:.4g}</text>'
        f'<text x="{_LEFT - 6}" y="{bottom}" text-anchor="end">{low:.4g}</text>'
        f'<text x="{_LEFT}" y="{_HEIGHT - 8}">0</text>'
        f'<text x="{right}" y="{_HEIGHT - 8}" text-anchor="end">{len(losses)} calls</text>'
        f'<text x="{_LEFT}" y="14">{html.escape(title)}: loss</text></svg>\n'
    )
