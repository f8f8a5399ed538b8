"""Functions that build kernel expressions: they broadcast lanes and fold address arithmetic on literals."""

from __future__ import annotations

from ingot.ir.kernel.grammar import (
    COMPARE,
    Binary,
    Bitcast,
    Buffer,
    Call,
    Cast,
    Dot,
    Either,
    Expr,
    Fma,
    Gather,
    LaneSums,
    Lit,
    Load,
    Lookup,
    QuadProduct,
    Ramp,
    Range,
    Reduce,
    ReduceAxis,
    ScanAxis,
    Select,
    Splat,
    Spread,
    Tile,
    TileLoad,
    TileProduct,
    Transposed,
    Unary,
    Var,
)
from ingot.ir.types import DType, boolean, f32, i64


def integer(value: int) -> Lit:
    return Lit(i64, 1, value)


def lit(value: float | bool, dtype: DType, lanes: int = 1, tile: Tile | None = None) -> Lit:
    return Lit(dtype, lanes, value, tile=tile)


def var(name: str, dtype: DType = i64, lanes: int = 1) -> Var:
    return Var(dtype, lanes, name)


def unary(fn: str, a: Expr) -> Expr:
    return Unary(a.dtype, a.lanes, fn, a, tile=a.tile)


def splat(a: Expr, lanes: int) -> Expr:
    """Return `a` in `lanes` lanes; `a` itself if it has that many."""
    return a if a.lanes == lanes else _filled(a, lanes, None)


def _filled(scalar: Expr, lanes: int, tile: Tile | None) -> Expr:
    if isinstance(scalar, Lit):
        return Lit(scalar.dtype, lanes, scalar.value, tile=tile)
    return Splat(scalar.dtype, lanes, scalar, tile=tile)


def spread(a: Expr, tile: Tile) -> Expr:
    """Return a scalar, a column, a row or a tile as a tile of shape `tile`."""
    if a.tile == tile:
        return a
    lanes = tile[0] * tile[1]
    return _filled(a, lanes, tile) if a.tile is None or isinstance(a, Lit) else Spread(a.dtype, lanes, a, tile=tile)


def broadcast(*values: Expr) -> tuple[Expr, ...]:
    """Broadcast the values to a common number of lanes, or to a common tile."""
    tiles = [v.tile for v in values if v.tile is not None]
    if not tiles:
        lanes = max((v.lanes for v in values), default=1)
        return tuple(splat(v, lanes) for v in values)
    tile = max(t[0] for t in tiles), max(t[1] for t in tiles)
    return tuple(spread(v, tile) for v in values)


def binary(fn: str, a: Expr, b: Expr) -> Expr:
    """Return fn(a, b), with scalars broadcast to the other operand's lanes and integer literals folded."""
    a, b = broadcast(a, b)
    if a.dtype.is_integer:
        folded = _fold(fn, a, b)
        if folded is not None:
            return folded
    return Binary(boolean if fn in COMPARE else a.dtype, a.lanes, fn, a, b, tile=a.tile)


