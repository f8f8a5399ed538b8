"""A table of handlers: one row per aten op, one table per family of ops.

    aten = Table()

    @aten("relu.default")
    def relu(c: Context, x: Node) -> Node: ...

A handler takes the call's arguments in the order and with the names and defaults of the op's schema. Sizes arrive as
int or Dim, tensors as Node, lists as tuples. It returns a Node, or a tuple in the order of the op's results.

    @aten("gru.input", "rnn_relu.input", by_name=True)
    def gru(c: Context, x: Node, hx: Node, *, num_layers: int, **rest: object) -> tuple[Node, ...]: ...

takes all arguments after `hx` by their names in each op's schema, so that ops of the same meaning whose arguments are
in another order share a handler.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch

from ingot.frontends.shared import rows

Handler = Callable[..., object]


class Table(rows.Table[Handler]):
    """Op name (`aten.relu.default`) -> handler."""

    def __init__(self) -> None:
        super().__init__(lambda handler: handler, _full)

    def __call__(self, *names: str, by_name: bool = False, **options: Any) -> Callable[[rows.F], rows.F]:
        def add(handler: rows.F) -> rows.F:
            for name in names:
                self.add(name, _by_name(handler, _full(name)) if by_name else handler)
            return handler

        return add


def _full(name: str) -> str:
    # an op of another library has its namespace as prefix
    return name if name.count(".") > 1 or name.startswith("prims.") else f"aten.{name}"


def _by_name(handler: Handler, op: str) -> Handler:
    """A handler that passes by name the arguments that `handler` does not take by position."""
    kinds = [p.kind for p in inspect.signature(handler).parameters.values()]
    count = kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD) - 1

    @wraps(handler)
    def call(c: object, *args: object, **named: object) -> object:
        named_arguments = dict(zip(_argument_names(op)[count:], args[count:], strict=False))
        return handler(c, *args[:count], **named_arguments, **named)

    return call


@cache
def _argument_names(op: str) -> tuple[str, ...]:
    """The names of the arguments in the op's schema, in order."""
    return tuple(a.name for a in schema_of(op).arguments)


def schema_of(op: str) -> Any:
    """The schema of "library.op.overload"."""
    library, name, overload = op.split(".")
    return getattr(getattr(getattr(torch.ops, library), name), overload)._schema
