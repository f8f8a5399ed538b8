"""Algebraic identities as data: each is a line of text, is tested on random values, and is proved by `tools/prove.py`.

    Identity("multiply(x, 1) -> x")
    Identity("subtract(x, x) -> 0", when="exact")

    pattern ::= op "(" pattern, ... ")" | op "{" attribute "}" "(" ... ")" | variable | literal
    literal ::= number | zeros | ones | lowest | highest

The variables x, y, z match any value, p and q match bool values, c and d match constants. All occurrences of a variable
must match the same node. A literal matches a constant (a scalar, a broadcast or a filled tensor) if each element has
the bits of the literal in the dtype of the constant; 0 does not match -0.0. All bits of `zeros` are 0, all bits of
`ones` are 1; `lowest` and `highest` are the extremes of the dtype (infinities for floats). The operands of commutative
ops match in either order.

`when` restricts the dtype of the first variable: float, integer (not bool), exact (integer or bool) or signed (float or
signed integer). An identity with constant variables is not applied if all its other variables match constants too:
constant folding computes that. IDENTITIES hold for all values, including -0, infinities and NaN, up to `ulps` of
rounding and the sign and payload of a NaN. FAST_MATH is off by default: its identities may change NaN, infinities, the
sign of a zero, or the rounding.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cached_property, partial
from itertools import permutations

import numpy as np

from ingot import ops
from ingot.ir.node import Const, Node, Op, splat_of
from ingot.ir.rewrite import Rule, RuleSet
from ingot.ir.types import DType, TensorType, boolean
from ingot.passes.constants import is_constant
from ingot.support.dataclass import dataclass

DTYPE_KINDS = {"": "fiub", "float": "f", "integer": "iu", "exact": "iub", "signed": "fi"}


@dataclass(frozen=True)
class Variable:
    name: str


@dataclass(frozen=True)
class Literal:
    text: str

    def value(self, dtype: DType) -> np.generic | None:
        """The value of the literal in `dtype`; None if the dtype cannot represent it."""
        if self.text in ("zeros", "ones"):
            if dtype.is_float:
                return None
            clear = np.zeros(1, dtype.numpy)
            return (~clear if self.text == "ones" else clear)[0]
        if self.text in ("lowest", "highest"):
            return np.array([ops.identity_of("max" if self.text == "lowest" else "min", dtype)]).astype(dtype.numpy)[0]
        number = float(self.text)
        if dtype.is_float:
            return dtype.numpy.type(number)
        if dtype.kind == "b" or number != int(number) or (number < 0 and dtype.kind == "u"):
            return None
        return dtype.numpy.type(int(number))


@dataclass(frozen=True)
class Apply:
    op: Op
    operands: tuple[Pattern, ...]


Pattern = Variable | Literal | Apply
Bindings = dict[str, Node]


@dataclass(frozen=True)
class Identity:
    """`left -> right`. when: the dtypes of the first variable. ulps: the maximum error, in units in the last place."""

    text: str
    when: str = ""
    ulps: float = 0

    @cached_property
    def patterns(self) -> tuple[Apply, Pattern]:
        """The left and the right side. Raises ValueError for malformed text."""
        left, arrow, right = self.text.partition("->")
        first, second = _Parser(left).parse(), _Parser(right).parse()
        if not arrow or not isinstance(first, Apply) or self.when not in DTYPE_KINDS:
            raise ValueError(f"identity {self.text!r} (when {self.when!r}): expected `op(...) -> pattern`")
        unbound = set(variables(second)) - set(variables(first))
        if unbound:
            raise ValueError(f"identity {self.text!r}: {', '.join(sorted(unbound))} stands on the right only")
        return first, second

    def rule(self) -> Rule:
        pattern, result = self.patterns
        kinds = DTYPE_KINDS[self.when]
        guard = next(iter(variables(pattern)), None)
        matcher = _matcher(pattern)
        names = set(variables(pattern))
        plain = [v for v in names if v[0] not in "cd"] if any(v[0] in "cd" for v in names) else []

        def apply(node: Node) -> Node | None:
            for bindings in matcher(node, {}):
                first_value = bindings[guard] if guard else node
                if first_value.dtype.kind not in kinds or (plain and all(is_constant(bindings[v]) for v in plain)):
                    continue
                new = build(result, bindings, node.type)
                if new is not None and new.types == node.types:
                    return new
            return None

        return Rule(self.text, type(pattern.op), apply, partial(_fits, pattern))


def variables(p: Pattern) -> Iterator[str]:
    """The names of the variables in `p`, in the order of their uses, with repetitions."""
    if isinstance(p, Variable):
        yield p.name
    elif isinstance(p, Apply):
        for o in p.operands:
            yield from variables(o)


def literals(p: Pattern) -> Iterator[Literal]:
    if isinstance(p, Literal):
        yield p
    elif isinstance(p, Apply):
        for o in p.operands:
            yield from literals(o)


def build(p: Pattern, bindings: Mapping[str, Node], like: TensorType) -> Node | None:
    """The node that `p` describes. Literals have the type `like`, or bool in a comparison of bool variables. Returns
    None if the dtype cannot represent a literal."""
    if isinstance(p, Variable):
        return bindings[p.name]
    if isinstance(p, Literal):
        value = p.value(like.dtype) if like.dtype.kind != "b" or p.text in ("zeros", "ones") else None
        return None if value is None else ops.full(like.shape, value.item(), like.dtype)
    names = list(variables(p))
    is_logical = isinstance(p.op, ops.Compare) and bool(names) and all(n in "pq" for n in names)
    types = [like.with_dtype(boolean) if is_logical else like] * len(p.operands)
    if isinstance(p.op, ops.Select):
        types[0] = like.with_dtype(boolean)
    operands = [build(o, bindings, t) for o, t in zip(p.operands, types, strict=True)]
    return None if any(o is None for o in operands) else p.op(*(o for o in operands if o is not None))


# --- matching: a pattern is compiled to a function from a node and bindings to all bindings that extend them

Matcher = Callable[[Node, Bindings], Sequence[Bindings]]


def _matcher(p: Pattern) -> Matcher:
    if isinstance(p, Variable):
        return _variable(p.name)
    if isinstance(p, Literal):
        return _literal(p)
    return _apply(p)


def _variable(name: str) -> Matcher:
    constant = name[0] in "cd"

    def match(node: Node, bindings: Bindings) -> Sequence[Bindings]:
        value = bindings.get(name)
        if value is not None:
            return (bindings,) if value is node else ()
        if constant and not is_constant(node):
            return ()
        return ({**bindings, name: node},)

    return match


def _literal(p: Literal) -> Matcher:
    expected_bytes: dict[DType, bytes | None] = {}

    def match(node: Node, bindings: Bindings) -> Sequence[Bindings]:
        splat = splat_of(node)
        if splat is None:
            return ()
        dtype = node.types[0].dtype
        if dtype not in expected_bytes:
            value = p.value(dtype)
            expected_bytes[dtype] = None if value is None else value.tobytes()
        return (bindings,) if splat.tobytes() == expected_bytes[dtype] else ()

    return match


def _apply(p: Apply) -> Matcher:
    count = len(p.operands)
    orders = list(permutations(range(count))) if p.op.commutative else [tuple(range(count))]
    parts = [_matcher(o) for o in p.operands]
    # the cheapest tests first: literals, then ops, then variables
    rank = {Literal: 0, Apply: 1, Variable: 2}
    sequence = sorted(range(count), key=lambda i: rank[type(p.operands[i])])
    op, cls = p.op, type(p.op)

    def match(node: Node, bindings: Bindings) -> Sequence[Bindings]:
        if type(node.op) is not cls or node.op != op or len(node.inputs) != count:
            return ()
        matches: list[Bindings] = []
        for order in orders:
            matches += _match_operands(parts, sequence, order, node, bindings)
        return matches

    return match


def _fits(p: Apply, operands: tuple[type[Op], ...]) -> bool:
    """Whether operands of these op classes may match those of the pattern, in some order."""
    if len(operands) != len(p.operands):
        return False
    orders = permutations(operands) if p.op.commutative else (operands,)
    return any(all(map(_may_match, p.operands, order)) for order in orders)


def _may_match(p: Pattern, cls: type[Op]) -> bool:
    if isinstance(p, Apply):
        return type(p.op) is cls
    constant = isinstance(p, Literal) or p.name[0] in "cd"
    return not constant or cls is Const or cls.rearranges


def _match_operands(
    parts: list[Matcher], sequence: list[int], order: tuple[int, ...], node: Node, bindings: Bindings
) -> Sequence[Bindings]:
    states: Sequence[Bindings] = (bindings,)
    for i in sequence:
        operand, part = node.inputs[order[i]], parts[i]
        states = part(operand, states[0]) if len(states) == 1 else [new for s in states for new in part(operand, s)]
        if not states:
            break
    return states


# --- parsing

_TOKEN = re.compile(r"\s*(?:(-?\d[\d.]*(?:e-?\d+)?)|([A-Za-z_]\w*)|([(){},=]))")


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[str] = []
        position = 0
        text = text.rstrip()
        while position < len(text):
            m = _TOKEN.match(text, position)
            if m is None:
                raise ValueError(f"identity {text!r}: unexpected {text[position]!r}")
            self.tokens.append(m.group().strip())
            position = m.end()

    def parse(self) -> Pattern:
        pattern = self.pattern()
        if self.tokens:
            raise ValueError(f"identity {self.text!r}: unexpected {self.tokens[0]!r}")
        return pattern

    def take(self, token: str | None = None) -> str:
        if not self.tokens or token not in (None, self.tokens[0]):
            raise ValueError(f"identity {self.text!r}: expected {token or 'more'}")
        return self.tokens.pop(0)

    def pattern(self) -> Pattern:
        head = self.take()
        if head in ("zeros", "ones", "lowest", "highest") or head[0] in "-0123456789":
            return Literal(head)
        if len(head) == 1 and self.tokens[:1] != ["("]:
            return Variable(head)
        cls = Op.REGISTRY.get(head)
        if cls is None:
            raise ValueError(f"identity {self.text!r}: no op is named {head!r}")
        op = cls(**self.attribute(cls))
        self.take("(")
        operands = [self.pattern()]
        while self.tokens[:1] == [","]:
            self.take()
            operands.append(self.pattern())
        self.take(")")
        return Apply(op, tuple(operands))

    def attribute(self, cls: type[Op]) -> dict[str, str]:
        """The first attribute of the op, a text, as in compare{LT}."""
        if self.tokens[:1] != ["{"]:
            return {}
        self.take()
        value = self.take()
        self.take("}")
        return {fields(cls)[0].name: value}


def rule_set(identities: Iterable[Identity]) -> RuleSet:
    return RuleSet(tuple(i.rule() for i in identities))


# --- identities that hold for all values

IDENTITIES: tuple[Identity, ...] = (
    Identity("add(x, 0) -> x", when="integer"),
    Identity("add(x, -0.0) -> x", when="float"),
    Identity("subtract(x, 0) -> x"),
    Identity("multiply(x, 1) -> x"),
    Identity("divide(x, 1) -> x"),
    Identity("power(x, 1) -> x"),
    Identity("multiply(x, -1) -> negate(x)"),
    Identity("divide(x, -1) -> negate(x)", when="float"),
    Identity("multiply(x, 0) -> 0", when="integer"),
    Identity("subtract(x, x) -> 0", when="integer"),
    Identity("remainder(x, 1) -> 0", when="integer"),
    Identity("add(x, negate(y)) -> subtract(x, y)"),
    Identity("subtract(x, negate(y)) -> add(x, y)"),
    Identity("negate(negate(x)) -> x"),
    Identity("negate(subtract(x, y)) -> subtract(y, x)", when="integer"),
    Identity("multiply(negate(x), negate(y)) -> multiply(x, y)"),
    Identity("divide(negate(x), negate(y)) -> divide(x, y)", when="float"),
    Identity("add(add(x, c), d) -> add(x, add(c, d))", when="integer"),
    Identity("multiply(multiply(x, c), d) -> multiply(x, multiply(c, d))", when="integer"),
    Identity("power(x, 0) -> 1"),
    Identity("power(x, 2) -> multiply(x, x)", ulps=1),
    Identity("power(x, 3) -> multiply(multiply(x, x), x)", ulps=2),
    Identity("power(x, -1) -> divide(1, x)", when="float", ulps=1),
    Identity("abs(abs(x)) -> abs(x)"),
    Identity("abs(negate(x)) -> abs(x)", when="signed"),
    Identity("abs(multiply(x, x)) -> multiply(x, x)", when="float"),
    Identity("multiply(abs(x), abs(x)) -> multiply(x, x)"),
    Identity("sign(sign(x)) -> sign(x)"),
    Identity("floor(floor(x)) -> floor(x)"),
    Identity("ceil(ceil(x)) -> ceil(x)"),
    Identity("round_nearest_even(round_nearest_even(x)) -> round_nearest_even(x)"),
    Identity("cosine(negate(x)) -> cosine(x)"),
    Identity("maximum(x, x) -> x"),
    Identity("minimum(x, x) -> x"),
    Identity("maximum(x, lowest) -> x"),
    Identity("minimum(x, highest) -> x"),
    Identity("maximum(x, highest) -> highest", when="integer"),
    Identity("minimum(x, lowest) -> lowest", when="integer"),
    Identity("maximum(maximum(x, y), y) -> maximum(x, y)"),
    Identity("minimum(minimum(x, y), y) -> minimum(x, y)"),
    Identity("maximum(maximum(x, c), d) -> maximum(x, maximum(c, d))"),
    Identity("minimum(minimum(x, c), d) -> minimum(x, minimum(c, d))"),
    Identity("clamp(x, clamp(x, y, z), z) -> clamp(x, y, z)"),
    Identity("clamp(lowest, x, y) -> minimum(x, y)"),
    Identity("clamp(x, y, highest) -> maximum(y, x)"),
    Identity("and(x, x) -> x"),
    Identity("or(x, x) -> x"),
    Identity("xor(x, x) -> zeros"),
    Identity("and(x, zeros) -> zeros"),
    Identity("and(x, ones) -> x"),
    Identity("or(x, zeros) -> x"),
    Identity("or(x, ones) -> ones"),
    Identity("xor(x, zeros) -> x"),
    Identity("xor(x, ones) -> not(x)"),
    Identity("not(not(x)) -> x"),
    Identity("shift_left(x, 0) -> x"),
    Identity("shift_right_arithmetic(x, 0) -> x"),
    Identity("shift_right_logical(x, 0) -> x"),
    Identity("select(p, x, x) -> x"),
    Identity("select(ones, x, y) -> x"),
    Identity("select(zeros, x, y) -> y"),
    Identity("select(not(p), x, y) -> select(p, y, x)"),
    Identity("select(p, select(p, x, y), z) -> select(p, x, z)"),
    Identity("select(p, x, select(p, y, z)) -> select(p, x, z)"),
    Identity("select(p, ones, zeros) -> p"),
    Identity("compare{EQ}(x, x) -> ones", when="exact"),
    Identity("compare{LE}(x, x) -> ones", when="exact"),
    Identity("compare{GE}(x, x) -> ones", when="exact"),
    Identity("compare{NE}(x, x) -> zeros", when="exact"),
    Identity("compare{LT}(x, x) -> zeros"),
    Identity("compare{GT}(x, x) -> zeros"),
    Identity("compare{EQ}(p, ones) -> p"),
    Identity("compare{NE}(p, zeros) -> p"),
    Identity("compare{EQ}(p, zeros) -> not(p)"),
    Identity("compare{NE}(p, ones) -> not(p)"),
    Identity("not(compare{EQ}(x, y)) -> compare{NE}(x, y)"),
    Identity("not(compare{NE}(x, y)) -> compare{EQ}(x, y)"),
    Identity("not(compare{LT}(x, y)) -> compare{GE}(x, y)", when="exact"),
    Identity("not(compare{GE}(x, y)) -> compare{LT}(x, y)", when="exact"),
    Identity("not(compare{GT}(x, y)) -> compare{LE}(x, y)", when="exact"),
    Identity("not(compare{LE}(x, y)) -> compare{GT}(x, y)", when="exact"),
)

# --- identities that hold except for NaN, infinities, signs of zeros and rounding

FAST_MATH: tuple[Identity, ...] = (
    Identity("add(multiply(sine(x), sine(x)), multiply(cosine(x), cosine(x))) -> 1"),
    Identity("add(x, 0) -> x", when="float"),
    Identity("multiply(x, 0) -> 0", when="float"),
    Identity("subtract(x, x) -> 0", when="float"),
    Identity("divide(x, x) -> 1", when="float"),
    Identity("divide(0, x) -> 0", when="float"),
    Identity("divide(x, c) -> multiply(x, divide(1, c))", when="float"),
    Identity("divide(1, sqrt(x)) -> rsqrt(x)"),
    Identity("divide(x, sqrt(y)) -> multiply(x, rsqrt(y))"),
    Identity("power(x, 0.5) -> sqrt(x)", when="float"),
    Identity("power(x, -0.5) -> rsqrt(x)", when="float"),
    Identity("multiply(sqrt(x), sqrt(x)) -> x"),
    Identity("exponential(log(x)) -> x"),
    Identity("log(exponential(x)) -> x"),
    Identity("add(add(x, c), d) -> add(x, add(c, d))", when="float"),
    Identity("multiply(multiply(x, c), d) -> multiply(x, multiply(c, d))", when="float"),
    Identity("maximum(x, highest) -> highest", when="float"),
    Identity("minimum(x, lowest) -> lowest", when="float"),
    Identity("compare{EQ}(x, x) -> ones", when="float"),
    Identity("compare{NE}(x, x) -> zeros", when="float"),
)
