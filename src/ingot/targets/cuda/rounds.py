"""Kernels of several rounds: a program is a chunk of each, and what is the same in all rounds stands before the first.

own = chunk % 8;  w = r[own];  y[chunk / 8] = w * x   ->   own = program;  w = r[own]
                                                           for round in rounds:  y[round] = w * x;  all meet
"""

from __future__ import annotations

from collections.abc import Iterator

from ingot.ir import kernel as k
from ingot.ir.kernel import AwaitProducers, Body, Expr, Kernel, Let, ReleaseConsumers, Stmt, Var
from ingot.ir.kernel.rewrite import Rewriting
from ingot.ir.kernel.verify import children

PROGRAM, ROUND = k.var("program"), k.var("round")


def in_rounds(kernel: Kernel) -> tuple[Body, Body]:
    """What stands before the first round, and what each does."""
    body = _Numbered(kernel).body(kernel.body)
    known = {PROGRAM.name, *(v.name for v in kernel.dims)}
    before: list[Stmt] = []
    each: list[Stmt] = []
    for s in body:
        if isinstance(s, AwaitProducers | ReleaseConsumers):
            before.append(s)
        elif isinstance(s, Let) and all(_stays(e, known) for e in _parts(s.value)):
            known.add(s.var.name)
            before.append(s)
        else:
            each.append(s)
    return tuple(before), tuple(each)


class _Numbered(Rewriting):
    """Chunks by the program and the round that they are."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.chunk, self.count = kernel.chunk, kernel.chunks

    def expr(self, e: Expr) -> Expr:
        if isinstance(e, k.Binary) and e.a == self.chunk and e.b == self.count and e.fn in ("rem", "div"):
            return PROGRAM if e.fn == "rem" else ROUND
        return e


def _parts(e: Expr) -> Iterator[Expr]:
    seen: set[int] = set()
    stack = [e]
    while stack:
        e = stack.pop()
        if id(e) not in seen:
            seen.add(id(e))
            yield e
            stack += children(e)


def _stays(e: Expr, known: set[str]) -> bool:
    """Whether an expression, but for its operands, is the same in all rounds."""
    if isinstance(e, Var):
        return e.name in known
    return not (isinstance(e, k.Load | k.Gather | k.TileLoad) and (e.buffer.writable or e.buffer.space != "param"))


__all__ = ["PROGRAM", "ROUND", "in_rounds"]
