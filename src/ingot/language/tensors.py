"""A model's tensors by their roles, independently of the file's naming scheme."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from ingot import ops
from ingot.ir.node import Node, Op, deferred_const
from ingot.ir.types import TensorType
from ingot.language.architecture import Architecture
from ingot.language.names import IGNORED
from ingot.language.weights import Weights
from ingot.support.errors import ImportModelError

SHOWN_NAMES = 4


class Tensors:
    """Tensors by role and the numbers of layer and expert. It records which were read."""

    def __init__(self, architecture: Architecture, weights: Weights, *, joins_floats: bool = False) -> None:
        """joins_floats: whether `linears` concatenates matrices of floats, too."""
        self._joined = (*ops.LEVEL_FORMS, ops.Convert) if joins_floats else ops.LEVEL_FORMS
        self._family = architecture.family
        self._weights = weights
        self._table = _names_in_file(dict(architecture.names), weights)
        self._transposed = architecture.transposed
        self._read_names: set[str] = set()
        # a quantized matrix is a new constant each time it is read: without this cache programs would hold copies
        self._matrices: dict[str, Node] = {}
        self._stacks: dict[str, Node] = {}

    def name(self, role: str, *place: int) -> str:
        """The name in the file; "" if the scheme has none."""
        return self._table.get(role, "").format(*place)

    def has(self, role: str, *place: int) -> bool:
        return self.name(role, *place) in self._weights

    def shape(self, role: str, *place: int) -> tuple[int, ...]:
        return self._weights.shape(self._existing_name(role, *place))

    def matrix(self, role: str, *place: int) -> Node:
        """[outputs, inputs], or [experts, outputs, inputs]."""
        name = self._existing_name(role, *place)
        if name not in self._matrices:
            self._matrices[name] = self._weights.matrix(name)
        node = self._matrices[name]
        # matrices of layers may be stored transposed, embeddings are not
        return ops.swap_axes(node, -2, -1) if self._transposed and place else node

    def experts(self, role: str, layer: int, count: int) -> Node:
        """[experts, outputs, inputs], from matrices that are stored separately."""
        matrices = [self.matrix(role, layer, expert) for expert in range(count)]
        name = self.name(role, layer, 0)
        if name not in self._stacks:
            self._stacks[name] = stacked(matrices)
        return self._stacks[name]

    def vector(self, role: str, *place: int) -> Node:
        return self._weights.vector(self._existing_name(role, *place))

    def array(self, role: str) -> np.ndarray:
        """The elements of a tensor, for use while graphs are built."""
        constant = self.vector(role).constant
        if constant is None:
            raise ImportModelError(f"tensor {self.name(role)}", expected="floats", got="quantized levels")
        return constant.value

    def bias(self, role: str, *place: int) -> Node | None:
        """The bias of a weight; None if the file has none."""
        name = self.name(role, *place).removesuffix(".weight") + ".bias"
        if name not in self._weights:
            return None
        self._read_names.add(name)
        return self._weights.vector(name)

    def rows(self, role: str, ids: Node) -> Node:
        return self._weights.rows(self._existing_name(role), ids)

    def linear(self, x: Node, role: str, *place: int) -> Node:
        """x[..., inputs] -> [..., outputs]."""
        return ops.linear(x, self.matrix(role, *place), self.bias(role, *place), loc=self.name(role, *place))

    def linears(self, x: Node, roles: Sequence[str], *place: int) -> list[Node]:
        """`linear` of each role. Quantized matrices of one form are concatenated to one product: x is read once, and
        narrow matrices do not leave a part of a kernel idle."""
        matrices = [self.matrix(role, *place) for role in roles]
        groups: list[list[int]] = []
        for i, matrix in enumerate(matrices):
            matching = next((g for g in groups if _has_one_form([matrices[g[0]], matrix], self._joined)), None)
            groups.append([i]) if matching is None else matching.append(i)
        results = dict[int, Node]()
        for group in groups:
            group_roles = [roles[i] for i in group]
            if len(group) == 1:
                results[group[0]] = self.linear(x, group_roles[0], *place)
                continue
            names = " + ".join(self.name(role, *place) for role in group_roles)
            if names not in self._stacks:
                self._stacks[names] = concatenated([matrices[i] for i in group])
            widths = [matrices[i].shape[0] for i in group]
            biases = [self.bias(role, *place) for role in group_roles]
            bias = None
            if any(b is not None for b in biases):
                filled = [ops.full((n,), 0.0) if b is None else b for b, n in zip(biases, widths, strict=True)]
                bias = ops.concat(filled)
            product = ops.linear(x, self._stacks[names], bias, loc=names)
            results |= dict(zip(group, ops.split(product, widths, -1), strict=True))
        return [results[i] for i in range(len(roles))]

    def ignore(self, role: str) -> None:
        self._read_names.add(self.name(role))

    def check_all_read(self) -> None:
        """Raise ImportModelError for tensors that were not read: the file has another model than it declares."""
        unread = [n for n in self._weights.names if n not in self._read_names and not n.endswith(IGNORED)]
        if unread:
            suffix = f" and {len(unread) - SHOWN_NAMES} more" if len(unread) > SHOWN_NAMES else ""
            what = f"tensors of another model than family {self._family!r}"
            raise ImportModelError(
                what, got=", ".join(unread[:SHOWN_NAMES]) + suffix, fix="its variant is not supported"
            )

    def _existing_name(self, role: str, *place: int) -> str:
        name = self.name(role, *place)
        if name not in self._weights:
            where = f"layer {place[0]}" if place else None
            what = f"a model of family {self._family!r} needs its {role.replace('_', ' ')}"
            raise ImportModelError(what, expected=f"tensor {name!r}" if name else None, got="none", where=where)
        self._read_names.add(name)
        return name


def stacked(matrices: Sequence[Node]) -> Node:
    """[count, rows, columns] of matrices. Quantized matrices of one form stay quantized, and are read when packed."""
    if not _has_one_form(matrices):
        return ops.stack(matrices)

    def join(parts: Sequence[Node]) -> Node:
        like = TensorType(parts[0].dtype, (len(parts), *parts[0].shape))
        return deferred_const(like, lambda: np.stack([_value(p) for p in parts]), parts[0].loc)

    return ops.reshape(_with_operands(matrices, join), (len(matrices), *matrices[0].shape))


def concatenated(matrices: Sequence[Node]) -> Node:
    """[rows, columns]: quantized matrices of one form, concatenated. They stay quantized, and are read when packed."""

    def join(parts: Sequence[Node]) -> Node:
        arrays = [p.constant for p in parts if p.constant is not None]
        ends = list(accumulate(array.shape[0] for array in arrays))
        like = TensorType(parts[0].dtype, (ends[-1], *parts[0].shape[1:]))

        def rows(start: int, stop: int) -> np.ndarray:
            blocks: list[np.ndarray] = []
            for array, end in zip(arrays, ends, strict=True):
                first = end - array.shape[0]
                if max(start, first) < min(stop, end):
                    blocks.append(array.rows(max(start, first) - first, min(stop, end) - first))
            return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)

        def all_rows() -> np.ndarray:
            return np.concatenate([array.value for array in arrays])

        return deferred_const(like, all_rows, parts[0].loc, rows if all(a.makes_rows for a in arrays) else None)

    rows = sum(int(m.shape[0]) for m in matrices)
    return ops.reshape(_with_operands(matrices, join), (rows, *matrices[0].shape[1:]))


def _forms(matrices: Sequence[Node]) -> list[Node]:
    return [m.inputs[0] if isinstance(m.op, ops.Reshape) else m for m in matrices]


def _has_one_form(matrices: Sequence[Node], kinds: tuple[type[Op], ...] = ops.LEVEL_FORMS) -> bool:
    """Whether all are constant and of one form of `kinds`, and differ only in their numbers and rows."""
    first, *others = forms = _forms(matrices)
    if not isinstance(first.op, kinds) or any(p.constant is None for f in forms for p in f.inputs):
        return False

    def like(form: Node) -> list[object]:
        # a scalar is the same for all rows
        return [(p.dtype, p.shape[1:], p if p.type.rank == 0 else None) for p in form.inputs]

    is_by_row = all(p.type.rank == 0 or p.shape[0] == f.inputs[0].shape[0] for f in forms for p in f.inputs)
    return is_by_row and all(f.op == first.op and like(f) == like(first) for f in others)


def _with_operands(matrices: Sequence[Node], join: Callable[[Sequence[Node]], Node]) -> Node:
    """The common form of the matrices, with joined operands."""
    forms = _forms(matrices)
    operands = zip(*(f.inputs for f in forms), strict=True)
    return forms[0].op(*(p[0] if p[0].type.rank == 0 else join(p) for p in operands), loc=forms[0].loc)


def _value(constant: Node) -> np.ndarray:
    assert constant.constant is not None
    return constant.constant.value


def _names_in_file(table: dict[str, str], weights: Weights) -> dict[str, str]:
    """The names in the file: models without a head lack the first word; encoders with a head add "bert"."""
    embedding = table["embedding"]
    first = embedding.partition(".")[0] + "."
    for old, new in (("", ""), (first, ""), ("", "bert.")):
        if new + embedding.removeprefix(old) in weights:
            return {role: new + name.removeprefix(old) for role, name in table.items()}
    return table
