"""The number formats of a product, and the rewrite of a graph that applies them.

y = dot(x, w)   ->   int8           dot(dequantize(quantize(x)), dequantize(levels of w)): in integers, fused
                     int8-shared    the same, and all other readers of x (an addition, a pool) read these levels
                     int16          as int8, plus the same weights times levels of the residual of
                                    x1 = dequantize(...): dot(x1, w) + dot(dequantize(quantize(x - x1)), w)
                     int8-dynamic   as int8, with x's scale computed in each call; in a recurrent layer, the state's
                                    scale at each step
                     weight8, 4     dot(x, dequantize(blocks of levels of w))
                     bfloat16       dot(convert(x), convert(w)): f32;   float16: w alone
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from ingot import ops
from ingot.ir.node import Graph, Input, Node, const, rebuild
from ingot.ir.types import DType, WeightAxes, bf16, f16, f32, u8
from ingot.passes.core.dtypes.precision import excess
from ingot.pipeline.target import features_of
from ingot.support.dataclass import dataclass
from ingot.support.files import release
from ingot.transform.quantize.ranges import Levels, ValueStats
from ingot.transform.quantize.sites import Group, Site, StateSite
from ingot.transform.quantize.weights import Channels, Quantized, feedback_factor, quantize_blocks, quantize_channels

FLOAT, STATIC, SHARED_STATIC, DYNAMIC, PAIRED = "float32", "int8", "int8-shared", "int8-dynamic", "int16"
LEVELS = (STATIC, SHARED_STATIC, DYNAMIC, PAIRED)  # formats whose values are levels of 8 bits, or of two times 8
BITS = {"weight8": 8, "weight4": 4}
STORED_FLOATS: dict[str, DType] = {"bfloat16": bf16, "float16": f16}
FORMATS = (FLOAT, "bfloat16", "float16", *LEVELS, *BITS)
Formats = Mapping[str, str]  # a group's name -> its format


@dataclass(frozen=True)
class Rounding:
    """The rounding of a group's value in a format of levels.

    method: the method that chooses the range. smoothing: the exponent of a channel's magnitude that moves from the
    value to the weights. factors: the resulting factor of each channel, by which its weights are divided. error: the
    relative squared error of the products on some samples.
    """

    method: str = "minmax"
    smoothing: float = 0.0
    levels: Levels | None = None
    factors: np.ndarray | None = None
    error: float = 0.0


@dataclass(frozen=True)
class Recipe:
    """The rounding of all values and weights.

    stats: the statistics of each group's value. roundings: by group and format. moments: the second moments of values,
    by group, for error feedback. corrected: whether to add back the mean error of rounded weights.
    """

    stats: Mapping[str, ValueStats]
    roundings: Mapping[tuple[str, str], Rounding] = field(default_factory=dict)
    moments: Mapping[str, np.ndarray] = field(default_factory=dict)
    corrected: bool = True
    _weights_cache: dict[tuple[Node, WeightAxes, str, bytes], Quantized] = field(
        default_factory=dict, compare=False, repr=False
    )
    _nodes: dict[int, Node] = field(default_factory=dict, compare=False, repr=False)
    _shifts: dict[tuple[str, str, bytes], np.ndarray] = field(default_factory=dict, compare=False, repr=False)
    _uppers: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def rounding(self, group: Group, form: str) -> Rounding:
        return self.roundings.get((group.name, form), PLAIN)

    def shared_levels(self, group: Group) -> Levels:
        """The levels that all readers of the group's value share."""
        levels = self.rounding(group, SHARED_STATIC).levels
        assert levels is not None
        return levels

    def weights(self, group: Group, site: Site, form: str) -> Quantized:
        """The weights in a format of levels."""
        factors = self.rounding(group, form).factors
        # the 8-bit formats differ in their factors alone; weights that several groups share are stored once
        key = site.weights_node, site.axes, form if form in BITS else STATIC, _bytes_of(factors)
        weights = self._weights_cache.get(key)
        if weights is None:
            weights = self._weights_cache[key] = self._weights(group, site, form, factors)
        return weights

    def node(self, group: Group, site: Site, form: str) -> Node:
        """The node of `weights` in the graph."""
        weights = self.weights(group, site, form)
        if id(weights) not in self._nodes:
            self._nodes[id(weights)] = weights.node(site)
        return self._nodes[id(weights)]

    def _weights(self, group: Group, site: Site, form: str, factors: np.ndarray | None) -> Quantized:
        upper = self._feedback(group, factors)
        if form in BITS:
            return quantize_blocks(site, site.weight(), BITS[form], upper)
        return quantize_channels(site, smooth_weights(site, factors), upper)

    def _feedback(self, group: Group, factors: np.ndarray | None) -> np.ndarray | None:
        moments = None if group.tied else self.moments.get(group.name)
        if moments is None:
            return None
        key = group.name, _bytes_of(factors)
        if self._uppers.get("key") != key:  # only the last one is cached: requests come group by group
            scaled_moments = moments if factors is None else moments * np.outer(factors, factors)
            self._uppers.update(key=key, upper=feedback_factor(scaled_moments))
        return self._uppers["upper"]

    def release_feedback(self) -> None:
        """Free the cached factor of error feedback, once all weights are rounded."""
        self._uppers.clear()

    def effective(self, group: Group, site: Site, form: str) -> np.ndarray:
        """The weights that the product is computed with, relative to its scaled value."""
        if form == FLOAT:
            return site.weight()
        if form in STORED_FLOATS:
            return site.weight().astype(STORED_FLOATS[form].numpy).astype(np.float32)
        return np.ascontiguousarray(self.weights(group, site, form).value(site))

    def shift(self, group: Group, site: Site, form: str, effective: np.ndarray) -> np.ndarray | None:
        """The change of the product's mean by rounded weights, per output channel (Nagel et al., arXiv 1906.04721)."""
        if (
            not self.corrected
            or group.is_recurrent
            or form in (FLOAT, *STORED_FLOATS)
            or not self.stats[group.name].is_usable
        ):
            return None
        factors = self.rounding(group, form).factors
        key = site.name, form, _bytes_of(factors)
        if key not in self._shifts:
            self._shifts[key] = self._mean_loss(group, site, effective, factors)
        return self._shifts[key]

    def _mean_loss(self, group: Group, site: Site, effective: np.ndarray, factors: np.ndarray | None) -> np.ndarray:
        stats = self.stats[group.name]
        unscaled = effective if factors is None else effective * site.per_depth(factors)
        loss = (site.weight() - unscaled) * site.per_depth(stats.mean().astype(np.float32))
        release(site.weight())
        return site.by_channel(loss).sum(axis=1, dtype=np.float64).astype(np.float32)


