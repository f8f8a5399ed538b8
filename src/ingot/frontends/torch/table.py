"""A table of handlers: one row per aten op, one table per family of ops.

    aten = Table()

    @aten("relu.default")
    def relu(c: Context, x: Node) -> Node: ...

A handler takes the call's arguments in the order and with the names and defaults of the op's schema. Sizes arrive as
int or Dim, tensors as Node, lists as tuples. It returns a Node, or a tuple in the order of the op's results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Handler = Callable[..., object]
H = TypeVar("H", bound=Handler)


class Table:
    """Op name (`aten.relu.default`) -> handler."""

    def __init__(self) -> None:
        self.rows: dict[str, Handler] = {}

    def __call__(self, *names: str) -> Callable[[H], H]:
        def add(handler: H) -> H:
            for name in names:
                self.add(name, handler)
            return handler

        return add

    def add(self, name: str, handler: Handler) -> None:
        # an op of another library has its namespace in front
        full = name if name.count(".") > 1 or name.startswith("prims.") else f"aten.{name}"
        if full in self.rows:
            raise ValueError(f"two handlers for {full}")
        self.rows[full] = handler


def merged(tables: Iterable[Table]) -> dict[str, Handler]:
    """All rows of `tables`. Raises ValueError where two of them have the same op."""
    out: dict[str, Handler] = {}
    for table in tables:
        twice = out.keys() & table.rows.keys()
        if twice:
            raise ValueError(f"two handlers for {', '.join(sorted(twice))}")
        out.update(table.rows)
    return out
