"""Properties of networks in VNN-LIB, versions 1 (SMT-LIB's declare-const of X_i and Y_j) and 2 (declare-network).

A file describes counterexamples: inputs and results that satisfy all its assertions. It is read as a disjunction of
alternatives, each of which is a box of inputs and a conjunction of linear conditions on inputs and results. Numbers are
read as f64; sums of them are exact. Files are untrusted: sizes, depths and numbers of alternatives are bounded.
Syntax: https://www.vnnlib.org.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from fractions import Fraction
from pathlib import Path
from typing import NoReturn

import numpy as np

from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError

_MAX_BYTES = 64 << 20
_MAX_DEPTH = 64
_MAX_ALTERNATIVES = 4096
_MAX_CONDITIONS = 1 << 22  # in all alternatives together
_MAX_ELEMENTS = 1 << 24  # of a tensor
_ELEMENT = re.compile(r"real|b?float\d+(e\d+m\d+(fn)?)?", re.IGNORECASE)
_TOKEN = re.compile(r'\s+|;[^\n]*|[()]|"(?:[^"\\]|\\.)*"|\[[^\]\n]*\]|[^\s()\[\]";]+(?:\[[^\]\n]*\])?')


@dataclass(frozen=True)
class Condition:
    """sum(factor * variable) <= limit. A variable is ("X" or "Y", element)."""

    factors: Mapping[tuple[str, int], float]
    limit: float | Fraction


@dataclass(frozen=True, eq=False)
class Alternative:
    """A box of flattened inputs and a conjunction of conditions: input_rows x + output_rows y <= limits."""

    lower: np.ndarray
    upper: np.ndarray
    input_rows: np.ndarray
    output_rows: np.ndarray
    limits: np.ndarray


@dataclass(frozen=True, eq=False)
class Property:
    """The property that none of `alternatives` is satisfied. inputs, outputs: the numbers of elements. input_shape,
    output_shape: as declared in the file, None in version 1."""

    inputs: int
    outputs: int
    alternatives: tuple[Alternative, ...]
    input_shape: tuple[int, ...] | None = None
    output_shape: tuple[int, ...] | None = None


def read_property(path: str | os.PathLike[str]) -> Property:
    """Read a file. Raises ImportModelError if it is not a property, or one of several networks."""
    path = Path(path)
    try:
        if path.stat().st_size > _MAX_BYTES:
            _refuse(path, f"a file of at most {_MAX_BYTES >> 20} MiB", f"{path.stat().st_size >> 20} MiB")
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ImportModelError(f"property {path}", expected="a readable VNN-LIB file", got=str(error)) from None
    return parse_property(text, str(path))


def parse_property(text: str, name: str = "the text") -> Property:
    """See `read_property`."""
    return _Reader(name).read(text)


def _refuse(name: object, expected: str, got: object, fix: str | None = None) -> NoReturn:
    text = str(got)
    raise ImportModelError(
        f"property {name}", expected=expected, got=text if len(text) < 100 else f"{text[:97]}...", fix=fix
    )


@dataclass
class _Reader:
    name: str
    sizes: dict[str, int] = field(default_factory=lambda: {"X": 0, "Y": 0})
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    tensors: dict[str, str] = field(default_factory=dict[str, str])  # version 2: variable -> X or Y
    declared: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])

    def read(self, text: str) -> Property:
        alternatives: list[list[Condition]] = [[]]
        has_assertion = False
        for statement in self.statements(text):
            match statement:
                case ["vnnlib-version", str(version)]:
                    if not re.fullmatch(r"<2\.\d{1,3}>", version):
                        _refuse(self.name, "version <2.0>", version)
                case ["declare-const", str(variable), "Real"] | ["declare-fun", str(variable), [], "Real"]:
                    self.declare(variable)
                case ["declare-network", *parts]:
                    self.network(parts)
                case ["assert", formula]:
                    has_assertion = True
                    alternatives = self.both(alternatives, self.alternatives(formula))
                case ["exit"]:
                    break
                case ["set-logic" | "set-info" | "set-option" | "check-sat" | "get-model", *_]:
                    pass
                case _:
                    _refuse(self.name, "declarations and assertions", _expression_text(statement))
        if not has_assertion:
            _refuse(self.name, "an assertion", "none")
        if not self.sizes["X"] or not self.sizes["Y"]:
            _refuse(self.name, "inputs and results, X_0 and Y_0", "none declared")
        if self.declared and len(self.declared) != self.sizes["X"] + self.sizes["Y"]:
            _refuse(self.name, "X_0 to the last and Y_0 to the last", "numbers that are left out")
        satisfiable = tuple(a for conditions in alternatives if (a := self.alternative(conditions)) is not None)
        return Property(self.sizes["X"], self.sizes["Y"], satisfiable, self.shapes.get("X"), self.shapes.get("Y"))

    # --- syntax

    def statements(self, text: str) -> Iterator[list]:
        """The parenthesized lists at the top level."""
        stack: list[list] = []
        end = 0
        for match in _TOKEN.finditer(text):
            token = match.group()
            if match.start() != end:
                break
            end = match.end()
            if token[0] == ";" or token[0].isspace():
                continue
            if token == "(":
                if len(stack) >= _MAX_DEPTH:
                    _refuse(self.name, f"at most {_MAX_DEPTH} nested parentheses", "more")
                stack.append([])
            elif token == ")":
                if not stack:
                    _refuse(self.name, "balanced parentheses", "a closing one too many")
                done = stack.pop()
                if not stack:
                    yield done
                else:
                    stack[-1].append(done)
            elif stack:
                stack[-1].append(token)
            else:
                _refuse(self.name, "statements in parentheses", token)
        if end != len(text):
            _refuse(self.name, "words, numbers and parentheses", text[end : end + 20])
        if stack:
            _refuse(self.name, "balanced parentheses", "an open one at the end")

    def declare(self, variable: str) -> None:
        match = re.fullmatch(r"([XY])_(\d{1,9})", variable)
        if match is None or self.tensors:
            _refuse(self.name, "variables X_i of inputs and Y_j of results, without a network", variable)
        kind, index = match.group(1), int(match.group(2))
        if (kind, index) in self.declared:
            _refuse(self.name, f"one declaration of {variable}", "another")
        self.declared.add((kind, index))
        self.sizes[kind] = max(self.sizes[kind], self.element(index, _MAX_ELEMENTS) + 1)

    def network(self, parts: Sequence[object]) -> None:
        if self.tensors or self.declared:
            got = "several" if self.tensors else "variables X_i and Y_j before it"
            _refuse(self.name, "one network", got, "write a property of one network's inputs and results")
        for part in parts[1:]:
            match part:
                case ["declare-input" | "declare-output" as what, str(variable), str(element), str(shape), *rest]:
                    kind = "X" if what == "declare-input" else "Y"
                    if not _ELEMENT.fullmatch(element):
                        _refuse(self.name, "elements of Real or floats", element)
                    if kind in self.shapes or rest:
                        _refuse(self.name, "one input and one output, without options", _expression_text(part))
                    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", variable) or variable in self.tensors:
                        _refuse(self.name, "a new name", variable)
                    sizes = self.numbers(shape)
                    count = math.prod(sizes)
                    if not 0 < count <= _MAX_ELEMENTS:
                        _refuse(self.name, f"1 to {_MAX_ELEMENTS} elements", shape)
                    self.tensors[variable], self.shapes[kind], self.sizes[kind] = kind, sizes, count
                case _:
                    _refuse(
                        self.name,
                        "declare-input and declare-output",
                        _expression_text(part),
                        "hidden values are not read",
                    )

    def numbers(self, text: str) -> tuple[int, ...]:
        if not re.fullmatch(r"\[\s*(\d{1,9}(\s*,\s*\d{1,9})*)?\s*\]", text):
            _refuse(self.name, "[number, ...]", text)
        inner = text[1:-1].strip()
        return tuple(int(d) for d in inner.split(",")) if inner else ()

    def element(self, index: int, size: int) -> int:
        if index >= size:
            _refuse(self.name, f"an element below {size}", index)
        return index

    # --- formulas

    def alternatives(self, formula: object) -> list[list[Condition]]:
        """The alternatives of a formula, each a list of conditions (disjunctive normal form)."""
        match formula:
            case ["and", *parts] if parts:
                product: list[list[Condition]] = [[]]
                for part in parts:
                    product = self.both(product, self.alternatives(part))
                return product
            case ["or", *parts] if parts:
                return self.bounded([a for part in parts for a in self.alternatives(part)])
            case ["<=" | ">=" | "<" | ">" as relation, left, right]:
                a, b = self.linear(left), self.linear(right)
                is_strict = len(relation) == 1
                return [[self.condition(a, b, is_strict) if relation[0] == "<" else self.condition(b, a, is_strict)]]
            case ["=" | "==", left, right]:
                a, b = self.linear(left), self.linear(right)
                return [[self.condition(a, b), self.condition(b, a)]]
            case _:
                _refuse(self.name, "and, or, <=, >=, < or >", _expression_text(formula))

    def both(self, first: list[list[Condition]], second: list[list[Condition]]) -> list[list[Condition]]:
        if len(first) == 1 and len(second) == 1:
            first[0].extend(second[0])
            return first
        if len(first) * len(second) > _MAX_ALTERNATIVES:
            _refuse(self.name, f"at most {_MAX_ALTERNATIVES} alternatives", len(first) * len(second))
        return self.bounded([[*a, *b] for a in first for b in second])

    def bounded(self, alternatives: list[list[Condition]]) -> list[list[Condition]]:
        if len(alternatives) > _MAX_ALTERNATIVES or sum(map(len, alternatives)) > _MAX_CONDITIONS:
            _refuse(self.name, f"at most {_MAX_ALTERNATIVES} alternatives", len(alternatives))
        return alternatives

    def condition(self, a: Condition, b: Condition, is_strict: bool = False) -> Condition:
        """a <= b or a < b, where a and b are sums as returned by `linear`. The limit is the largest float that
        satisfies it: a value above it is at least the next float, and so does not."""
        factors = dict(a.factors)
        for variable, factor in b.factors.items():
            factors[variable] = factors.get(variable, 0.0) - factor
        exact = _plus(b.limit, -a.limit)
        limit = float(exact)
        if limit > exact or (is_strict and limit == exact):
            limit = math.nextafter(limit, -math.inf)
        return Condition({v: f for v, f in factors.items() if f}, limit)

    def linear(self, expr: object) -> Condition:
        """A linear sum: the factors, with the constant term in place of a limit."""
        match expr:
            case str(atom):
                return self.atom(atom)
            case ["-", one]:
                return _scale(self.linear(one), -1.0)
            case ["+" | "-" as sign, first, *others]:
                total = self.linear(first)
                for other in others:
                    total = _sum_of(total, _scale(self.linear(other), 1.0 if sign == "+" else -1.0))
                return total
            case ["*", first, *others]:
                total = self.linear(first)
                for other in others:
                    factor = self.linear(other)
                    if total.factors and factor.factors:
                        _refuse(self.name, "linear conditions", _expression_text(expr))
                    total = _scale(total, factor.limit) if total.factors else _scale(factor, total.limit)
                return total
            case _:
                _refuse(self.name, "a linear expression", _expression_text(expr))

    def atom(self, atom: str) -> Condition:
        if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d{1,4})?", atom):
            value = float(atom)
            if not math.isfinite(value):
                _refuse(self.name, "numbers of f64", atom)
            return Condition({}, value)
        name, bracket, indices = atom.partition("[")
        if name in self.tensors:
            kind = self.tensors[name]
            position, shape = self.numbers(bracket + indices) if bracket else (), self.shapes[kind]
            if len(position) != len(shape) or any(i >= d for i, d in zip(position, shape, strict=True)):
                _refuse(self.name, f"an element of {name}, of shape {list(shape)}", atom)
            return Condition({(kind, int(np.ravel_multi_index(position, shape)) if shape else 0): 1.0}, 0.0)
        match = re.fullmatch(r"([XY])_(\d{1,9})", atom)
        if match is None or (match.group(1), int(match.group(2))) not in self.declared:
            _refuse(self.name, "a number or a declared variable", atom)
        return Condition({(match.group(1), int(match.group(2))): 1.0}, 0.0)

    # --- alternatives

    def input_name(self, element: int) -> str:
        tensor = next((name for name, kind in self.tensors.items() if kind == "X"), None)
        if tensor is None:
            return f"X_{element}"
        return f"{tensor}{list(map(int, np.unravel_index(element, self.shapes['X'])))}"

    def alternative(self, conditions: Sequence[Condition]) -> Alternative | None:
        """The alternative of a conjunction; None if no input satisfies it."""
        lower, upper = np.full(self.sizes["X"], -np.inf), np.full(self.sizes["X"], np.inf)
        rows: list[Condition] = []
        for condition in conditions:
            if not condition.factors:
                if condition.limit < 0:
                    return None
                continue
            (kind, element), factor = next(iter(condition.factors.items()))
            if len(condition.factors) > 1 or kind == "Y":
                rows.append(condition)
            elif factor > 0:
                upper[element] = min(upper[element], _quotient(float(condition.limit), factor, np.inf))
            else:
                lower[element] = max(lower[element], _quotient(float(condition.limit), factor, -np.inf))
        if not (np.isfinite(lower).all() and np.isfinite(upper).all()):
            first = int(np.flatnonzero(~(np.isfinite(lower) & np.isfinite(upper)))[0])
            _refuse(self.name, "a lower and an upper bound of each input", f"none of {self.input_name(first)}")
        if (lower > upper).any():
            return None
        if len(rows) * sum(self.sizes.values()) > _MAX_CONDITIONS * 16:
            _refuse(self.name, "fewer conditions on several variables", f"{len(rows)} of {self.sizes['X']} inputs")
        tables = {"X": np.zeros((len(rows), self.sizes["X"])), "Y": np.zeros((len(rows), self.sizes["Y"]))}
        for i, condition in enumerate(rows):
            for (kind, element), factor in condition.factors.items():
                tables[kind][i, element] = factor
        return Alternative(lower, upper, tables["X"], tables["Y"], np.asarray([c.limit for c in rows], np.float64))


def _quotient(limit: float, factor: float, direction: float) -> float:
    return limit * factor if abs(factor) == 1 else math.nextafter(limit / factor, direction)


def _scale(a: Condition, factor: float | Fraction) -> Condition:
    limit = a.limit * factor if abs(factor) == 1 else Fraction(a.limit) * Fraction(factor)
    return Condition({v: f * float(factor) for v, f in a.factors.items()}, limit)


def _plus(a: float | Fraction, b: float | Fraction) -> float | Fraction:
    return Fraction(a) + Fraction(b) if a and b else a or b


def _sum_of(a: Condition, b: Condition) -> Condition:
    factors = dict(a.factors)
    for variable, factor in b.factors.items():
        factors[variable] = factors.get(variable, 0.0) + factor
    return Condition(factors, _plus(a.limit, b.limit))


def _expression_text(expr: object, depth: int = 0) -> str:
    if not isinstance(expr, list):
        return str(expr)
    return "(...)" if depth > 2 else f"({' '.join(_expression_text(e, depth + 1) for e in expr[:8])})"
