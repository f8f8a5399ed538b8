"""A model's tensors by what they are for, in whatever naming scheme the file has."""

from __future__ import annotations

import numpy as np

from ingot import ops
from ingot.ir.node import Node
from ingot.language.architecture import Architecture
from ingot.language.names import IGNORED
from ingot.language.weights import Weights
from ingot.support.errors import ImportModelError

SHOWN_NAMES = 4


class Tensors:
    """Tensors by role, then the numbers of layer and expert. It notes which were read."""

    def __init__(self, architecture: Architecture, weights: Weights) -> None:
        self._family = architecture.family
        self._weights = weights
        self._table = _within(dict(architecture.names), weights)
        self._transposed = architecture.transposed
        self._read: set[str] = set()
        # a matrix of levels is another constant each time that it is read: programs would hold it as often
        self._matrices: dict[str, Node] = {}

    def name(self, role: str, *place: int) -> str:
        """The name in the file, "" where the scheme has none."""
        return self._table.get(role, "").format(*place)

    def has(self, role: str, *place: int) -> bool:
        return self.name(role, *place) in self._weights

    def shape(self, role: str, *place: int) -> tuple[int, ...]:
        return self._weights.shape(self._found(role, *place))

    def matrix(self, role: str, *place: int) -> Node:
        """[outputs, inputs], those of experts [experts, outputs, inputs]."""
        name = self._found(role, *place)
        if name not in self._matrices:
            self._matrices[name] = self._weights.matrix(name)
        node = self._matrices[name]
        # what layers multiply with may be stored the other way, embeddings are not
        return ops.swap_axes(node, -2, -1) if self._transposed and place else node

    def vector(self, role: str, *place: int) -> Node:
        return self._weights.vector(self._found(role, *place))

    def array(self, role: str) -> np.ndarray:
        """A tensor that is read while graphs are built."""
        constant = self.vector(role).constant
        if constant is None:
            raise ImportModelError(f"tensor {self.name(role)}", expected="floats", got="quantized levels")
        return constant.value

    def bias(self, role: str, *place: int) -> Node | None:
        """That of a weight, where the file has one."""
        name = self.name(role, *place).removesuffix(".weight") + ".bias"
        if name not in self._weights:
            return None
        self._read.add(name)
        return self._weights.vector(name)

    def rows(self, role: str, ids: Node) -> Node:
        return self._weights.rows(self._found(role), ids)

    def linear(self, x: Node, role: str, *place: int) -> Node:
        """x[..., inputs] -> [..., outputs]."""
        return ops.linear(x, self.matrix(role, *place), self.bias(role, *place), loc=self.name(role, *place))

    def ignore(self, role: str) -> None:
        self._read.add(self.name(role))

    def check_all_read(self) -> None:
        """Raise ImportModelError for tensors that nothing read: the file holds another model than it says."""
        left = [n for n in self._weights.names if n not in self._read and not n.endswith(IGNORED)]
        if left:
            more = f" and {len(left) - SHOWN_NAMES} more" if len(left) > SHOWN_NAMES else ""
            what = f"tensors of another model than family {self._family!r}"
            raise ImportModelError(what, got=", ".join(left[:SHOWN_NAMES]) + more, fix="its variant is not supported")

    def _found(self, role: str, *place: int) -> str:
        name = self.name(role, *place)
        if name not in self._weights:
            where = f"layer {place[0]}" if place else None
            what = f"a model of family {self._family!r} needs its {role.replace('_', ' ')}"
            raise ImportModelError(what, expected=f"tensor {name!r}" if name else None, got="none", where=where)
        self._read.add(name)
        return name


def _within(table: dict[str, str], weights: Weights) -> dict[str, str]:
    """The names as the file has them: those of a model without its head lack the first word, those of an encoder that
    has one begin with "bert"."""
    embedding = table["embedding"]
    first = embedding.partition(".")[0] + "."
    for old, new in (("", ""), (first, ""), ("", "bert.")):
        if new + embedding.removeprefix(old) in weights:
            return {role: new + name.removeprefix(old) for role, name in table.items()}
    return table
