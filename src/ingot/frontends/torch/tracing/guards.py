"""Assumptions on sizes that torch made while tracing, and that ranges cannot express.

    x.view(n // 4, 4, -1)   guards: n // (n // 4) == 4, n % (n // 4) == 0   ->   n is 4, 8, 12, ...
    if a + b < 20: ...      guard: a + b < 20                               ->   19 - a - b is not negative
    if a == b: ... else:    guard: a != b                                   ->   max(a - b, b - a) - 1 is not negative

The exported program would be wrong for other sizes. They are refused, by `4*k` in the input's shape and by conditions
of the graph.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv, uninteresting_files

from ingot.frontends.torch.convert import Progression, Sizes
from ingot.ir.dims import Dim, DimLike, Interval, bounds, dim_max, substitute, symbols_of
from ingot.support.errors import ImportModelError

_ORDERS = (sympy.StrictLessThan, sympy.StrictGreaterThan, sympy.LessThan, sympy.GreaterThan)
_MAX_STEP = 4096  # of a progression, and the limit of the sizes that are tried
_TORCH = Path(torch.__file__).parent


def assumed(environment: ShapeEnv) -> Sequence[sympy.Basic]:
    """torch's assumptions on sizes, and its run-time assertions.

    Some count only where the model's code asked (`_is_open`). torch does not record where an assertion comes from: see
    `noted_answers`.
    """
    asserts = [a.expr for asserts_of_symbol in environment.deferred_runtime_asserts.values() for a in asserts_of_symbol]
    return [
        *(g.expr for g in environment.guards if not _is_open(g.expr) or _of_model(g.sloc.framework_loc)),
        *(a for a in asserts if not _is_open(a)),
    ]


def _is_open(guard: sympy.Basic) -> bool:
    """Whether torch's ops may ask this needlessly: whether sizes differ, or whether a size computed from one symbol is
    not 1. The answer affects how they compute a result (whether a reshape is a view), not which result."""
    return isinstance(guard, sympy.Ne) or (
        isinstance(guard, _ORDERS) and len(guard.free_symbols) == 1 and not _is_range(guard)
    )


@contextmanager
def noted_answers() -> Iterator[list[sympy.Basic]]:
    """While torch traces, collects the guards that the model's own code asked for, among those that torch defers to
    run time and that its ops may ask needlessly."""
    answers: list[sympy.Basic] = []
    original, ignored_files = ShapeEnv.guard_or_defer_runtime_assert, {*uninteresting_files(), __file__}

    def noting(environment: ShapeEnv, guard: sympy.Basic, *args: object, **kwargs: object) -> bool:
        if _is_open(guard):
            frame = inspect.currentframe()
            while frame is not None and frame.f_code.co_filename in ignored_files:
                frame = frame.f_back
            if frame is not None and _of_model(inspect.getframeinfo(frame, 0)):
                answers.append(guard)
        return original(environment, guard, *args, **kwargs)

    with patch.object(ShapeEnv, "guard_or_defer_runtime_assert", noting):
        yield answers


@contextmanager
def noted_equalities() -> Iterator[list[sympy.Basic]]:
    """While torch decomposes, which records no guards, collects the equalities of sizes that it assumed."""
    equalities: list[sympy.Basic] = []
    original = ShapeEnv.evaluate_expr

    def noting(environment: ShapeEnv, question: sympy.Basic, *args: Any, **kwargs: Any) -> Any:
        value = original(environment, question, *args, **kwargs)
        symbols = (s for s in question.free_symbols if isinstance(s, sympy.Symbol))
        if kwargs.get("fallback_value") is not None and any(map(environment.is_unbacked_symint, symbols)):
            return value  # for run-time sizes either answer is right (`guard_or_true`)
        if question.free_symbols and isinstance(value, sympy.Integer | int) and not isinstance(value, bool):
            equalities.append(sympy.Eq(question, value))
        elif isinstance(question, sympy.Eq) and value in (True, sympy.true):
            equalities.append(question)
        return value

    with patch.object(ShapeEnv, "evaluate_expr", noting):
        yield equalities


def _of_model(place: object) -> bool:
    """Whether a frame is in a model's code, or in code of torch that is composed of ops as a model is."""
    file = Path(str(getattr(place, "filename", "")))
    return _TORCH not in file.parents or _TORCH / "nn" in file.parents or file == _TORCH / "functional.py"


