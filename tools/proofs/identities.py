"""The identities of `passes.core.identities` for all values of each of their dtypes.

    prove(Identity("add(x, -0.0) -> x", when="float"), f16)   ->   proved by z3
    prove(Identity("add(x, 0) -> x", when="float"), f16)      ->   refuted: x = -0.0

What is compared are the two nodes that the compiler's own rule starts from and returns, through the kernel expressions
that both lower to. Narrow floats are computed in f32 and rounded, as there; where z3 needs too many steps for that, all
65,536 values are run. Counterexamples are run, too: the reference interpreter has to tell both sides apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product

import numpy as np
import z3

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, Op, const
from ingot.ir.types import DTYPES, DType, TensorType, boolean
from ingot.passes.core.identities import DTYPE_KINDS, Identity, build, variables
from ingot.support.errors import ShapeError
from tools.proofs.terms import IEEE, Terms, Theory, UnsupportedError, differs, sort
from tools.proofs.verdict import STEPS, Verdict, solve, state_of, timed, value_in

DTYPES_PROVED = tuple(DTYPES[n] for n in ("f16", "bf16", "f32", "f64", "i8", "i16", "i32", "i64", "u8", "u32", "bool"))
COMMUTATIVE: tuple[Op, ...] = tuple(cls() for cls in (ops.Add, ops.Mul, ops.Max, ops.Min, ops.And, ops.Or, ops.Xor))

# identities of functions that z3 has no theory of: why they hold in f32 and f64; f16 and bf16 are exhausted
REASONS: Mapping[str, str] = {
    "power(x, 1) -> x": "IEEE 754-2019, 9.2: a power that is a float is exact",
    "power(x, 0) -> 1": "IEEE 754-2019, 9.2.1: pow(x, 0) is 1 for any x, NaN included",
    "power(x, 2) -> multiply(x, x)": "x * x is the power rounded once, pow errs by less than 1 ulp",
    "power(x, 3) -> multiply(multiply(x, x), x)": "two roundings: 1 ulp (Higham 2002, 3.1), pow less than another",
    "power(x, -1) -> divide(1, x)": "1 / x is the power rounded once, pow errs by less than 1 ulp",
    "cosine(negate(x)) -> cosine(x)": "the polynomial is one of |x|: see `lowerings.EVEN`",
}


def sides(identity: Identity, dtype: DType, shape: tuple[int, ...] = ()) -> tuple[Node, Node, dict[str, Node]] | None:
    """What the compiler's rule is given and returns, and the variables' nodes; None where it is not of this dtype."""
    left, _ = identity.patterns
    names = list(dict.fromkeys(variables(left)))
    if all(n in "pq" for n in names) and dtype != boolean:
        return None
    if not names or (boolean if names[0] in "pq" else dtype).kind not in DTYPE_KINDS[identity.when]:
        return None
    bound: dict[str, Node] = {}
    for i, name in enumerate(names):
        kind = TensorType(boolean if name in "pq" else dtype, shape)
        # distinct constants; their values are not looked at
        filled = np.full(shape, i % 2 if kind.dtype.kind == "b" else i + 3).astype(kind.dtype.numpy)
        bound[name] = const(filled) if name in "cd" else Input(name, kind)()
    try:
        before = build(left, bound, TensorType(dtype, shape))
    except ShapeError:
        return None
    after = None if before is None else identity.rule().apply(before)
    return (before, after, bound) if before is not None and isinstance(after, Node) else None


def prove(identity: Identity, dtype: DType) -> Verdict | None:
    """The verdict on one identity in one dtype; None where it has no meaning there."""
    found = sides(identity, dtype)
    if found is None:
        return None
    before, after, bound = found

    def verdict() -> Verdict:
        name = f"{identity.text} {identity.when}".rstrip()
        if _may_run(identity, dtype) and dtype.is_float and identity.ulps:
            return exhausted(identity, name, dtype)
        if witness := sampled(identity, dtype):
            return Verdict(name, str(dtype), "refuted", "random bits", witness)
        try:
            if identity.ulps:
                raise UnsupportedError
            if _holds_widened(before, after, bound):
                return Verdict(name, str(dtype), "proved", "z3, with any rounding of f32")
            if dtype.is_float and _may_run(identity, dtype):
                return exhausted(identity, name, dtype)
            return equal(name, before, after, bound)
        except UnsupportedError:
            return _without_theory(identity, name, before, after, bound)

    return timed(verdict)


def equal(name: str, before: Node, after: Node, bound: Mapping[str, Node]) -> Verdict:
    """Whether two scalar nodes are equal for all values of the `bound` ones. Raises UnsupportedError."""
    dtype = before.dtype if not bound else next(iter(bound.values())).dtype
    values, claim = _claim(before, after, bound, IEEE)
    found, model = solve([claim], "QF_FPBV" if any(n.dtype.is_float for n in bound.values()) else "QF_BV")
    if model is not None:
        example = {v: value_in(model, values[n], n.dtype) for v, n in bound.items()}
        return Verdict(name, str(dtype), "refuted", "z3", _confirmed(before, after, bound, example))
    return Verdict(name, str(dtype), state_of(found), "z3")


def _holds_widened(before: Node, after: Node, bound: Mapping[str, Node]) -> bool:
    """Whether two sides of narrow floats are equal in f32 before any rounding, which z3 finds faster."""
    if not any(n.dtype.is_float and n.dtype.bits < 32 for n in bound.values()):
        return False
    _, claim = _claim(before, after, bound, Theory(widened=True))
    return solve([claim], "", STEPS // 15)[0] == z3.unsat


def _may_run(identity: Identity, dtype: DType) -> bool:
    """Whether there are few enough values to run them all."""
    return dtype.bits <= 16 and len(set(variables(identity.patterns[0]))) == 1


def _claim(
    before: Node, after: Node, bound: Mapping[str, Node], theory: Theory
) -> tuple[dict[Node, z3.ExprRef], z3.BoolRef]:
    """The variables' terms, and that both sides differ."""
    values = {n: z3.Const(v, sort(n.dtype, theory)) for v, n in bound.items()}
    terms = Terms(values, theory=theory)
    return values, differs(terms.element(before, ()), terms.element(after, ()))


