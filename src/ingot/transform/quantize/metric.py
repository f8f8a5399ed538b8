"""Score outputs: by the user's metric, or by their cosine similarity to the float model's outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError
from ingot.transform.quantize.samples import Samples

Outputs = tuple[np.ndarray, ...]
Metric = Callable[..., Any]  # (outputs of the calls, labels if given) -> a number


@dataclass(frozen=True)
class Judge:
    """Scores outputs for `samples`. exact: the float model's outputs. metric: None for the cosine similarity to
    these."""

    samples: Samples
    exact: tuple[Outputs, ...]
    metric: Metric | None

    def score(self, outputs: Iterable[Outputs]) -> float:
        """The score; higher is better. Raises InputError if the metric fails or does not return a finite number."""
        if self.metric is None:
            return cosine_similarity(self.exact, outputs)
        single = len(self.exact[0]) == 1
        values: list[Any] = [o[0] if single else o for o in outputs]
        try:
            value = (
                self.metric(values) if self.samples.labels is None else self.metric(values, list(self.samples.labels))
            )
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
        """The squared error relative to the squares of the float outputs, so that the errors of several ops add up; for
        integers, the fraction that differs."""
        error = scale = 0.0
        for expected, got in zip(self.exact, outputs, strict=False):
            for a, b in zip(expected, got, strict=True):
                if a.dtype.kind in "biu":
                    error, scale = error + float((a != b).sum()), scale + a.size
                    continue
                x, y = a.astype(np.float64), b.astype(np.float64)
                is_finite = np.isfinite(x)
                error += float(np.square(np.where(is_finite, y - x, 0.0)).sum())
                scale += float(np.square(x[is_finite]).sum())
        return error / scale if scale else error


def cosine_similarity(exact: Sequence[Outputs], outputs: Iterable[Outputs]) -> float:
    """The mean cosine similarity of rows (first axis) over calls and float outputs; for integers, the fraction that is
    equal. If a row is a single number, whose cosine would always be 1, the numbers of all calls form one row.
    """
    cosines: list[list[float]] = [[] for _ in exact[0]]
    single: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in exact[0]]
    for expected, got in zip(exact, outputs, strict=True):
        for at, (a, b) in enumerate(zip(expected, got, strict=True)):
            if a.dtype.kind in "biu":
                cosines[at] += [float((a == b).mean())] if a.size else []
            elif _rows(a).shape[1] == 1:
                single[at].append((a.reshape(-1), b.reshape(-1)))
            elif a.size:
                cosines[at].append(_cosine(_rows(a), _rows(b)))
    for values, pairs in zip(cosines, single, strict=True):
        if pairs:
            values.append(_cosine(*(np.concatenate(vectors)[None] for vectors in zip(*pairs, strict=True))))
    means = [float(np.mean(values)) for values in cosines if values]
    return float(np.mean(means)) if means else 1.0


def _rows(a: np.ndarray) -> np.ndarray:
    """The array as rows along its first axis; a vector is a single row."""
    return a.reshape(len(a), -1) if a.ndim > 1 and len(a) else a.reshape(1, -1)


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    """The mean cosine over rows; 0 for a row whose values that are not finite differ."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    is_finite = np.isfinite(x)
    is_different = (~is_finite & ~((x == y) | (np.isnan(x) & np.isnan(y)))).any(1) | (is_finite & ~np.isfinite(y)).any(
        1
    )
    x, y = np.where(is_finite, x, 0.0), np.where(is_finite & np.isfinite(y), y, 0.0)
    norms = np.sqrt((x * x).sum(1) * (y * y).sum(1))
    is_equal = (x == y).all(1)
    return float(
        np.where(is_different, 0.0, np.where(is_equal, 1.0, (x * y).sum(1) / np.where(norms > 0, norms, 1.0))).mean()
    )


def min_score(exact: float, at_least: float) -> float:
    """The lowest score that retains the fraction `at_least` of `exact`; for a negative score, as much below it."""
    return exact - (1 - at_least) * abs(exact)


def check_scores(values: Sequence[float]) -> None:
    """Raise InputError unless two scores of the float model are equal and not 0."""
    if any(v != values[0] for v in values):
        fix = "seed it: constraints cannot be checked otherwise"
        raise InputError("metric", expected="the same number for the same outputs", got=list(values), fix=fix)
    if values[0] == 0:
        fix = "a fraction of 0 constrains nothing; a higher number has to be better"
        raise InputError("metric", expected="a number other than 0 for the float model", got=values[0], fix=fix)


def check_outputs(exact: Sequence[Outputs]) -> None:
    """Raise InputError if no float output is finite: nothing can be compared with it."""
    floats = [a for outputs in exact for a in outputs if a.size and a.dtype.kind not in "biu"]
    if floats and not any(np.isfinite(a).any() for a in floats):
        raise InputError("the float model's outputs", expected="finite numbers", got="NaN and infinities alone")
