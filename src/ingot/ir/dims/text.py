"""Sizes as text, in infix and postfix notation, and their parser."""

from __future__ import annotations

import re

from ingot.ir.dims.algebra import COMPUTED_PREFIX, EMPTY_SUFFIX, Atom, Dim, Symbol, floordiv, mod, symbol
from ingot.ir.dims.bounds import dim_max, dim_min
from ingot.support.limits import max_terms


def postfix(d: int | Dim) -> list[int | str]:
    """`d` as a postfix program for the runtime: ["s0", 2, "*", 1, "+"]; operators + * // % max min."""
    if isinstance(d, int):
        return [d]
    out: list[int | str] = []
    for i, (mono, c) in enumerate(d.terms):
        factors: list[list[int | str]] = [[c]] if c != 1 or not mono else []
        factors += [_postfix_atom(atom) for atom in mono]
        for j, factor in enumerate(factors):
            out += factor if j == 0 else [*factor, "*"]
        if i:
            out.append("+")
    return out


def _postfix_atom(atom: Atom) -> list[int | str]:
    if isinstance(atom, Symbol):
        return [atom.name]
    name = {"floordiv": "//", "mod": "%"}.get(atom.fn, atom.fn)
    return [*postfix(atom.a), *postfix(atom.b), name]


_TOKEN = re.compile(r"\s*(\d+|\$?[A-Za-z_][\w.]*\??|//|[-+*%(),])")


def parse_dim(text: str) -> int | Dim:
    """The inverse of `str(dim)`. Raises ValueError on malformed text."""
    tokens = _tokens(text)
    if len(tokens) > 2 * max_terms():
        raise ValueError(f"a dimension of {len(tokens)} words is too long")
    try:
        value, rest = _parse_sum(tokens)
    except RecursionError:
        raise ValueError("a dimension is nested too deeply") from None
    if rest:
        raise ValueError(f"unexpected {rest[0]!r} in the dimension {text!r}")
    return value


def _tokens(text: str) -> list[str]:
    out, position = [], 0
    text = text.rstrip()
    while position < len(text):
        m = _TOKEN.match(text, position)
        if m is None:
            raise ValueError(f"unexpected {text[position]!r} in the dimension {text!r}")
        out.append(m.group(1))
        position = m.end()
    return out


def _parse_sum(tokens: list[str]) -> tuple[int | Dim, list[str]]:
    value, tokens = _parse_product(tokens)
    while tokens and tokens[0] in "+-":
        sign = 1 if tokens[0] == "+" else -1
        term, tokens = _parse_product(tokens[1:])
        value = value + term * sign
    return value, tokens


def _parse_product(tokens: list[str]) -> tuple[int | Dim, list[str]]:
    value, tokens = _parse_atom(tokens)
    while tokens and tokens[0] in ("*", "//", "%"):
        op = tokens[0]
        factor, tokens = _parse_atom(tokens[1:])
        if op != "*" and factor == 0:
            raise ValueError("a dimension is divided by 0")
        value = value * factor if op == "*" else floordiv(value, factor) if op == "//" else mod(value, factor)
    return value, tokens


def _parse_atom(tokens: list[str]) -> tuple[int | Dim, list[str]]:
    if not tokens:
        raise ValueError("a dimension ends too early")
    head, rest = tokens[0], tokens[1:]
    if head == "-":
        value, rest = _parse_atom(rest)
        return value * -1, rest
    if head == "(":
        value, rest = _parse_sum(rest)
        return value, _expect(rest, ")")
    if head in ("max", "min") and rest and rest[0] == "(":
        a, rest = _parse_sum(rest[1:])
        b, rest = _parse_sum(_expect(rest, ","))
        return (dim_max if head == "max" else dim_min)(a, b), _expect(rest, ")")
    if head.isdigit():
        return int(head), rest
    if not head[0].isalpha() and head[0] not in ("_", COMPUTED_PREFIX):
        raise ValueError(f"unexpected {head!r} in a dimension")
    return symbol(head.removesuffix(EMPTY_SUFFIX), head.endswith(EMPTY_SUFFIX)), rest


def _expect(tokens: list[str], token: str) -> list[str]:
    if not tokens or tokens[0] != token:
        raise ValueError(f"expected {token!r} in a dimension, got {tokens[0] if tokens else 'the end'!r}")
    return tokens[1:]
