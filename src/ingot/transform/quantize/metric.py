"""How good outputs are: the user's function of them, or how near they are to the float model's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError
from ingot.transform.quantize.samples import Samples

Outputs = tuple[np.ndarray, ...]
Metric = Callable[..., Any]  # of the calls' outputs, and their labels if there are any


@dataclass(frozen=True)
class Judge:
    """Scores outputs for `samples`, whose float outputs are `exact`. metric None: the cosine to these."""

    samples: Samples
    exact: tuple[Outputs, ...]
    metric: Metric | None

    def score(self, outputs: Iterable[Outputs]) -> float:
        """Higher is better. Raises InputError where the metric fails or returns no finite number."""
        if self.metric is None:
            return likeness(self.exact, outputs)
        single = len(self.exact[0]) == 1
        given: list[Any] = [o[0] if single else o for o in outputs]
        try:
            value = self.metric(given) if self.samples.labels is None else self.metric(given, list(self.samples.labels))
        except Exception as error:  # the user's own code
            what = f"{type(error).__name__}: {error}"
            raise InputError(
                "metric", expected="a number", got=what, fix="it is called with a list of outputs"
            ) from error
        try:
            number = float(value)
        except (TypeError, ValueError) as error:
            raise InputError("metric", expected="a number", got=type(value).__name__) from error
        if not np.isfinite(number):
            raise InputError("metric", expected="a finite number", got=number)
        return number

    def error(self, outputs: Iterable[Outputs]) -> float:
        """Squared deviations over squares of the float outputs, so that those of several ops add up; integers: the part
        that differs."""
        off = whole = 0.0
        for want, got in zip(self.exact, outputs, strict=False):
            for a, b in zip(want, got, strict=True):
                if a.dtype.kind in "biu":
                    off, whole = off + float((a != b).sum()), whole + a.size
                    continue
                x, y = a.astype(np.float64), b.astype(np.float64)
                kept = np.isfinite(x)
                off += float(np.square(np.where(kept, y - x, 0.0)).sum())
                whole += float(np.square(x[kept]).sum())
        return off / whole if whole else off


def likeness(wanted: Sequence[Outputs], outputs: Iterable[Outputs]) -> float:
    """The mean over calls and float outputs of the cosine of rows (first axis); of integers, the part that is the same.
    Where a row is one number, whose cosine would be 1 whatever it is, the numbers of all calls are one row.
    """
    found: list[list[float]] = [[] for _ in wanted[0]]
    single: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in wanted[0]]
    for want, got in zip(wanted, outputs, strict=True):
        for at, (a, b) in enumerate(zip(want, got, strict=True)):
            if a.dtype.kind in "biu":
                found[at] += [float((a == b).mean())] if a.size else []
            elif _rows(a).shape[1] == 1:
                single[at].append((a.reshape(-1), b.reshape(-1)))
            elif a.size:
                found[at].append(_cosine(_rows(a), _rows(b)))
    for own, pairs in zip(found, single, strict=True):
        if pairs:
            own.append(_cosine(*(np.concatenate(side)[None] for side in zip(*pairs, strict=True))))
    means = [float(np.mean(own)) for own in found if own]
    return float(np.mean(means)) if means else 1.0


def _rows(a: np.ndarray) -> np.ndarray:
    """A vector is one."""
    return a.reshape(len(a), -1) if a.ndim > 1 and len(a) else a.reshape(1, -1)


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    """The mean over rows; 0 of one that is not finite where, or as, it is to be."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    kept = np.isfinite(x)
    unlike = (~kept & ~((x == y) | (np.isnan(x) & np.isnan(y)))).any(1) | (kept & ~np.isfinite(y)).any(1)
    x, y = np.where(kept, x, 0.0), np.where(kept & np.isfinite(y), y, 0.0)
    norms = np.sqrt((x * x).sum(1) * (y * y).sum(1))
    same = (x == y).all(1)
    return float(np.where(unlike, 0.0, np.where(same, 1.0, (x * y).sum(1) / np.where(norms > 0, norms, 1.0))).mean())


def allowed(exact: float, at_least: float) -> float:
    """The least score that keeps `at_least` of `exact`; of a negative one, as much below it."""
    return exact - (1 - at_least) * abs(exact)


def check_scores(values: Sequence[float]) -> None:
    """Raise InputError unless a metric of the float model twice gives the same, of which there are parts."""
    if any(v != values[0] for v in values):
        fix = "seed it: promises cannot be checked with it otherwise"
        raise InputError("metric", expected="the same number for the same outputs", got=list(values), fix=fix)
    if values[0] == 0:
        fix = "a part of 0 promises nothing; higher is to be better"
        raise InputError("metric", expected="a number other than 0 for the float model", got=values[0], fix=fix)


def check_outputs(exact: Sequence[Outputs]) -> None:
    """Raise InputError where no call gives a finite number: nothing can be near it."""
    floats = [a for outputs in exact for a in outputs if a.size and a.dtype.kind not in "biu"]
    if floats and not any(np.isfinite(a).any() for a in floats):
        raise InputError("the float model's outputs", expected="finite numbers", got="NaN and infinities alone")
