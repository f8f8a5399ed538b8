"""A table of handlers: one row per aten op, one table per family of ops.

    aten = Table()

    @aten("relu.default")
    def relu(c: Context, x: Node) -> Node: ...

A handler takes the call's arguments in the order and with the names and defaults of the op's schema. Sizes arrive as
int or Dim, tensors as Node, lists as tuples. It returns a Node, or a tuple in the order of the op's results.
"""

from __future__ import annotations

from collections.abc import Callable

from ingot.frontends.shared import rows

Handler = Callable[..., object]


class Table(rows.Table[Handler]):
    """Op name (`aten.relu.default`) -> handler."""

    def __init__(self) -> None:
        super().__init__(lambda handler: handler, _full)


def _full(name: str) -> str:
    # an op of another library has its namespace in front
    return name if name.count(".") > 1 or name.startswith("prims.") else f"aten.{name}"
