"""Instances of each structural rule, per rank: what the rule applies to, with symbols for sizes.

`VERDICTS` has the rules in the order of `passes.core.simplify`; each must apply to each of its instances.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import partial
from itertools import pairwise, permutations, product

import numpy as np
import z3

from ingot import ops
from ingot.ir.dims import DimLike, symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const, splat_of
from ingot.ir.rewrite import RuleSet
from ingot.ir.types import DType, TensorType, bf16, boolean, f16, f32, f64, i64
from ingot.passes.core.gelu import GELU
from ingot.passes.core.positions.attention_masks import mask_rules
from ingot.passes.core.positions.rules import Positions
from ingot.passes.core.simplify import SHAPES, keeps_values
from ingot.passes.view_chains import VIEW_CHAINS
from tools.proofs.identities import DTYPES_PROVED, all_values, apart, equal
from tools.proofs.structure import cumulative, named, prove
from tools.proofs.terms import Theory
from tools.proofs.verdict import Verdict, by_values, solve, timed

Instance = tuple[str, str, Node]  # rule, case, what it applies to
RANKS = (1, 2, 3, 4)
SIZES = tuple(symbol(n) for n in "abcd")
POSITIONS = Theory(unbounded=True)


def arg(label: str, *shape: DimLike, dtype: DType = f32) -> Node:
    return Input(label, TensorType(dtype, shape))()


def value(rank: int, dtype: DType = f32) -> Node:
    return arg("x", *SIZES[:rank], dtype=dtype)


def slice_of(x: Node, starts: Sequence[DimLike], limits: Sequence[DimLike], strides: Sequence[int] = ()) -> Node:
    return ops.Slice(tuple(starts), tuple(limits), tuple(strides) or (1,) * len(starts))(x)


def shapes() -> Iterator[Instance]:
    for rank in RANKS:
        yield from _views(rank)
        yield from _joins(rank)
        yield from _reductions(rank)


def _views(rank: int) -> Iterator[Instance]:
    x, sizes = value(rank), SIZES[:rank]
    orders = list(permutations(range(rank)))[:6]
    case = f"rank {rank}"
    merged = ops.Reshape((_product(sizes),))(x)
    yield "reshape", f"{case}, same shape", ops.Reshape(sizes)(x)
    yield "reshape", f"{case}, there and back", ops.Reshape((*sizes, 1))(merged)
    yield "reshape", f"{case}, of a filled value", ops.Reshape((_product(sizes),))(_filled(sizes))
    yield "transpose", f"{case}, none", ops.Transpose(tuple(range(rank)))(x)
    for p, q in product(orders, orders):
        if p != tuple(range(rank)) and q != tuple(range(rank)):
            yield "transpose", f"{case}, {q} of {p}", ops.Transpose(q)(ops.Transpose(p)(x))
            yield "transpose", f"{case}, {q} of a broadcast", ops.Transpose((*(i + 1 for i in q), 0))(_repeated(x, p))
    for p, axis in product(orders[1:], range(rank)):
        counter = ops.Iota(TensorType(i64, sizes), axis)()
        yield "transpose", f"{case}, {p} of an iota along {axis}", ops.Transpose(p)(counter)
    for p in orders:
        inner = _repeated(x, p)
        outer = ops.BroadcastInDim((7, *inner.shape), tuple(range(1, rank + 2)))
        yield "broadcast", f"{case}, of a broadcast {p}", outer(inner)
        yield "broadcast", f"{case}, that permutes {p}", ops.BroadcastInDim(_permuted(sizes, p), _inverse(p))(x)
    for axis in range(rank + 1):
        widened = ops.Reshape((*sizes[:axis], 1, *sizes[axis:]))(x)
        shape = (*sizes[:axis], 7, *sizes[axis:])
        yield "broadcast", f"{case}, of a reshape at {axis}", ops.BroadcastInDim(shape, tuple(range(rank + 1)))(widened)
    for axis in range(rank):
        y = ops.Reverse((axis,))(ops.Reverse(tuple(range(rank)))(x))
        yield "reverse", f"{case}, twice at {axis}", y
        ones = arg("u", *sizes[:axis], 1, *sizes[axis + 1 :])
        yield "reverse", f"{case}, of one element at {axis}", ops.Reverse((axis,))(ones)
    yield from _slices(rank, case)
    starts = [const(np.int32(s)) for s in (-3, 2, 9, 0)[:rank]]
    fixed = arg("f", *(5, 6, 7, 3)[:rank])
    yield "dynamic-slice", case, ops.DynamicSlice((2, 3, 4, 1)[:rank])(fixed, *starts)


def _slices(rank: int, case: str) -> Iterator[Instance]:
    x, sizes = value(rank), SIZES[:rank]
    longer = arg("l", *(d + 9 for d in sizes))
    yield "slice", f"{case}, of all", slice_of(x, [0] * rank, sizes)
    inner = slice_of(longer, range(1, rank + 1), [d + 8 for d in sizes])
    yield "slice", f"{case}, of a slice", slice_of(inner, [2] * rank, [d + 2 for d in sizes])
    strides = [s + 1 for s in range(rank)]
    yield "slice", f"{case}, strided of a slice", slice_of(inner, [1] * rank, [d + 3 for d in sizes], strides)
    yield "slice", f"{case}, of a filled value", slice_of(_filled(longer.shape), [1] * rank, sizes)
    for axis in range(rank):
        shape = [*sizes[:axis], 5, *sizes[axis + 1 :]]
        joined = ops.Concat(axis)(*(arg(f"p{i}", *shape) for i in range(3)))
        for part in range(3):
            low = [5 * part + 1 if d == axis else 0 for d in range(rank)]
            high = [5 * part + 4 if d == axis else size for d, size in enumerate(sizes)]
            steps = [2 if d == axis else 1 for d in range(rank)]
            yield "slice", f"{case}, of part {part} of a concat at {axis}", slice_of(joined, low, high, steps)


def _joins(rank: int) -> Iterator[Instance]:
    x, sizes = value(rank), SIZES[:rank]
    case = f"rank {rank}"
    for axis in range(rank):

        def part(label: str, size: DimLike, axis: int = axis) -> Node:
            return arg(label, *sizes[:axis], size, *sizes[axis + 1 :])

        join = ops.Concat(axis)
        at = f"{case} at {axis}"
        yield "concat", f"{at}, of one", join(x)
        yield "concat", f"{at}, of concats", join(part("y", 2), join(x, part("z", 3)), join(part("z", 3), x))
        yield "concat", f"{at}, of nothing", join(part("y", 0), x, part("z", 0), part("z", 3))
        filled = const(np.float32(2))
        yield (
            "concat",
            f"{at}, of one value",
            join(*(ops.BroadcastInDim(part("y", n).shape, ())(filled) for n in (2, 5))),
        )
        longer = part("l", sizes[axis] + 9)
        cuts = (0, 3, 5, sizes[axis] + 9)
        pieces = []
        for low, high in pairwise(cuts):
            first = [low if d == axis else 0 for d in range(rank)]
            last = [high if d == axis else size for d, size in enumerate(sizes)]
            pieces.append(slice_of(longer, first, last))
        yield "concat", f"{at}, of neighbouring slices", join(*pieces)
    filler = arg("v")
    yield "pad", f"{case}, by nothing", ops.Pad((0,) * rank, (0,) * rank, (0,) * rank)(x, filler)
    low, high, no = (1, 2, 0, 3)[:rank], (4, 0, 5, 1)[:rank], (0,) * rank
    yield "pad", f"{case}, of a pad", ops.Pad(high, low, no)(ops.Pad(low, high, no)(x, filler), filler)
    both = (ops.BroadcastInDim((7, *sizes), tuple(range(1, rank + 1)))(v) for v in (x, arg("y", *sizes)))
    yield "lift-broadcast", f"{case}, of two", ops.Sub()(*both)
    wide = ops.BroadcastInDim((7, *sizes), tuple(range(1, rank + 1)))(x)
    yield "lift-broadcast", f"{case}, beside a filled value", ops.Div()(_filled(wide.shape), wide)


def _reductions(rank: int) -> Iterator[Instance]:
    x, sizes = value(rank), SIZES[:rank]
    case = f"rank {rank}"
    yield "reduce", f"{case}, over nothing", ops.Reduce("sum", ())(x)
    for axis in range(rank):
        ones = arg("u", *sizes[:axis], 1, *sizes[axis + 1 :])
        yield "reduce", f"{case}, over one element at {axis}", ops.Reduce("sum", (axis,))(ones)
    for first, second in product(range(rank), range(rank - 1)):
        for kind in ("sum", "max"):
            y = ops.Reduce(kind, (second,))(ops.Reduce(kind, (first,))(x))
            yield "reduce", f"{case}, {kind} over {second} of {first}", y
    if rank <= 2:
        fixed = arg("f", *(5, 4)[:rank])
        for window, (low, high), stride in ((11, (8, 4), 1), (9, (7, 1), 2)):
            op = ops.ReduceWindow(
                "max", (window,) * rank, (stride,) * rank, ((low, high),) * rank, (1,) * rank, (1,) * rank
            )
            yield "reduce-window", f"{case}, {window} wide", op(fixed)


def _product(sizes: Sequence[DimLike]) -> DimLike:
    out: DimLike = 1
    for d in sizes:
        out = out * d
    return out


def _filled(shape: Sequence[DimLike]) -> Node:
    return ops.BroadcastInDim(tuple(shape), ())(arg("s"))


def _permuted(sizes: Sequence[DimLike], p: Sequence[int]) -> tuple[DimLike, ...]:
    return tuple(sizes[i] for i in p)


def _inverse(p: Sequence[int]) -> tuple[int, ...]:
    return tuple(p.index(i) for i in range(len(p)))


def _repeated(x: Node, p: Sequence[int]) -> Node:
    """A broadcast of x with its axes in another order, behind a new first axis."""
    order = _inverse(tuple(p))
    return ops.BroadcastInDim((5, *_permuted(x.shape, p)), tuple(1 + order[d] for d in range(x.type.rank)))(x)


def view_chains() -> Iterator[Instance]:
    """Transposes between merges and splits of axes: split, permute, merge, split, permute."""
    for rank in (2, 3, 4):
        sizes = SIZES[:rank]
        orders = list(permutations(range(rank)))[:: 1 if rank < 4 else 5]
        for p, q in product(orders, orders):
            x = arg("x", *sizes)
            y = ops.Transpose(p)(x)
            for axis in range(rank - 1):
                joined = ops.Reshape((*y.shape[:axis], y.shape[axis] * y.shape[axis + 1], *y.shape[axis + 2 :]))(y)
                back = ops.Transpose(q)(ops.Reshape(y.shape)(joined))
                if _applies(VIEW_CHAINS, "transpose-chain", back):
                    yield "transpose-chain", f"rank {rank}, {p}, joined at {axis}, {q}", back
                turned = ops.Transpose(tuple(reversed(range(rank - 1))))(joined)
                flat = ops.Reshape((_product(sizes),))(turned)
                if _applies(VIEW_CHAINS, "reshape-chain", flat):
                    yield "reshape-chain", f"rank {rank}, {p}, joined at {axis}, flat", flat
    b, s = SIZES[:2]
    y = ops.Reshape((b, 8, 64, s))(ops.Transpose((0, 2, 1))(arg("x", 8 * b, s, 64)))
    yield "transpose-chain", "heads", ops.Transpose((0, 1, 3, 2))(y)


def _applies(rules: RuleSet, name: str, n: Node) -> bool:
    return any(r.name == name and isinstance(n.op, r.root) and r.apply(n) is not None for r in rules)


def positions() -> Iterator[Instance]:
    a, b = SIZES[:2]
    for rank in (1, 2, 3):
        for axis in range(rank):
            at = ops.Iota(TensorType(i64, SIZES[:rank]), axis)()
            size = ops.broadcast_to(ops.DimValue(SIZES[axis])(), at.shape)
            zero = ops.full(at.shape, 0, i64)
            case = f"rank {rank} along {axis}"
            for direction in ("LT", "GE", "LE", "GT", "EQ", "NE"):
                other = size if direction in ("LT", "GE") else ops.add(size, 1)
                yield "compare-positions", f"{case}, {direction} the size", ops.Compare(direction)(at, other)
            yield "compare-positions", f"{case}, LT 0", ops.Compare("LT")(at, zero)
            yield "bounded-max", f"{case}, of 0", ops.Max()(at, zero)
            yield "bounded-max", f"{case}, of the size", ops.Max()(at, size)
            yield "bounded-min", f"{case}, of 0", ops.Min()(at, zero)
            yield "bounded-min", f"{case}, of the size", ops.Min()(at, size)
            yield "bounded-clamp", case, ops.Clamp()(zero, at, size)
            yield "constant-position", f"{case}, of a difference", ops.Sub()(ops.add(at, 3), at)
            yield "constant-position", f"{case}, of a sum", ops.Add()(zero, size)
            yield "constant-position", f"{case}, of a product", ops.Mul()(size, ops.full(at.shape, 3, i64))
            if rank == 1:
                yield "constant-position", "of a concat", ops.Concat(0)(size, size)
                ahead = slice_of(ops.Iota(TensorType(i64, (a + 1,)), 0)(), (1,), (a + 1,))
                behind = slice_of(ops.Iota(TensorType(i64, (a + 1,)), 0)(), (0,), (a,))
                yield "constant-position", "of neighbours", ops.Sub()(ahead, behind)
    yield from _gathers(a, b)


def _gathers(a: DimLike, b: DimLike) -> Iterator[Instance]:
    column = ops.Reshape((a, 1))(ops.Iota(TensorType(i64, (a,)), 0)())
    rows = ops.Gather((1,), (0,), (), (), (0,), 1, (1, b))
    yield "gather-positions", "rows at their own positions", rows(arg("x", a, b), column)
    yield "gather-positions", "rows from the fourth on", rows(arg("x", a + 9, b), ops.add(column, 3))
    columns = ops.Gather((0,), (1,), (), (), (1,), 1, (b, 1))
    yield "gather-positions", "columns at their own positions", columns(arg("x", b, a), column)
    elements = ops.Gather((), (0, 1), (), (), (0, 1), 2, (1, 1))
    counters = [ops.Reshape((a, b, 1))(ops.Iota(TensorType(i64, (a, b)), d)()) for d in range(2)]
    yield "gather-positions", "elements at their own positions", elements(arg("x", a, b), ops.Concat(2)(*counters))
    yield "gather-positions", "elements, transposed", elements(arg("x", b, a), ops.Concat(2)(*reversed(counters)))
    one = ops.Gather((), (0,), (), (), (0,), 1, (1,))
    index = arg("i", b, 1, dtype=i64)
    yield "gather-positions", "from a counter", one(ops.add(ops.mul(ops.Iota(TensorType(i64, (a,)), 0)(), 3), 2), index)
    yield "gather-positions", "from one value", one(ops.broadcast_to(ops.DimValue(b)(), (a,)), index)
    # each row of the indices reads its own row of the operand
    batched = ops.Gather((), (1,), (0,), (0,), (1,), 2, (1, 1))
    counter = ops.add(ops.mul(ops.Iota(TensorType(i64, (a, b)), 1)(), 3), 2)
    indices = arg("i", a, 4, 1, dtype=i64)
    yield "gather-positions", "a batch, from a counter", batched(counter, indices)
    yield "gather-positions", "a batch, from one value", batched(ops.broadcast_to(ops.DimValue(b)(), (a, b)), indices)
    of_columns = ops.Gather((), (0,), (1,), (1,), (0,), 0, (1, 1))
    across = ops.sub(9, ops.Iota(TensorType(i64, (b, a)), 0)())
    yield "gather-positions", "a batch of columns, from a counter", of_columns(across, arg("i", 1, a, dtype=i64))


def masks() -> Iterator[Instance]:
    for heads, rows, cols in ((2, SIZES[0], SIZES[0]), (2, SIZES[0], SIZES[0] + SIZES[1])):
        q, k, v = (arg(n, 3, heads, s, 8) for n, s in (("q", rows), ("k", cols), ("v", cols)))
        row, col = (ops.Iota(TensorType(i64, (rows, cols)), d)() for d in range(2))
        if rows != cols:
            row = ops.add(row, ops.DimValue(SIZES[1])())
        sees = ops.Compare("GE")(row, col)
        hides = ops.where(sees, ops.full(sees.shape, 0.0, f32), ops.full(sees.shape, -np.inf, f32))
        added, seen = arg("m", rows, cols), arg("p", rows, cols, dtype=boolean)
        case = f"{rows} rows, {cols} keys"
        for what, mask in (
            ("a condition", sees), ("a number", hides), ("LE", ops.Compare("LE")(col, row)),
            ("GT", ops.Compare("GT")(ops.add(row, 1), col)), ("LT", ops.Compare("LT")(col, ops.add(row, 1))),
            ("a condition and another", ops.and_(sees, seen)), ("a number and another", ops.add(hides, added)),
        ):  # fmt: skip
            yield "causal-mask", f"{case}, {what}", ops.Attention()(q, k, v, mask)
        for what, mask in (("true", ops.full(sees.shape, True, boolean)), ("0", ops.full(sees.shape, 0.0, f32))):
            yield "idle-mask", f"{case}, {what}", ops.Attention()(q, k, v, mask)
        everywhere = (3, heads, rows, cols)
        row, col, seen, added = (ops.BroadcastInDim(everywhere, (2, 3))(x) for x in (row, col, seen, added))
        sees = ops.Compare("GE")(row, col)
        shown = ops.where(ops.and_(sees, seen), added, ops.full(everywhere, -np.inf, f32))
        samples = ops.BroadcastInDim(everywhere, (0, 3))(arg("s", 3, cols, dtype=boolean))
        for what, mask in (
            ("of positions", sees), ("of numbers", shown), ("of samples, not of heads", ops.and_(sees, samples)),
            ("of an iota", ops.Compare("GE")(ops.Iota(row.type, 2)(), col)),
        ):  # fmt: skip
            yield "shared-mask", f"{case}, {what}", ops.Attention()(q, k, v, mask)


# --- scalars


def conversions(dtypes: Sequence[DType] = DTYPES_PROVED) -> Iterator[Instance]:
    """convert to the same dtype, and of each conversion that the first keeps."""
    for t in dtypes:
        yield "convert", f"{t} to itself", ops.Convert(t)(arg("x", dtype=t))
        if t != boolean:
            yield "bitcast", f"{t} to itself", ops.BitcastConvert(t)(arg("x", dtype=t))
    for a, b, c in product(dtypes, repeat=3):
        if a != b and b != c and keeps_values(a, b):
            before = ops.Convert(c)(ops.Convert(b)(arg("x", dtype=a)))
            if _applies(SHAPES, "convert", before):
                yield "convert", f"{a} to {b} to {c}", before


def joined_constants() -> Iterator[Verdict]:
    """Sums of an integer with two constants, which stand for any two."""
    sums = (ops.Add, ops.Sub)
    for dtype, inner, outer in product([t for t in DTYPES_PROVED if t.is_integer], sums, sums):
        x, c, d = arg("x", dtype=dtype), const(np.array(3, dtype.numpy)), const(np.array(5, dtype.numpy))
        before = outer()(inner()(x, c), d)
        after = named(SHAPES, "join-constants", before).apply(before)
        assert isinstance(after, Node)
        name = f"join-constants, {outer.name} of {inner.name}"
        yield timed(partial(equal, name, before, after, {"x": x, "c": c, "d": d}))


def divisions() -> Iterator[Verdict]:
    """x / c and x * (1 / c) are one real number, rounded once, if 1 / c is exact: each power of two that the rule
    takes. What is left, zeros, infinities and NaN, by z3 in f32."""
    name = "divide-by-power-of-two"
    for dtype in (f16, bf16, f32, f64):
        for exponent, sign in product(range(-14, 15), (1, -1)):
            c = ops.full((), sign * 2.0**exponent, dtype)
            after = named(SHAPES, name, before := ops.Div()(arg("x", dtype=dtype), c)).apply(before)
            factor = splat_of(after.inputs[1]) if isinstance(after, Node) and isinstance(after.op, ops.Mul) else None
            exact = factor is not None and Fraction(float(factor)) * Fraction(sign * 2.0**exponent) == 1
            yield Verdict(
                name, f"{dtype}, {sign * 2.0**exponent:g}", "proved" if exact else "refuted", "1 / c is exact"
            )
    for c in (0.125, -4.0):
        yield prove(SHAPES, name, f"f32, {c:g}", ops.Div()(arg("x"), ops.full((), c, f32)))


def gelu() -> Iterator[Verdict]:
    """GELU's forms: the identity of its two by tanh over the reals, and all floats of bf16 and f16 as values of f32."""
    e = z3.Real("e")  # exp(2 u)
    logistic, tanh = 1 / (1 + 1 / e), (e - 1) / (e + 1)
    found, _ = solve([e > 0, logistic != (1 + tanh) / 2], "")
    state = "proved" if found == z3.unsat else "open"
    yield Verdict("gelu", "logistic(2 u) is (1 + tanh(u)) / 2", state, "z3, over the reals")
    x = arg("x", 1 << 16)
    cubic = ops.add(x, ops.mul(ops.mul(x, ops.mul(x, x)), 0.044715))
    halves = ops.mul(x, 0.5)
    forms = {
        "erf": ops.mul(halves, ops.add(ops.Erf()(ops.mul(x, 0.5**0.5)), 1.0)),
        "tanh": ops.mul(halves, ops.add(ops.Tanh()(ops.mul(cubic, (2 / np.pi) ** 0.5)), 1.0)),
        "logistic": ops.mul(x, ops.Logistic()(ops.mul(cubic, (8 / np.pi) ** 0.5))),
    }
    rule = next(r for r in GELU if r.name == "gelu")
    for (name, form), dtype in product(forms.items(), (bf16, f16)):

        def verdict(name: str = name, form: Node = form, dtype: DType = dtype) -> Verdict:
            after = rule.apply(form)
            if not isinstance(after, Node):
                return Verdict("gelu", name, "open", "the rule does not apply")
            values = all_values(dtype).astype(np.float32)
            values = values[np.isfinite(values) & (np.abs(values) < 1e12)]  # x^3 is finite
            bound = arg("x", values.size)
            before, got = (_on(n, x, bound) for n in (form, after))
            left, right = interpret(Graph((bound,), (before, got)), {"x": values})
            # 1 + f(u) cancels: an error of f is one of x, not of the result
            excess = np.abs(left.astype(np.float64) - right) - 2.0**-21 * np.abs(values.astype(np.float64))
            return by_values("gelu", f"{name}, {dtype} in f32", excess > 0, left, right)

        yield timed(verdict)
    narrow = next(r for r in GELU if r.name == "narrow-gelu")
    for dtype, form in product((bf16, f16), ("none", "tanh")):

        def rounded(dtype: DType = dtype, form: str = form) -> Verdict:
            values = all_values(dtype)
            given = arg("x", values.size, dtype=dtype)
            op = ops.Gelu() if form == "none" else ops.Gelu(form)
            before = ops.Convert(dtype)(op(ops.Convert(f32)(given)))
            after = narrow.apply(before)
            if not isinstance(after, Node):
                return Verdict("narrow-gelu", str(dtype), "open", "the rule does not apply")
            left, right = interpret(Graph((given,), (before, after)), {"x": values})
            # the reference computes both in f64: one of them is rounded to f32 on the way
            return by_values("narrow-gelu", f"{dtype} {form}", apart(left, right, ulps=1), left, right)

        yield timed(rounded)


