"""Random inputs of the sizes that the options give."""

from __future__ import annotations

from collections.abc import Sequence

from ingot.debug.feeds import Feeds, choose_sizes, index_limits, parse_sizes, random_feeds
from ingot.debug.source import Source, read_graph
from ingot.ir.node import Graph
from ingot.runtime.program import Program


def one_size(program: Program, size: Sequence[str] | None) -> dict[str, int]:
    """A size for each symbol in a single run, from one or several options."""
    given = {name: value for sizes in parse_sizes([",".join(size)] if size else []) for name, value in sizes.items()}
    return choose_sizes(program, 0, given)


def random_inputs(program: Program, graph: Graph | None, size: Sequence[str] | None, seed: int = 0) -> Feeds:
    """Random inputs of the requested sizes. Given a graph, inputs that index its tables stay in bounds."""
    limits = {} if graph is None else index_limits(graph)
    return random_feeds(program, one_size(program, size), limits, seed)


def inputs_of(source: Source, program: Program, size: Sequence[str] | None, seed: int) -> Feeds:
    """The same for a model in a file. An artifact has no graph."""
    return random_inputs(program, None if source.kind == "artifact" else read_graph(source), size, seed)
