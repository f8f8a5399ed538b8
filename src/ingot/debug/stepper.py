"""Run a compiled program one group at a time and judge each group on the very inputs that it was given.

    for each launch:  read its operands from memory  ->  run its steps  ->  read its results
                      compare with the reference of the group's body on the same operands

So an error is found where it arises and not where it shows. The arena starts as NaNs (0xFF bytes), which makes reads of
memory that nobody wrote visible; every value is kept when it is written, which makes a value that is overwritten too
early visible when it is read; chunks run in a shuffled order, which makes chunks that depend on each other visible.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from ingot.debug.build import Build
from ingot.debug.comparison.tolerance import Agreement, agree
from ingot.ir.dims import DimLike, substitute
from ingot.ir.layout import Layout
from ingot.ir.node import Node
from ingot.ops.group import Group, label
from ingot.plan.link import Launch
from ingot.runtime.cpu.image import CodeImage
from ingot.runtime.cpu.instance import Instance
from ingot.runtime.cpu.memory import aligned_bytes
from ingot.runtime.dtypes import numpy_dtype
from ingot.runtime.placement import ALIGNMENT
from ingot.support import progress
from ingot.support.dataclass import dataclass
from ingot.support.errors import VerifyError

_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)


@dataclass(frozen=True)
class Fault:
    """The first group that went wrong.

    `what`: "kernel" (the result `value` is wrong) or "memory" (the operand `value` changed after it was written).
    """

    what: str
    launch: Launch
    value: Node
    agreement: Agreement
    kernels: tuple[str, ...]

    @property
    def steps(self) -> range:
        return range(self.launch.first, self.launch.last)

    def __str__(self) -> str:
        group = label(self.launch.node)
        where = f"{', '.join(self.kernels)} (step {self.launch.first})"
        if self.what == "memory":
            name = label(self.value) if isinstance(self.value.op, Group) else self.value.op.name
            return f"the value of {name} changed in memory before {group} read it in {where}: {self.agreement}"
        return f"{group} in {where}: {self.agreement}"


class Stepper:
    """A program on its own memory, run step by step in this thread."""

    def __init__(self, build: Build, arrays: Sequence[np.ndarray], seed: int = 0) -> None:
        program = build.program
        self.build = build
        self.inputs = [np.asarray(a, order="C") for a in arrays]
        self.image = CodeImage(program.code["cpu"])
        self.instance = Instance(program, [a.shape for a in self.inputs], self.image)
        self.sizes = self.instance.values
        self.instance.begin()
        self.arena = aligned_bytes(self.instance.layout.nbytes + ALIGNMENT)
        self.arena[:] = 0xFF
        halo_fills = self.instance.layout.fills
        for offset, nbytes, byte in halo_fills:
            self.arena[offset : offset + nbytes] = byte
        self.weights = aligned_bytes(program.weights.nbytes + ALIGNMENT)
        self.weights[: program.weights.nbytes] = program.weights
        shapes = zip(program.outputs, self.instance.output_shapes, strict=True)
        self.outputs = [np.zeros(shape, numpy_dtype(spec.dtype)) for spec, shape in shapes]
        for output in self.outputs:
            output.reshape(-1).view(np.uint8)[:] = 0xFF
        self.scratch = aligned_bytes(program.scratch_bytes + ALIGNMENT)
        self.instance.attach(
            pool=0, arena=self.arena.ctypes.data, images=[self.arena.ctypes.data + offset for offset, *_ in halo_fills],
            weights=self.weights.ctypes.data, scratch=self.scratch.ctypes.data, stride=program.scratch_bytes,
            ticks=1 << 62,  # one slice
        )  # fmt: skip
        self.bases = np.frombuffer(self.instance.bases, np.int64)
        tensors = [a.ctypes.data for a in (*self.inputs, *self.outputs)]
        self.bases[2 : 2 + len(tensors)] = tensors
        self.records = self.instance.records
        self.random = np.random.default_rng(seed)

    def run(self, launch: Launch) -> None:
        """All chunks of the launch's steps, which loop and branch where they are jumps."""
        number = launch.first
        while number < launch.last:
            step = self.build.program.steps[number]
            if step.target is None:
                self._step(number)
            elif not step.args or not self._flag(number):
                number = step.target
                continue
            number += 1
        if self.build.program.sizes:
            self.sizes = self.instance.read_sizes()

    def _step(self, number: int) -> None:
        function, table, chunks, rounds = (int(v) for v in self.records[number])
        kernel = _KERNEL(function)
        for first in range(0, chunks * rounds, max(chunks, 1)):
            for chunk in self.random.permutation(chunks):
                kernel(self.bases.ctypes.data, table, first + int(chunk), self.scratch.ctypes.data)

    def _flag(self, number: int) -> bool:
        """The byte that decides a jump."""
        base, offset = (ctypes.c_int64 * 2).from_address(int(self.records[number][1]))
        return ctypes.c_uint8.from_address(int(self.bases[base]) + offset).value != 0

    def read(self, buffer: int, layout: Layout, node: Node) -> np.ndarray:
        """A copy of the value in a buffer of the plan."""
        plan = self.build.program.buffers[buffer]
        dtype = node.dtype.numpy
        match plan.kind:
            case "input":
                base, offset = self.inputs[plan.index].reshape(-1).view(np.uint8), 0
            case "output":
                base, offset = self.outputs[plan.index].reshape(-1).view(np.uint8), 0
            case "arena":
                base, offset = self.arena, self.instance.layout.offsets[buffer]
            case "weight":
                base, offset = self.weights, plan.offset
            case "size":
                base, offset = self.instance.sizes.view(np.uint8), 8 * plan.index
            case "table":
                raise VerifyError("a value of the plan", expected="in memory of its own", got="in the steps' table")
        shape = tuple(self.size(d) for d in layout.shape)
        strides = tuple(self.size(d) * dtype.itemsize for d in layout.strides)
        if 0 in shape:
            return np.empty(shape, dtype)
        return np.ndarray(shape, dtype, base, offset + self.size(layout.offset) * dtype.itemsize, strides).copy()

    def size(self, dim: DimLike) -> int:
        value = substitute(dim, self.sizes)
        if not isinstance(value, int):
            raise VerifyError("a size of the plan", expected="a number once the inputs are known", got=value)
        return value


