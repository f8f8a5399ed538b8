"""Kernel IR: the loop language that schedules emit and targets print. The grammar:

    kernel ::= Kernel(name, params, dims, chunk, chunks, body, scratch_bytes, rounds)
    stmt   ::= For(var, begin, end, step, body, unroll, flatten, stages) | If(cond, then, orelse) | Let(var, value)
             | Store(buffer, index, value, mask, stream) | Alloc(buffer) | Prefetch(buffer, index) | Comment(text)
             | Increment(var, buffer, index) | AwaitStores | AwaitProducers | ReleaseConsumers
    expr   ::= Lit(value) | Var | Unary(fn, a) | Binary(fn, a, b) | Fma(a, b, c) | Dot(a, b, c)
             | Call(fn, args) | Select(c, a, b) | Cast(a) | Bitcast(a) | Splat(a) | Ramp(base, step)
             | Load(buffer, index, mask) | Gather(buffer, index, mask) | Reduce(fn, a)
             | Shuffle(a, b, pick) | Extract(a, lane) | Lookup(table, index) | Either(a, b)
           | Range | Spread(a) | ReduceAlong(fn, a, axis) | ScanAlong(fn, a, axis) | Transposed(a)
           | TileProduct(a, b, c, tf32, is_apart) | QuadProduct(words, terms, zero, row) | LaneSums(values)
           | TileLoad(buffer, row, column)

Statements are ordered; expressions have no effects, and a Load reads memory at the point of its statement. Every
expression has a dtype and a number of lanes (1: scalar). Indices count elements, are i64 and flat: schedules do the
address arithmetic, with static strides as literals. A kernel is one parallel loop over `chunk`: chunks run in any
order, on any worker; each is serial. With `rounds`, chunks r * chunks up to (r + 1) * chunks - 1 are round r, and a
round starts when the previous one has ended.

Buffers: `param` (memory passed in), `register` (values that must stay in registers: indices are constant after
unrolling, and each element is one value of `lanes` lanes), `stack` (small, private), `scratch` (large, private to the
worker, at `offset` of its scratch memory).

Blocks. On machines that compute on blocks (GPUs: a chunk is one program) the lanes of a value may form a `tile`: rows
and columns, row-major. Lane indices, masks and sums along an axis are tiles of one column or row; `broadcast` brings
them to the tile of the other operand. Memory is then accessed by an index for each element (`Gather`, a vector index of
`Store`), or by the position of a tile in a `Matrix` (`TileLoad`).
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
# Semantics. div/rem: integers truncate towards zero, floats IEEE (rem is fmod). min/max on floats: NaN if either is NaN
# (StableHLO's minimum/maximum); "minnum"/"maxnum" are the plain machine instructions: b where a is NaN; b must not be.
# Comparisons are ordered (false on NaN) but `ne`, which is true on NaN. shl/lshr/ashr by >= width is undefined.
# not: bitwise. ldexp(a, n) on f32 and f64: a * 2^n, rounded once, for even n up to +-2 * 126 (f64: 2 * 1022), which two
# factors 2^(n/2) reach; undefined for other n, but NaN where a is NaN.


# The functions of a `Call` and their numbers of operands, on f32 and f64, within the error bounds of
# docs/reference/ops.md.
# Some have a smaller domain, and cost less: exp_nonpositive and exp_decay for x <= 0, log1p_unit for x from 0 to 1, or
# NaN. exp_decay is for weights relative to one of 1: its relative error is below 2^-22 down to e^-16, below 2^-21 for
# smaller results, and it is 0 from 2^-126.5 on. exp2_narrow is 2^x for results that are stored in f16 or bf16. gelu(x)
# is x times the normal distribution function of x, gelu_narrow (f32 only) with the precision of bf16, gelu_derivative
# its slope. quotient(a, b) is a / b for operands and 1 / b that are normal numbers, or NaN.
FUNCTIONS: dict[str, int] = {
    **dict.fromkeys(
        ("exp", "exp_nonpositive", "exp_decay", "exp2_narrow", "expm1", "logistic", "tanh", "erf", "sinh", "cosh"), 1
    ),
    **dict.fromkeys(("log", "log1p", "log1p_unit", "asinh", "acosh", "atanh", "cbrt"), 1),
    **dict.fromkeys(("gelu", "gelu_narrow", "gelu_derivative"), 1),
    **dict.fromkeys(("sin", "cos", "tan", "asin", "acos", "atan"), 1),
    **dict.fromkeys(("atan2", "pow", "quotient"), 2),
}


Tile = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A param as a matrix, from element `offset` on. stride: elements between rows. tile: the shape of each access.
    Hardware that copies boxes of memory gets this description before the kernel runs."""

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
    align: int = 64  # bytes; the alignment of a param's first element
    tile: Tile | None = None  # register space: the rows and columns that the lanes of each element form
    matrix: Matrix | None = None  # param space: the matrix that `TileLoad` reads tiles of

    def __hash__(self) -> int:
        return hash(self.name)  # cheap, as printing looks up buffers often


