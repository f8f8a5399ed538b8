"""Imports that begin again once they have shown what has to be known of the sizes.

x: [x_0, 4], y: [y_0, 4], add(x, y)   ->   x_0 has to be y_0: begin again with y_0 for it
reshape(x, shape)                     ->   elements of `shape` are sizes: begin again with symbols for them
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from ingot.frontends.shared.sizes import SizeInput, name_of, solved
from ingot.ir.dims import Dim, DimLike, is_found, substitute, symbol, symbols_of
from ingot.ir.node import Input, Node
from ingot.ir.types import TensorType
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError, ShapeError

R = TypeVar("R")


@dataclass(frozen=True)
class Known:
    """fixed: symbols that are other sizes. telling: labels of inputs whose elements are sizes."""

    fixed: Mapping[str, DimLike]
    telling: frozenset[str] = frozenset()

    def input(self, label: str, type: TensorType) -> Node:
        """An input of the graph."""
        type = TensorType(type.dtype, tuple(substitute(d, self.fixed) for d in type.shape))
        elements: tuple[DimLike, ...] = ()
        if label in self.telling and isinstance(type.size, int):
            # a dot in its name: the symbol may be any integer
            names = (f"{name_of(label)}.{i}" for i in range(type.size))
            elements = tuple(substitute(symbol(name), self.fixed) for name in names)
        return Input(label, type, elements)(loc=label)

    def equal(self, e: ShapeError) -> Known | None:
        """With the two sizes equal that differ; None where they never are, are no sizes, or are found by the run, which
        an input cannot wait for."""
        a, b = e.sizes or (0, 0)
        found = solved(a, b) if isinstance(a, int | Dim) and isinstance(b, int | Dim) else None
        if found is None or found[0] in self.fixed:
            return None
        name, value = found
        if any(map(is_found, (name, *symbols_of(value)))):
            return None
        return replace(self, fixed={k: substitute(v, {name: value}) for k, v in self.fixed.items()} | {name: value})


def attempts(attempt: Callable[[Known], R], fixed: Mapping[str, DimLike], where: str = "") -> R:
    """What `attempt` gives once it has been told all that it has to know. Raises ImportModelError for shapes that do
    not fit at any size."""
    known = Known(fixed)
    while True:
        try:
            return attempt(known)
        except SizeInput as e:
            known = replace(known, telling=known.telling | {e.label})
        except ShapeError as e:
            equal = known.equal(e)
            if equal is None:
                raise ImportModelError(str(e), where=where or None) from e
            known = equal
