"""Kernel IR: the loop language that schedules write and targets print. The whole grammar:

    kernel ::= Kernel(name, params, dims, chunk, chunks, body, scratch_bytes, rounds)
    stmt   ::= For(var, begin, end, step, body, unroll) | If(cond, then, orelse) | Let(var, value)
             | Store(buffer, index, value, mask, stream) | Alloc(buffer) | Prefetch(buffer, index) | Comment(text)
             | Increment(var, buffer, index)
    expr   ::= Lit(value) | Var | Unary(fn, a) | Binary(fn, a, b) | Fma(a, b, c) | Dot(a, b, c)
             | Select(c, a, b) | Cast(a) | Bitcast(a) | Splat(a) | Ramp(base, step)
             | Load(buffer, index, mask) | Gather(buffer, index, mask) | Reduce(fn, a)
             | Shuffle(a, b, pick) | Extract(a, lane) | Lookup(table, index) | Either(a, b)

Order lives in statements, values in expressions: an expression has no effect, and every Load reads memory where its
statement stands. Every expression has a dtype and a number of lanes (1: scalar). Indices count elements, are i64 and
flat: schedules do the address arithmetic, with static strides as literals. A kernel is one parallel loop over `chunk`:
chunks run in any order, on any worker; everything inside is serial. With `rounds`, chunks r * chunks up to (r + 1) *
chunks - 1 are round r, and a round starts when the one before is done.

Buffers: `param` (memory passed in), `register` (values that must live in registers: constant indices after unrolling,
each index one value of `lanes` lanes), `stack` (small, private), `scratch` (large, private to the worker; `offset` is
given).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ingot.ir.types import DType, boolean, i64

Space = Literal["param", "register", "stack", "scratch"]

UNARY = ("neg", "abs", "sqrt", "floor", "ceil", "round_even", "trunc", "not", "popcnt", "clz")
ARITHMETIC = (
    "add", "sub", "mul", "div", "rem", "min", "max", "and", "or", "xor", "shl", "ashr", "lshr", "copysign", "ldexp",
)  # fmt: skip
COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")
REDUCE = ("add", "mul", "min", "max", "and", "or")
# Meanings. div/rem: integers truncate towards zero, floats IEEE (rem is fmod). min/max on floats: NaN if either is NaN
# (StableHLO's minimum/maximum); "minnum"/"maxnum" are the bare machine instructions: b where a is NaN; b is none.
# Comparisons are ordered (false on NaN) but `ne`, which is true on NaN. shl/lshr/ashr by >= width is undefined.
# not: bitwise. ldexp(a, n) on f32 and f64: a * 2^n, rounded once, for even n up to +-2 * 126 (f64: 2 * 1022), which two
# factors 2^(n/2) reach; undefined for other n, but NaN where a is NaN.


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory: `size` elements of `dtype` (a param's size may be None: known to the runtime only)."""

    name: str
    dtype: DType
    size: int | None = None
    space: Space = "param"
    writable: bool = False
    lanes: int = 1  # register space: lanes of each element
    offset: int = 0  # scratch space: bytes from the start of the worker's scratch (a multiple of 64)
    align: int = 64  # bytes; every param's first element is so aligned unless told otherwise


@dataclass(frozen=True, slots=True)
class Expr:
    dtype: DType
    lanes: int


@dataclass(frozen=True, slots=True)
class Lit(Expr):
    """A literal in every lane."""

    value: int | float | bool


@dataclass(frozen=True, slots=True)
class Var(Expr):
    """A loop variable, a Let-bound value, a dim parameter or the chunk index."""

    name: str


@dataclass(frozen=True, slots=True)
class Unary(Expr):
    fn: str
    a: Expr


@dataclass(frozen=True, slots=True)
class Binary(Expr):
    """Comparisons have dtype bool and the operands' lanes."""

    fn: str
    a: Expr
    b: Expr


@dataclass(frozen=True, slots=True)
class Fma(Expr):
    """a * b + c with one rounding; integers wrap."""

    a: Expr
    b: Expr
    c: Expr


@dataclass(frozen=True, slots=True)
class Dot(Expr):
    """Lane i of c plus the products of the neighbouring elements of a and b that lie in 32 bits of lane i.

    u8 with i8, four times the lanes of c, i32: exact but for c, which wraps (Intel SDM, VPDPBUSD; Arm, USDOT).

    bf16, twice the lanes of c, f32: fma(a[2i], b[2i], fma(a[2i+1], b[2i+1], c[i])), both sums rounded to nearest even.
    A denormal operand or sum may count as zero: Intel's vdpbf16ps, which this is where the machine has it, flushes
    them (Intel SDM, VDPBF16PS). Machines without such instructions widen the operands.
    """

    a: Expr
    b: Expr
    c: Expr


