"""The sizes of a run's inputs, as the options give them."""

from __future__ import annotations

from collections.abc import Sequence

from ingot.debug.feeds import Feeds, choose_sizes, index_limits, parse_sizes, random_feeds
from ingot.debug.source import Source, read_graph
from ingot.runtime.executor import CompiledModel


def one_size(size: Sequence[str] | None) -> dict[str, int]:
    return {name: value for sizes in parse_sizes(size or []) for name, value in sizes.items()}


def random_inputs(source: Source, compiled: CompiledModel, size: Sequence[str] | None, seed: int) -> Feeds:
    limits = {} if source.kind == "artifact" else index_limits(read_graph(source))
    return random_feeds(compiled.program, choose_sizes(compiled.program, 0, one_size(size)), limits, seed)
