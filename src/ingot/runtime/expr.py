"""Size expressions over symbols, as postfix lists that survive JSON: `s0 * 2 + 1` is `("s0", 2, "*", 1, "+")`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

from ingot.support.errors import VerifyError

Expr: TypeAlias = "int | tuple[int | str, ...]"
"""A constant, or a postfix sequence of constants, symbol names and operators."""

OPERATORS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "max": max,
    "min": min,
}


def evaluate(expr: Expr, values: Mapping[str, int]) -> int:
    """The value of a checked expression; // and % floor, as Python's. Raises VerifyError on a zero divisor."""
    if isinstance(expr, int):
        return expr
    stack: list[int] = []
    for item in expr:
        if isinstance(item, int):
            stack.append(item)
        elif item in OPERATORS:
            right = stack.pop()
            if right == 0 and item in ("//", "%"):
                raise VerifyError(f"size expression {show(expr)}", expected="a divisor other than 0", got=dict(values))
            stack[-1] = OPERATORS[item](stack[-1], right)
        else:
            stack.append(values[item])
    return stack[0]


Span: TypeAlias = "tuple[int, int]"


def span(expr: Expr, spans: Mapping[str, Span]) -> Span:
    """Bounds of a checked expression whose symbols are within `spans`: (min, max). They are not always tight, as each
    use of a symbol varies independently."""
    if isinstance(expr, int):
        return expr, expr
    stack: list[Span] = []
    for item in expr:
        if isinstance(item, int):
            stack.append((item, item))
        elif item not in OPERATORS:
            stack.append(spans[item])
        else:
            b, a = stack.pop(), stack.pop()
            if item == "%":
                is_exact = a[0] == a[1] and b[0] == b[1] > 0
                stack.append((a[0] % b[0], a[0] % b[0]) if is_exact else (0, max(b[1] - 1, 0)))
                continue
            if item == "//":
                b = max(b[0], 1), max(b[1], 1)
            if item == "-":
                b = b[1], b[0]
            ends = [OPERATORS[item](x, y) for x, y in zip(a, b, strict=True)]
            if item in ("*", "//"):
                ends = [OPERATORS[item](x, y) for x in a for y in b]
            stack.append((min(ends), max(ends)))
    return stack[0]


MAX_BITS = 1 << 17  # of a value: twice the product of 1,024 symbols
_MAX_SHOWN_ITEMS = 256  # a longer expression is abbreviated in messages


def check(expr: Expr, names: Collection[str], where: str) -> None:
    """Raise VerifyError unless the expression is well formed, uses only the symbols `names`, and its values are small
    enough to compute quickly. names: a set or a mapping, for fast lookup."""
    if isinstance(expr, int):
        return
    bits: list[int] = []
    is_constant = True
    for item in expr:
        if isinstance(item, str) and item in OPERATORS:
            if len(bits) < 2:
                raise VerifyError(f"size expression {_head(expr)}: {item!r} lacks an operand", where=where)
            b, a = bits.pop(), bits.pop()
            bits.append(a + b if item == "*" else max(a, b) + (item in ("+", "-")))
            if bits[-1] > MAX_BITS:
                expected = f"values of at most {MAX_BITS} bits"
                raise VerifyError(f"size expression {_head(expr)}", expected=expected, got="larger ones", where=where)
        elif isinstance(item, int):
            bits.append(item.bit_length())
        elif item in names:
            bits.append(63)
            is_constant = False
        else:
            expected = f"one of {_head(sorted(names))}"
            raise VerifyError(f"size expression {_head(expr)}", expected=expected, got=repr(item), where=where)
    if len(bits) != 1:
        raise VerifyError(
            f"size expression {_head(expr)}", expected="one value", got=f"{len(bits)} values", where=where
        )
    if is_constant:
        evaluate(expr, {})  # checks for division by 0


def _head(items: Sequence[object]) -> str:
    prefix = list(items[:_MAX_SHOWN_ITEMS])
    return f"{prefix}" if len(items) <= _MAX_SHOWN_ITEMS else f"{prefix} and {len(items) - _MAX_SHOWN_ITEMS} more"


def linear_in(expr: Expr) -> tuple[str, int, int] | None:
    """(symbol, a, b) if the expression is a * symbol + b with a > 0; None for any other."""
    if isinstance(expr, int):
        return None
    names = {item for item in expr if isinstance(item, str) and item not in OPERATORS}
    if len(names) != 1 or not {item for item in expr if item in OPERATORS} <= {"+", "-", "*"}:
        return None
    (name,) = names
    samples = [evaluate(expr, {name: value}) for value in range(4)]
    slope = samples[1] - samples[0]
    # a cubic through four points of a line could only come from terms that cancel: sizes have no such terms
    if slope <= 0 or samples[2] - samples[1] != slope or samples[3] - samples[2] != slope:
        return None
    return name, slope, samples[0]


def show(expr: Expr) -> str:
    """Infix text for people: `(s0 * 2) + 1`. The expression must be well formed."""
    if isinstance(expr, int):
        return str(expr)
    if len(expr) > _MAX_SHOWN_ITEMS:
        return f"an expression of {len(expr)} terms"
    stack: list[str] = []
    for item in expr:
        if not isinstance(item, str) or item not in OPERATORS:
            stack.append(str(item))
            continue
        right, left = stack.pop(), stack.pop()
        stack.append(f"{item}({left}, {right})" if item in ("max", "min") else f"({left} {item} {right})")
    text = stack[0]
    return text[1:-1] if text.startswith("(") and len(expr) == 3 else text