@dataclass(frozen=True, slots=True)
class Select(Expr):
    """One condition for many lanes is a branch: what is not chosen should not be computed."""

    cond: Expr
    a: Expr
    b: Expr


@dataclass(frozen=True, slots=True)
class Cast(Expr):
    """Numeric conversion. Int to int wraps; to float rounds to nearest even. Float to int truncates as x86 does: NaN
    and what does not fit become the lowest integer of 32 bits, or of 64 (for i64, u32, u64); narrower integers and u32
    are the low bits of that. A u64 holds what lies between 2^63 and 2^64, too; what lies beyond is 0.
    """

    a: Expr


@dataclass(frozen=True, slots=True)
class Bitcast(Expr):
    """The same bits as lanes of another type, as many bits in all; the first lane is in the lowest."""

    a: Expr


@dataclass(frozen=True, slots=True)
class Splat(Expr):
    """A scalar in every lane."""

    a: Expr


@dataclass(frozen=True, slots=True)
class Ramp(Expr):
    """base + step * lane."""

    base: Expr
    step: int


@dataclass(frozen=True, slots=True)
class Load(Expr):
    """`lanes` consecutive elements from `index` (a scalar). Lanes whose mask is off read zero, touching no memory."""

    buffer: Buffer
    index: Expr
    mask: Expr | None = None


@dataclass(frozen=True, slots=True)
class Gather(Expr):
    """One element per lane of the vector `index`."""

    buffer: Buffer
    index: Expr
    mask: Expr | None = None


@dataclass(frozen=True, slots=True)
class Reduce(Expr):
    """All lanes of `a` into a scalar: halves are combined until one lane is left; an odd lane joins at the end."""

    fn: str
    a: Expr


@dataclass(frozen=True, slots=True)
class Shuffle(Expr):
    """Lanes picked from the concatenation of a and b: pick[i] < 2 * a.lanes."""

    a: Expr
    b: Expr
    pick: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Extract(Expr):
    a: Expr
    lane: int


@dataclass(frozen=True, slots=True)
class Lookup(Expr):
    """table[index mod its length, a power of two] for each lane of the integer `index`."""

    table: tuple[float, ...]
    index: Expr


@dataclass(frozen=True, slots=True)
class Either(Expr):
    """a, which looks tables up, where one instruction does that for a vector; elsewhere b, which is as exact."""

    a: Expr
    b: Expr


@dataclass(frozen=True, slots=True)
class Stmt:
    pass


Body = tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class For(Stmt):
    """for var in range(begin, end, step). `unroll`: literal bounds, the body repeated in the printed code."""

    var: Var
    begin: Expr
    end: Expr
    step: int
    body: Body
    unroll: bool = False


@dataclass(frozen=True, slots=True)
class If(Stmt):
    cond: Expr
    then: Body
    orelse: Body = ()


@dataclass(frozen=True, slots=True)
class Let(Stmt):
    """Bind a value once, for the rest of the enclosing body."""

    var: Var
    value: Expr


@dataclass(frozen=True, slots=True)
class Store(Stmt):
    """Write value's lanes at consecutive elements from `index`; a vector `index` scatters, in lane order.

    `stream`: nobody reads it before it would have left the caches, so it may go past them.
    """

    buffer: Buffer
    index: Expr
    value: Expr
    mask: Expr | None = None
    stream: bool = False


@dataclass(frozen=True, slots=True)
class Alloc(Stmt):
    """Make a register, stack or scratch buffer known; its contents are undefined until stored."""

    buffer: Buffer


@dataclass(frozen=True, slots=True)
class Prefetch(Stmt):
    buffer: Buffer
    index: Expr


@dataclass(frozen=True, slots=True)
class Increment(Stmt):
    """Add 1 to an i64 in a param and bind what it was before, as one step that no other worker can come between.

    For sharing out work within a round, where every outcome gives the same results.
    """

    var: Var
    buffer: Buffer
    index: Expr


@dataclass(frozen=True, slots=True)
class Comment(Stmt):
    text: str


@dataclass(frozen=True, slots=True)
class Kernel:
    """One native function. Inside `body`, `chunk` and `dims` are i64 scalars. `chunks` (of a
    round) and `rounds` are expressions over `dims`.
    """

    name: str
    params: tuple[Buffer, ...]
    dims: tuple[Var, ...]
    chunk: Var
    chunks: Expr
    body: Body
    scratch_bytes: int = 0
    rounds: Expr = Lit(i64, 1, 1)


def integer(value: int) -> Lit:
    return Lit(i64, 1, value)


def lit(value: float | bool, dtype: DType, lanes: int = 1) -> Lit:
    return Lit(dtype, lanes, value)


def var(name: str, dtype: DType = i64, lanes: int = 1) -> Var:
    return Var(dtype, lanes, name)