@dataclass(frozen=True, slots=True)
class Expr:
    """A value of `lanes` elements. tile: the rows and columns that they form; None for a vector."""

    dtype: DType
    lanes: int
    tile: Tile | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class Lit(Expr):
    """A literal in every lane."""

    value: int | float | bool


@dataclass(frozen=True, slots=True)
class Var(Expr):
    """A loop variable, a Let-bound value, a dim parameter or the chunk index.

    may_be_empty: of a dim parameter, as of the size that it stands for (`ir.dims.symbol`).
    """

    name: str
    may_be_empty: bool = field(default=False, kw_only=True, repr=False, compare=False)


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
    """One of `FUNCTIONS` of operands of its own type. Targets print a function of theirs, or use `math.expand`."""

    fn: str
    args: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Dot(Expr):
    """Lane i of c plus the products of the neighboring elements of a and b in the 32 bits of lane i.

    u8 or i8 with i8, four times the lanes of c, i32: exact but for c, which wraps (Intel SDM, VPDPBUSD; Arm, USDOT and
    SDOT), unless two products of i8 in a lane are of -128 with -128, whose sum some machines lack the bits for. 16
    times, for a c of one lane: Arm's VMLADAVA. i16 with i16, twice the lanes of c: as exact, unless all four
    operands of a lane are -2^15 (Intel SDM, VPMADDWD).

    bf16, twice the lanes of c, f32: fma(a[2i], b[2i], fma(a[2i+1], b[2i+1], c[i])), both sums rounded to nearest even.
    Denormal operands and sums may count as zero: Intel's vdpbf16ps, which implements this where available, flushes them
    (Intel SDM, VDPBF16PS). Machines without such instructions widen the operands.

    a_max: no element of an a of u8 exceeds it; machines add products of 7 bits by 8 in pairs of 16 bits.
    """

    a: Expr
    b: Expr
    c: Expr
    a_max: int | None = None


@dataclass(frozen=True, slots=True)
class Select(Expr):
    """a or b by lane. A scalar condition for several lanes is a branch: the other operand should not be computed."""

    cond: Expr
    a: Expr
    b: Expr


@dataclass(frozen=True, slots=True)
class Cast(Expr):
    """Numeric conversion. Int to int wraps; to float rounds to nearest even. Float to int truncates as x86 does: NaN
    and numbers out of range become the lowest integer of 32 bits, or of 64 (for i64, u32, u64); narrower integers and
    u32 are its low bits. For u64, numbers between 2^63 and 2^64 are exact too, and larger ones become 0.
    """

    a: Expr


@dataclass(frozen=True, slots=True)
class Bitcast(Expr):
    """The same bits as lanes of another type, the first lane in the lowest bits. The total size is the same."""

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
    """Reduce all lanes of `a` to a scalar: combine halves until one lane remains; odd lanes are combined at the end."""

    fn: str
    a: Expr


@dataclass(frozen=True, slots=True)
class Shuffle(Expr):
    """Lanes picked from the concatenation of a and b: pick[i] < 2 * a.lanes."""

    a: Expr
    b: Expr
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Extract(Expr):
    a: Expr
    lane: int


@dataclass(frozen=True, slots=True)
class Lookup(Expr):
    """table[index mod len(table)] for each lane of the integer `index`. The length is a power of two."""

    table: tuple[float, ...]
    index: Expr


@dataclass(frozen=True, slots=True)
class Either(Expr):
    """a, which uses table lookups, on targets with an instruction for them; elsewhere b, of the same precision."""

    a: Expr
    b: Expr


@dataclass(frozen=True, slots=True)
class Range(Expr):
    """0, 1, 2, ... as a vector, or along a tile of one column or one row."""


@dataclass(frozen=True, slots=True)
class Spread(Expr):
    """The column or the row `a` repeated over the tile."""

    a: Expr


@dataclass(frozen=True, slots=True)
class ReduceAxis(Expr):
    """The reduction of each row (axis 1: the result is a column) or column (axis 0: a row) of a tile, in an order that
    the target chooses."""

    fn: str
    a: Expr
    axis: int


@dataclass(frozen=True, slots=True)
class ScanAxis(Expr):
    """The inclusive scan of each row (axis 1) or column (axis 0) of a tile, in an order that the target chooses."""

    fn: str
    a: Expr
    axis: int


