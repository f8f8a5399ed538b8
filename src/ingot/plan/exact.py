"""What kernels compute of numbers that a call tells, computed by the runtime instead: a machine's integers wrap, and
such a number may be any.

    kernel(a.0): y[i] = x[min(max(a.0 + 3, 0), 3) + i]     ->     kernel(n.0): y[i] = x[n.0 + i]
                                                                  n.0 = min(max(a.0 + 3, 0), 3)
"""

from __future__ import annotations

from dataclasses import replace

from ingot.ir.dims import DimLike, is_found, is_told, symbol, symbols_of
from ingot.ir.kernel import Expr, Kernel, Let, Stmt, Var
from ingot.ir.kernel.rewrite import Rewriting
from ingot.ir.types import i64
from ingot.schedule.index import dim_of


class ExactDims:
    """Kernels that take such numbers as dims, each made once."""

    def __init__(self) -> None:
        self._by_identity: dict[int, tuple[Kernel, tuple[Kernel, tuple[DimLike, ...]]]] = {}

    def of(self, kernel: Kernel) -> tuple[Kernel, tuple[DimLike, ...]]:
        """The kernel, and what its dims are; the same one where no call tells any."""
        known = self._by_identity.get(id(kernel))
        if known is None:
            known = self._by_identity[id(kernel)] = kernel, _with_exact_dims(kernel)
        return known[1]


def _with_exact_dims(kernel: Kernel) -> tuple[Kernel, tuple[DimLike, ...]]:
    if not any(is_told(v.name) for v in kernel.dims):
        return kernel, tuple(symbol(v.name) for v in kernel.dims)
    rewriting = _Exact(kernel)
    body = rewriting.body(kernel.body)
    used = _Variables()
    used.body(body)
    for e in (kernel.chunks, kernel.rounds):  # which the runtime computes
        used.of(e)
    dims = tuple(v for v in (*kernel.dims, *rewriting.params.values()) if v.name in used.names)
    values = {v.name: d for d, v in rewriting.params.items()}
    return replace(kernel, dims=dims, body=body), tuple(values.get(v.name, symbol(v.name)) for v in dims)


class _Exact(Rewriting):
    """params: of each number that is computed of told ones and sizes alone, the variable that has it."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.params: dict[DimLike, Var] = {}
        self._known: dict[str, DimLike] = {v.name: symbol(v.name) for v in kernel.dims}
        self._taken = {*self._known, kernel.chunk.name}

    def expr(self, e: Expr) -> Expr:
        return e if (d := self._number(e)) is None else self._param(d)

    def statement(self, s: Stmt) -> Stmt:
        new = super().statement(s)
        if isinstance(new, Let) and (d := self._number(new.value)) is not None:
            self._known[new.var.name] = d
        return new

    def _number(self, e: Expr) -> DimLike | None:
        """What an expression is, where it is computed of told numbers and sizes alone."""
        if e.dtype != i64 or e.lanes != 1:
            return None
        d = dim_of(e, self._known)
        names = symbols_of(d) if d is not None else ()
        return d if any(map(is_told, names)) and not any(map(is_found, names)) else None

    def _param(self, d: DimLike) -> Var:
        if d not in self.params:
            name = next(name for i in range(len(self._taken) + 1) if (name := f"n.{i}") not in self._taken)
            self._taken.add(name)
            self.params[d] = Var(i64, 1, name)
            self._known[name] = d
        return self.params[d]


class _Variables(Rewriting):
    """names: of all variables."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def variable(self, v: Var) -> Var:
        self.names.add(v.name)
        return v
