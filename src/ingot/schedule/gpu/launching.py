"""Launches: when kernels await their producers and release their consumers, and small kernels merged into one launch.

x (2 programs), y (3 programs)   ->   if chunk < 2:  x(chunk)
                                      else:          y(chunk - 2)      many: by bisection

x (1 program); y of x (1 program)   ->   x; await stores; y
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from ingot.ir import kernel as k
from ingot.ir.kernel import (
    AwaitProducers,
    AwaitStores,
    Body,
    Buffer,
    Expr,
    If,
    Kernel,
    Let,
    Lit,
    ReleaseConsumers,
    Stmt,
    TileProduct,
    Var,
)
from ingot.ir.kernel.rewrite import Rewriter
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.index import LOCAL, integer
from ingot.schedule.lowered import Lowered, Step

MIN_PROCESSORS_PER_PROGRAM = 8  # of a kernel after whose start the next may start
MAX_MERGED_KERNELS = 4  # of one launch: each combination is a kernel of its own
MAX_MERGED_UNARY = 16
MAX_PROGRAMS_PER_PROCESSOR = 8  # of a kernel of short programs that shares a launch
ORDERING_STATEMENTS = AwaitProducers | ReleaseConsumers


def await_producers(low: Lowered, machine: Machine) -> Lowered:
    """Let each kernel await its producers, at its start unless it does so elsewhere."""
    return replace(low, steps=tuple(replace(step, kernel=_with_await(step.kernel, machine)) for step in low.steps))


def _with_await(kernel: Kernel, machine: Machine) -> Kernel:
    """A kernel of few programs also releases its consumers at its start, as there is room for them while it runs. A
    kernel with a barrier starts behind its producers: all of its programs must run at the same time."""
    if kernel.barrier is not None:
        return kernel
    if any(isinstance(s, ORDERING_STATEMENTS) for s in kernel.body):
        prologue = () if any(isinstance(s, AwaitProducers) for s in kernel.body) else (AwaitProducers(),)
        return replace(kernel, body=(*prologue, *kernel.body))
    has_few_programs = (
        isinstance(kernel.chunks, Lit) and kernel.chunks.value <= machine.processors // MIN_PROCESSORS_PER_PROGRAM
    )
    return replace(kernel, body=(AwaitProducers(), *((ReleaseConsumers(),) if has_few_programs else ()), *kernel.body))


def merge_launches(lows: Sequence[Lowered], machine: Machine) -> Lowered | None:
    """Merge the kernels of independent groups into one launch, on the operands of all; None if a kernel fills the GPU
    alone or cannot be merged. Kernels of one operand and one result, such as copies of weights, are merged whatever
    their size. Each program awaits producers and releases consumers where its kernel does, if all kernels do both."""
    are_unary = all(map(_is_unary, lows))
    if len(lows) > (MAX_MERGED_UNARY if are_unary else MAX_MERGED_KERNELS):
        return None
    if not are_unary and not all(_is_small(low, machine) for low in lows):
        return None
    kernels = [low.steps[0].kernel for low in lows]
    first, hints = kernels[0], _common_hints(kernels, machine)
    if hints is None:
        return None
    keeps_order = all(map(_releases_consumers, kernels))
    renamings = [_Renaming(n, kernel.chunk, _own_chunk(n, kernel)) for n, kernel in enumerate(kernels)]
    starts = [0, *accumulate(map(_program_count, kernels))]

    def branches(begin: int, end: int) -> Body:
        """A search for the kernel, among some of them, that the launch's chunk belongs to."""
        if end - begin > 1:
            middle = (begin + end) // 2
            is_before = k.binary("lt", first.chunk, integer(starts[middle]))
            return (If(is_before, branches(begin, middle), branches(middle, end)),)
        kernel, renaming = kernels[begin], renamings[begin]
        body = renaming.body(tuple(s for s in kernel.body if keeps_order or not isinstance(s, ORDERING_STATEMENTS)))
        return body if begin == 0 else (Let(renaming.chunk, k.sub(first.chunk, integer(starts[begin]))), *body)

    kernel = replace(
        first,
        name="_and_".join(dict.fromkeys(kernel.name for kernel in kernels)),
        params=tuple(r.buffer(b) for r, kernel in zip(renamings, kernels, strict=True) for b in kernel.params),
        dims=tuple(dict.fromkeys(v for kernel in kernels for v in kernel.dims)),
        chunks=integer(starts[-1]),
        body=branches(0, len(kernels)),
        hints=hints,
    )
    merged = Lowered((Step(kernel, tuple(a for low in lows for a in low.steps[0].args)),))
    return merged if keeps_order else await_producers(merged, machine)


