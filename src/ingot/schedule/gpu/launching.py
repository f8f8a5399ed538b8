"""Launches: when kernels await their producers and release their consumers, and small kernels merged into one launch.

x (2 programs), y (3 programs)   ->   if chunk < 2:  x(chunk)
                                      else:          y(chunk - 2)      many: by bisection
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from ingot.ir import kernel as k
from ingot.ir.kernel import AwaitProducers, Body, Buffer, If, Kernel, Let, Lit, ReleaseConsumers, Var
from ingot.ir.kernel.rewrite import Rewriter
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.index import LOCAL, integer
from ingot.schedule.lowered import Lowered, Step

MIN_PROCESSORS_PER_PROGRAM = 8  # of a kernel after whose start the next may start
MAX_MERGED_KERNELS = 4  # of one launch: each combination is a kernel of its own
MAX_MERGED_COPIES = 16
ORDERING_STATEMENTS = AwaitProducers | ReleaseConsumers


def await_producers(low: Lowered, machine: Machine) -> Lowered:
    """Let each kernel await its producers, at its start unless it does so elsewhere."""
    return replace(low, steps=tuple(replace(step, kernel=_with_await(step.kernel, machine)) for step in low.steps))


def _with_await(kernel: Kernel, machine: Machine) -> Kernel:
    """A kernel of few programs also releases its consumers at its start, as there is room for them while it runs."""
    if any(isinstance(s, ORDERING_STATEMENTS) for s in kernel.body):
        prologue = () if any(isinstance(s, AwaitProducers) for s in kernel.body) else (AwaitProducers(),)
        return replace(kernel, body=(*prologue, *kernel.body))
    has_few_programs = (
        isinstance(kernel.chunks, Lit) and kernel.chunks.value <= machine.processors // MIN_PROCESSORS_PER_PROGRAM
    )
    return replace(kernel, body=(AwaitProducers(), *((ReleaseConsumers(),) if has_few_programs else ()), *kernel.body))


def merge_launches(lows: Sequence[Lowered], machine: Machine) -> Lowered | None:
    """Merge the kernels of independent groups into one launch, on the operands of all; None if a kernel fills the GPU
    alone or cannot be merged. Many copies are merged, of any size, as each takes less time than its launch."""
    copies = all(map(_is_copy, lows))
    if len(lows) > (MAX_MERGED_COPIES if copies else MAX_MERGED_KERNELS):
        return None
    if not copies and not all(_is_small(low, machine) for low in lows):
        return None
    kernels = [low.steps[0].kernel for low in lows]
    first = kernels[0]
    if any(kernel.hints != first.hints for kernel in kernels):
        return None
    renamings = [_Renaming(number, kernel.chunk) for number, kernel in enumerate(kernels)]
    starts = [0, *accumulate(map(_program_count, kernels))]

    def branches(begin: int, end: int) -> Body:
        """A search for the kernel, among some of them, that the launch's chunk belongs to."""
        if end - begin > 1:
            middle = (begin + end) // 2
            is_before = k.binary("lt", first.chunk, integer(starts[middle]))
            return (If(is_before, branches(begin, middle), branches(middle, end)),)
        kernel, renaming = kernels[begin], renamings[begin]
        body = renaming.body(tuple(s for s in kernel.body if not isinstance(s, ORDERING_STATEMENTS)))
        return body if begin == 0 else (Let(renaming.chunk, k.sub(first.chunk, integer(starts[begin]))), *body)

    kernel = replace(
        first,
        name="_and_".join(dict.fromkeys(kernel.name for kernel in kernels)),
        params=tuple(r.buffer(b) for r, kernel in zip(renamings, kernels, strict=True) for b in kernel.params),
        dims=tuple(dict.fromkeys(v for kernel in kernels for v in kernel.dims)),
        chunks=integer(starts[-1]),
        body=branches(0, len(kernels)),
    )
    args = tuple(a for low in lows for a in low.steps[0].args)
    return await_producers(Lowered((Step(kernel, args),)), machine)


def _is_copy(low: Lowered) -> bool:
    """Whether a group is a single kernel that reads one value and writes another, in any number of programs that is
    known."""
    return _is_single(low) and len(low.steps[0].args) == 2 and _program_count(low.steps[0].kernel) > 0


def _program_count(kernel: Kernel) -> int:
    """The number of programs; -1 if it is symbolic."""
    return int(kernel.chunks.value) if isinstance(kernel.chunks, Lit) else -1


def _is_small(low: Lowered, machine: Machine) -> bool:
    """Whether a group is a single kernel that does not fill the GPU and needs no temporary memory."""
    return _is_single(low) and 0 < _program_count(low.steps[0].kernel) <= machine.processors


def _is_single(low: Lowered) -> bool:
    return len(low.steps) == 1 and not low.temps and not low.packs and low.zeros == 0


class _Renaming(Rewriter):
    """Renames variables and buffers of the kernel `number` of a launch. chunk: its chunk; the first kernel has the
    launch's."""

    def __init__(self, number: int, chunk: Var) -> None:
        super().__init__()
        self.number, self.launch_chunk = number, chunk
        self.chunk = chunk if number == 0 else replace(chunk, name=f"{LOCAL}{chunk.name}_{number}")

    def variable(self, v: Var) -> Var:
        if v.name == self.launch_chunk.name:
            return self.chunk
        return replace(v, name=f"{v.name}_{self.number}") if v.name.startswith(LOCAL) else v

    def buffer(self, b: Buffer) -> Buffer:
        return replace(b, name=f"{b.name}_{self.number}")


__all__ = ["await_producers", "merge_launches"]
