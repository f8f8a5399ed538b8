"""The range of each value of a nest, which determines the width of its wire; and the evaluation of addresses.

A range is (lowest, highest). Arithmetic on ranges is exact; a result that may exceed its type wraps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from ingot.ir.types import DTYPES
from ingot.support.errors import CompileError
from ingot.targets.verilog.nest import Nest

Range = tuple[int, int]
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def range_of(dtype: str) -> Range:
    return (0, 1) if dtype == "bool" else DTYPES[dtype].range


def width(r: Range) -> int:
    """The bits of a signed wire for the range."""
    return 1 + max(r[1].bit_length(), (~r[0]).bit_length() if r[0] < 0 else 0)


def ranges(nest: Nest, params: Sequence[Range]) -> list[Range]:
    """The range of each value. params: the ranges of each param's elements."""
    value_ranges: list[Range] = []
    for number, value in enumerate(nest.values):
        fn, dtype, *rest = value
        match fn:
            case "counter":
                inner, which = rest[0]
                r = 0, (nest.inner if inner else nest.outer)[which] - 1
            case "literal":
                r = rest[0], rest[0]
            case "load":
                r = params[rest[0]]
            case "acc":
                r = range_of(dtype)
            case _:
                r = _result(fn, dtype, [value_ranges[i] for i in rest])
        value_ranges.append(r)
        if number == nest.update:
            _narrow_register(nest, value_ranges)
    return value_ranges


def _narrow_register(nest: Nest, value_ranges: list[Range]) -> None:
    """Replace the accumulator's type range by that of its sum or extremum."""
    assert nest.update is not None and nest.initial is not None
    fn, _, *operands = nest.values[nest.update]
    terms = [i for i in operands if nest.values[i][0] != "acc"]
    if len(terms) != 1 or fn not in ("add", "max", "min"):
        return
    (low, high), (first, last) = value_ranges[terms[0]], value_ranges[nest.initial]
    if fn == "add":
        count, type_range = prod(nest.inner), range_of(nest.values[nest.update][1])
        total = first + min(0, count * low), last + max(0, count * high)
        if total[0] < type_range[0] or total[1] > type_range[1]:
            return
    else:
        total = min(first, low), max(last, high)
    value_ranges[nest.update] = total
    for i, value in enumerate(nest.values[: nest.update]):
        if value[0] == "acc":
            value_ranges[i] = total


def _result(fn: str, dtype: str, operands: list[Range]) -> Range:
    unwrapped = exact(fn, operands, dtype)
    low, high = range_of(dtype)
    return unwrapped if low <= unwrapped[0] and unwrapped[1] <= high else (low, high)


def exact(fn: str, r: list[Range], dtype: str) -> Range:
    if fn in COMPARISONS:
        return 0, 1
    if fn in ("add", "sub", "mul", "min", "max"):
        (a, b), (c, d) = r
        match fn:
            case "add":
                return a + c, b + d
            case "sub":
                return a - d, b - c
            case "mul":
                corners = a * c, a * d, b * c, b * d
                return min(corners), max(corners)
        f = min if fn == "min" else max
        return f(a, c), f(b, d)
    match fn:
        case "select":
            return min(r[1][0], r[2][0]), max(r[1][1], r[2][1])
        case "cast":
            return (0, 1) if dtype == "bool" else r[0]
        case "neg":
            return -r[0][1], -r[0][0]
        case "ashr" if r[1][0] >= 0:
            corners = [x >> n for x in r[0] for n in (r[1][0], min(r[1][1], 127))]
            return min(corners), max(corners)
        case "shl" if r[1][0] >= 0:
            corners = [x << min(n, 63) for x in r[0] for n in r[1]]
            return min(corners), max(corners)
        case "lshr" if r[0][0] >= 0 and r[1][0] >= 0:
            return r[0][0] >> min(r[1][1], 63), r[0][1] >> min(r[1][0], 63)
        case "clz":
            return 0, DTYPES[dtype].bits
        case "div" if r[1][0] > 0:
            corners = [abs(x) // n * (1 if x >= 0 else -1) for x in r[0] for n in r[1]]
            return min(corners), max(corners)
        case "rem" if r[1][0] > 0:
            max_remainder = r[1][1] - 1
            return max(min(r[0][0], 0), -max_remainder), min(max(r[0][1], 0), max_remainder)
        case "and" | "or" | "xor" | "not":
            return range_of(dtype)
    raise CompileError("a circuit", expected="integer arithmetic that has a circuit", got=fn)


def numbers(nest: Nest, number: int, counters: Mapping[tuple[bool, int], NDArray[np.int64]]) -> NDArray[np.int64]:
    """The values of an address, given arrays with the values of its counters."""
    fn, _, *rest = nest.values[number]
    if fn == "counter":
        return counters[bool(rest[0][0]), rest[0][1]]
    if fn == "literal":
        return np.array(rest[0], np.int64)
    a, b = (numbers(nest, i, counters) for i in rest)
    return {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.floor_divide, "rem": np.remainder}[fn](
        a, b
    )


def counters_in(nest: Nest, number: int) -> set[tuple[bool, int]]:
    """The counters that a value depends on."""
    visited: set[int] = set()
    counters: set[tuple[bool, int]] = set()
    todo = [number]
    while todo:
        i = todo.pop()
        if i in visited:
            continue
        visited.add(i)
        fn, _, *rest = nest.values[i]
        if fn == "counter":
            counters.add((bool(rest[0][0]), rest[0][1]))
        elif fn == "load":
            todo.append(rest[1])
        elif fn not in ("literal", "acc"):
            todo += rest
    return counters


def is_lookup(nest: Nest, number: int) -> bool:
    """Whether a load's address depends on data."""
    return bool(loads_in(nest, nest.values[number][3]))


def loads_in(nest: Nest, number: int) -> set[int]:
    """The numbers of the loads that a value depends on; a lookup is replaced by the loads of its address."""
    visited: set[int] = set()
    todo = [number]
    while todo:
        i = todo.pop()
        if i in visited:
            continue
        visited.add(i)
        fn, _, *rest = nest.values[i]
        if fn == "load":
            todo.append(rest[1])
        elif fn not in ("literal", "acc", "counter"):
            todo += rest
    loads = {i for i in visited if nest.values[i][0] == "load"}
    return {i for i in loads if not is_lookup(nest, i)}
