"""The sizes of a run's inputs, as the options give them."""

from __future__ import annotations

from collections.abc import Sequence

from ingot.debug.feeds import Feeds, choose_sizes, index_limits, parse_sizes, random_feeds
from ingot.debug.source import Source, read_graph
from ingot.ir.node import Graph
from ingot.runtime.program import Program


def _one_size(size: Sequence[str] | None) -> dict[str, int]:
    """Sizes of one run, from one option or several."""
    return {name: value for sizes in parse_sizes([",".join(size)] if size else []) for name, value in sizes.items()}


def random_inputs(program: Program, graph: Graph | None, size: Sequence[str] | None, seed: int = 0) -> Feeds:
    """Inputs of the sizes asked for; those that select rows stay within the tables of `graph`, where it is known."""
    limits = {} if graph is None else index_limits(graph)
    return random_feeds(program, choose_sizes(program, 0, _one_size(size)), limits, seed)


def inputs_of(source: Source, program: Program, size: Sequence[str] | None, seed: int) -> Feeds:
    """The same for a model in a file; an artifact has no graph."""
    return random_inputs(program, None if source.kind == "artifact" else read_graph(source), size, seed)
