"""A statement list under construction, with fresh names and facts about its loop variables."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from ingot.ir.dims import DimLike
from ingot.ir.kernel import Alloc, Body, Buffer, Expr, For, If, Let, Lit, Ramp, Stmt, Store, Tile, Var
from ingot.ir.kernel.verify import children
from ingot.ir.types import DType, i64
from ingot.schedule.index import LOCAL, dim_expr
from ingot.support.limits import check_time

_NAMES_PER_CHECK = 4096  # of the time that compiling may take


class Block:
    """Statements are appended in order. Nested blocks share the names and the facts about loop variables."""

    def __init__(self, parent: Block | None = None):
        self.stmts: list[Stmt] = []
        self.parent = parent
        self.depth: int = parent.depth + 1 if parent else 0
        self._names: itertools.count[int] = parent._names if parent else itertools.count()
        self._depths: dict[str, int] = parent._depths if parent else {}  # of variables
        self.multiples: dict[str, int] = dict(parent.multiples) if parent else {}

    @property
    def body(self) -> Body:
        return tuple(self.stmts)

    def fresh(self, hint: str, dtype: DType = i64, lanes: int = 1, tile: Tile | None = None) -> Var:
        number = next(self._names)
        if number % _NAMES_PER_CHECK == 0:
            check_time("schedule")
        v = Var(dtype, lanes, f"{LOCAL}{hint}{number}", tile=tile)
        self._depths[v.name] = self.depth
        return v

    @property
    def root(self) -> Block:
        return self if self.parent is None else self.parent.root

    def sees(self, other: Block) -> bool:
        """Whether the statements of `other` so far are visible here: it is this block or one that encloses it."""
        b: Block | None = self
        while b is not None and b.depth > other.depth:
            b = b.parent
        return b is other

    def home(self, *exprs: Expr) -> Block:
        """The outermost enclosing block in which every variable of `exprs` is defined."""
        deepest = 0
        stack = list(exprs)
        while stack:
            e = stack.pop()
            if isinstance(e, Var):
                deepest = max(deepest, self._depths.get(e.name, 0))
            else:
                stack += children(e)
        block = self
        while block.depth > deepest:
            assert block.parent is not None
            block = block.parent
        return block

    def let(self, value: Expr, hint: str = "v") -> Expr:
        """Bind a value to a name. Variables, literals and ramps of them are returned unchanged."""
        if isinstance(value, Var | Lit) or (isinstance(value, Ramp) and isinstance(value.base, Var | Lit)):
            return value
        if isinstance(value, Ramp):
            base = self.let(value.base, hint)
            return Ramp(value.dtype, value.lanes, base, value.step)
        v = self.fresh(hint, value.dtype, value.lanes, value.tile)
        self.stmts.append(Let(v, value))
        return v

    def alloc(
        self,
        hint: str,
        dtype: DType,
        size: int,
        *,
        lanes: int = 1,
        stack: bool = False,
        scratch: int | None = None,
        tile: Tile | None = None,
    ) -> Buffer:
        """A register buffer of `size` values of `lanes`; a stack array; or scratch memory at a byte offset."""
        space = "stack" if stack else "scratch" if scratch is not None else "register"
        b = Buffer(f"{hint}{next(self._names)}", dtype, size, space, True, lanes, scratch or 0, tile=tile)
        self.stmts.append(Alloc(b))
        return b

    def store(
        self, buffer: Buffer, index: Expr, value: Expr, mask: Expr | None = None, *, stream: bool = False
    ) -> None:
        self.stmts.append(Store(buffer, index, value, mask, stream))

    def loop(
        self,
        hint: str,
        begin: DimLike | Expr,
        end: DimLike | Expr,
        step: int,
        body: Callable[[Block, Expr], None],
        *,
        unroll: bool = False,
        flatten: bool = False,
        stages: int = 0,
        multiple: int | None = None,
    ) -> None:
        """for var in range(begin, end, step): body(block, var). A loop that is known to run once becomes its body.

        flatten, stages: see `For`. multiple: a number that always divides the variable; by default `step` if the loop
        starts at a multiple of it.
        """
        lo = begin if isinstance(begin, Expr) else dim_expr(begin)
        hi = end if isinstance(end, Expr) else dim_expr(end)
        if isinstance(lo, Lit) and isinstance(hi, Lit):
            if int(lo.value) >= int(hi.value):
                return
            if int(lo.value) + step >= int(hi.value):
                body(self, lo)
                return
        inner = Block(self)
        v = inner.fresh(hint)
        if multiple is None and isinstance(lo, Lit) and int(lo.value) % step == 0:
            multiple = step
        inner.multiples[v.name] = multiple or 1
        body(inner, v)
        self.stmts.append(For(v, lo, hi, step, inner.body, unroll, flatten, stages))

    def when(self, cond: Expr, then: Callable[[Block], None], orelse: Callable[[Block], None] | None = None) -> None:
        """if cond: then(block) else: orelse(block). A constant condition emits its branch alone."""
        if isinstance(cond, Lit):
            if (branch := then if cond.value else orelse) is not None:
                branch(self)
            return
        a, b = Block(self), Block(self)
        then(a)
        if orelse:
            orelse(b)
        self.stmts.append(If(cond, a.body, b.body))
