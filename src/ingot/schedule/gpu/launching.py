"""How kernels are launched: when they await others and let others start, and small ones side by side in one launch.

x (2 programs), y (3 programs)   ->   if chunk < 2:  x(chunk)
                                      else:          y(chunk - 2)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ingot.ir import kernel as k
from ingot.ir.kernel import AwaitProducers, Body, Buffer, If, Kernel, Let, Lit, ReleaseConsumers, Var
from ingot.ir.kernel.rewrite import Rewriting
from ingot.schedule.gpu.machine import Machine
from ingot.schedule.index import LOCAL, integer
from ingot.schedule.lowered import Lowered, Step

FEW = 8  # multiprocessors for each program of a kernel behind which the next may start at once
MOST = 4  # kernels of one launch: each combination is compiled anew
ORDER = AwaitProducers | ReleaseConsumers


def awaiting(low: Lowered, machine: Machine) -> Lowered:
    """Kernels that await what they read from, before all else where they do not say."""
    return replace(low, steps=tuple(replace(step, kernel=_awaits(step.kernel, machine)) for step in low.steps))


def _awaits(kernel: Kernel, machine: Machine) -> Kernel:
    """Behind a kernel of few programs the next one's find even room while it runs."""
    if any(isinstance(s, ORDER) for s in kernel.body):
        begin = () if any(isinstance(s, AwaitProducers) for s in kernel.body) else (AwaitProducers(),)
        return replace(kernel, body=(*begin, *kernel.body))
    few = isinstance(kernel.chunks, Lit) and kernel.chunks.value <= machine.processors // FEW
    return replace(kernel, body=(AwaitProducers(), *((ReleaseConsumers(),) if few else ()), *kernel.body))


def side_by_side(lows: Sequence[Lowered], machine: Machine) -> Lowered | None:
    """The kernels of groups none of which needs another's results, all on operands of one, in one launch; None where
    that is no gain, as each fills the GPU, or cannot be."""
    if len(lows) > MOST or not all(_is_small(low, machine) for low in lows):
        return None
    kernels = [low.steps[0].kernel for low in lows]
    first = kernels[0]
    if any(kernel.hints != first.hints for kernel in kernels):
        return None
    body: Body = ()
    params: list[Buffer] = []
    for number, kernel in reversed([*enumerate(kernels)]):
        own = _Own(number, kernel.chunk)
        alone = own.body(tuple(s for s in kernel.body if not isinstance(s, ORDER)))
        params = [*map(own.buffer, kernel.params), *params]
        if body:
            here = k.binary("lt", own.chunk, kernel.chunks)
            alone = (
                If(here, alone, (Let(_Own(number + 1, kernel.chunk).chunk, k.sub(own.chunk, kernel.chunks)), *body)),
            )
        body = alone
    kernel = replace(
        first,
        name="_and_".join(dict.fromkeys(kernel.name for kernel in kernels)),
        params=tuple(params),
        dims=tuple(dict.fromkeys(v for kernel in kernels for v in kernel.dims)),
        chunks=integer(sum(map(_programs, kernels))),
        body=body,
    )
    args = tuple(a for low in lows for a in low.steps[0].args)
    return awaiting(Lowered((Step(kernel, args),)), machine)


def _programs(kernel: Kernel) -> int:
    """How many there are; -1: that is not known."""
    return int(kernel.chunks.value) if isinstance(kernel.chunks, Lit) else -1


def _is_small(low: Lowered, machine: Machine) -> bool:
    """Whether a group is one kernel that leaves room beside it, without memory of its own."""
    if len(low.steps) != 1 or low.temps or low.packs or low.zeros != 0:
        return False
    return 0 < _programs(low.steps[0].kernel) <= machine.processors


class _Own(Rewriting):
    """A kernel with names of its own, as number `number` of several. chunk: of the first those of the launch."""

    def __init__(self, number: int, chunk: Var) -> None:
        super().__init__()
        self.number, self.outer = number, chunk
        self.chunk = chunk if number == 0 else replace(chunk, name=f"{LOCAL}{chunk.name}_{number}")

    def variable(self, v: Var) -> Var:
        if v.name == self.outer.name:
            return self.chunk
        return replace(v, name=f"{v.name}_{self.number}") if v.name.startswith(LOCAL) else v

    def buffer(self, b: Buffer) -> Buffer:
        return replace(b, name=f"{b.name}_{self.number}")


__all__ = ["awaiting", "side_by_side"]