def progressions(guards: Iterable[sympy.Basic]) -> dict[str, Progression]:
    """torch's symbol -> the progression of sizes that satisfy all equations of that symbol alone, if they form one."""
    sizes = Sizes()
    zeros: dict[str, set[Dim]] = {}
    for guard in set(guards):
        if not isinstance(guard, sympy.Eq) or len(guard.free_symbols) != 1:
            continue
        try:
            difference = sizes.expression(guard.lhs) - sizes.expression(guard.rhs)
        except ImportModelError:  # an operation that Dim lacks: the condition cannot be evaluated
            continue
        if isinstance(difference, Dim):
            (name,) = guard.free_symbols
            zeros.setdefault(str(name), set()).add(difference)
    rules = {name: _progression(name, equations) for name, equations in zeros.items()}
    return {name: p for name, p in rules.items() if p is not None}


def equations(
    guards: Iterable[sympy.Basic], known: Mapping[sympy.Basic, int] | None = None
) -> dict[sympy.Basic, sympy.Basic]:
    """Sizes -> what they equal wherever `guards` hold, to write both in one form. `known`: sizes and their values.

    Eq(8 * s1 // s0, 8)               ->   8 * s1 // s0: 8
    Eq(s0 + Max(0, 128 - s0), 128)    ->   Max(0, 128 - s0): 128 - s0
    Eq(((s0 - 1) // 16 + 1)**2, 196)  ->   (s0 - 1) // 16: 13
    """
    known = known or {}
    solutions: dict[sympy.Basic, sympy.Basic] = {
        size: sympy.Integer(value) for size, value in known.items() if isinstance(size, sympy.Symbol)
    }
    symbols = dict(solutions)
    for guard in [*(sympy.Eq(*pair) for pair in known.items()), *(g.xreplace(symbols) for g in guards)]:
        if not isinstance(guard, sympy.Eq):
            continue
        zero = sympy.expand(guard.lhs - guard.rhs)  # type: ignore[operator]
        pair = _solved(zero)
        if pair is not None:
            solutions.setdefault(*pair)
            continue
        for term in sympy.Add.make_args(zero):
            coefficient, atom = term.as_coeff_Mul()
            solution = -(zero - term) / coefficient
            is_integral = all(c.is_integer for c in solution.as_coefficients_dict().values())
            if (
                isinstance(atom, sympy.Function | sympy.Max | sympy.Min | sympy.Pow)
                and is_integral
                and not solution.has(atom)
            ):
                solutions.setdefault(atom, solution)
                break
    symbols = solved(g.xreplace(solutions) for g in guards)
    return {size: e.xreplace(symbols) for size, e in solutions.items()} | symbols


def solved(guards: Iterable[sympy.Basic]) -> dict[sympy.Basic, sympy.Basic]:
    """Symbols that are integer combinations of others wherever `guards` hold: Eq(s2 + s1, s1 + s0) -> s2: s0"""
    solutions: dict[sympy.Basic, sympy.Basic] = {}
    for guard in guards:
        if not isinstance(guard, sympy.Eq):
            continue
        zero = sympy.expand((guard.lhs - guard.rhs).xreplace(solutions))  # type: ignore[operator]
        terms = zero.as_coefficients_dict()
        if not all(s.is_Symbol or s == 1 for s in terms):
            continue
        last = max((s for s, c in terms.items() if s.is_Symbol and abs(c) == 1), key=str, default=None)
        if last is None or len(zero.free_symbols) < 2:
            continue
        solution = sympy.expand(last - zero / terms[last])
        solutions = {s: sympy.expand(e.xreplace({last: solution})) for s, e in solutions.items()}
        solutions[last] = solution
    return solutions


