"""`ingot.compile(..., mesh=...)`: the program of this process's rank, or all ranks in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ingot.driver.compile import Options, compiled_program, to_model
from ingot.driver.open import Opened, Request, open_model
from ingot.ir.node import Graph, Input
from ingot.pipeline.target import parse_target
from ingot.plan.link import spec_of
from ingot.runtime.executable import Executable, UnloadedProgram
from ingot.runtime.executor import CompiledModel
from ingot.runtime.program import Program
from ingot.runtime.ranks.current import PLACE, current
from ingot.runtime.ranks.process_group import ProcessGroup
from ingot.runtime.tensors import host_array, is_tensor
from ingot.support.errors import ArtifactError, InputError
from ingot.transform.shard.graph import shard
from ingot.transform.shard.mesh import Marks, Mesh, Spec, mesh_of, unsplit
from ingot.transform.shard.partition import Sharded, partition, slices_of
from ingot.transform.shard.pipeline import AXIS, graph_of_rank, pipeline
from ingot.transform.shard.simulate import run, simulate
from ingot.transform.shard.turns import in_turns


class SimulatedMesh(Mesh):
    """A mesh whose devices are simulated in this process."""


def simulated_mesh(mesh: Mesh | Mapping[str, int]) -> SimulatedMesh:
    """See `ingot.simulate`."""
    return SimulatedMesh(mesh_of(mesh).axes)


def compile_sharded(
    model: Any, request: Request, options: Options, mesh: Mesh | Mapping[str, int], marks: Marks | None,
    rank: int | None = None,
) -> CompiledModel:  # fmt: skip
    """See `ingot.compile`. rank: of a program to be saved; by default that of this process in its group."""
    grid = mesh_of(mesh)
    place = None if isinstance(grid, SimulatedMesh) else place_in(grid, rank)
    opened = open_model(model, request)
    if AXIS in dict(grid.axes):
        return _compile_pipeline(opened, options, grid, marks, place, rank)
    on_gpu = parse_target(options.target)[0].overlaps_exchanges
    sharded = shard(opened.graph, grid, marks, splits_loops=not on_gpu)
    if place is None:
        opened.stateless()
        program = SimulatedProgram(sharded.graph, grid, partial(simulate, sharded))
        return CompiledModel(program, convention=opened.convention)
    local_graph = partition(sharded, place)
    if on_gpu:
        local_graph = in_turns(local_graph)
    program = compiled_program(local_graph, options)
    program = with_place(program.with_state(state_parts(sharded, opened.state, place)), place, grid)
    return _model_of_rank(program, opened, options, rank)


def _compile_pipeline(
    opened: Opened, options: Options, mesh: Mesh, marks: Marks | None, place: int | None, rank: int | None
) -> CompiledModel:
    """Compile one stage of the model. place: the rank of the stage; None for all stages, on a simulated mesh."""
    if marks or len(mesh.axes) > 1:
        got = marks or dict(mesh.axes)
        raise InputError(f"mesh axis {AXIS}", expected="a mesh of this axis alone, without marks", got=got)
    if mesh.size == 1:
        return to_model(compiled_program(opened.stateless().graph, options), options, opened.convention)
    stages = pipeline(opened.stateless().graph, mesh.size)
    if place is None:
        graphs = [graph_of_rank(stages, r) for r in range(mesh.size)]
        program = SimulatedProgram(stages.model, mesh, lambda arrays: run(graphs, [arrays] * mesh.size)[-1])
        return CompiledModel(program, convention=opened.convention)
    local_program = compiled_program(graph_of_rank(stages, place), options)
    return _model_of_rank(with_place(local_program, place, mesh), opened, options, rank)


def _model_of_rank(program: Program, opened: Opened, options: Options, rank: int | None) -> CompiledModel:
    """rank: of the process for which the program is to be saved; None to run it in this process."""
    if rank is not None:
        fix = "save it, and load it in the process of its rank"
        error = ArtifactError("a program of several", expected=f"the process of rank {rank}", got="this one", fix=fix)
        return CompiledModel(UnloadedProgram(program, options.threads, error))
    return to_model(program, options, opened.convention)


def place_in(mesh: Mesh, rank: int | None) -> int:
    """The rank whose program is compiled. Raises InputError unless the process group has the mesh's size."""
    if rank is not None:
        if type(rank) is not int or not 0 <= rank < mesh.size:
            raise InputError("rank", expected=f"one of the {mesh.size} ranks of the mesh", got=repr(rank))
        return rank
    group: ProcessGroup = current()
    if group.size != mesh.size:
        fix = "ingot.launch(function, processes) or torchrun starts them; ingot.simulate(mesh) needs one process only"
        raise InputError(
            f"mesh {dict(mesh.axes)}", expected=f"a group of {mesh.size} processes", got=group.size, fix=fix
        )
    return group.rank


def with_place(program: Program, rank: int, mesh: Mesh) -> Program:
    return replace(program, meta={**program.meta, PLACE: f"{rank} of {mesh.size}"})


def state_parts(sharded: Sharded, state: Mapping[str, np.ndarray], rank: int) -> dict[str, np.ndarray]:
    """A rank's parts of the initial values of the state."""
    return {name: value[slices_of(value.shape, spec, sharded.mesh, rank)]
            for name, value, spec in ((n, v, state_spec(sharded, n)) for n, v in state.items())}  # fmt: skip


def state_spec(sharded: Sharded, name: str) -> Spec:
    node, _ = sharded.graph.state_pairs[sharded.graph.state.index(name)]
    return sharded.specs.get(node) or unsplit(len(node.shape))


class SimulatedProgram(Executable):
    """All ranks of a program, interpreted in this process. Takes whole inputs and returns whole results."""

    threads = 1

    def __init__(
        self, graph: Graph, mesh: Mesh, compute: Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]
    ) -> None:
        """graph: of the whole model. compute: from whole inputs to whole results."""
        self._mesh, self._compute = mesh, compute
        self.inputs = tuple(spec_of(_label(graph, i), n) for i, n in enumerate(graph.inputs))
        names = graph.output_names or tuple(f"output{i}" for i in range(len(graph.results)))
        self.outputs = tuple(spec_of(name, n) for name, n in zip(names, graph.results, strict=True))

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        arrays = [host_array(x, spec.name) for x, spec in zip(inputs, self.inputs, strict=True)]
        results = self._compute(arrays)
        if not (self.returns_tensors or any(map(is_tensor, inputs))):
            return list(results)
        from ingot.frontends.torch import to_torch

        return [to_torch(r) for r in results]

    def single_program_error(self) -> InputError:
        ranks = self._mesh.size
        fix = "ingot.compile(..., mesh=..., rank=r) compiles one of them"
        return InputError("a simulated mesh", expected="one program", got=f"those of {ranks} ranks", fix=fix)

    def __repr__(self) -> str:
        return f"{', '.join(map(str, self.inputs))} -> {', '.join(map(str, self.outputs))}, simulated"


def _label(graph: Graph, index: int) -> str:
    op = graph.inputs[index].op
    assert isinstance(op, Input)
    return op.label


__all__ = ["SimulatedMesh", "compile_sharded", "simulated_mesh"]
