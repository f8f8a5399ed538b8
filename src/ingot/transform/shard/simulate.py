"""The reference for several devices, which interprets the graph of each device in this process."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ingot.ir.interp import interpret
from ingot.ir.node import Graph
from ingot.ops.core.collective import simulated
from ingot.transform.shard.graph import graphs_of
from ingot.transform.shard.mesh import Mesh, Spec, unsplit
from ingot.transform.shard.partition import Sharded, slices_of


def simulate(sharded: Sharded, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """The whole results for whole inputs, computed by simulated devices."""
    graphs, mesh = graphs_of(sharded), sharded.mesh
    specs = [sharded.specs.get(n) or unsplit(len(n.shape)) for n in sharded.graph.inputs]
    parts = [[split(x, spec, mesh, rank) for x, spec in zip(inputs, specs, strict=True)] for rank in range(mesh.size)]
    results = run(graphs, parts)
    return tuple(
        join([r[i] for r in results], spec, mesh) for i, spec in enumerate(sharded.outputs[: len(graphs[0].results)])
    )


def run(graphs: Sequence[Graph], inputs: Sequence[Sequence[np.ndarray]]) -> list[tuple[np.ndarray, ...]]:
    """The results of each device's graph for its inputs."""
    return simulated(len(graphs), lambda rank: interpret(graphs[rank], inputs[rank]))


def split(x: np.ndarray, spec: Spec, mesh: Mesh, rank: int) -> np.ndarray:
    """A device's part of an array."""
    return x[slices_of(x.shape, spec, mesh, rank)]


def join(parts: Sequence[np.ndarray], spec: Spec, mesh: Mesh) -> np.ndarray:
    """The whole array from the parts of all devices."""
    shape = tuple(d * mesh.count(axes) for d, axes in zip(parts[0].shape, spec, strict=True))
    array = np.empty(shape, parts[0].dtype)
    for rank, part in enumerate(parts):
        array[slices_of(shape, spec, mesh, rank)] = part
    return array
