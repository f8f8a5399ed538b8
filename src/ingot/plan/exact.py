"""Move index arithmetic on numbers that the caller passes, or the run finds, from kernels to the runtime: such a number
may be arbitrarily large, and a kernel's integers wrap. The runtime computes exactly, or ends the run (`plan.sizes`).

    kernel(a.0): y[i] = x[min(max(a.0 + 3, 0), 3) + i]     ->     kernel(n.0): y[i] = x[n.0 + i]
                                                                  n.0 = min(max(a.0 + 3, 0), 3)
"""

from __future__ import annotations

from dataclasses import replace

from ingot.ir.dims import DimLike, is_number, symbol, symbols_of
from ingot.ir.kernel import Expr, Kernel, Let, Stmt, Var
from ingot.ir.kernel.rewrite import Rewriter
from ingot.ir.types import i64
from ingot.schedule.index import Operation, dim_of


class ExactDims:
    """Kernels rewritten to take such numbers as dims, each once."""

    def __init__(self) -> None:
        self._cache: dict[int, tuple[Kernel, tuple[Kernel, tuple[DimLike, ...]]]] = {}

    def of(self, kernel: Kernel) -> tuple[Kernel, tuple[DimLike, ...]]:
        """The rewritten kernel and the values of its dims; the kernel itself if it takes no numbers."""
        entry = self._cache.get(id(kernel))
        if entry is None:
            entry = self._cache[id(kernel)] = kernel, _with_exact_dims(kernel)
        return entry[1]


def _with_exact_dims(kernel: Kernel) -> tuple[Kernel, tuple[DimLike, ...]]:
    if not any(is_number(v.name) for v in kernel.dims):
        return kernel, tuple(symbol(v.name) for v in kernel.dims)
    rewriting = _Exact(kernel)
    body = rewriting.body(kernel.body)
    used = _Variables()
    used.body(body)
    for e in (kernel.chunks, kernel.rounds):  # these are computed by the runtime already
        used.of(e)
    dims = tuple(v for v in (*kernel.dims, *rewriting.params.values()) if v.name in used.names)
    values = {v.name: d for d, v in rewriting.params.items()}
    return replace(kernel, dims=dims, body=body), tuple(values.get(v.name, symbol(v.name)) for v in dims)


class _Exact(Rewriter):
    """params: the new dim for each number that depends only on numbers and on sizes."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.params: dict[DimLike, Var] = {}
        self._values: dict[str, DimLike] = {v.name: symbol(v.name, v.may_be_empty) for v in kernel.dims}
        self._results: dict[Operation, DimLike] = {}
        self._used_names = {*self._values, kernel.chunk.name}

    def expr(self, e: Expr) -> Expr:
        return e if (d := self._number(e)) is None else self._param(d)

    def statement(self, s: Stmt) -> Stmt:
        new = super().statement(s)
        if isinstance(new, Let) and (d := self._number(new.value)) is not None:
            self._values[new.var.name] = d
        return new

    def _number(self, e: Expr) -> DimLike | None:
        """The value of an expression that depends only on numbers and on sizes; None for others."""
        if e.dtype != i64 or e.lanes != 1:
            return None
        d = dim_of(e, self._values, self._results)
        names = symbols_of(d) if d is not None else ()
        return d if any(map(is_number, names)) else None

    def _param(self, d: DimLike) -> Var:
        if d not in self.params:
            name = next(name for i in range(len(self._used_names) + 1) if (name := f"n.{i}") not in self._used_names)
            self._used_names.add(name)
            self.params[d] = Var(i64, 1, name)
            self._values[name] = d
        return self.params[d]


class _Variables(Rewriter):
    """Collects the names of all variables."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def variable(self, v: Var) -> Var:
        self.names.add(v.name)
        return v
