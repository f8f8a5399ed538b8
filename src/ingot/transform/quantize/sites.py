"""Find the products to quantize: products of a computed value with constant weights, grouped by the value.

    q = x @ Wq; k = x @ Wk; y = g @ V     ->     Group(x: Wq, Wk), Group(g: V)

All products of a group read the same levels of the value, and so have the same format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from ingot import ops
from ingot.ir.node import Graph, Node
from ingot.ir.rewrite import fueled
from ingot.ir.types import DType, WeightAxes, f32
from ingot.passes.constants import is_constant, value_of
from ingot.passes.core.fold_constants import fold_constants
from ingot.passes.model.fold_batch_norm import fold_batch_norm
from ingot.passes.model.linear_order import order_linear
from ingot.support.dataclass import dataclass
from ingot.support.files import release


@dataclass(frozen=True)
class Site:
    """A product. name: unique in the graph."""

    operand: ClassVar[int] = 1  # of the node: the weights
    name: str
    node: Node
    axes: WeightAxes

    @property
    def channels(self) -> int:
        """The number of output channels."""
        return int(self.node.inputs[1].shape[self.axes.out])  # type: ignore[arg-type]

    @property
    def depth(self) -> int:
        """The number of channels of the value that are summed."""
        return int(self.node.inputs[0].shape[self.axes.contracted[0]])  # type: ignore[arg-type]

    @property
    def weights_node(self) -> Node:
        return self.node.inputs[self.operand]

    @property
    def weights(self) -> int:
        """The number of weights."""
        return int(self.weights_node.type.size)  # type: ignore[arg-type]

    def weight(self) -> np.ndarray:
        return value_of(self.weights_node)

    def by_channel(self, w: np.ndarray) -> np.ndarray:
        """w as [output channels, the rest]."""
        return np.moveaxis(w, self.axes.out, 0).reshape(self.channels, -1)

    def per_channel(self, values: np.ndarray) -> np.ndarray:
        """A value for each output channel, shaped to broadcast against the weights."""
        return values.reshape([-1 if d == self.axes.out else 1 for d in range(self.node.inputs[1].type.rank)])

    def per_depth(self, values: np.ndarray) -> np.ndarray:
        """A value for each channel of x, shaped to broadcast against the weights."""
        _, at = self.axes.contracted
        rank = self.node.inputs[1].type.rank
        if self.axes.groups == 1:
            return values.reshape([-1 if d == at else 1 for d in range(rank)])
        # each group of outputs reads a separate part of x's channels
        rows = np.repeat(values.reshape(self.axes.groups, -1), self.channels // self.axes.groups, axis=0)
        shape = [{self.axes.out: rows.shape[0], at: rows.shape[1]}.get(d, 1) for d in range(rank)]
        return (rows if self.axes.out < at else rows.T).reshape(shape)


@dataclass(frozen=True)
class StateSite(Site):
    """The product of a recurrent layer's state with its weights r [directions, gates * hidden, hidden] at each step."""

    operand: ClassVar[int] = 2

    @property
    def channels(self) -> int:
        return self.weights // self.depth

    @property
    def depth(self) -> int:
        return int(self.node.inputs[self.operand].shape[2])  # type: ignore[arg-type]

    def by_channel(self, w: np.ndarray) -> np.ndarray:
        return w.reshape(self.channels, self.depth)

    def per_channel(self, values: np.ndarray) -> np.ndarray:
        return values.reshape(*self.node.inputs[self.operand].shape[:2], 1)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Group:
    """Products that read `value` and sum over its axis `axis`. name: that of the first product. is_shared: whether
    other ops read the value, too, and could read its levels. tied: whether products of other groups use the same
    weights, as the steps of an unrolled recurrence do."""

    value: Node
    axis: int
    sites: tuple[Site, ...]
    is_shared: bool = False
    tied: bool = False

    @property
    def name(self) -> str:
        return self.sites[0].name

    @property
    def is_matrices(self) -> bool:
        """Whether all weights are matrices: only these can be stored as blocks of few bits."""
        return all(s.axes.plain for s in self.sites)

    @property
    def is_recurrent(self) -> bool:
        """Whether the state of a recurrent layer is rounded instead of the value."""
        return any(isinstance(s, StateSite) for s in self.sites)

    @property
    def channels(self) -> int:
        return self.sites[0].depth

    @property
    def weights(self) -> int:
        return sum(s.weights for s in self.sites)

    def release(self) -> None:
        """Release the memory of float weights that can be read from the model's file again."""
        for site in self.sites:
            release(site.weight())


