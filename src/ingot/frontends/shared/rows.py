"""Tables of rows: functions that import ops, by op name.

row = Table(lambda fn: fn)

@row("Add", "AddV2")
def add(c: Call, x: Node, y: Node) -> Node: ...
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Generic, TypeVar

from ingot.frontends.shared.refusal import Unsupported

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


class Table(Generic[R]):
    """make: builds a row from a function and the decorator's options. full: the format's full name of a short one."""

    def __init__(self, make: Callable[..., R], full: Callable[[str], str] = str) -> None:
        self.rows: dict[str, R] = {}
        self._make, self._full = make, full

    def __call__(self, *names: str, **options: Any) -> Callable[[F], F]:
        def add(fn: F) -> F:
            row = self._make(fn, **options)
            for name in names:
                self.add(name, row)
            return fn

        return add

    def add(self, name: str, row: R) -> None:
        """Raises ValueError where `name` has a row."""
        full = self._full(name)
        if full in self.rows:
            raise ValueError(f"two rows for {full}")
        self.rows[full] = row


@cache
def _operand_counts(fn: Callable[..., object]) -> tuple[int, float]:
    """The smallest and the largest number of operands that a row takes after its Call."""
    parameters = list(inspect.signature(fn).parameters.values())[1:]
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    is_variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return sum(p.default is p.empty for p in positional), math.inf if is_variadic else len(positional)


def check_operands(fn: Callable[..., object], count: int) -> None:
    """Raise Unsupported where the row `fn` does not take `count` operands."""
    min_count, max_count = _operand_counts(fn)
    if not min_count <= count <= max_count:
        at_least = f"{min_count} or more" if max_count == math.inf else f"{min_count} to {max_count}"
        expected = min_count if min_count == max_count else at_least
        raise Unsupported(f"{count} operands, expected {expected}")


def merged(tables: Iterable[Table[R]]) -> dict[str, R]:
    """All rows of `tables`. Raises ValueError where two of them have a row for the same op."""
    rows: dict[str, R] = {}
    for table in tables:
        if twice := rows.keys() & table.rows.keys():
            raise ValueError(f"two rows for {', '.join(sorted(twice))}")
        rows.update(table.rows)
    return rows
