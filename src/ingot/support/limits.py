"""Budgets of a compilation: limits on what a small file may expand to.

    with limited(Limits(nodes=2_000_000)):
        ...                                      # spend_node() and in_time() raise LimitError beyond them

Explicit content of a file does not count: a model of a million nodes may have a million nodes. What counts is expansion
from few bytes: bodies that are inlined repeatedly, tensors that double, symbolic sizes that explode; and time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, replace
from typing import ParamSpec, TypeVar

from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError, LimitError, check_once

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Limits:
    """Limits of a compilation.

    nodes: the nodes that functions, branches and unrolled loops expand to.
    elements: the elements of a tensor.
    terms: the symbols and operators of a symbolic size.
    iterations: of a loop that stacks results and whose trip count is known only at run time.
    sizes: the size of an axis that is known only at run time and otherwise unbounded (a `bincount`).
    seconds: the time of the full compilation.
    """

    nodes: int = 100_000
    elements: int = 1 << 36
    terms: int = 1 << 10
    iterations: int = 1 << 10
    sizes: int = 1 << 16
    seconds: float = 600.0

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
                raise InputError(f"limits: {f.name}", expected="a positive number", got=repr(value))


def parse_limits(texts: Sequence[str]) -> Limits | None:
    """["seconds=3600", "nodes=2000000"] -> Limits; None for none. Raises InputError."""
    names = [f.name for f in fields(Limits)]
    numbers: dict[str, int] = {}
    check_once("--limit", [text.partition("=")[0] for text in texts])
    for text in texts:
        name, _, value = text.partition("=")
        if name not in names or not value.isdecimal():
            raise InputError("--limit", expected=f"NAME=NUMBER with a name of {names}", got=repr(text))
        numbers[name] = int(value)
    return Limits(**numbers) if numbers else None


@dataclass
class _Budget:
    limits: Limits
    end: float
    nodes: int = 0


_DEFAULT = Limits()
_budget: ContextVar[_Budget | None] = ContextVar("limits of this compile", default=None)


@contextmanager
def limited(limits: Limits | None = None) -> Iterator[None]:
    """Apply these limits inside the block; the time starts here. None: the limits already in effect, or the
    defaults."""
    if limits is None and _budget.get() is not None:
        yield
        return
    limits = limits or _DEFAULT
    token = _budget.set(_Budget(limits, time.monotonic() + limits.seconds))
    try:
        yield
    finally:
        _budget.reset(token)


def cache_key_text() -> str:
    """The limits in effect, except the time: a text for cache keys, as they affect the program."""
    budget = _budget.get()
    return repr(replace(_DEFAULT if budget is None else budget.limits, seconds=_DEFAULT.seconds))


def with_current_limits(build: Callable[P, R]) -> Callable[P, R]:
    """`build` with the limits in effect now, for later calls. The time starts at each call."""
    budget = _budget.get()
    limits = _DEFAULT if budget is None else budget.limits

    def within(*args: P.args, **kwargs: P.kwargs) -> R:
        with limited(limits):
            return build(*args, **kwargs)

    return within


def max_run_time_iterations() -> int:
    budget = _budget.get()
    return (_DEFAULT if budget is None else budget.limits).iterations


def max_run_time_size() -> int:
    budget = _budget.get()
    return (_DEFAULT if budget is None else budget.limits).sizes


def max_terms() -> int:
    budget = _budget.get()
    return (_DEFAULT if budget is None else budget.limits).terms


def check_elements(count: object, where: str) -> None:
    """Raise LimitError for a tensor with more elements than allowed."""
    budget = _budget.get()
    max_elements = (_DEFAULT if budget is None else budget.limits).elements
    if isinstance(count, int) and count > max_elements:
        raise LimitError("elements", max_elements, "a tensor is too large", got=f"{count} elements", where=where)


def spend_node(where: str) -> None:
    """Count a node that results from expansion. Raise LimitError if there are too many."""
    budget = _budget.get()
    if budget is None:
        return
    budget.nodes += 1
    if budget.nodes > budget.limits.nodes:
        what = "functions, branches and loops expand to too many nodes"
        raise LimitError("nodes", budget.limits.nodes, what, where=where)


def seconds_left() -> float:
    """The time until the limit."""
    budget = _budget.get()
    return _DEFAULT.seconds if budget is None else max(0.0, budget.end - time.monotonic())


def check_time(where: str) -> None:
    """Raise LimitError if the time is up."""
    budget = _budget.get()
    if budget is not None and time.monotonic() > budget.end:
        raise LimitError("seconds", budget.limits.seconds, "compiling takes too long", where=where)