def _on(n: Node, old: Node, new: Node) -> Node:
    """`n` over an operand of another length."""
    if n is old:
        return new
    if isinstance(n.op, ops.BroadcastInDim) and n.shape == old.shape:
        return ops.BroadcastInDim(new.shape, n.op.dims)(*n.inputs)
    return n.op(*(_on(i, old, new) for i in n.inputs)) if n.inputs else n


def cases() -> Iterator[Verdict]:
    """The branch that is inlined is the one that the op takes, for all indices of i8."""
    for count in (1, 2, 3):
        branches = tuple(Graph((), (ops.full((), float(i), f32),)) for i in range(count))
        taken = [ops.Case(branches)(const(np.int8(i))) for i in range(-128, 128)]
        inlined = [named(SHAPES, "case", n).apply(n) for n in taken]
        right = [float(n.constant.value) if isinstance(n, Node) and n.constant else np.nan for n in inlined]
        left = [float(v) for v in interpret(Graph((), tuple(taken)), {})]
        yield by_values("case", f"{count} branches", np.array(left) != right, np.array(left), np.array(right))


def cumulatives() -> Iterator[Verdict]:
    rules = Positions().rules()
    for rank, reverse, exclusive in product((1, 2), (False, True), (False, True)):
        shape = SIZES[:rank]
        three = ops.broadcast_to(ops.DimValue(SIZES[2])(), shape)
        before = ops.CumReduce("sum", rank - 1, reverse, exclusive)(three)
        yield cumulative(rules, f"rank {rank}{' reverse' * reverse}{' exclusive' * exclusive}", before)


def verdicts(dtypes: Sequence[DType] = DTYPES_PROVED) -> Iterator[Verdict]:
    """On each structural rule, instance by instance. dtypes: of conversions, most of the time."""
    for name, case, before in shapes():
        yield prove(SHAPES, name, case, before, POSITIONS)
    for name, case, before in conversions(dtypes):
        yield prove(SHAPES, name, case, before)
    yield from joined_constants()
    yield from divisions()
    for name, case, before in view_chains():
        yield prove(VIEW_CHAINS, name, case, before)
    found = Positions()
    for name, case, before in positions():
        yield prove(found.rules(), name, case, before, POSITIONS)
    for name, case, before in masks():
        yield prove(mask_rules(found), name, case, before, POSITIONS)
    yield from cases()
    yield from cumulatives()
    yield from gelu()
