"""A program run by the kernel interpreter, for any target: every access is checked against the exact size of its
buffer, and no code is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from ingot.ir.kernel import Kernel
from ingot.ir.kernel.interp import run_kernel
from ingot.ir.kernel.verify import verify_kernel
from ingot.ir.node import Graph
from ingot.pipeline.build import Trace, build_program
from ingot.pipeline.target import features_of
from ingot.runtime.bind import Binding
from ingot.runtime.dtypes import numpy_dtype
from ingot.runtime.expr import evaluate, span
from ingot.runtime.program import Program, table_offsets


def planned(graph: Graph, target: str, threads: int = 2) -> tuple[Program, dict[str, Kernel]]:
    """The plan of `graph` for a target, and its kernels."""
    trace = Trace()
    program = build_program(graph, features_of(f"null:{target}"), threads, trace=trace)
    return program, {kernel.name: kernel for kernel in trace.kernels}


def _table_size(program: Program) -> int:
    last = len(program.steps) - 1
    return table_offsets(program.steps)(last, 2 + len(program.steps[last].dims))


def run_checked(graph: Graph, arrays: Sequence[np.ndarray], target: str = "native") -> tuple[np.ndarray, ...]:
    """The results of `graph` by its kernels' semantics. Raises VerifyError where a kernel is malformed or leaves its
    buffers."""
    return run_planned(*planned(graph, target), arrays)


def first_state(program: Program) -> list[np.ndarray]:
    """What lasts from call to call, before the first."""
    return [np.frombuffer(bytearray(s.initial), numpy_dtype(s.spec.dtype)).reshape(s.shape) for s in program.state]


def run_planned(
    program: Program,
    kernels: Mapping[str, Kernel],
    arrays: Sequence[np.ndarray],
    state_arrays: Sequence[np.ndarray] | None = None,
) -> tuple[np.ndarray, ...]:
    """The results of a program by the semantics of its kernels. state_arrays: its state before the call and, where the
    program updates it in place, after it. Raises VerifyError as `run_checked` does."""
    state = first_state(program) if state_arrays is None else state_arrays
    inputs = [*(np.asarray(a, order="C") for a in arrays), *state]
    binding = Binding(program, [a.shape for a in inputs])
    shapes = (*(s.shape for s in program.state), *binding.output_shapes)
    outputs = [np.zeros(shape, numpy_dtype(r.dtype)) for r, shape in zip(program.results, shapes, strict=True)]
    outputs[: len(state)] = [y if s.copy_reason else x for s, x, y in zip(program.state, state, outputs, strict=False)]
    memory: dict[int, np.ndarray] = {}
    for b in program.buffers:
        nbytes = span(b.nbytes, binding.spans)[1]
        match b.kind:
            case "input":
                memory[b.id] = inputs[b.index].reshape(-1).view(np.uint8)
            case "output":
                memory[b.id] = outputs[b.index].reshape(-1).view(np.uint8)
            case "weight":
                memory[b.id] = program.weights[b.offset : b.offset + nbytes]
            case "arena":
                memory[b.id] = np.full(nbytes, b.fill if b.halo else 0xFF, np.uint8)
            case "size":
                memory[b.id] = binding.sizes[b.index : b.index + 1].view(np.uint8)
            case "table":
                memory[b.id] = np.zeros(8 * _table_size(program), np.uint8)
    at, values, trip_counts = 0, binding.values, dict[int, int]()
    binding.begin()
    while at < len(program.steps):
        step = program.steps[at]
        at += 1
        if step.target is not None:
            position, leaves = at - 1, not step.args or not memory[step.args[0][0]][0]
            for trip_bound in step.dims:  # the turns that a loop is said to make are those that it makes
                assert leaves == (trip_counts.get(position, 0) >= evaluate(trip_bound, values)), (
                    f"step {position}: {trip_counts.get(position, 0)}"
                )
                trip_counts[position] = 0 if leaves else trip_counts.get(position, 0) + 1
            if leaves:
                at = step.target
            values = binding.read_sizes()
            continue
        kernel = kernels[step.kernel]
        verify_kernel(kernel, "schedule")
        buffers = {p.name: memory[i].view(p.dtype.numpy) for p, (i, _) in zip(kernel.params, step.args, strict=True)}
        run_kernel(kernel, buffers, {v.name: values[v.name] for v in kernel.dims})
    for x, y in zip(state, outputs, strict=False):
        x[...] = y
    return tuple(
        x.reshape(-1)[: prod(s)].reshape(s) for x, s in zip(outputs[len(state) :], binding.actual_shapes(), strict=True)
    )
