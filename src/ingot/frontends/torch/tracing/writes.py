"""The writes at the end of a functional graph: done by one call for all tensors of a type, or in place by the model.

    set_(p, x); copy_(q, z); return (y,)   ->   return (y, x, z)

A training step writes three tensors for each batch norm, an optimizer all parameters and moments, a decoding step rows
of its caches.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from itertools import compress
from typing import Any

import torch
from torch import fx

from ingot.frontends.torch.tracing.layouts import Results
from ingot.frontends.torch.tracing.partition.saved import is_view

_aten = torch.ops.aten


class InPlaceWrites:
    """The writes of a graph, whose values become its last results."""

    def __init__(self, graph: fx.Graph) -> None:
        (end,) = graph.find_nodes(op="output")
        place = {n: i for i, n in enumerate(graph.find_nodes(op="placeholder"))}
        ops = (_aten.set_.source_Tensor, _aten.copy_.default)
        write_nodes = [n for n in graph.nodes if n.target in ops and n.args[0] in place]
        by_kind: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
        for i, node in enumerate(write_nodes):
            value = node.args[0].meta.get("val")
            kind = (value.dtype, value.device, value.dim()) if isinstance(value, torch.Tensor) else ()
            by_kind.setdefault((node.target, *kind), []).append((place[node.args[0]], i))
            node.replace_all_uses_with(node.args[1])
        results = [*end.args[0], *(n.args[1] for n in write_nodes)]
        self.count = len(write_nodes)
        # (write, (position of the input, number of the value) of each)
        self._groups: list[tuple[Callable[..., None], list[tuple[int, int]]]] = [
            (_set if kind[0] is ops[0] else copy, places) for kind, places in by_kind.items()
        ]
        uses = Counter(_root(r) for r in results if isinstance(r, fx.Node))
        exclusive = {i for i, n in enumerate(write_nodes) if n.target is ops[1] and uses[n.args[1]] == 1}
        # (position of the input, input, value) of values that are used nowhere else, not even as a view
        self._exclusive_writes = [
            (place[n.args[0]], n.args[0], n.args[1]) for i, n in enumerate(write_nodes) if i in exclusive
        ]
        if write_nodes:
            end.args = (tuple(results),)
        for node in write_nodes:
            graph.erase_node(node)

    def in_place(self, results: Results, excluded: Collection[int]) -> dict[int, int]:
        """{position of an input: index among the computed results of its new value}, for values that may be computed
        in place. excluded: positions of inputs that are constants, or have another axis order."""
        indices: dict[int, int] = {}
        for i, target, value in self._exclusive_writes:
            old, new = target.meta.get("val"), value.meta.get("val")
            if i in excluded or i in indices or value not in results.computed or not _is_plain(old, new):
                continue
            number = results.computed.index(value)
            if results.orders[number] is None:
                indices[i] = number
        return indices

    def copied(self, results: Results) -> frozenset[int]:
        """The indices among the computed results of values that `write` copies, and nobody else reads."""
        number_of = {value: i for i, value in enumerate(results.computed)}
        return frozenset(number_of[value] for _, _, value in self._exclusive_writes if value in number_of)

    def write(self, args: Sequence[Any], values: Sequence[torch.Tensor]) -> None:
        """Write the inputs' new values, except those computed in place."""
        for write, places in self._groups:
            targets, news = [args[place] for place, _ in places], [values[i] for _, i in places]
            if any(map(operator.is_, targets, news)):
                copied = [*map(operator.is_not, targets, news)]
                targets, news = [*compress(targets, copied)], [*compress(news, copied)]
            if targets:
                write(targets, news)


def _is_plain(old_value: object, new_value: object) -> bool:
    """Whether both are contiguous, of one type and static sizes."""
    if not isinstance(old_value, torch.Tensor) or not isinstance(new_value, torch.Tensor):
        return False
    sizes = (*old_value.shape, *old_value.stride())
    is_static = (
        all(isinstance(n, int) for n in sizes)
        and old_value.dtype == new_value.dtype
        and old_value.shape == new_value.shape
    )
    return is_static and old_value.is_contiguous() and old_value.numel() > 0 and not old_value.is_complex()


def _root(node: fx.Node) -> fx.Node:
    """The base of a chain of views."""
    while node.op == "call_function" and is_view(node):
        base = node.args[0]
        assert isinstance(base, fx.Node)
        node = base
    return node


def _set(targets: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    for target, value in zip(targets, values, strict=True):
        _aten.set_.source_Tensor(target, value)


def copy(targets: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    """Copy values into tensors, pairwise of one type."""
    if len(targets) == 1:
        targets[0].copy_(values[0])
    else:
        _aten._foreach_copy_.default(targets, values)


__all__ = ["InPlaceWrites", "copy"]
