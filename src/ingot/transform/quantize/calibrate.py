"""Run the float model on samples and note what each value that may be quantized looks like."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ingot.ir.node import Graph
from ingot.pipeline.build import build_native
from ingot.runtime.executor import CompiledModel
from ingot.support import progress
from ingot.transform.quantize.ranges import Seen
from ingot.transform.quantize.samples import Call
from ingot.transform.quantize.sites import Group, with_results

MOST_DEPTH = 4096  # of a value whose second moments are taken: 64 MB each
MOST_ROWS = 4096  # of all calls, that they are taken of
_FLOPS = 3e10  # a second, of these products and factorizations


class Probe:
    """The float model with the groups' values as its outputs."""

    def __init__(self, graph: Graph, groups: Sequence[Group], threads: int) -> None:
        self.groups = groups
        values = list(dict.fromkeys(g.value for g in groups))
        self._at = [values.index(g.value) for g in groups]
        self._model = CompiledModel(build_native(with_results(graph, values), threads), threads=threads)

    def calibrate(
        self, calls: Sequence[Call], feedback_seconds: float = 0.0
    ) -> tuple[dict[str, Seen], dict[str, np.ndarray]]:
        """What was seen, by group; and X^T X of values' rows in f32, of as many groups as error feedback by it takes
        about so many seconds for. Walks the samples twice."""
        seen = {g.name: Seen() for g in self.groups}
        found = {g.name: np.zeros((g.channels,) * 2, np.float32) for g in affordable(self.groups, feedback_seconds)}
        for values in self._walk(calls, "calibrate"):
            for group, x in values:
                seen[group.name].bound(x, group.axis, group.plain)
                if group.name in found:
                    rows = np.moveaxis(x, group.axis, -1).reshape(-1, group.channels)
                    rows = rows[:: -(-len(rows) * len(calls) // MOST_ROWS)]
                    found[group.name] += rows.T @ rows
        for values in self._walk(calls, "histograms"):
            for group, x in values:
                seen[group.name].fill(x)
        return seen, found

    def _walk(self, calls: Sequence[Call], what: str) -> Iterator[list[tuple[Group, np.ndarray]]]:
        for i, call in enumerate(calls):
            progress.report(what, i, len(calls))
            results = self._model.run(call)
            yield [(g, np.asarray(results[at])) for g, at in zip(self.groups, self._at, strict=True)]


def affordable(groups: Sequence[Group], seconds: float) -> list[Group]:
    """The groups of plain matrices whose second moments and error feedback take so long, the cheapest first. By their
    sizes, not by the clock, so that the same budget makes the same weights."""
    plain = sorted((g for g in groups if g.plain and not g.tied and g.channels <= MOST_DEPTH), key=_flops)
    spent = np.cumsum([_flops(g) / _FLOPS for g in plain])
    return plain[: int(np.searchsorted(spent, seconds, side="right"))]


def _flops(group: Group) -> float:
    """Of X^T X, of its inverse's factor, and of rounding with it; twice, as smoothing may differ by format."""
    k = group.channels
    return 2.0 * MOST_ROWS * k**2 + 2 * (3.0 * k**3 + 2.0 * group.weights * k)
