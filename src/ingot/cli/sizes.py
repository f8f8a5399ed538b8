"""Inputs: those that are given, and random ones of the sizes that they and the options have."""

from __future__ import annotations

from collections.abc import Sequence

from ingot.debug.feeds import Feeds, axis_sizes, choose_sizes, index_limits, parse_sizes, random_feeds
from ingot.debug.source import Source, read_graph
from ingot.ir.node import Graph
from ingot.runtime.program import Program


def one_size(program: Program, size: Sequence[str] | None, feeds: Feeds | None = None) -> dict[str, int]:
    """A size for each symbol in a single run, from one or several options, and from arrays."""
    all_sizes = axis_sizes(program, feeds or {})
    for sizes in parse_sizes([",".join(size)] if size else []):
        all_sizes |= sizes
    return choose_sizes(program, 0, all_sizes)


def random_inputs(
    program: Program, graph: Graph | None, size: Sequence[str] | None, seed: int = 0, fixed_feeds: Feeds | None = None
) -> Feeds:
    """Random inputs of the requested sizes, but for `fixed_feeds`. Given a graph, inputs that index its tables
    stay in bounds."""
    limits = {} if graph is None else index_limits(graph)
    return random_feeds(program, one_size(program, size, fixed_feeds), limits, seed) | (fixed_feeds or {})


def inputs_of(
    source: Source, program: Program, size: Sequence[str] | None, seed: int, fixed_feeds: Feeds | None = None
) -> Feeds:
    """The same for a model in a file. An artifact has no graph."""
    return random_inputs(program, None if source.kind == "artifact" else read_graph(source), size, seed, fixed_feeds)
