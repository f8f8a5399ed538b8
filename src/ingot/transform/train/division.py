"""A training step over the devices of a mesh: batches are split, parameters are replicated or split."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ingot.ir.node import Graph, Input
from ingot.runtime.program import Program
from ingot.runtime.ranks.current import current
from ingot.runtime.tensors import host_array
from ingot.support.errors import DeviceError, IngotError, InputError
from ingot.transform.shard.graph import shard
from ingot.transform.shard.mesh import Marks, Mesh, axes_in, mesh_of
from ingot.transform.shard.partition import Sharded, partition
from ingot.transform.shard.pipeline import AXIS
from ingot.transform.shard.run import SimulatedMesh, place_in, state_parts, state_spec, with_place
from ingot.transform.shard.simulate import join
from ingot.transform.train.step import Step

_MESSAGE_BYTES = 1024
DATA = "dp"  # the axis over which unmarked batches are split


class Division:
    """This process's share of a step."""

    def __init__(self, mesh: Mesh, marks: Marks, rank: int, splits_loops: bool = True) -> None:
        self._splits_loops = splits_loops
        self._mesh, self._marks, self._rank = mesh, dict(marks), rank
        self._sharded: Sharded | None = None

    def graph(self, step: Step) -> Graph:
        """The graph of this rank. Batches without a mark are split along their first dimension over the axis dp."""
        marks = {**self._marks, **self._batch(step)} if DATA in dict(self._mesh.axes) else self._marks
        self._sharded = shard(step.graph, self._mesh, marks, self._splits_loops)
        return partition(self._sharded, self._rank)

    def _batch(self, step: Step) -> dict[str, tuple[str, int]]:
        batch_inputs = step.graph.inputs[: len(step.graph.inputs) - len(step.graph.state)]
        names = [(n.op.label, n.type.rank) for n in batch_inputs if isinstance(n.op, Input)]
        # patterns of the caller come first
        return {name: (DATA, 0) for name, rank in names if rank and name not in self._marks}

    @property
    def sharded(self) -> Sharded:
        assert self._sharded is not None
        return self._sharded

    def parts(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """This rank's parts of the state. Values that are not state of the graph, such as a seed, are replicated."""
        state_values = {name: value for name, value in values.items() if name in self.sharded.graph.state}
        return {**values, **state_parts(self.sharded, state_values, self._rank)}

    def placed(self, program: Program) -> Program:
        return with_place(program, self._rank, self._mesh)

    def gather(self, values: Mapping[str, object]) -> dict[str, object]:
        """Whole values from the parts of all ranks. Collective: every rank has to call it."""
        whole_values = dict(values)
        for name, value in values.items():
            if name not in self.sharded.graph.state:
                continue
            spec = state_spec(self.sharded, name)
            if axes_in(spec):
                local_part = np.ascontiguousarray(host_array(value, name))
                parts = [
                    np.frombuffer(p, local_part.dtype).reshape(local_part.shape)
                    for p in current().gather(local_part.tobytes())
                ]
                whole_values[name] = join(parts, spec, self._mesh)
        return whole_values

    def write_once(self, write: Callable[[], None]) -> None:
        """Call `write` on rank 0 while the others wait. Raises its error on rank 0 and DeviceError on the others."""
        error: Exception | None = None
        if not self._rank:
            try:
                write()
            except (OSError, IngotError) as e:
                error = e
        message = current().gather(str(error or "").encode()[:_MESSAGE_BYTES].ljust(_MESSAGE_BYTES))[0].strip()
        if error is not None:
            raise error
        if message:
            raise DeviceError("rank 0 wrote no file", got=message.decode(errors="replace"))


def division_of(mesh: Mesh | Mapping[str, int], marks: Marks | None, splits_loops: bool = True) -> Division:
    """Raises InputError unless this process is one of a group of the mesh's size."""
    grid = mesh_of(mesh)
    if isinstance(grid, SimulatedMesh):
        fix = "ingot.launch(function, processes) runs them on this machine"
        raise InputError("mesh", expected="a group of processes, to train", got="a simulated mesh", fix=fix)
    if AXIS in dict(grid.axes):
        raise InputError(
            f"mesh axis {AXIS}", expected="other axes to train over", got="a pipeline, for inference alone"
        )
    return Division(grid, marks or {}, place_in(grid, None), splits_loops)
