"""Tables of rows: what imports an op, by the op's name.

row = Table(lambda fn: fn)

@row("Add", "AddV2")
def add(c: Call, x: Node, y: Node) -> Node: ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


class Table(Generic[R]):
    """make: a row of a function and of the options beside the names. full: a name as the format has it."""

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


def merged(tables: Iterable[Table[R]]) -> dict[str, R]:
    """All rows of `tables`. Raises ValueError where two of them have the same op."""
    out: dict[str, R] = {}
    for table in tables:
        if twice := out.keys() & table.rows.keys():
            raise ValueError(f"two rows for {', '.join(sorted(twice))}")
        out.update(table.rows)
    return out
