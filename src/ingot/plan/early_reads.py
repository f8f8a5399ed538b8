"""What kernels read before they wait for those that produce their operands: only memory that no kernel writes.

held = b[...]; await producers; acc += a[...] * held   ->   await producers; held = b[...]; acc += a[...] * held
                                                            where a kernel writes b
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

from ingot.ir.kernel import AwaitProducers, Body, Buffer, Expr, For, Gather, If, Kernel, Let, Load, Store, TileLoad
from ingot.ir.kernel.verify import subexpressions
from ingot.support.dataclass import dataclass


@dataclass
class EarlyReads:
    """The kernels of a program, by their ids, with those of their params that they read early, and as kernels that
    read none early."""

    _kernels: dict[int, tuple[Kernel, frozenset[Buffer], Kernel]] = field(default_factory=dict)

    def allowed(self, kernel: Kernel, is_fixed: Sequence[bool]) -> Kernel:
        """`kernel`, which awaits its producers first if it reads a param early that is not fixed. is_fixed: whether
        nothing in the program writes each param's memory."""
        entry = self._kernels.get(id(kernel))
        if entry is None:
            entry = self._kernels[id(kernel)] = kernel, *_late(kernel)
        _, early, late = entry
        is_early = any(b in early and not fixed for b, fixed in zip(kernel.params, is_fixed, strict=True))
        return late if is_early else kernel


def _late(kernel: Kernel) -> tuple[frozenset[Buffer], Kernel]:
    """The params that a kernel reads before it awaits its producers, and the kernel that awaits them first."""
    reads, others = set[Buffer](), _without_await(kernel.body)
    if others != kernel.body:
        _collect(kernel.body, reads)
    return frozenset(reads), replace(kernel, body=(AwaitProducers(), *others)) if reads else kernel


def _collect(body: Body, reads: set[Buffer]) -> bool:
    """Add the params that a body reads before it awaits producers, and return whether it does."""
    for s in body:
        match s:
            case AwaitProducers():
                return True
            case If():
                _collect_expressions((s.cond,), reads)
                branches = [_collect(s.then, reads), _collect(s.orelse, reads)]
                if all(branches):
                    return True
            case For():
                _collect_expressions((s.begin, s.end), reads)
                _collect(s.body, reads)
            case Let():
                _collect_expressions((s.value,), reads)
            case Store():
                _collect_expressions((s.index, s.value, *((s.mask,) if s.mask is not None else ())), reads)
            case _:
                pass
    return False


def _collect_expressions(expressions: Sequence[Expr], reads: set[Buffer]) -> None:
    loads = (e for e in subexpressions(*expressions) if isinstance(e, Load | Gather | TileLoad))
    reads.update(e.buffer for e in loads if e.buffer.space == "param")


def _without_await(body: Body) -> Body:
    """A body that does not await producers; itself if it does not."""
    return tuple(
        replace(s, then=_without_await(s.then), orelse=_without_await(s.orelse)) if isinstance(s, If) else s
        for s in body
        if not isinstance(s, AwaitProducers)
    )


__all__ = ["EarlyReads"]