def _confirmed(before: Node, after: Node, bound: Mapping[str, Node], example: Mapping[str, np.generic]) -> str:
    """A counterexample as text, after the reference interpreter has told both sides apart."""
    left, right = _run(before, after, bound, {v: np.asarray(x) for v, x in example.items()})
    text = ", ".join(f"{v} = {_shown(x)}" for v, x in example.items())
    agree = left.tobytes() == right.tobytes() or (_is_nan(left) and _is_nan(right))
    note = " (the interpreter's results agree: check the model of the op)" if agree else ""
    return f"{text}: {_shown(left)} and {_shown(right)}{note}"


def _with(n: Node, renamed: Mapping[Node, Node]) -> Node:
    return renamed[n] if n in renamed else n.with_inputs([_with(i, renamed) for i in n.inputs]) if n.inputs else n


def _is_nan(x: np.ndarray) -> bool:
    return x.dtype.kind not in "iub" and bool(np.isnan(x.astype(np.float64)))


def _shown(x: np.ndarray | np.generic) -> str:
    return str(np.asarray(x).astype(object).item()) if np.asarray(x).dtype.kind in "iub" else repr(float(x))


def _without_theory(identity: Identity, name: str, before: Node, after: Node, bound: Mapping[str, Node]) -> Verdict:
    """Of functions that z3 has no theory of: all values of a type of 16 bits or fewer, a reason for others."""
    dtype = next(iter(bound.values())).dtype
    if _may_run(identity, dtype):
        return exhausted(identity, name, dtype)
    if dtype.is_integer:  # powers, whose integer forms are exact
        return equal(name, before, after, bound)
    reason = REASONS.get(identity.text)
    return Verdict(name, str(dtype), "proved" if reason else "open", reason or "no theory of it in z3")