PLAIN = Rounding()


def _bytes_of(factors: np.ndarray | None) -> bytes:
    return b"" if factors is None else factors.tobytes()


def smooth_weights(site: Site, factors: np.ndarray | None) -> np.ndarray:
    """The weights for a value that is multiplied by `factors`."""
    return site.weight() if factors is None else site.weight() / site.per_depth(factors)


def apply_formats(graph: Graph, groups: Sequence[Group], recipe: Recipe, formats: Formats) -> Graph:
    """`graph` with each group's products in its format."""
    sites = {site.node: (group, site) for group in groups for site in group.sites}
    shared = {group.value: group for group in groups if formats.get(group.name) == SHARED_STATIC}

    def product(n: Node, inputs: Sequence[Node]) -> Node:
        match = sites.get(n)
        form = FLOAT if match is None else formats.get(match[0].name, FLOAT)
        if match is None or form == FLOAT:
            return n.with_inputs(inputs)
        group, site = match
        if isinstance(site, StateSite):
            return _layer(group, site, recipe, form, inputs)
        return _product(group, site, recipe, form, inputs[0])

    def image(n: Node, inputs: Sequence[Node]) -> Node:
        y = product(n, inputs)
        return _quantize_static(y, recipe.shared_levels(shared[n])) if n in shared else y

    return graph.with_outputs(rebuild(graph.outputs, rule=image))


def _product(group: Group, site: Site, recipe: Recipe, form: str, x: Node) -> Node:
    n = site.node
    if form in STORED_FLOATS:
        return _narrow(n, x, STORED_FLOATS[form], values=form == "bfloat16")
    quantized = recipe.weights(group, site, form)
    if form in (STATIC, DYNAMIC):  # shared ones are levels already
        rounding = recipe.rounding(group, form)
        x = (
            x
            if rounding.factors is None
            else ops.mul(x, broadcast_along(const(rounding.factors), group.axis, x), loc=x.loc)
        )
        x = _quantize_dynamic(x) if rounding.levels is None else _quantize_static(x, rounding.levels)
    w = recipe.node(group, site, form)
    if form == PAIRED:
        levels = recipe.rounding(group, form).levels
        assert levels is not None
        high = _quantize_static(x, levels)
        low = _quantize_static(ops.sub(x, high, loc=x.loc), levels.sublevels())
        y = ops.add(n.op(high, w, loc=n.loc), n.op(low, w, loc=n.loc), loc=n.loc)
    else:
        y = n.op(x, w, loc=n.loc)
    shift = recipe.shift(group, site, form, quantized.value(site))
    return (
        y
        if shift is None or not shift.any()
        else ops.add(y, broadcast_along(const(shift), site.axes.result, y), loc=n.loc)
    )


