"""Inputs: those that are given, and random ones of the sizes that they and the options have."""

from __future__ import annotations

from collections.abc import Sequence

from ingot.debug.feeds import Feeds, axis_sizes, choose_sizes, index_limits, parse_sizes, random_feeds
from ingot.debug.source import Source, read_graph
from ingot.ir.node import Graph
from ingot.runtime.program import Program


def one_size(program: Program, size: Sequence[str] | None, feeds: Feeds | None = None) -> dict[str, int]:
    """A size for each symbol in a single run, from one or several options, and from arrays."""
    given = axis_sizes(program, feeds or {})
    for sizes in parse_sizes([",".join(size)] if size else []):
        given |= sizes
    return choose_sizes(program, 0, given)


def random_inputs(
    program: Program, graph: Graph | None, size: Sequence[str] | None, seed: int = 0, given: Feeds | None = None
) -> Feeds:
    """Random inputs of the requested sizes, but for those that are given. Given a graph, inputs that index its tables
    stay in bounds."""
    limits = {} if graph is None else index_limits(graph)
    return random_feeds(program, one_size(program, size, given), limits, seed) | (given or {})


def inputs_of(
    source: Source, program: Program, size: Sequence[str] | None, seed: int, given: Feeds | None = None
) -> Feeds:
    """The same for a model in a file. An artifact has no graph."""
    return random_inputs(program, None if source.kind == "artifact" else read_graph(source), size, seed, given)