def prepare(graph: Graph) -> Graph:
    """Fold norms into weights, so that the quantized weights are those that run."""
    with fueled():
        return order_linear(fold_batch_norm(fold_constants(graph)))


def find_groups(graph: Graph) -> tuple[Group, ...]:
    """The groups of a prepared graph, in its order, without the products inside of loops and branches."""
    sites_by_value: dict[tuple[Node, int, type[Site]], list[Site]] = {}
    counts: dict[str, int] = {}
    for n in graph.nodes():
        kind, axes = (StateSite, _STATE) if _has_known_state_weights(n) else (Site, _weight_axes(n))
        if axes is None:
            continue
        base = n.loc or n.op.name
        counts[base] = counts.get(base, 0) + 1
        name = base if counts[base] == 1 else f"{base}#{counts[base]}"
        sites_by_value.setdefault((n.inputs[0], axes.contracted[0], kind), []).append(kind(name, n, axes))
    uses, outputs = graph.uses(), set(graph.outputs)
    groups_of = Counter(value for value, _, _ in sites_by_value)

    def shared(value: Node, sites: Sequence[Site]) -> bool:
        own_nodes = {site.node for site in sites}
        has_others = any(n not in own_nodes for n in uses[value])
        can_share = has_others and not any(isinstance(site, StateSite) for site in sites)
        return can_share and groups_of[value] == 1 and value not in outputs and bool(value.inputs)

    readers = Counter(w for sites in sites_by_value.values() for w in {site.weights_node for site in sites})
    return tuple(
        Group(value, axis, tuple(sites), shared(value, sites), any(readers[s.weights_node] > 1 for s in sites))
        for (value, axis, _), sites in sites_by_value.items()
    )


_STATE = WeightAxes(1, 3, (2, 2))


def _has_known_state_weights(n: Node) -> bool:
    """Whether `n` is a recurrent layer of f32 whose state can be rounded, with constant, finite weights for it."""
    op = n.op
    if not isinstance(op, ops.Recurrent) or op.levels or not op.rounds_state():
        return False
    r = n.inputs[StateSite.operand]
    is_known = r.dtype == n.inputs[0].dtype == f32 and is_constant(r) and r.type.size != 0
    return is_known and bool(np.isfinite(value_of(r)).all())


def _weight_axes(n: Node) -> WeightAxes | None:
    """The axes of an f32 product with constant, finite weights of static size; None for any other node."""
    if len(n.inputs) != 2 or len(n.types) != 1:
        return None
    x, w = n.inputs
    if not x.dtype == w.dtype == n.dtype == f32 or is_constant(x) or not is_constant(w):
        return None
    if not w.type.is_static or w.type.size == 0:
        return None
    axes = n.op.weight_axes(x.type, w.type)
    if axes is None or not isinstance(x.shape[axes.contracted[0]], int):
        return None
    return axes if bool(np.isfinite(value_of(w)).all()) else None


def product_types(graph: Graph) -> set[DType]:
    """The dtypes of the operands of a graph's products with weights."""
    pairs = [n for n in graph.nodes() if len(n.inputs) == 2 and len(n.types) == 1]
    return {
        i.dtype for n in pairs for i in n.inputs if n.op.weight_axes(n.inputs[0].type, n.inputs[1].type) is not None
    }


def with_results(graph: Graph, results: Iterable[Node], names: tuple[str, ...] = ()) -> Graph:
    """`graph` with other results; its outputs for sizes stay."""
    outputs = (*results, *graph.outputs[len(graph.results) :])
    return replace(graph, outputs=outputs, output_names=names)