def unary(fn: str, a: Expr) -> Expr:
    return Unary(a.dtype, a.lanes, fn, a)


def splat(a: Expr, lanes: int) -> Expr:
    """`a` with `lanes` lanes; a itself when it has them."""
    if a.lanes == lanes:
        return a
    if isinstance(a, Lit):
        return Lit(a.dtype, lanes, a.value)
    return Splat(a.dtype, lanes, a)


def binary(fn: str, a: Expr, b: Expr) -> Expr:
    """fn(a, b), scalars splatted to the other side's lanes, integer address arithmetic on literals folded."""
    lanes = max(a.lanes, b.lanes)
    a, b = splat(a, lanes), splat(b, lanes)
    if a.dtype.is_integer:
        folded = _fold(fn, a, b)
        if folded is not None:
            return folded
    return Binary(boolean if fn in COMPARE else a.dtype, lanes, fn, a, b)


def _fold(fn: str, a: Expr, b: Expr) -> Expr | None:
    x = int(a.value) if isinstance(a, Lit) else None
    y = int(b.value) if isinstance(b, Lit) else None
    if x is not None and y is not None and a.dtype == i64:
        match fn:
            case "add" | "sub" | "mul":
                return Lit(a.dtype, a.lanes, x + y if fn == "add" else x - y if fn == "sub" else x * y)
            case "div" | "rem" if x >= 0 and y > 0:
                return Lit(a.dtype, a.lanes, x // y if fn == "div" else x % y)
            case "min" | "max":
                return Lit(a.dtype, a.lanes, min(x, y) if fn == "min" else max(x, y))
            case "lt" | "le" | "gt" | "ge" | "eq" | "ne":
                truth = {"lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y, "eq": x == y, "ne": x != y}[fn]
                return Lit(boolean, a.lanes, truth)
    match fn, x, y:
        case ("add", 0, _) | ("mul", 1, _):
            return b
        case ("add" | "sub", _, 0) | ("mul" | "div", _, 1):
            return a
        case ("mul", 0, _) | ("mul", _, 0) | ("rem", _, 1):
            return Lit(a.dtype, a.lanes, 0)
    return None


def add(a: Expr, b: Expr) -> Expr:
    return binary("add", a, b)


def sub(a: Expr, b: Expr) -> Expr:
    return binary("sub", a, b)


def mul(a: Expr, b: Expr) -> Expr:
    return binary("mul", a, b)


def ldexp(a: Expr, n: Expr) -> Expr:
    return binary("ldexp", a, n)


def fma(a: Expr, b: Expr, c: Expr) -> Expr:
    lanes = max(a.lanes, b.lanes, c.lanes)
    return Fma(c.dtype, lanes, splat(a, lanes), splat(b, lanes), splat(c, lanes))


def dot(a: Expr, b: Expr, c: Expr) -> Expr:
    return Dot(c.dtype, c.lanes, a, b, c)


def select(cond: Expr, a: Expr, b: Expr) -> Expr:
    lanes = max(cond.lanes, a.lanes, b.lanes)
    return Select(a.dtype, lanes, splat(cond, lanes), splat(a, lanes), splat(b, lanes))


def choose(cond: Expr, a: Expr, b: Expr) -> Expr:
    """a where `cond` holds in all lanes, else b: both have to be right there."""
    return Select(a.dtype, a.lanes, reduce("and", cond), a, b)


def cast(a: Expr, dtype: DType) -> Expr:
    return a if a.dtype == dtype else Cast(dtype, a.lanes, a)


def bitcast(a: Expr, dtype: DType) -> Expr:
    return a if a.dtype == dtype else Bitcast(dtype, a.lanes * a.dtype.bits // dtype.bits, a)


def load(buffer: Buffer, index: Expr, lanes: int = 1, mask: Expr | None = None) -> Expr:
    """For a register buffer the element's own lanes are loaded."""
    return Load(buffer.dtype, buffer.lanes if buffer.space == "register" else lanes, buffer, index, mask)


def gather(buffer: Buffer, index: Expr, mask: Expr | None = None) -> Expr:
    return Gather(buffer.dtype, index.lanes, buffer, index, mask)


def lookup(table: tuple[float, ...], index: Expr, dtype: DType) -> Expr:
    return Lookup(dtype, index.lanes, table, index)


def either(a: Expr, b: Expr) -> Expr:
    return Either(a.dtype, a.lanes, a, b)


def reduce(fn: str, a: Expr) -> Expr:
    return a if a.lanes == 1 else Reduce(a.dtype, 1, fn, a)


def ramp(base: Expr, lanes: int, step: int = 1) -> Expr:
    """base + step * lane; the base itself for one lane, which is a scalar."""
    return base if lanes == 1 else Ramp(base.dtype, lanes, base, step)
