"""How many vectors to compute as one of as many lanes, which the target does instruction by instruction.

    a0 = f(x0); b0 = g(a0); a1 = f(x1); b1 = g(a1)   ->   a0 = f(x0); a1 = f(x1); b0 = g(a0); b1 = g(a1)

A processor looks only so many instructions ahead: of one long chain after the other it finds too few that are ready.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ingot.ir.kernel import (
    Binary,
    Cast,
    Either,
    Expr,
    Fma,
    Gather,
    Let,
    Load,
    Prefetch,
    Select,
    Shuffle,
    Stmt,
    Store,
    Unary,
    Var,
    ramp,
)  # fmt: skip
from ingot.ir.kernel.math.expand import expanded
from ingot.ir.kernel.verify import children
from ingot.schedule.block import Block
from ingot.schedule.cpu.machine import Machine

MANY = 8  # operations of an element from which on that counts
CHAIN = 8  # registers that each vector may take


def vectors_to_interleave(
    home: Block,
    dims: Sequence[int],
    axis: int,
    lanes: int,
    machine: Machine,
    emit: Callable[[Block, Mapping[int, Expr]], None],
) -> int:
    """For what `emit` does, on trial, with a vector of `lanes` along `axis`, at any place in the other `dims`: 1 where
    that is little, or where it branches, looks up or shuffles."""
    trial = Block(home)
    at: dict[int, Expr] = {d: trial.fresh("j") for d in dims}
    trial.multiples |= {e.name: lanes for e in at.values() if isinstance(e, Var)}
    emit(trial, at | {axis: ramp(at[axis], lanes)})
    found = _operations(trial.stmts)
    if lanes == 1 or len(found) < MANY:
        return 1
    registers = -(-lanes * max(e.dtype.bits for e in found) // machine.vector_bits)
    return max(1, machine.registers // (CHAIN * registers))


def _operations(stmts: Sequence[Stmt]) -> list[Expr]:
    """The arithmetic on vectors; none unless it is straight."""
    left: list[Expr] = []
    for s in stmts:
        if not isinstance(s, Let | Store | Prefetch) or (isinstance(s, Store) and s.index.lanes > 1):
            return []
        left += [] if isinstance(s, Prefetch) else expanded([s.value])
    found: dict[int, Expr] = {}
    while left:
        e = left.pop()
        if e.lanes == 1 or id(e) in found:
            continue
        if isinstance(e, Gather | Shuffle) or (isinstance(e, Load) and e.mask is not None):
            return []
        found[id(e)] = e
        # of what one condition for all lanes chooses, the first is the usual one
        if isinstance(e, Either) or (isinstance(e, Select) and e.cond.lanes < e.lanes):
            left.append(e.a)
        else:
            left += children(e)
    return [e for e in found.values() if isinstance(e, Unary | Binary | Fma | Select | Cast)]


__all__ = ["vectors_to_interleave"]
