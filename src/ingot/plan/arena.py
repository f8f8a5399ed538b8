"""The memory that a fused graph's intermediate values will need, by a plan without code."""

from __future__ import annotations

from ingot.ir.dims import estimate
from ingot.ir.kernel import Kernel
from ingot.plan.joint_launch import Join
from ingot.plan.link import Linker, Lower
from ingot.plan.serial_launch import Chain
from ingot.plan.storage import Arena, Storage
from ingot.runtime import placement
from ingot.support.errors import CompileError
from ingot.support.native import Code


class _NoCode:
    """The assembler of a plan that will not run."""

    def add(self, kernel: Kernel) -> None:
        pass

    def finish(self) -> Code:
        raise CompileError("a plan without code")


def arena_of(storage: Storage, lower: Lower, join: Join | None = None, chain: Chain | None = None) -> Arena:
    """The memory that the runtime will allocate for all intermediate values of a fused graph, including temporaries of
    kernels and loops, at likely sizes (see `runtime.bind.Layout`)."""
    linker = Linker(storage.graph, storage, lower, _NoCode(), join, chain)
    linker.link()
    regions: dict[str | None, list[placement.Request]] = {}
    for b in linker.buffers:
        if b.kind == "arena":
            regions.setdefault(b.halo, []).append(placement.Request(estimate(b.nbytes), b.first or 0, b.last))
    values = set(linker.buffer_of_value.values())
    temporary = [b for i, b in enumerate(linker.buffers) if b.kind == "arena" and b.halo is None and i not in values]
    steps = [0] * len(linker.steps)
    for b in temporary:
        for step in range(b.first or 0, b.last + 1):
            steps[step] += placement.align(estimate(b.nbytes))
    temp_bytes = {launch.node: max(steps[launch.first : launch.last], default=0) for launch in linker.launches}
    return Arena(sum(placement.place(requests)[1] for requests in regions.values()), temp_bytes)


__all__ = ["arena_of"]
