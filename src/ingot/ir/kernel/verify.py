"""The invariants of kernel IR, checked before a target prints it.

    verify_kernel(kernel, "lower#7")  ->  VerifyError: after lower#7: kernel gemm: for i: Store C[...]: ...

The types and lanes of each operation agree, variables are bound before use and once on a path, buffers are declared
before use, registers have indices that are literals after unrolling, and stores go to writable memory only.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator

from ingot.ir import kernel as k
from ingot.ir.types import bf16, boolean, f8e4m3fn, f8e5m2, f16, f32, f64, i8, i16, i32, i64, u8, u32
from ingot.support.dataclass import dataclass
from ingot.support.errors import VerifyError


def verify_kernel(kernel: k.Kernel, after: str = "") -> None:
    """Raise VerifyError, naming the pass, the kernel and the statement, unless `kernel` is well formed."""
    prefix = f"after {after}: " if after else ""
    checker = _Checker([f"{prefix}kernel {kernel.name}"])
    names = [b.name for b in kernel.params]
    checker.require(len(set(names)) == len(names), "params", "distinct names", names)
    for b in kernel.params:
        checker.require(b.space == "param", f"buffer {b.name}", "a param", b.space)
    scope = _Scope(ChainMap(), ChainMap({b.name: b for b in kernel.params}), ChainMap(), ChainMap())
    for v in kernel.dims:
        checker.require(v.dtype == i64 and v.lanes == 1, f"dim {v.name}", "an i64 scalar", _kind(v))
        scope.vars[v.name] = v
    checker.index(kernel.chunks, "chunks", scope)
    checker.index(kernel.rounds, "rounds", scope)
    checker.require(
        kernel.chunk.dtype == i64 and kernel.chunk.lanes == 1, "chunk", "an i64 scalar", _kind(kernel.chunk)
    )
    checker.require(kernel.chunk.name not in scope.vars, "chunk", "a name of its own", kernel.chunk.name)
    scope.vars[kernel.chunk.name] = kernel.chunk
    checker.scratch_bytes = kernel.scratch_bytes
    checker.body(kernel.body, scope)


def kind_of(dtype: object, lanes: int, tile: k.Tile | None = None) -> str:
    """The type of a value as text: f32, f32x16, or f32x(8, 32) for a tile."""
    if tile is not None:
        return f"{dtype}x{tile}"
    return str(dtype) if lanes == 1 else f"{dtype}x{lanes}"


def _kind(e: k.Expr) -> str:
    return kind_of(e.dtype, e.lanes, e.tile)


@dataclass
class _Scope:
    """The variables and buffers in scope, outer scopes included.

    literal_vars: variables of unrolled loops and Lets of them, which are literals after unrolling. literal_by_id: the
    expressions checked so far by id (they are shared), and whether they are such literals.
    """

    vars: ChainMap[str, k.Var]
    buffers: ChainMap[str, k.Buffer]
    literal_vars: ChainMap[str, bool]
    literal_by_id: ChainMap[int, bool]

    def inner(self) -> _Scope:
        vars_, buffers, literal = self.vars.new_child(), self.buffers.new_child(), self.literal_vars.new_child()
        return _Scope(vars_, buffers, literal, self.literal_by_id.new_child())


@dataclass
class _Checker:
    path: list[str]
    scratch_bytes: int = 0

    def require(self, condition: bool, subject: str, expected: object, got: object) -> None:
        if not condition:
            raise VerifyError(f"{': '.join(self.path)}: {subject}", expected=expected, got=got)

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
                self.require(s.cond.dtype == boolean and s.cond.lanes == 1, "if", "a bool scalar", _kind(s.cond))
                for branch in (s.then, s.orelse):
                    self.path.append("if")
                    self.body(branch, scope.inner())
                    self.path.pop()
            case k.Let():
                self.expr(s.value, scope)
                name = s.var.name
                self.require(name not in scope.vars, f"let {name}", "a new name", "one that is bound already")
                self.require(_kind(s.var) == _kind(s.value), f"let {name}", _kind(s.var), _kind(s.value))
                scope.vars[name] = s.var
                if scope.literal_by_id[id(s.value)]:
                    scope.literal_vars[name] = True
            case k.Store():
                self.store(s, scope)
            case k.Alloc():
                self.alloc(s.buffer, scope)
            case k.Prefetch():
                self.buffer(s.buffer, scope, "prefetch")
                self.require(s.buffer.space != "register", f"prefetch {s.buffer.name}", "memory", "a register")
                self.index(s.index, f"prefetch {s.buffer.name}", scope)
            case k.Increment():
                self.increment(s, scope)
            case k.Comment() | k.AwaitStores() | k.AwaitProducers() | k.ReleaseConsumers():
                pass
            case _:
                raise VerifyError(f"{': '.join(self.path)}: unknown statement {type(s).__name__}")

    def loop(self, s: k.For, scope: _Scope) -> None:
        name = s.var.name
        self.require(s.var.dtype == i64 and s.var.lanes == 1, f"for {name}", "an i64 scalar", _kind(s.var))
        self.require(name not in scope.vars, f"for {name}", "a new name", "one that is bound already")
        self.require(s.step > 0, f"for {name}", "a positive step", s.step)
        for subject, e in (("begin", s.begin), ("end", s.end)):
            self.index(e, f"for {name}: {subject}", scope)
            is_literal = not s.unroll or scope.literal_by_id[id(e)]
            self.require(is_literal, f"for {name} (unroll): {subject}", "a literal", type(e).__name__)
        inner = scope.inner()
        inner.vars[name] = s.var
        if s.unroll:
            inner.literal_vars[name] = True
        self.path.append(f"for {name}")
        self.body(s.body, inner)
        self.path.pop()

    def alloc(self, b: k.Buffer, scope: _Scope) -> None:
        subject = f"alloc {b.name}"
        self.require(b.space != "param", subject, "register, stack or scratch space", b.space)
        self.require(b.name not in scope.buffers, subject, "a new name", "one that is known already")
        self.require(b.size is not None and b.size > 0, subject, "a size", b.size)
        self.require(
            b.lanes >= 1 and (b.space == "register" or b.lanes == 1), subject, "lanes on registers only", b.lanes
        )
        if b.space == "scratch":
            end = b.offset + (b.size or 0) * b.dtype.nbytes
            self.require(b.offset % 64 == 0, subject, "an offset that is a multiple of 64", b.offset)
            self.require(end <= self.scratch_bytes, subject, f"an end within scratch_bytes = {self.scratch_bytes}", end)
        scope.buffers[b.name] = b

    def increment(self, s: k.Increment, scope: _Scope) -> None:
        b = s.buffer
        subject = f"increment {b.name}"
        self.buffer(b, scope, "increment")
        matches = b.space == "param" and b.writable and b.dtype == i64
        self.require(matches, subject, "a writable i64 param", f"{b.space} {b.dtype}")
        self.index(s.index, subject, scope)
        self.require(s.var.dtype == i64 and s.var.lanes == 1, subject, "an i64 scalar", _kind(s.var))
        self.require(s.var.name not in scope.vars, subject, "a new name", f"{s.var.name}, which is bound already")
        scope.vars[s.var.name] = s.var

    def store(self, s: k.Store, scope: _Scope) -> None:
        subject = f"store {s.buffer.name}"
        self.buffer(s.buffer, scope, "store")
        self.require(s.buffer.writable or s.buffer.space != "param", subject, "a writable buffer", "one for reading")
        self.expr(s.value, scope)
        self.require(s.value.dtype == s.buffer.dtype, subject, s.buffer.dtype, s.value.dtype)
        if s.buffer.space == "register":
            self.register(s.buffer, s.index, s.mask, scope, subject)
            self.require(s.value.lanes == s.buffer.lanes, subject, f"{s.buffer.lanes} lanes", s.value.lanes)
            return
        self.expr(s.index, scope)
        self.require(s.index.dtype == i64, subject, "an i64 index", s.index.dtype)
        if s.index.lanes != 1:
            self.require(s.index.lanes == s.value.lanes, subject, f"{s.value.lanes} indices", s.index.lanes)
        self.mask(s.mask, s.value.lanes, subject, scope)

    # -- expressions

    def buffer(self, b: k.Buffer, scope: _Scope, subject: str, *, matrix: bool = False) -> None:
        declared = scope.buffers.get(b.name)
        self.require(declared is not None, f"{subject} {b.name}", "a param or an allocated buffer", "neither")
        self.require(declared == b, f"{subject} {b.name}", declared, b)
        expected = "a matrix" if matrix else "no matrix"
        self.require((b.matrix is not None) == matrix, f"{subject} {b.name}", expected, b.matrix)

    def register(self, b: k.Buffer, index: k.Expr, mask: k.Expr | None, scope: _Scope, subject: str) -> None:
        self.index(index, subject, scope)
        self.require(
            scope.literal_by_id[id(index)], subject, "an index that is literal after unrolling", type(index).__name__
        )
        if isinstance(index, k.Lit):
            self.require(0 <= int(index.value) < (b.size or 0), subject, f"an index below {b.size}", index.value)
        self.require(mask is None, subject, "no mask on a register", "one")

    def mask(self, mask: k.Expr | None, lanes: int, subject: str, scope: _Scope) -> None:
        if mask is None:
            return
        self.expr(mask, scope)
        self.require(mask.dtype == boolean and mask.lanes == lanes, f"{subject}: mask", f"boolx{lanes}", _kind(mask))

    def index(self, e: k.Expr, subject: str, scope: _Scope) -> None:
        self.expr(e, scope)
        self.require(e.dtype == i64 and e.lanes == 1, subject, "an i64 scalar", _kind(e))

    def expr(self, e: k.Expr, scope: _Scope) -> bool:
        """Check `e`, and return whether it is a literal after unrolling."""
        checked = scope.literal_by_id.get(id(e))
        if checked is not None:
            return checked
        literal_operands = [self.expr(c, scope) for c in children(e)]
        self.require(e.lanes >= 1, type(e).__name__, "at least one lane", e.lanes)
        if e.tile is not None:
            rows, columns = e.tile
            self.require(rows * columns == e.lanes, type(e).__name__, f"a tile of {e.lanes} lanes", e.tile)
        self.operation(e, scope)
        literal = isinstance(e, k.Lit) or (isinstance(e, k.Binary) and all(literal_operands))
        literal = literal or (isinstance(e, k.Var) and e.name in scope.literal_vars)
        scope.literal_by_id[id(e)] = literal
        return literal

    def operation(self, e: k.Expr, scope: _Scope) -> None:
        match e:
            case k.Lit():
                self.literal(e)
            case k.Var():
                bound = scope.vars.get(e.name)
                self.require(
                    bound is not None, f"variable {e.name}", "one that is bound before its use", "an unbound one"
                )
                self.require(bound == e, f"variable {e.name}", bound and _kind(bound), _kind(e))
            case k.Unary():
                self.require(e.fn in k.UNARY, "unary", k.UNARY, e.fn)
                self.same_kinds(e.fn, e, e.a)
                expected = _UNARY_KINDS[e.fn]
                self.require(e.dtype.kind in expected, e.fn, f"an operand of kind {expected}", e.dtype)
            case k.Binary():
                self.binary(e)
            case k.Fma():
                self.same_kinds("fma", e, e.a, e.b, e.c)
                self.require(e.dtype.kind in "fiu", "fma", "numbers", e.dtype)
            case k.Call():
                self.require(len(e.args) == k.FUNCTIONS.get(e.fn), f"call {e.fn}", k.FUNCTIONS, len(e.args))
                self.same_kinds(e.fn, e, *e.args)
                self.require(e.dtype in (f32, f64), e.fn, "f32 or f64", e.dtype)
            case k.Dot():
                self.dot(e)
            case k.QuadProduct() | k.LaneSums():
                self.of_lanes(e)
            case k.Select():
                self.same_kinds("select", e, e.a, e.b)
                self.require(
                    e.cond.dtype == boolean and e.cond.lanes in (1, e.lanes),
                    "select: cond",
                    f"bool or boolx{e.lanes}",
                    _kind(e.cond),
                )
            case k.Cast():
                self.require(e.lanes == e.a.lanes, "cast", f"{e.a.lanes} lanes", e.lanes)
            case k.Bitcast():
                bits = e.lanes * e.dtype.bits, e.a.lanes * e.a.dtype.bits
                self.require(bits[0] == bits[1], "bitcast", f"as many bits as {_kind(e.a)}", _kind(e))
                packed = all(x.dtype.bits >= 8 and x.dtype != boolean for x in (e, e.a))
                self.require(packed or e.lanes == e.a.lanes, "bitcast", "lanes of whole bytes", _kind(e))
            case k.Load():
                self.load(e, scope)
            case k.Gather():
                self.gather(e, scope)
            case k.TileLoad():
                self.tile_load(e, scope)
            case k.Splat() | k.Ramp() | k.Reduce() | k.Shuffle() | k.Extract():
                self.lanes(e)
            case k.Range() | k.Spread() | k.ReduceAxis() | k.ScanAxis() | k.Transposed() | k.TileProduct():
                self.tile(e)
            case k.Either():
                self.require(_kind(e.a) == _kind(e.b) == _kind(e), "either", f"two of {_kind(e)}", _kind(e.b))
            case k.Lookup():
                ok = e.index.dtype.is_integer and e.index.lanes == e.lanes
                self.require(ok, "lookup", f"{e.lanes} integers", _kind(e.index))
                count = len(e.table)
                self.require(count > 0 and not count & (count - 1), "lookup", "a power of two of entries", count)
            case _:
                raise VerifyError(f"{': '.join(self.path)}: unknown expression {type(e).__name__}")

    def lanes(self, e: k.Splat | k.Ramp | k.Reduce | k.Shuffle | k.Extract) -> None:
        """Check the operations that convert between scalars and vectors, or permute lanes."""
        match e:
            case k.Splat():
                self.require(e.a.lanes == 1 and e.a.dtype == e.dtype, "splat", f"a scalar {e.dtype}", _kind(e.a))
            case k.Ramp():
                ok = e.base.lanes == 1 and e.base.dtype == e.dtype and e.dtype.is_integer
                self.require(ok, "ramp", f"an integer scalar {e.dtype}", _kind(e.base))
            case k.Reduce():
                self.require(e.fn in k.REDUCE, "reduce", k.REDUCE, e.fn)
                self.require(e.lanes == 1 and e.dtype == e.a.dtype, "reduce", f"a scalar {e.a.dtype}", _kind(e))
                expected = "iub" if e.fn in ("and", "or") else "fiu"
                self.require(e.dtype.kind in expected, f"reduce {e.fn}", f"kind {expected}", e.dtype)
            case k.Shuffle():
                ok = _kind(e.a) == _kind(e.b) and e.dtype == e.a.dtype
                self.require(ok, "shuffle", _kind(e.a), f"{_kind(e.b)} to {_kind(e)}")
                self.require(len(e.indices) == e.lanes, "shuffle", f"{e.lanes} picks", len(e.indices))
                in_range = all(0 <= p < 2 * e.a.lanes for p in e.indices)
                self.require(in_range, "shuffle", f"picks below {2 * e.a.lanes}", e.indices)
            case k.Extract():
                self.require(e.lanes == 1 and e.dtype == e.a.dtype, "extract", f"a scalar {e.a.dtype}", _kind(e))
                self.require(0 <= e.lane < e.a.lanes, "extract", f"a lane below {e.a.lanes}", e.lane)

    def tile(self, e: k.Range | k.Spread | k.ReduceAxis | k.ScanAxis | k.Transposed | k.TileProduct) -> None:
        """Check the operations on tiles."""
        match e:
            case k.Range():
                self.require(e.dtype.is_integer, "range", "an integer type", e.dtype)
                self.require(e.tile is None or 1 in e.tile, "range", "a line, a column or a row", e.tile)
            case k.Spread():
                rows, columns = e.tile or (0, 0)
                matches = e.a.tile in ((rows, 1), (1, columns)) and e.a.dtype == e.dtype
                self.require(matches, "spread", f"a column or a row of {_kind(e)}", _kind(e.a))
            case k.ReduceAxis():
                self.require(e.fn in k.REDUCE, "reduce", k.REDUCE, e.fn)
                rows, columns = e.a.tile or (0, 0)
                reduced = (1, columns) if e.axis == 0 else (rows, 1)
                self.require(e.tile == reduced and e.dtype == e.a.dtype, "reduce", f"a tile {reduced}", _kind(e))
            case k.ScanAxis():
                self.require(e.fn in k.REDUCE, "scan", k.REDUCE, e.fn)
                self.require(e.tile is not None and _kind(e) == _kind(e.a), "scan", f"a tile {e.tile}", _kind(e.a))
            case k.Transposed():
                transposed = e.a.tile and (e.a.tile[1], e.a.tile[0])
                self.require(
                    e.tile == transposed and e.dtype == e.a.dtype, "transposed", f"a tile {transposed}", _kind(e)
                )
            case k.TileProduct():
                (m, depth), (depth_b, n) = e.a.tile or (0, 0), e.b.tile or (0, 0)
                self.require(depth == depth_b, "product", f"{depth} rows of b", depth_b)
                self.require(e.tile == (m, n) and _kind(e) == _kind(e.c), "product", f"a sum {(m, n)}", _kind(e.c))
                compatible = e.a.dtype == e.b.dtype or {e.a.dtype, e.b.dtype} == {f8e4m3fn, f8e5m2}
                self.require(compatible, "product", f"a b of {e.a.dtype}", e.b.dtype)
                self.require(not e.tf32 or e.a.dtype == e.dtype == f32, "product", "f32, for tf32", e.a.dtype)

    def dot(self, e: k.Dot) -> None:
        self.same_kinds("dot", e, e.c)
        self.require(e.dtype in _DOT_OPERANDS, "dot", "sums in f32 or i32", e.dtype)
        operands = _DOT_OPERANDS.get(e.dtype, ())
        dtypes = (e.a.dtype, e.b.dtype)
        self.require(not operands or dtypes in operands, "dot", f"operands {operands}", dtypes)
        is_whole_vector = e.lanes == 1 and e.a.dtype.bits == 8 and e.a.lanes == e.b.lanes == 16
        for a in (e.a, e.b):
            lanes = e.lanes * 32 // a.dtype.bits
            self.require(a.lanes == lanes or is_whole_vector, "dot", f"an operand {a.dtype}x{lanes}", _kind(a))

    def of_lanes(self, e: k.QuadProduct | k.LaneSums) -> None:
        if isinstance(e, k.QuadProduct):
            self.require(e.term_dtype in (f16, bf16), "quads", "terms of 16 bits", e.term_dtype)
            operands, (dtype, columns) = (*e.words, *e.terms), (u32, e.lanes)
            self.require(len(e.words) == 2 and len(e.terms) == 4 and e.row in (0, 1), "quads", "2 rows, 4 pairs", e.row)
        else:
            operands, dtype, columns = e.values, f32, len(e.values)
            self.require(1 < columns <= 32 and not columns & (columns - 1), "sums", "2, 4, ... 32 values", columns)
        lanes = operands[0].lanes
        self.require(lanes % 32 == 0, "lanes", "those of warps", lanes)
        for a in operands:
            self.require(_kind(a) == kind_of(dtype, lanes, (1, lanes)), "lanes", f"a row of {dtype}", _kind(a))
        self.require(_kind(e) == kind_of(f32, columns, (1, columns)), "lanes", "a row of f32", _kind(e))

    def gather(self, e: k.Gather, scope: _Scope) -> None:
        subject = f"gather {e.buffer.name}"
        self.buffer(e.buffer, scope, "gather")
        self.require(e.buffer.space != "register", subject, "memory", "a register")
        self.require(e.dtype == e.buffer.dtype, subject, e.buffer.dtype, e.dtype)
        self.require(e.index.dtype == i64 and e.index.lanes == e.lanes, subject, f"i64x{e.lanes}", _kind(e.index))
        self.mask(e.mask, e.lanes, subject, scope)

    def tile_load(self, e: k.TileLoad, scope: _Scope) -> None:
        subject, matrix = f"load {e.buffer.name}", e.buffer.matrix
        self.buffer(e.buffer, scope, "load", matrix=True)
        self.require(not e.buffer.writable, subject, "a buffer for reading", "a writable one")
        expected = kind_of(e.buffer.dtype, e.lanes, matrix and matrix.tile)
        self.require(_kind(e) == expected, subject, expected, _kind(e))
        for index in (e.row, e.column):
            self.require(index.dtype == i64 and index.lanes == 1, subject, "an i64 scalar", _kind(index))

    def literal(self, e: k.Lit) -> None:
        expected = bool if e.dtype.kind == "b" else float if e.dtype.is_float else int
        matches = isinstance(e.value, int | float) and (expected is not int or isinstance(e.value, int))
        self.require(
            matches and (expected is bool) == isinstance(e.value, bool), "literal", f"a {e.dtype}", repr(e.value)
        )
        if expected is int:
            low, high = e.dtype.range
            self.require(low <= e.value <= high, "literal", f"a value of {e.dtype}", e.value)

    def same_kinds(self, subject: str, e: k.Expr, *operands: k.Expr) -> None:
        for a in operands:
            self.require(_kind(a) == _kind(e), subject, f"an operand {_kind(e)}", _kind(a))

    def binary(self, e: k.Binary) -> None:
        is_known = e.fn in k.ARITHMETIC or e.fn in k.COMPARE or e.fn in ("minnum", "maxnum")
        self.require(is_known, "binary", k.ARITHMETIC + k.COMPARE, e.fn)
        if e.fn in k.COMPARE:
            self.require(_kind(e.a) == _kind(e.b), e.fn, f"operands {_kind(e.a)}", _kind(e.b))
            self.require(e.dtype == boolean and e.lanes == e.a.lanes, e.fn, f"boolx{e.a.lanes}", _kind(e))
            return
        self.same_kinds(e.fn, e, e.a, e.b)
        expected = _BINARY_KINDS.get(e.fn, "fiu")
        self.require(e.dtype.kind in expected, e.fn, f"operands of kind {expected}", e.dtype)
        self.require(e.fn != "ldexp" or e.dtype.bits >= 32, e.fn, "f32 or f64", e.dtype)

    def load(self, e: k.Load, scope: _Scope) -> None:
        subject = f"load {e.buffer.name}"
        self.buffer(e.buffer, scope, "load")
        self.require(e.dtype == e.buffer.dtype, subject, e.buffer.dtype, e.dtype)
        if e.buffer.space == "register":
            self.register(e.buffer, e.index, e.mask, scope, subject)
            self.require(e.lanes == e.buffer.lanes, subject, f"{e.buffer.lanes} lanes", e.lanes)
            return
        self.require(e.index.dtype == i64 and e.index.lanes == 1, subject, "an i64 scalar", _kind(e.index))
        self.mask(e.mask, e.lanes, subject, scope)


_DOT_OPERANDS = {f32: ((bf16, bf16),), i32: ((u8, i8), (i8, i8), (i16, i16))}  # by the type of the sums
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
    **dict.fromkeys((k.Spread, k.ReduceAxis, k.ScanAxis, k.Transposed), lambda e: (e.a,)),
    **dict.fromkeys((k.Binary, k.Shuffle, k.Either), lambda e: (e.a, e.b)),
    **dict.fromkeys((k.Fma, k.Dot, k.TileProduct), lambda e: (e.a, e.b, e.c)),
    k.Select: lambda e: (e.cond, e.a, e.b),
    k.Call: lambda e: e.args,
    k.QuadProduct: lambda e: (*e.words, *e.terms),
    k.LaneSums: lambda e: e.values,
    k.Ramp: lambda e: (e.base,),
    k.Lookup: lambda e: (e.index,),
    k.TileLoad: lambda e: (e.row, e.column),
    **dict.fromkeys((k.Load, k.Gather), lambda e: (e.index,) if e.mask is None else (e.index, e.mask)),
}


def children(e: k.Expr) -> tuple[k.Expr, ...]:
    """The operands of `e`, without an absent mask."""
    operands = _OPERANDS.get(type(e))
    return () if operands is None else operands(e)


def subexpressions(*roots: k.Expr) -> Iterator[k.Expr]:
    """Expressions and all that they are made of, each once."""
    stack, visited = list(roots), set[int]()
    while stack:
        e = stack.pop()
        if id(e) not in visited:
            visited.add(id(e))
            yield e
            stack += children(e)
