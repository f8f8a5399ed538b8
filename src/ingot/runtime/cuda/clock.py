"""The times of kernels on the GPU: a graph of them, with an event between each two.

event, kernel, event, kernel, event ... event, event, event
                                        `--- the cost of an event alone, which is subtracted
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias

from ingot.runtime.cuda.driver import Driver
from ingot.support.errors import DeviceError

Added: TypeAlias = Callable[[int, Sequence[int]], int]  # (graph, predecessors) -> a new node
_EMPTY = 8  # intervals without a kernel


class Clock:
    """A graph of kernels in sequence, with the current values of their parameters. Call `drop` at the end."""

    def __init__(self, driver: Driver, kernels: Sequence[Added]) -> None:
        self._driver = driver
        self._events: list[int] = []
        self._graph = driver.graph()
        self._executables: list[int] = []
        try:
            self._build(kernels)
        except DeviceError:
            self.drop()
            raise

    def _build(self, kernels: Sequence[Added]) -> None:
        predecessors: list[int] = []
        for number in range(len(kernels) + 1 + _EMPTY):
            self._events.append(self._driver.event(timed=True))
            predecessors = [self._driver.add_event(self._graph, predecessors, self._events[-1])]
            if number < len(kernels):
                predecessors = [kernels[number](self._graph, predecessors)]
        self._executables.append(self._driver.instantiate(self._graph))

    def run(self, stream: int) -> list[float]:
        """Seconds of each kernel in this run."""
        self._driver.launch(self._executables[0], stream)
        self._driver.synchronize(stream)
        intervals = [self._driver.seconds(a, b) for a, b in pairwise(self._events)]
        empty = statistics.median(intervals[-_EMPTY:])
        return [max(seconds - empty, 0.0) for seconds in intervals[:-_EMPTY]]

    def drop(self) -> None:
        self._driver.drop_graph(self._graph, self._executables)
        for event in self._events:
            self._driver.drop_event(event)


__all__ = ["Clock"]