SAMPLES = 4096


def sampled(identity: Identity, dtype: DType) -> str:
    """A counterexample among random bits and special values, if there is one: cheaper than z3's."""
    found = sides(identity, dtype, (SAMPLES,))
    assert found is not None
    before, after, bound = found
    random = np.random.default_rng(0)
    values: dict[str, np.ndarray] = {}
    for v, n in bound.items():
        bits = random.integers(0, 256, SAMPLES * n.dtype.nbytes, np.uint8)
        values[v] = bits % 2 == 1 if n.dtype == boolean else bits.view(n.dtype.numpy)
        if n.dtype.is_float:
            with np.errstate(over="ignore"):
                special = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan]).astype(n.dtype.numpy)
            values[v][random.integers(0, SAMPLES, SAMPLES // 8)] = random.choice(special, SAMPLES // 8)
    left, right = _run(before, after, bound, values)
    wrong = apart(left, right, identity.ulps)
    if not wrong.any():
        return ""
    at = int(np.argmax(wrong))
    return (
        ", ".join(f"{v} = {_shown(x[at])}" for v, x in values.items()) + f": {_shown(left[at])} and {_shown(right[at])}"
    )


def _run(
    before: Node, after: Node, bound: Mapping[str, Node], values: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, ...]:
    """Both sides by the reference interpreter; constants have values, too."""
    renamed = {n: Input(v, n.type)() for v, n in bound.items()}
    return interpret(Graph(tuple(renamed.values()), (_with(before, renamed), _with(after, renamed))), dict(values))


def all_values(dtype: DType) -> np.ndarray:
    """Every value of a type of at most 16 bits, every NaN included."""
    if dtype.kind == "b":
        return np.array([False, True])
    return np.arange(1 << dtype.bits, dtype=np.uint32).astype(f"u{dtype.nbytes}").view(dtype.numpy)


def exhausted(identity: Identity, name: str, dtype: DType) -> Verdict:
    """One variable, all of its values."""
    x = all_values(dtype)
    found = sides(identity, dtype, x.shape)
    assert found is not None
    before, after, bound = found
    (variable,) = bound
    left, right = _run(before, after, bound, {variable: x})
    wrong = apart(left, right, identity.ulps)
    if wrong.any():
        at = int(np.argmax(wrong))
        witness = f"{variable} = {_shown(x[at])}: {_shown(left[at])} and {_shown(right[at])}"
        return Verdict(name, str(dtype), "refuted", "exhaustion", witness)
    return Verdict(name, str(dtype), "proved", f"exhaustion, {x.size:,} values")


def apart(left: np.ndarray, right: np.ndarray, ulps: float = 0) -> np.ndarray:
    """Where values differ by more than `ulps` of the last place, or in sign."""
    if left.dtype.kind in "iub":
        return left != right
    with np.errstate(invalid="ignore"):  # signaling NaN
        a, b = left.astype(np.float64), right.astype(np.float64)
    bits = [v.view(f"i{v.itemsize}").astype(np.int64) for v in (left, right)]
    close = (np.abs(bits[0] - bits[1]) <= ulps) & (np.signbit(a) == np.signbit(b))
    return ~((np.isnan(a) & np.isnan(b)) | close)


def commutativity(op: Op, dtype: DType) -> Verdict | None:
    """Patterns match the operands of a commutative op in either order."""
    x, y = (Input(v, TensorType(dtype))() for v in "xy")
    try:
        before, after = op(x, y), op(y, x)
    except ShapeError:
        return None
    return timed(lambda: equal(f"{op.name}(x, y) -> {op.name}(y, x)", before, after, {"x": x, "y": y}))


def verdicts(identities: Iterable[Identity], dtypes: Sequence[DType] = DTYPES_PROVED) -> Iterator[Verdict]:
    """On each identity in each dtype that it has a meaning in."""
    for identity, dtype in product(identities, dtypes):
        verdict = prove(identity, dtype)
        if verdict is not None:
            yield verdict
