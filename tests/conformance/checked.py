"""A compiled program run by the kernel interpreter: every access is checked against the exact size of its buffer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ingot.ir.kernel.interp import run_kernel
from ingot.ir.node import Graph
from ingot.pipeline.build import Trace, build_program
from ingot.runtime.cpu.image import CodeImage
from ingot.runtime.cpu.instance import Instance
from ingot.runtime.dtypes import numpy_dtype
from ingot.runtime.expr import evaluate
from ingot.targets.cpu.workers import host_features


def run_checked(graph: Graph, arrays: Sequence[np.ndarray], threads: int = 2) -> tuple[np.ndarray, ...]:
    """The results of `graph` by its kernels' semantics. Raises VerifyError where a kernel leaves its buffers."""
    trace = Trace()
    program = build_program(graph, host_features(), threads, trace=trace)
    inputs = [np.asarray(a, order="C") for a in arrays]
    instance = Instance(program, [a.shape for a in inputs], CodeImage(program.code["cpu"]))
    outputs = [
        np.zeros(shape, numpy_dtype(spec.dtype))
        for spec, shape in zip(program.outputs, instance.output_shapes, strict=True)
    ]
    memory: dict[int, np.ndarray] = {}
    for b in program.buffers:
        nbytes = evaluate(b.nbytes, instance.values)
        match b.kind:
            case "input":
                memory[b.id] = inputs[b.index].reshape(-1).view(np.uint8)
            case "output":
                memory[b.id] = outputs[b.index].reshape(-1).view(np.uint8)
            case "weight":
                memory[b.id] = program.weights[b.offset : b.offset + nbytes]
            case "arena":
                memory[b.id] = np.full(nbytes, b.fill if b.halo else 0xFF, np.uint8)
    kernels = {kernel.name: kernel for kernel in trace.kernels}
    for step in program.steps:
        kernel = kernels[step.kernel]
        buffers = {
            p.name: memory[i].view(p.dtype.numpy)
            for p, (i, _) in zip(kernel.params, step.args, strict=True)
        }
        run_kernel(kernel, buffers, {v.name: instance.values[v.name] for v in kernel.dims})
    return tuple(outputs)
