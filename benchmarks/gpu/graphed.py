"""Times of calls on a GPU without the host's part: many of them in one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable

import torch


def timed(fn: Callable[[], object], calls: int) -> Callable[[], float]:
    """Microseconds of a call, the mean of `calls` in a graph, each time it is asked."""
    fn()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            fn()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def taken() -> float:
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3 / calls

    return taken
