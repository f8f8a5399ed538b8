"""Kernel IR: the loop language that schedules write and targets print. The whole grammar:

    kernel ::= Kernel(name, params, dims, chunk, chunks, body, scratch_bytes, rounds)
    stmt   ::= For(var, begin, end, step, body, unroll) | If(cond, then, orelse) | Let(var, value)
             | Store(buffer, index, value, mask, stream) | Alloc(buffer) | Prefetch(buffer, index) | Comment(text)
             | Increment(var, buffer, index) | AwaitProducers | ReleaseConsumers
    expr   ::= Lit(value) | Var | Unary(fn, a) | Binary(fn, a, b) | Fma(a, b, c) | Dot(a, b, c)
             | Call(fn, args) | Select(c, a, b) | Cast(a) | Bitcast(a) | Splat(a) | Ramp(base, step)
             | Load(buffer, index, mask) | Gather(buffer, index, mask) | Reduce(fn, a)
             | Shuffle(a, b, pick) | Extract(a, lane) | Lookup(table, index) | Either(a, b)
           | Range | Spread(a) | ReduceAlong(fn, a, axis) | ScanAlong(fn, a, axis) | Transposed(a)
           | TileProduct(a, b, c)
           | TileLoad(buffer, row, column)

Order lives in statements, values in expressions: an expression has no effect, and every Load reads memory where its
statement stands. Every expression has a dtype and a number of lanes (1: scalar). Indices count elements, are i64 and
flat: schedules do the address arithmetic, with static strides as literals. A kernel is one parallel loop over `chunk`:
chunks run in any order, on any worker; everything inside is serial. With `rounds`, chunks r * chunks up to (r + 1) *
chunks - 1 are round r, and a round starts when the one before is done.

Buffers: `param` (memory passed in), `register` (values that must live in registers: constant indices after unrolling,
each index one value of `lanes` lanes), `stack` (small, private), `scratch` (large, private to the worker; `offset` is
given).

Blocks. On machines that compute on whole blocks (GPUs: a chunk is one program) the lanes of a value may form a `tile`:
rows and columns, row-major. A tile of one column or one row is what positions, masks and sums along an axis are;
`alike` spreads them to the tile that they meet. What lies in memory is read and written there by an index for each
element (`Gather`, a vector index of `Store`), or by the place of a whole tile in a `Matrix` (`TileLoad`).
"""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from ingot.ir.types import DType, i64
from ingot.support.dataclass import dataclass

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


# Functions that a `Call` names, with how many operands they take: of f32 and f64, within the bounds of docs/ops.md.
# Some hold on a part of the numbers only, and cost less: exp_nonpositive and exp_decay for x <= 0, log1p_unit for x
# from 0 to 1, or NaN each. exp_decay is for weights beside one of 1: within 2^-22 of its size down to e^-16, 2^-21
# below, 0 from 2^-126.5 on; exp2_narrow is 2^x for those that f16 or bf16 will hold. gelu(x) is x times the normal
# distribution of x, gelu_narrow (f32 only) as exact as bf16.
FUNCTIONS: dict[str, int] = {
    **dict.fromkeys(
        ("exp", "exp_nonpositive", "exp_decay", "exp2_narrow", "expm1", "logistic", "tanh", "erf", "sinh", "cosh"), 1
    ),
    **dict.fromkeys(("log", "log1p", "log1p_unit", "asinh", "acosh", "atanh", "gelu", "gelu_narrow", "cbrt"), 1),
    **dict.fromkeys(("sin", "cos", "tan", "asin", "acos", "atan"), 1),
    **dict.fromkeys(("atan2", "pow"), 2),
}


Tile = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A param as a matrix: rows that lie `stride` elements apart, from element `offset` on. tile: what is read of it at
    a time; hardware that copies boxes of memory is told all this before the kernel runs."""

    rows: int
    columns: int
    stride: int
    offset: int
    tile: Tile


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
    tile: Tile | None = None  # register space: the rows and columns that the lanes of each element form
    matrix: Matrix | None = None  # param space: what every access reads a tile of

    def __hash__(self) -> int:
        return hash(self.name)  # printing looks buffers up more than all else


@dataclass(frozen=True, slots=True)
class Expr:
    """A value of `lanes` elements. tile: the rows and columns that they form, None: they lie in a line."""

    dtype: DType
    lanes: int
    tile: Tile | None = field(default=None, kw_only=True)


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
class Call(Expr):
    """One of `FUNCTIONS` of operands of its own type. Targets print their own, or have `math.expand` compute it."""

    fn: str
    args: tuple[Expr, ...]


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
class Range(Expr):
    """0, 1, 2, ... in a line, or along a tile of one column or one row."""


@dataclass(frozen=True, slots=True)
class Spread(Expr):
    """The column or the row `a` repeated over the tile."""

    a: Expr


@dataclass(frozen=True, slots=True)
class ReduceAlong(Expr):
    """The elements of each row (axis 1: a column is left) or column (axis 0: a row is left) of a tile folded into one,
    in an order of the machine's."""

    fn: str
    a: Expr
    axis: int


@dataclass(frozen=True, slots=True)
class ScanAlong(Expr):
    """Each element of a row (axis 1) or column (axis 0) of a tile folded with all before it, in an order of the
    machine's."""

    fn: str
    a: Expr
    axis: int


@dataclass(frozen=True, slots=True)
class Transposed(Expr):
    """Rows of a tile as columns."""

    a: Expr


@dataclass(frozen=True, slots=True)
class TileProduct(Expr):
    """The matrix product of the tiles a (m x k) and b (k x n), added to c (m x n), in c's type; in an order of the
    machine's. Products of f32 are those of f32, never of a shorter type. Those of 8-bit floats, which may be of two
    kinds, are added up with 13 bits behind the largest one's first, and then to c (docs/precision.md)."""

    a: Expr
    b: Expr
    c: Expr


@dataclass(frozen=True, slots=True)
class TileLoad(Expr):
    """The tile of the buffer's matrix whose first element is at (row, column); what lies outside of it is 0."""

    buffer: Buffer
    row: Expr
    column: Expr


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

    What workers wrote before they incremented it may be read behind it. For sharing out work within a round, and for
    letting the last to arrive go on, where every outcome gives the same results.
    """

    var: Var
    buffer: Buffer
    index: Expr


@dataclass(frozen=True, slots=True)
class AwaitProducers(Stmt):
    """From here on the kernel may read what the kernels before it wrote, where it may start before they have ended."""


@dataclass(frozen=True, slots=True)
class ReleaseConsumers(Stmt):
    """From here on the kernels behind this one may start, up to where they await their producers."""


@dataclass(frozen=True, slots=True)
class Comment(Stmt):
    text: str


@dataclass(frozen=True, slots=True)
class Kernel:
    """One native function. Inside `body`, `chunk` and `dims` are i64 scalars. `chunks` (of a
    round) and `rounds` are expressions over `dims`. hints: numbers for the target's compiler, by name, that change
    nothing but speed ("warps" of a program of tiles, "stages" of its loops). meeting: a param of zeros in which chunks
    count their arrivals, where those of a round are programs that all run at once; it is zero again behind the kernel.
    """

    name: str
    params: tuple[Buffer, ...]
    dims: tuple[Var, ...]
    chunk: Var
    chunks: Expr
    body: Body
    scratch_bytes: int = 0
    rounds: Expr = Lit(i64, 1, 1)
    hints: tuple[tuple[str, int], ...] = ()
    meeting: Buffer | None = None
