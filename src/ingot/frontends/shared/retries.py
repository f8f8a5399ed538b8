"""Imports that start again with each fact about sizes that the last attempt revealed.

x: [x_0, 4], y: [y_0, 4], add(x, y)   ->   x_0 must equal y_0: start again with y_0 in its place
where(x > 0): [$places0], y: [y_0]    ->   $places0 must equal y_0: start again, with a check at run time
reshape(x, shape)                     ->   elements of `shape` are sizes: start again with symbols for them
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import TypeVar

from ingot.frontends.shared.sizes import SizeInput, name_of, solved
from ingot.ir.dims import Dim, DimLike, is_computed, substitute, symbol
from ingot.ir.node import Input, Node
from ingot.ir.types import TensorType
from ingot.support.dataclass import dataclass
from ingot.support.errors import ImportModelError, ShapeError

R = TypeVar("R")


@dataclass(frozen=True)
class Known:
    """fixed: symbols and the sizes to substitute for them. size_inputs: labels of inputs whose elements are sizes.
    computed_sizes: sizes that the program computes at run time, and the values that they must have."""

    fixed: Mapping[str, DimLike]
    size_inputs: frozenset[str] = frozenset()
    computed_sizes: Mapping[str, DimLike] = field(default_factory=dict[str, DimLike])

    def input(self, label: str, type: TensorType) -> Node:
        """An input of the graph."""
        type = TensorType(type.dtype, tuple(substitute(d, self.fixed) for d in type.shape))
        elements: tuple[DimLike, ...] = ()
        if label in self.size_inputs and isinstance(type.size, int):
            # a dot in the name marks a symbol that may be any integer
            names = (f"{name_of(label)}.{i}" for i in range(type.size))
            elements = tuple(substitute(symbol(name), self.fixed) for name in names)
        return Input(label, type, elements)(loc=label)

    def with_equal(self, e: ShapeError) -> Known | None:
        """These facts, and that the two sizes of `e` are equal; None where only empty inputs have them (40 n and 32 n),
        or none, or they are no sizes. A computed size is checked by the run, as no input's size can depend on it."""
        a, b = e.sizes or (0, 0)
        pair = solved(a, b) if isinstance(a, int | Dim) and isinstance(b, int | Dim) else None
        if pair is None or pair[0] in self.fixed or pair[0] in self.computed_sizes:
            return None
        name, value = pair
        if value == 0 and "." not in name and isinstance(a, Dim) and isinstance(b, Dim):
            return None
        if is_computed(name):
            return replace(self, computed_sizes={**self.computed_sizes, name: value})
        return replace(self, fixed={k: substitute(v, {name: value}) for k, v in self.fixed.items()} | {name: value})


def with_retries(attempt: Callable[[Known], R], fixed: Mapping[str, DimLike], where: str = "") -> R:
    """The result of `attempt`, repeated until it has all the facts that it needs. Raises ImportModelError for shapes
    that never match, whatever the sizes."""
    known = Known(fixed)
    while True:
        try:
            return attempt(known)
        except SizeInput as e:
            if e.label in known.size_inputs:  # its elements were no symbols: another attempt is the same
                raise ImportModelError(f"sizes that input {e.label!r} holds", where=where or None) from e
            known = replace(known, size_inputs=known.size_inputs | {e.label})
        except ShapeError as e:
            equal = known.with_equal(e)
            if equal is None:
                raise ImportModelError(str(e), where=where or None) from e
            known = equal