def _common_hints(kernels: Sequence[Kernel], machine: Machine) -> tuple[tuple[str, int], ...] | None:
    """The hints of a launch of several kernels; None if they differ. Kernels of few programs without products of tiles,
    which are chosen with their warps, may have more of these there than alone."""
    hints = [dict(kernel.hints) for kernel in kernels]
    warps = max(h["warps"] for h in hints)
    for kernel, h in zip(kernels, hints, strict=True):
        if h | {"warps": warps} != hints[0] | {"warps": warps}:
            return None
        is_flexible = _program_count(kernel) <= machine.processors and not _Products.are_in(kernel)
        if h["warps"] != warps and not is_flexible:
            return None
    return tuple({**hints[0], "warps": warps}.items())


def _is_unary(low: Lowered) -> bool:
    """Whether a group is a single kernel that reads one value and writes another, in any number of programs that is
    known."""
    return _is_single(low) and len(low.steps[0].args) == 2 and _program_count(low.steps[0].kernel) > 0


def _has_one_program(kernel: Kernel) -> bool:
    """Whether a kernel is one program that needs nothing but its params, so that it can share it."""
    is_plain = not kernel.dims and not kernel.scratch_bytes and kernel.barrier is None
    is_alone = kernel.chunks == integer(1) and kernel.rounds == integer(1)
    return is_plain and is_alone and not any(b.matrix is not None for b in kernel.params)


def chain_kernels(kernels: Sequence[Kernel], machine: Machine) -> Kernel | None:
    """One program for kernels of one program each that follow one another, with the params of all; None if one of them
    has several."""
    if not all(map(_has_one_program, kernels)):
        return None
    first = kernels[0]
    body: list[Stmt] = []
    params: list[Buffer] = []
    for number, kernel in enumerate(kernels):
        renaming = _Renaming(number, kernel.chunk, first.chunk)
        body += [AwaitStores()] if number else []
        body += renaming.body(tuple(s for s in kernel.body if not isinstance(s, ORDERING_STATEMENTS)))
        params += map(renaming.buffer, kernel.params)
    common = set(first.hints).intersection(*(kernel.hints for kernel in kernels))
    warps = "warps", max(number for kernel in kernels for hint, number in kernel.hints if hint == "warps")
    hints = warps, *(hint for hint in first.hints if hint in common and hint[0] != "warps")
    name = "_then_".join(dict.fromkeys(kernel.name for kernel in kernels))
    return _with_await(replace(first, name=name, params=tuple(params), body=tuple(body), hints=hints), machine)


def _own_chunk(number: int, kernel: Kernel) -> Var:
    """The chunk of the kernel `number` of a launch; the first one has the launch's."""
    return kernel.chunk if number == 0 else replace(kernel.chunk, name=f"{LOCAL}{kernel.chunk.name}_{number}")


def _program_count(kernel: Kernel) -> int:
    """The number of programs; -1 if it is symbolic."""
    return int(kernel.chunks.value) if isinstance(kernel.chunks, Lit) else -1


def _is_small(low: Lowered, machine: Machine) -> bool:
    """Whether a group is a single kernel that does not fill the GPU and needs no temporary memory. The programs of a
    kernel that releases its consumers, such as a product of a single row, are short."""
    if not _is_single(low):
        return False
    kernel = low.steps[0].kernel
    most = MAX_PROGRAMS_PER_PROCESSOR if _releases_consumers(kernel) else 1
    return 0 < _program_count(kernel) <= machine.processors * most


def _releases_consumers(kernel: Kernel) -> bool:
    return any(isinstance(s, ReleaseConsumers) for s in kernel.body)


def _is_single(low: Lowered) -> bool:
    return len(low.steps) == 1 and not low.temps and not low.packs and low.zeros == 0


class _Products(Rewriter):
    """Finds products of tiles."""

    found = False

    @classmethod
    def are_in(cls, kernel: Kernel) -> bool:
        finder = cls()
        finder.body(kernel.body)
        return finder.found

    def expr(self, e: Expr) -> Expr:
        self.found |= isinstance(e, TileProduct)
        return e


class _Renaming(Rewriter):
    """Renames variables and buffers of the kernel `number` of a launch. old_chunk, chunk: its chunk, alone and
    there."""

    def __init__(self, number: int, old_chunk: Var, chunk: Var) -> None:
        super().__init__()
        self.number, self.old_chunk, self.chunk = number, old_chunk, chunk

    def variable(self, v: Var) -> Var:
        if v.name == self.old_chunk.name:
            return self.chunk
        return replace(v, name=f"{v.name}_{self.number}") if v.name.startswith(LOCAL) else v

    def buffer(self, b: Buffer) -> Buffer:
        return replace(b, name=f"{b.name}_{self.number}")


__all__ = ["await_producers", "chain_kernels", "merge_launches"]
