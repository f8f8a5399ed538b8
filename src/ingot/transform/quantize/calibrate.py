"""Run the float model on samples and collect statistics of each value that may be quantized."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ingot.ir.node import Graph
from ingot.pipeline.build import build_native
from ingot.runtime.executor import CompiledModel
from ingot.support import progress
from ingot.transform.quantize.ranges import ValueStats
from ingot.transform.quantize.samples import Call
from ingot.transform.quantize.sites import Group, with_results

MAX_DEPTH = 4096  # channels of a value whose second moments are computed: 64 MB each
MAX_ROWS = 4096  # rows that they are computed from, over all calls
_FLOPS_PER_SECOND = 3e10  # of these products and factorizations


class Probe:
    """The float model with the groups' values as its outputs."""

    def __init__(self, graph: Graph, groups: Sequence[Group], threads: int) -> None:
        self.groups = groups
        values = list(dict.fromkeys(g.value for g in groups))
        self._at = [values.index(g.value) for g in groups]
        self._model = CompiledModel(build_native(with_results(graph, values), threads), threads=threads)

    def calibrate(
        self, calls: Sequence[Call], feedback_seconds: float = 0.0
    ) -> tuple[dict[str, ValueStats], dict[str, np.ndarray]]:
        """The statistics by group, and the second moments X^T X of the values' rows in f32, for as many groups as error
        feedback can process in `feedback_seconds`. Runs the samples twice."""
        stats = {g.name: ValueStats() for g in self.groups}
        moments = {g.name: np.zeros((g.channels,) * 2, np.float32) for g in affordable(self.groups, feedback_seconds)}
        for values in self._walk(calls, "calibrate"):
            for group, x in values:
                stats[group.name].add_bounds(x, group.axis, group.is_matrices)
                if group.name in moments:
                    rows = np.moveaxis(x, group.axis, -1).reshape(-1, group.channels)
                    rows = rows[:: -(-len(rows) * len(calls) // MAX_ROWS)]
                    moments[group.name] += rows.T @ rows
        for values in self._walk(calls, "histograms"):
            for group, x in values:
                stats[group.name].add_histogram(x)
        return stats, moments

    def _walk(self, calls: Sequence[Call], what: str) -> Iterator[list[tuple[Group, np.ndarray]]]:
        for i, call in enumerate(calls):
            progress.report(what, i, len(calls))
            results = self._model.run(call)
            yield [(g, np.asarray(results[at])) for g, at in zip(self.groups, self._at, strict=True)]


def affordable(groups: Sequence[Group], seconds: float) -> list[Group]:
    """The groups of matrices whose second moments and error feedback fit into the time, the cheapest first. Estimated
    from their sizes, not measured, so that the same budget gives the same weights."""
    plain = sorted((g for g in groups if g.is_matrices and not g.tied and g.channels <= MAX_DEPTH), key=_flops)
    total_seconds = np.cumsum([_flops(g) / _FLOPS_PER_SECOND for g in plain])
    return plain[: int(np.searchsorted(total_seconds, seconds, side="right"))]


def _flops(group: Group) -> float:
    """The operations of X^T X, of its inverse's factor, and of rounding with it; the latter two count twice, as
    smoothing may differ by format."""
    k = group.channels
    return 2.0 * MAX_ROWS * k**2 + 2 * (3.0 * k**3 + 2.0 * group.weights * k)