def find_fault(build: Build, arrays: Sequence[np.ndarray], tolerance: float | None = None) -> Fault | None:
    """The first group whose native result differs from its reference on the same operands, or whose operand changed.

    None if every group is right: then what differs does so only when steps run on several threads.
    """
    stepper = Stepper(build, arrays)
    values: dict[Node, np.ndarray] = dict(zip(build.graph.inputs, stepper.inputs, strict=True))
    for i, launch in enumerate(build.launches):
        progress.report("step", i, len(build.launches))
        names = tuple(build.program.steps[n].kernel for n in range(launch.first, launch.last))
        operands: list[np.ndarray] = []
        for node, place in zip(launch.node.inputs, launch.inputs, strict=True):
            value = _value(node, values, stepper)
            operands.append(value if place is None else stepper.read(*place, node))
            if operands[-1].tobytes() != value.tobytes():
                return Fault("memory", launch, node, agree(operands[-1], value, 0.0), names)
        stepper.run(launch)
        reference = launch.node.op.substitute(stepper.sizes).reference(*operands)
        expected = reference if isinstance(reference, tuple) else (reference,)
        for node, place, want in zip(launch.node.results, launch.outputs, expected, strict=True):
            values[node] = stepper.read(*place, node)
            agreement = agree(values[node], np.asarray(want), tolerance)
            if not agreement.ok:
                return Fault("kernel", launch, node, agreement, names)
    return None


def _value(node: Node, values: dict[Node, np.ndarray], stepper: Stepper) -> np.ndarray:
    """The value that was written, put together where the node is storage (a concat or pad of written values)."""
    if node in values:
        return values[node]
    if node.constant is not None:
        return node.constant.value
    if isinstance(node.op, Group) or not node.op.computes:
        raise VerifyError(f"{node.op.name} is read before it is written", where=node.loc)
    operands = [_value(n, values, stepper) for n in node.inputs]
    result = node.op.substitute(stepper.sizes).reference(*operands)
    values[node] = np.asarray(result)
    return values[node]
