"""The number of vectors to compute as one wide vector, which the target interleaves instruction by instruction.

    a0 = f(x0); b0 = g(a0); a1 = f(x1); b1 = g(a1)   ->   a0 = f(x0); a1 = f(x1); b0 = g(a0); b1 = g(a1)

The reorder window of a processor is limited: with one long dependency chain after the other, few instructions in it
are ready.
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

MIN_OPERATIONS = 8  # per element, for interleaving to pay
REGISTERS_PER_VECTOR = 8


def vectors_to_interleave(
    home: Block,
    dims: Sequence[int],
    axis: int,
    lanes: int,
    machine: Machine,
    emit: Callable[[Block, Mapping[int, Expr]], None],
) -> int:
    """The number of vectors of `lanes` along `axis` to interleave, by a trial run of `emit`; 1 if that has few
    operations, branches, gathers or shuffles."""
    trial = Block(home)
    at: dict[int, Expr] = {d: trial.fresh("j") for d in dims}
    trial.multiples |= {e.name: lanes for e in at.values() if isinstance(e, Var)}
    emit(trial, at | {axis: ramp(at[axis], lanes)})
    operations = _operations(trial.stmts)
    if lanes == 1 or len(operations) < MIN_OPERATIONS:
        return 1
    registers = -(-lanes * max(e.dtype.bits for e in operations) // machine.vector_bits)
    return max(1, machine.registers // (REGISTERS_PER_VECTOR * registers))


def _operations(stmts: Sequence[Stmt]) -> list[Expr]:
    """The vector arithmetic of straight-line statements; empty for other statements."""
    pending: list[Expr] = []
    for s in stmts:
        if not isinstance(s, Let | Store | Prefetch) or (isinstance(s, Store) and s.index.lanes > 1):
            return []
        pending += [] if isinstance(s, Prefetch) else expanded([s.value])
    visited: dict[int, Expr] = {}
    while pending:
        e = pending.pop()
        if e.lanes == 1 or id(e) in visited:
            continue
        if isinstance(e, Gather | Shuffle) or (isinstance(e, Load) and e.mask is not None):
            return []
        visited[id(e)] = e
        # if one condition selects for all lanes, the first operand is the usual one
        if isinstance(e, Either) or (isinstance(e, Select) and e.cond.lanes < e.lanes):
            pending.append(e.a)
        else:
            pending += children(e)
    return [e for e in visited.values() if isinstance(e, Unary | Binary | Fma | Select | Cast)]


__all__ = ["vectors_to_interleave"]
