"""Kernels of several rounds: a program computes one chunk per round; values that all rounds share are hoisted.

own = chunk % 8;  w = r[own];  y[chunk / 8] = w * x   ->   own = program;  w = r[own]
                                                           for round in rounds:  y[round] = w * x;  all meet
"""

from __future__ import annotations

from ingot.ir import kernel as k
from ingot.ir.kernel import AwaitProducers, Body, Expr, Kernel, Let, ReleaseConsumers, Stmt, Var
from ingot.ir.kernel.rewrite import Rewriter
from ingot.ir.kernel.verify import subexpressions

PROGRAM, ROUND = k.var("program"), k.var("round")


def split_rounds(kernel: Kernel) -> tuple[Body, Body]:
    """Return the statements before the first round, and those of each round."""
    body = _ChunkSplit(kernel).body(kernel.body)
    invariants = {PROGRAM.name, *(v.name for v in kernel.dims)}
    prologue: list[Stmt] = []
    round_body: list[Stmt] = []
    for s in body:
        if isinstance(s, AwaitProducers | ReleaseConsumers):
            prologue.append(s)
        elif isinstance(s, Let) and all(_is_invariant(e, invariants) for e in subexpressions(s.value)):
            invariants.add(s.var.name)
            prologue.append(s)
        else:
            round_body.append(s)
    return tuple(prologue), tuple(round_body)


class _ChunkSplit(Rewriter):
    """Rewrites the chunk's remainder and quotient to the program and the round."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.chunk, self.count = kernel.chunk, kernel.chunks

    def expr(self, e: Expr) -> Expr:
        if isinstance(e, k.Binary) and e.a == self.chunk and e.b == self.count and e.fn in ("rem", "div"):
            return PROGRAM if e.fn == "rem" else ROUND
        return e


def _is_invariant(e: Expr, invariants: set[str]) -> bool:
    """Whether an expression, apart from its operands, has the same value in all rounds."""
    if isinstance(e, Var):
        return e.name in invariants
    return not (isinstance(e, k.Load | k.Gather | k.TileLoad) and (e.buffer.writable or e.buffer.space != "param"))


__all__ = ["PROGRAM", "ROUND", "split_rounds"]