def conditions(guards: Iterable[sympy.Basic], sizes: Sizes, limits: Mapping[str, Interval]) -> tuple[Dim, ...]:
    """The guards on several symbols of `limits`, equalities and inequalities, and the requirements of `sizes`: all as
    sizes that must not be negative.

    Omitted are conditions that always hold within `limits`, and those that torch expresses by a range.
    """
    constraints = list(sizes.required)
    for guard in guards:
        if not isinstance(guard, (*_ORDERS, sympy.Eq, sympy.Ne)):
            continue
        if isinstance(guard, _ORDERS) and _is_range(guard):
            continue
        try:
            left, right = (sizes.stated.expression(side) for side in (guard.lhs, guard.rhs))
        except ImportModelError:  # an operation that Dim lacks, as above
            continue
        match guard:
            case sympy.Eq():
                slacks = (left - right, right - left)
            case sympy.Ne():
                slacks = (dim_max(left - right, right - left) - 1,)
            case sympy.StrictLessThan():
                slacks = (right - left - 1,)
            case sympy.StrictGreaterThan():
                slacks = (left - right - 1,)
            case _:
                slacks = (right - left if isinstance(guard, sympy.LessThan) else left - right,)
        constraints += [slack for slack in slacks if isinstance(slack, Dim)]
    return tuple(
        slack
        for slack in dict.fromkeys(constraints)
        if symbols_of(slack) <= limits.keys() and not _always_holds(slack, limits)
    )


def _is_range(order: sympy.Rel) -> bool:
    """Whether an inequality only bounds a single symbol."""
    assert isinstance(order.lhs, sympy.Expr) and isinstance(order.rhs, sympy.Expr)
    symbols = order.free_symbols
    form = (order.lhs - order.rhs).as_poly(*symbols) if len(symbols) == 1 else None
    return not symbols or (form is not None and form.total_degree() <= 1)


def _always_holds(size: Dim, limits: Mapping[str, Interval]) -> bool:
    low = bounds(size, limits)[0]
    return low is not None and low >= 0


def _solved(zero: sympy.Expr) -> tuple[sympy.Basic, sympy.Integer] | None:
    """(size, value) where `zero` is a polynomial in that size alone with exactly one root that the size can be."""
    generators = _generators(zero)
    if len(generators) != 1 or not zero.is_polynomial(*generators):
        return None
    (size,) = generators
    if not size.is_integer:
        return None
    roots = [r for r in sympy.Poly(zero, size).ground_roots() if r.is_integer and not (size.is_nonnegative and r < 0)]
    return (size, roots[0]) if len(roots) == 1 else None


def _generators(zero: sympy.Expr) -> set[sympy.Basic]:
    """The symbols and functions of which `zero` is a polynomial."""
    factors = (f for term in sympy.Add.make_args(zero) for f in sympy.Mul.make_args(term))
    return {f.as_base_exp()[0] for f in factors if not f.is_number}


def _progression(name: str, zeros: set[Dim]) -> Progression | None:
    solutions = [v for v in range(1, _MAX_STEP) if _all_zero(zeros, {name: v})][:2]
    if len(solutions) < 2:
        return None
    first, second = solutions
    step = second - first
    candidates = range(1, min(4 * step + 64, _MAX_STEP))
    if step == 1 or any(_all_zero(zeros, {name: v}) != ((v - first) % step == 0 and v >= first) for v in candidates):
        return None
    return Progression(step, first - step)


def _all_zero(zeros: set[Dim], values: dict[str, DimLike]) -> bool:
    try:
        return all(substitute(d, values) == 0 for d in zeros)
    except ZeroDivisionError:
        return False
