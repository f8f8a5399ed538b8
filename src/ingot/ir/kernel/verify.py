"""What must hold for kernel IR before a target prints it.

    verify_kernel(kernel, "lower#7")  ->  VerifyError: after lower#7: kernel gemm: for i: Store C[...]: ...

Types and lanes agree operation by operation, variables are bound before use and bound once on a path, buffers are known
where they are touched, registers have literal indices once the loops that `unroll` are repeated, and stores go to
writable memory only.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable

from ingot.ir import kernel as k
from ingot.ir.types import bf16, boolean, f8e4m3fn, f8e5m2, f32, f64, i8, i32, i64, u8
from ingot.support.dataclass import dataclass
from ingot.support.errors import VerifyError


def verify_kernel(kernel: k.Kernel, after: str = "") -> None:
    """Raise VerifyError, naming the pass, the kernel and the statement, unless `kernel` is well formed."""
    prefix = f"after {after}: " if after else ""
    checker = _Checker([f"{prefix}kernel {kernel.name}"])
    names = [b.name for b in kernel.params]
    checker.need(len(set(names)) == len(names), "params", "distinct names", names)
    for b in kernel.params:
        checker.need(b.space == "param", f"buffer {b.name}", "a param", b.space)
    scope = _Scope(ChainMap(), ChainMap({b.name: b for b in kernel.params}), ChainMap(), ChainMap())
    for v in kernel.dims:
        checker.need(v.dtype == i64 and v.lanes == 1, f"dim {v.name}", "an i64 scalar", _kind(v))
        scope.vars[v.name] = v
    checker.index(kernel.chunks, "chunks", scope)
    checker.index(kernel.rounds, "rounds", scope)
    checker.need(kernel.chunk.dtype == i64 and kernel.chunk.lanes == 1, "chunk", "an i64 scalar", _kind(kernel.chunk))
    checker.need(kernel.chunk.name not in scope.vars, "chunk", "a name of its own", kernel.chunk.name)
    scope.vars[kernel.chunk.name] = kernel.chunk
    checker.scratch_bytes = kernel.scratch_bytes
    checker.body(kernel.body, scope)


def kind_of(dtype: object, lanes: int, tile: k.Tile | None = None) -> str:
    """The type of a value: f32, f32x16, or f32x(8, 32) for a tile."""
    if tile is not None:
        return f"{dtype}x{tile}"
    return str(dtype) if lanes == 1 else f"{dtype}x{lanes}"


def _kind(e: k.Expr) -> str:
    return kind_of(e.dtype, e.lanes, e.tile)


@dataclass
class _Scope:
    """What is in sight; an inner scope sees the outer ones.

    `literal`: variables of unrolled loops, and Lets of them, which are literals once the loops are repeated. `seen`:
    the expressions checked so far by id (they are shared), and whether they are such literals.
    """

    vars: ChainMap[str, k.Var]
    buffers: ChainMap[str, k.Buffer]
    literal: ChainMap[str, bool]
    seen: ChainMap[int, bool]

    def inner(self) -> _Scope:
        vars_, buffers, literal = self.vars.new_child(), self.buffers.new_child(), self.literal.new_child()
        return _Scope(vars_, buffers, literal, self.seen.new_child())


@dataclass
class _Checker:
    path: list[str]
    scratch_bytes: int = 0

    def need(self, condition: bool, what: str, expected: object, got: object) -> None:
        if not condition:
            raise VerifyError(f"{': '.join(self.path)}: {what}", expected=expected, got=got)

    # -- statements

    def body(self, body: k.Body, scope: _Scope) -> None:
        for s in body:
            self.statement(s, scope)

    def statement(self, s: k.Stmt, scope: _Scope) -> None:
        match s:
            case k.For():
                self.loop(s, scope)
            case k.If():
                self.expr(s.cond, scope)
                self.need(s.cond.dtype == boolean and s.cond.lanes == 1, "if", "a bool scalar", _kind(s.cond))
                for branch in (s.then, s.orelse):
                    self.path.append("if")
                    self.body(branch, scope.inner())
                    self.path.pop()
            case k.Let():
                self.expr(s.value, scope)
                name = s.var.name
                self.need(name not in scope.vars, f"let {name}", "a new name", "one that is bound already")
                self.need(_kind(s.var) == _kind(s.value), f"let {name}", _kind(s.var), _kind(s.value))
                scope.vars[name] = s.var
                if scope.seen[id(s.value)]:
                    scope.literal[name] = True
            case k.Store():
                self.store(s, scope)
            case k.Alloc():
                self.alloc(s.buffer, scope)
            case k.Prefetch():
                self.buffer(s.buffer, scope, "prefetch")
                self.need(s.buffer.space != "register", f"prefetch {s.buffer.name}", "memory", "a register")
                self.index(s.index, f"prefetch {s.buffer.name}", scope)
            case k.Increment():
                self.increment(s, scope)
            case k.Comment() | k.AwaitProducers() | k.ReleaseConsumers():
                pass
            case _:
                raise VerifyError(f"{': '.join(self.path)}: unknown statement {type(s).__name__}")

    def loop(self, s: k.For, scope: _Scope) -> None:
        name = s.var.name
        self.need(s.var.dtype == i64 and s.var.lanes == 1, f"for {name}", "an i64 scalar", _kind(s.var))
        self.need(name not in scope.vars, f"for {name}", "a new name", "one that is bound already")
        self.need(s.step > 0, f"for {name}", "a positive step", s.step)
        for what, e in (("begin", s.begin), ("end", s.end)):
            self.index(e, f"for {name}: {what}", scope)
            settled = not s.unroll or scope.seen[id(e)]
            self.need(settled, f"for {name} (unroll): {what}", "a literal", type(e).__name__)
        inside = scope.inner()
        inside.vars[name] = s.var
        if s.unroll:
            inside.literal[name] = True
        self.path.append(f"for {name}")
        self.body(s.body, inside)
        self.path.pop()

    def alloc(self, b: k.Buffer, scope: _Scope) -> None:
        what = f"alloc {b.name}"
        self.need(b.space != "param", what, "register, stack or scratch space", b.space)
        self.need(b.name not in scope.buffers, what, "a new name", "one that is known already")
        self.need(b.size is not None and b.size > 0, what, "a size", b.size)
        self.need(b.lanes >= 1 and (b.space == "register" or b.lanes == 1), what, "lanes on registers only", b.lanes)
        if b.space == "scratch":
            end = b.offset + (b.size or 0) * b.dtype.nbytes
            self.need(b.offset % 64 == 0, what, "an offset that is a multiple of 64", b.offset)
            self.need(end <= self.scratch_bytes, what, f"an end within scratch_bytes = {self.scratch_bytes}", end)
        scope.buffers[b.name] = b

    def increment(self, s: k.Increment, scope: _Scope) -> None:
        b = s.buffer
        what = f"increment {b.name}"
        self.buffer(b, scope, "increment")
        fits = b.space == "param" and b.writable and b.dtype == i64
        self.need(fits, what, "a writable i64 param", f"{b.space} {b.dtype}")
        self.index(s.index, what, scope)
        self.need(s.var.dtype == i64 and s.var.lanes == 1, what, "an i64 scalar", _kind(s.var))
        self.need(s.var.name not in scope.vars, what, "a new name", f"{s.var.name}, which is bound already")
        scope.vars[s.var.name] = s.var

    def store(self, s: k.Store, scope: _Scope) -> None:
        what = f"store {s.buffer.name}"
        self.buffer(s.buffer, scope, "store")
        self.need(s.buffer.writable or s.buffer.space != "param", what, "a writable buffer", "one for reading")
        self.expr(s.value, scope)
        self.need(s.value.dtype == s.buffer.dtype, what, s.buffer.dtype, s.value.dtype)
        if s.buffer.space == "register":
            self.register(s.buffer, s.index, s.mask, scope, what)
            self.need(s.value.lanes == s.buffer.lanes, what, f"{s.buffer.lanes} lanes", s.value.lanes)
            return
        self.expr(s.index, scope)
        self.need(s.index.dtype == i64, what, "an i64 index", s.index.dtype)
        if s.index.lanes != 1:
            self.need(s.index.lanes == s.value.lanes, what, f"{s.value.lanes} indices", s.index.lanes)
        self.mask(s.mask, s.value.lanes, what, scope)

    # -- expressions

    def buffer(self, b: k.Buffer, scope: _Scope, what: str, *, matrix: bool = False) -> None:
        known = scope.buffers.get(b.name)
        self.need(known is not None, f"{what} {b.name}", "a param or an allocated buffer", "neither")
        self.need(known == b, f"{what} {b.name}", known, b)
        told = "a matrix" if matrix else "no matrix"
        self.need((b.matrix is not None) == matrix, f"{what} {b.name}", told, b.matrix)

    def register(self, b: k.Buffer, index: k.Expr, mask: k.Expr | None, scope: _Scope, what: str) -> None:
        self.index(index, what, scope)
        self.need(scope.seen[id(index)], what, "an index that is literal after unrolling", type(index).__name__)
        if isinstance(index, k.Lit):
            self.need(0 <= int(index.value) < (b.size or 0), what, f"an index below {b.size}", index.value)
        self.need(mask is None, what, "no mask on a register", "one")

    def mask(self, mask: k.Expr | None, lanes: int, what: str, scope: _Scope) -> None:
        if mask is None:
            return
        self.expr(mask, scope)
        self.need(mask.dtype == boolean and mask.lanes == lanes, f"{what}: mask", f"boolx{lanes}", _kind(mask))

    def index(self, e: k.Expr, what: str, scope: _Scope) -> None:
        self.expr(e, scope)
        self.need(e.dtype == i64 and e.lanes == 1, what, "an i64 scalar", _kind(e))

    def expr(self, e: k.Expr, scope: _Scope) -> bool:
        """Check `e`; true where it is a literal once unrolled loops are repeated."""
        known = scope.seen.get(id(e))
        if known is not None:
            return known
        below = [self.expr(c, scope) for c in children(e)]
        self.need(e.lanes >= 1, type(e).__name__, "at least one lane", e.lanes)
        if e.tile is not None:
            rows, columns = e.tile
            self.need(rows * columns == e.lanes, type(e).__name__, f"a tile of {e.lanes} lanes", e.tile)
        self.operation(e, scope)
        literal = isinstance(e, k.Lit) or (isinstance(e, k.Binary) and all(below))
        literal = literal or (isinstance(e, k.Var) and e.name in scope.literal)
        scope.seen[id(e)] = literal
        return literal

    def operation(self, e: k.Expr, scope: _Scope) -> None:
        match e:
            case k.Lit():
                self.literal(e)
            case k.Var():
                known = scope.vars.get(e.name)
                self.need(known is not None, f"variable {e.name}", "one that is bound before its use", "an unbound one")
                self.need(known == e, f"variable {e.name}", known and _kind(known), _kind(e))
            case k.Unary():
                self.need(e.fn in k.UNARY, "unary", k.UNARY, e.fn)
                self.same(e.fn, e, e.a)
                wants = _UNARY_KINDS[e.fn]
                self.need(e.dtype.kind in wants, e.fn, f"an operand of kind {wants}", e.dtype)
            case k.Binary():
                self.binary(e)
            case k.Fma():
                self.same("fma", e, e.a, e.b, e.c)
                self.need(e.dtype.kind in "fiu", "fma", "numbers", e.dtype)
            case k.Call():
                self.need(len(e.args) == k.FUNCTIONS.get(e.fn), f"call {e.fn}", k.FUNCTIONS, len(e.args))
                self.same(e.fn, e, *e.args)
                self.need(e.dtype in (f32, f64), e.fn, "f32 or f64", e.dtype)
            case k.Dot():
                self.dot(e)
            case k.Select():
                self.same("select", e, e.a, e.b)
                self.need(
                    e.cond.dtype == boolean and e.cond.lanes in (1, e.lanes),
                    "select: cond",
                    f"bool or boolx{e.lanes}",
                    _kind(e.cond),
                )
            case k.Cast():
                self.need(e.lanes == e.a.lanes, "cast", f"{e.a.lanes} lanes", e.lanes)
            case k.Bitcast():
                bits = e.lanes * e.dtype.bits, e.a.lanes * e.a.dtype.bits
                self.need(bits[0] == bits[1], "bitcast", f"as many bits as {_kind(e.a)}", _kind(e))
                packed = all(x.dtype.bits >= 8 and x.dtype != boolean for x in (e, e.a))
                self.need(packed or e.lanes == e.a.lanes, "bitcast", "lanes of whole bytes", _kind(e))
            case k.Load():
                self.load(e, scope)
            case k.Gather():
                self.gather(e, scope)
            case k.TileLoad():
                self.tile_load(e, scope)
            case k.Splat() | k.Ramp() | k.Reduce() | k.Shuffle() | k.Extract():
                self.lanes(e)
            case k.Range() | k.Spread() | k.ReduceAlong() | k.ScanAlong() | k.Transposed() | k.TileProduct():
                self.tile(e)
            case k.Either():
                self.need(_kind(e.a) == _kind(e.b) == _kind(e), "either", f"two of {_kind(e)}", _kind(e.b))
            case k.Lookup():
                ok = e.index.dtype.is_integer and e.index.lanes == e.lanes
                self.need(ok, "lookup", f"{e.lanes} integers", _kind(e.index))
                count = len(e.table)
                self.need(count > 0 and not count & (count - 1), "lookup", "a power of two of entries", count)
            case _:
                raise VerifyError(f"{': '.join(self.path)}: unknown expression {type(e).__name__}")

    def lanes(self, e: k.Splat | k.Ramp | k.Reduce | k.Shuffle | k.Extract) -> None:
        """What makes vectors of scalars, scalars of vectors, and other vectors of vectors."""
        match e:
            case k.Splat():
                self.need(e.a.lanes == 1 and e.a.dtype == e.dtype, "splat", f"a scalar {e.dtype}", _kind(e.a))
            case k.Ramp():
                ok = e.base.lanes == 1 and e.base.dtype == e.dtype and e.dtype.is_integer
                self.need(ok, "ramp", f"an integer scalar {e.dtype}", _kind(e.base))
            case k.Reduce():
                self.need(e.fn in k.REDUCE, "reduce", k.REDUCE, e.fn)
                self.need(e.lanes == 1 and e.dtype == e.a.dtype, "reduce", f"a scalar {e.a.dtype}", _kind(e))
                wants = "iub" if e.fn in ("and", "or") else "fiu"
                self.need(e.dtype.kind in wants, f"reduce {e.fn}", f"kind {wants}", e.dtype)
            case k.Shuffle():
                ok = _kind(e.a) == _kind(e.b) and e.dtype == e.a.dtype
                self.need(ok, "shuffle", _kind(e.a), f"{_kind(e.b)} to {_kind(e)}")
                self.need(len(e.pick) == e.lanes, "shuffle", f"{e.lanes} picks", len(e.pick))
                known = all(0 <= p < 2 * e.a.lanes for p in e.pick)
                self.need(known, "shuffle", f"picks below {2 * e.a.lanes}", e.pick)
            case k.Extract():
                self.need(e.lanes == 1 and e.dtype == e.a.dtype, "extract", f"a scalar {e.a.dtype}", _kind(e))
                self.need(0 <= e.lane < e.a.lanes, "extract", f"a lane below {e.a.lanes}", e.lane)

    def tile(self, e: k.Range | k.Spread | k.ReduceAlong | k.ScanAlong | k.Transposed | k.TileProduct) -> None:
        """What makes tiles, and what rows and columns matter to."""
        match e:
            case k.Range():
                self.need(e.dtype.is_integer, "range", "an integer type", e.dtype)
                self.need(e.tile is None or 1 in e.tile, "range", "a line, a column or a row", e.tile)
            case k.Spread():
                rows, columns = e.tile or (0, 0)
                fits = e.a.tile in ((rows, 1), (1, columns)) and e.a.dtype == e.dtype
                self.need(fits, "spread", f"a column or a row of {_kind(e)}", _kind(e.a))
            case k.ReduceAlong():
                self.need(e.fn in k.REDUCE, "reduce", k.REDUCE, e.fn)
                rows, columns = e.a.tile or (0, 0)
                left = (1, columns) if e.axis == 0 else (rows, 1)
                self.need(e.tile == left and e.dtype == e.a.dtype, "reduce", f"a tile {left}", _kind(e))
            case k.ScanAlong():
                self.need(e.fn in k.REDUCE, "scan", k.REDUCE, e.fn)
                self.need(e.tile is not None and _kind(e) == _kind(e.a), "scan", f"a tile {e.tile}", _kind(e.a))
            case k.Transposed():
                turned = e.a.tile and (e.a.tile[1], e.a.tile[0])
                self.need(e.tile == turned and e.dtype == e.a.dtype, "transposed", f"a tile {turned}", _kind(e))
            case k.TileProduct():
                (m, depth), (depth_b, n) = e.a.tile or (0, 0), e.b.tile or (0, 0)
                self.need(depth == depth_b, "product", f"{depth} rows of b", depth_b)
                self.need(e.tile == (m, n) and _kind(e) == _kind(e.c), "product", f"a sum {(m, n)}", _kind(e.c))
                alike = e.a.dtype == e.b.dtype or {e.a.dtype, e.b.dtype} == {f8e4m3fn, f8e5m2}
                self.need(alike, "product", f"a b of {e.a.dtype}", e.b.dtype)

    def dot(self, e: k.Dot) -> None:
        self.same("dot", e, e.c)
        self.need(e.dtype in _DOT_OPERANDS, "dot", "sums in f32 or i32", e.dtype)
        for a, wants in zip((e.a, e.b), _DOT_OPERANDS.get(e.dtype, ()), strict=False):
            lanes = e.lanes * 32 // wants.bits
            fits = a.dtype == wants and a.lanes == lanes
            self.need(fits, "dot", f"an operand {wants}x{lanes}", _kind(a))

    def gather(self, e: k.Gather, scope: _Scope) -> None:
        what = f"gather {e.buffer.name}"
        self.buffer(e.buffer, scope, "gather")
        self.need(e.buffer.space != "register", what, "memory", "a register")
        self.need(e.dtype == e.buffer.dtype, what, e.buffer.dtype, e.dtype)
        self.need(e.index.dtype == i64 and e.index.lanes == e.lanes, what, f"i64x{e.lanes}", _kind(e.index))
        self.mask(e.mask, e.lanes, what, scope)

    def tile_load(self, e: k.TileLoad, scope: _Scope) -> None:
        what, matrix = f"load {e.buffer.name}", e.buffer.matrix
        self.buffer(e.buffer, scope, "load", matrix=True)
        self.need(not e.buffer.writable, what, "a buffer for reading", "a writable one")
        wants = kind_of(e.buffer.dtype, e.lanes, matrix and matrix.tile)
        self.need(_kind(e) == wants, what, wants, _kind(e))
        for at in (e.row, e.column):
            self.need(at.dtype == i64 and at.lanes == 1, what, "an i64 scalar", _kind(at))

    def literal(self, e: k.Lit) -> None:
        wants = bool if e.dtype.kind == "b" else float if e.dtype.is_float else int
        fits = isinstance(e.value, int | float) and (wants is not int or isinstance(e.value, int))
        self.need(fits and (wants is bool) == isinstance(e.value, bool), "literal", f"a {e.dtype}", repr(e.value))
        if wants is int:
            low, high = e.dtype.range
            self.need(low <= e.value <= high, "literal", f"a value of {e.dtype}", e.value)

    def same(self, what: str, e: k.Expr, *operands: k.Expr) -> None:
        for a in operands:
            self.need(_kind(a) == _kind(e), what, f"an operand {_kind(e)}", _kind(a))

    def binary(self, e: k.Binary) -> None:
        known = e.fn in k.ARITHMETIC or e.fn in k.COMPARE or e.fn in ("minnum", "maxnum")
        self.need(known, "binary", k.ARITHMETIC + k.COMPARE, e.fn)
        if e.fn in k.COMPARE:
            self.need(_kind(e.a) == _kind(e.b), e.fn, f"operands {_kind(e.a)}", _kind(e.b))
            self.need(e.dtype == boolean and e.lanes == e.a.lanes, e.fn, f"boolx{e.a.lanes}", _kind(e))
            return
        self.same(e.fn, e, e.a, e.b)
        wants = _BINARY_KINDS.get(e.fn, "fiu")
        self.need(e.dtype.kind in wants, e.fn, f"operands of kind {wants}", e.dtype)
        self.need(e.fn != "ldexp" or e.dtype.bits >= 32, e.fn, "f32 or f64", e.dtype)

    def load(self, e: k.Load, scope: _Scope) -> None:
        what = f"load {e.buffer.name}"
        self.buffer(e.buffer, scope, "load")
        self.need(e.dtype == e.buffer.dtype, what, e.buffer.dtype, e.dtype)
        if e.buffer.space == "register":
            self.register(e.buffer, e.index, e.mask, scope, what)
            self.need(e.lanes == e.buffer.lanes, what, f"{e.buffer.lanes} lanes", e.lanes)
            return
        self.need(e.index.dtype == i64 and e.index.lanes == 1, what, "an i64 scalar", _kind(e.index))
        self.mask(e.mask, e.lanes, what, scope)


_DOT_OPERANDS = {f32: (bf16, bf16), i32: (u8, i8)}  # of sums
_UNARY_KINDS = {
    "neg": "fiu",
    "abs": "fiu",
    "sqrt": "f",
    "floor": "f",
    "ceil": "f",
    "round_even": "f",
    "trunc": "f",
    "not": "iub",
    "popcnt": "iu",
    "clz": "iu",
}
_BINARY_KINDS: dict[str, str] = {
    **dict.fromkeys(("shl", "ashr", "lshr"), "iu"),
    **dict.fromkeys(("and", "or", "xor"), "iub"),
    **dict.fromkeys(("copysign", "minnum", "maxnum", "ldexp"), "f"),
}


_OPERANDS: dict[type[k.Expr], Callable[..., tuple[k.Expr, ...]]] = {
    **dict.fromkeys((k.Unary, k.Cast, k.Bitcast, k.Splat, k.Reduce, k.Extract), lambda e: (e.a,)),
    **dict.fromkeys((k.Spread, k.ReduceAlong, k.ScanAlong, k.Transposed), lambda e: (e.a,)),
    **dict.fromkeys((k.Binary, k.Shuffle, k.Either), lambda e: (e.a, e.b)),
    **dict.fromkeys((k.Fma, k.Dot, k.TileProduct), lambda e: (e.a, e.b, e.c)),
    k.Select: lambda e: (e.cond, e.a, e.b),
    k.Call: lambda e: e.args,
    k.Ramp: lambda e: (e.base,),
    k.Lookup: lambda e: (e.index,),
    k.TileLoad: lambda e: (e.row, e.column),
    **dict.fromkeys((k.Load, k.Gather), lambda e: (e.index,) if e.mask is None else (e.index, e.mask)),
}


def children(e: k.Expr) -> tuple[k.Expr, ...]:
    """The operands of `e`, an absent mask left out."""
    operands = _OPERANDS.get(type(e))
    return () if operands is None else operands(e)