def _fold(fn: str, a: Expr, b: Expr) -> Expr | None:
    x = int(a.value) if isinstance(a, Lit) else None
    y = int(b.value) if isinstance(b, Lit) else None
    if x is not None and y is not None and a.dtype == i64:
        match fn:
            case "add" | "sub" | "mul":
                return _literal(a, x + y if fn == "add" else x - y if fn == "sub" else x * y)
            case "div" | "rem" if x >= 0 and y > 0:
                return _literal(a, x // y if fn == "div" else x % y)
            case "min" | "max":
                return _literal(a, min(x, y) if fn == "min" else max(x, y))
            case "lt" | "le" | "gt" | "ge" | "eq" | "ne":
                truth = {"lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y, "eq": x == y, "ne": x != y}[fn]
                return Lit(boolean, a.lanes, truth, tile=a.tile)
    match fn, x, y:
        case ("add", 0, _) | ("mul", 1, _):
            return b
        case ("add" | "sub", _, 0) | ("mul" | "div", _, 1):
            return a
        case ("mul", 0, _) | ("mul", _, 0) | ("rem", _, 1):
            return _literal(a, 0)
        case ("lt", _, 0) | ("gt", 0, _) | ("ge", _, 0) | ("le", 0, _) if a.dtype.kind == "u":
            return Lit(boolean, a.lanes, fn in ("ge", "le"), tile=a.tile)
    return None


def _literal(operand: Expr, value: int) -> Lit:
    return Lit(operand.dtype, operand.lanes, value, tile=operand.tile)


def add(a: Expr, b: Expr) -> Expr:
    return binary("add", a, b)


def sub(a: Expr, b: Expr) -> Expr:
    return binary("sub", a, b)


def mul(a: Expr, b: Expr) -> Expr:
    return binary("mul", a, b)


def ldexp(a: Expr, n: Expr) -> Expr:
    return binary("ldexp", a, n)


def fma(a: Expr, b: Expr, c: Expr) -> Expr:
    a, b, c = broadcast(a, b, c)
    return Fma(c.dtype, c.lanes, a, b, c, tile=c.tile)


def call(fn: str, *args: Expr) -> Expr:
    args = broadcast(*args)
    return Call(args[0].dtype, args[0].lanes, fn, args, tile=args[0].tile)


def dot(a: Expr, b: Expr, c: Expr, a_max: int | None = None) -> Expr:
    return Dot(c.dtype, c.lanes, a, b, c, a_max)


def select(cond: Expr, a: Expr, b: Expr) -> Expr:
    cond, a, b = broadcast(cond, a, b)
    return Select(a.dtype, a.lanes, cond, a, b, tile=a.tile)


def select_uniform(cond: Expr, a: Expr, b: Expr) -> Expr:
    """Return a where `cond` holds in all lanes, else b, which must be right for all lanes. For a tile always b: on
    blocks a reduction of the condition costs more than it saves."""
    if b.tile is not None:
        return b
    return Select(a.dtype, a.lanes, reduce("and", cond), a, b)


def cast(a: Expr, dtype: DType) -> Expr:
    return a if a.dtype == dtype else Cast(dtype, a.lanes, a, tile=a.tile)


def bitcast(a: Expr, dtype: DType) -> Expr:
    return a if a.dtype == dtype else Bitcast(dtype, a.lanes * a.dtype.bits // dtype.bits, a, tile=a.tile)


def load(buffer: Buffer, index: Expr, lanes: int = 1, mask: Expr | None = None) -> Expr:
    """Return a load. From a register buffer it has the lanes of the buffer's elements."""
    if buffer.space == "register":
        return Load(buffer.dtype, buffer.lanes, buffer, index, mask, tile=buffer.tile)
    return Load(buffer.dtype, lanes, buffer, index, mask)


def gather(buffer: Buffer, index: Expr, mask: Expr | None = None) -> Expr:
    return Gather(buffer.dtype, index.lanes, buffer, index, mask, tile=index.tile)


def tile_load(buffer: Buffer, row: Expr, column: Expr) -> Expr:
    """Return the tile of a matrix in memory whose first element is at (row, column)."""
    assert buffer.matrix is not None
    rows, columns = buffer.matrix.tile
    return TileLoad(buffer.dtype, rows * columns, buffer, row, column, tile=(rows, columns))


def lookup(table: tuple[float, ...], index: Expr, dtype: DType) -> Expr:
    return Lookup(dtype, index.lanes, table, index, tile=index.tile)


def either(a: Expr, b: Expr) -> Expr:
    return Either(a.dtype, a.lanes, a, b, tile=a.tile)


def reduce(fn: str, a: Expr) -> Expr:
    return a if a.lanes == 1 and a.tile is None else Reduce(a.dtype, 1, fn, a)


def ramp(base: Expr, lanes: int, step: int = 1) -> Expr:
    """Return base + step * lane; the base itself for one lane."""
    return base if lanes == 1 else Ramp(base.dtype, lanes, base, step)


def lane_indices(lanes: int, axis: int | None = None) -> Expr:
    """Return 0, 1, 2, ... as a vector, a column (axis 0) or a row (axis 1)."""
    return Range(i64, lanes, tile=None if axis is None else (lanes, 1) if axis == 0 else (1, lanes))


def reduce_axis(fn: str, a: Expr, axis: int) -> Expr:
    """Reduce each row (axis 1) or column (axis 0) of a tile to one element."""
    assert a.tile is not None
    rows, columns = a.tile
    if a.tile[axis] == 1:
        return a
    tile = (1, columns) if axis == 0 else (rows, 1)
    return ReduceAxis(a.dtype, a.lanes // a.tile[axis], fn, a, axis, tile=tile)


def scan_axis(fn: str, a: Expr, axis: int) -> Expr:
    """Return the inclusive scan of a tile along its rows (axis 1) or columns (axis 0)."""
    assert a.tile is not None
    return a if a.tile[axis] == 1 else ScanAxis(a.dtype, a.lanes, fn, a, axis, tile=a.tile)


def transposed(a: Expr) -> Expr:
    assert a.tile is not None
    return Transposed(a.dtype, a.lanes, a, tile=(a.tile[1], a.tile[0]))


def tile_product(a: Expr, b: Expr, c: Expr, tf32: bool = False, *, is_apart: bool = False) -> Expr:
    """a @ b + c of tiles."""
    return TileProduct(c.dtype, c.lanes, a, b, c, tf32, is_apart, tile=c.tile)


def quad_product(words: tuple[Expr, Expr], terms: tuple[Expr, ...], dtype: DType, zero: int, row: int) -> Expr:
    return QuadProduct(f32, words[0].lanes, words, terms, dtype, zero, row, tile=words[0].tile)


def lane_sums(values: tuple[Expr, ...]) -> Expr:
    """The sums of several values as a row, and of one as a tile of one element."""
    count = len(values)
    return reduce_axis("add", values[0], 1) if count == 1 else LaneSums(f32, count, values, tile=(1, count))