@dataclass(frozen=True, slots=True)
class Transposed(Expr):
    """The transpose of a tile."""

    a: Expr


@dataclass(frozen=True, slots=True)
class TileProduct(Expr):
    """The matrix product of the tiles a (m x k) and b (k x n), added to c (m x n), in c's type, in an order that the
    target chooses. Products of 8-bit floats, whose types may differ, are summed with 13 bits below the leading bit of
    the largest one, and then added to c (docs/reference/precision.md). tf32: the fractions of operands of f32 are cut
    to 10 bits; otherwise they are not rounded to a narrower type. is_apart: the products are summed first, and then
    added to c, where hardware would cut the products to the bits of c."""

    a: Expr
    b: Expr
    c: Expr
    tf32: bool = False
    is_apart: bool = False


@dataclass(frozen=True, slots=True)
class QuadProduct(Expr):
    """Products of levels of 4 bits and terms of 16, summed over quads: four neighboring lanes. The lanes of a tile of
    one row are those of warps, 32 each. Lane 4i + j of a warp is the sum over quad i of its levels by the terms of quad
    2j + i % 2: of (level - zero) * term, exact, accumulated in f32 in an order that the target chooses.

    words: of two rows of A, u32, eight levels each, the first in the lowest bits; `row` tells whose products these are.
    terms: four pairs of `term_dtype` in 32 bits, pair n for the levels n and n + 4.
    """

    words: tuple[Expr, Expr]
    terms: tuple[Expr, ...]
    term_dtype: DType
    zero: int
    row: int


@dataclass(frozen=True, slots=True)
class LaneSums(Expr):
    """A row of the sums of all lanes of each of `values`, tiles of one row: a power of two of them, at most 32, in an
    order that the target chooses."""

    values: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class TileLoad(Expr):
    """The tile of the buffer's matrix whose first element is at (row, column); elements outside of the matrix are 0."""

    buffer: Buffer
    row: Expr
    column: Expr


@dataclass(frozen=True, slots=True)
class Stmt:
    pass


Body = tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class For(Stmt):
    """for var in range(begin, end, step). `unroll`: literal bounds, the body repeated in the printed code. `flatten`: a
    hint that the loop and the one inside it had better be one loop, so that loads of a turn begin in the turn before.
    `stages`: a hint that loads of `stages - 1` turns had better be in flight, in shared memory; 0: no hint.
    """

    var: Var
    begin: Expr
    end: Expr
    step: int
    body: Body
    unroll: bool = False
    flatten: bool = False
    stages: int = 0


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
    """Write value's lanes to consecutive elements from `index` on; a vector `index` scatters, in lane order.

    stream: the data is not read again while it would be in a cache, so the store may bypass the caches.
    """

    buffer: Buffer
    index: Expr
    value: Expr
    mask: Expr | None = None
    stream: bool = False


@dataclass(frozen=True, slots=True)
class Alloc(Stmt):
    """Declare a register, stack or scratch buffer; its contents are undefined until they are stored."""

    buffer: Buffer


@dataclass(frozen=True, slots=True)
class Prefetch(Stmt):
    buffer: Buffer
    index: Expr


@dataclass(frozen=True, slots=True)
class Increment(Stmt):
    """Atomically add 1 to an i64 in a param, and bind its previous value, with acquire-release ordering.

    It distributes work within a round, or lets the last chunk that arrives continue, where every order gives the same
    results.
    """

    var: Var
    buffer: Buffer
    index: Expr


@dataclass(frozen=True, slots=True)
class AwaitStores(Stmt):
    """Wait for the stores of all lanes, so that every lane may read from here on what others have written."""


@dataclass(frozen=True, slots=True)
class AwaitProducers(Stmt):
    """Wait for the previous kernels, which may still run when this one starts: it may read their results from here
    on."""


@dataclass(frozen=True, slots=True)
class ReleaseConsumers(Stmt):
    """Allow the next kernels to start, up to the point where they await their producers."""


@dataclass(frozen=True, slots=True)
class Comment(Stmt):
    text: str


@dataclass(frozen=True, slots=True)
class Kernel:
    """One native function. Inside `body`, `chunk` and `dims` are i64 scalars.

    chunks (of a round), rounds: expressions over `dims`. hints: numbers for the target's compiler, by name, that only
    affect speed ("warps" of a program of tiles, "stages" of its loops). barrier: a param of zeros, in which
    chunks count arrivals if those of a round run concurrently; it is zero again after the kernel.
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
    barrier: Buffer | None = None