def _layer(group: Group, site: StateSite, recipe: Recipe, form: str, inputs: Sequence[Node]) -> Node:
    """A recurrent layer that rounds its state at each step."""
    n, weights = site.node, recipe.weights(group, site, form)
    assert isinstance(n.op, ops.Recurrent) and isinstance(weights, Channels)
    scales = const(weights.scale.reshape(weights.q.shape[:2]))
    levels = (*inputs[: site.operand], const(weights.q), *inputs[site.operand + 1 :], scales)
    return n.op.with_levels()(*levels, loc=n.loc)


def broadcast_along(p: Node, axis: int, like: Node) -> Node:
    """A vector along `axis`, broadcast to the shape of `like`."""
    return ops.BroadcastInDim(like.shape, (axis,))(p)


# the rounding of a value has the value's location: it is fused with the kernel that computes the value


def _quantize_static(x: Node, levels: Levels) -> Node:
    scale, zero = ops.scalar(levels.scale), ops.scalar(levels.zero, u8)
    return ops.Dequantize()(ops.quantize(x, scale, zero, x.loc), zero, scale, loc=x.loc)


def _quantize_dynamic(x: Node) -> Node:
    q, scale, zero = ops.dynamic_quantize(x, x.loc)
    return ops.Dequantize()(q, zero, scale, loc=x.loc)


def _narrow(n: Node, x: Node, stored: DType, values: bool) -> Node:
    """The product with weights (and with `values`, also values) of a narrower float type, summed in f32."""
    operands = tuple(Input(label, node.type)() for label, node in (("x", x), ("w", n.inputs[1])))
    lowered = n.op.lower(*operands)
    y = n.op(*operands) if lowered is None else lowered
    assert isinstance(y, Node)

    def image(m: Node, inputs: Sequence[Node]) -> Node:
        if not m.op.stored_weights:
            return m.with_inputs(inputs)
        chosen = (*m.op.stored_weights, *(m.op.stored_values if values else ()))
        narrow = [ops.cast(i, stored) if at in chosen else i for at, i in enumerate(inputs)]
        return m.op.with_sums(f32)(*narrow, loc=n.loc)

    return rebuild([y], {operands[0]: x, operands[1]: n.inputs[1]}, image)[0]


def stored_bytes(group: Group, form: str) -> int:
    """The bytes of the group's weights in a file."""
    weight_bytes = {FLOAT: 4, "bfloat16": 2, "float16": 2}.get(form)
    if weight_bytes is not None:
        return weight_bytes * group.weights
    if form in BITS:
        return sum(s.weights * BITS[form] // 8 + s.channels * -(-s.depth // 32) * 5 for s in group.sites)
    return sum(s.weights + 4 * s.channels for s in group.sites)


def _has_excess(group: Group, stored: DType) -> bool:
    """Whether a weight would be infinite in that type."""
    return any(excess(site.weight(), stored) is not None for site in group.sites)


def candidate_formats(group: Group, stats: ValueStats, formats: Sequence[str]) -> tuple[str, ...]:
    """The formats out of `formats` that the group supports, float32 first."""
    candidates = [f for f in formats if f != FLOAT]
    if not stats.is_usable:
        candidates = [f for f in candidates if f not in (STATIC, SHARED_STATIC, PAIRED)]
    if not group.is_shared:
        candidates = [f for f in candidates if f != SHARED_STATIC]
    if not group.is_matrices:
        candidates = [f for f in candidates if f not in BITS]
    if group.is_recurrent:
        candidates = [f for f in candidates if f == DYNAMIC]
    candidates = [f for f in candidates if f not in STORED_FLOATS or not _has_excess(group, STORED_FLOATS[f])]
    return (FLOAT, *candidates)


def default_formats(groups: Sequence[Group], has_size: bool) -> tuple[str, ...]:
    """The formats to try by default, the most promising first: weights of few bits only for small models, bfloat16 if
    the machine has instructions for its products, levels of values with other readers if these are images."""
    formats = [STATIC, DYNAMIC, PAIRED]
    if any(g.is_shared and not g.is_matrices for g in groups):
        formats.insert(0, SHARED_STATIC)
    if any("bf16" in name for name in features_of("native").features):
        formats.append("bfloat16")
    return (*formats, *(BITS if has_size else ()))
