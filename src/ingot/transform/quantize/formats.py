"""The formats that a product can be computed in, and the graph in which each has its own.

y = dot(x, w)   ->   int8           dot(dequantize(quantize(x)), dequantize(levels of w)): in integers, fused
                     int8-shared    the same, and what else reads x (an addition, a pool) reads these levels
                     int16          as int8, and the same weights times levels of what x1 = dequantize(...) leaves of x:
                                    dot(x1, w) + dot(dequantize(quantize(x - x1)), w)
                     int8-dynamic   as int8, x's scale found in each call; of a recurrent layer the state's at each step
                     weight8, 4     dot(x, dequantize(blocks of levels of w))
                     bfloat16       dot(convert(x), convert(w)): f32;   float16: w alone
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from ingot import ops
from ingot.ir.node import Graph, Input, Node, const, rebuilt
from ingot.ir.types import DType, WeightAxes, bf16, f16, f32, u8
from ingot.support.dataclass import dataclass
from ingot.support.files import release
from ingot.transform.quantize.ranges import Levels, Seen
from ingot.transform.quantize.sites import Group, Site, StateSite
from ingot.transform.quantize.weights import Channels, Quantized, by_channel, feedback, in_blocks

FLOAT, STATIC, SHARED, DYNAMIC, PAIRED = "float32", "int8", "int8-shared", "int8-dynamic", "int16"
LEVELS = (STATIC, SHARED, DYNAMIC, PAIRED)  # formats of values in 8 bits, or in twice as many
BITS = {"weight8": 8, "weight4": 4}
STORED: dict[str, DType] = {"bfloat16": bf16, "float16": f16}
FORMATS = (FLOAT, "bfloat16", "float16", *LEVELS, *BITS)
Formats = Mapping[str, str]  # a group's name -> its format


@dataclass(frozen=True)
class Rounding:
    """How a group's value is rounded in a format of levels. method: of the range. smoothing: the part of a channel's
    magnitude that goes from the value to the weights. factors: what each channel is therefore multiplied with, and its
    weights divided by. error: of products on a part of a sample, squared, over their own squares."""

    method: str = "minmax"
    smoothing: float = 0.0
    levels: Levels | None = None
    factors: np.ndarray | None = None
    error: float = 0.0


@dataclass(frozen=True)
class Recipe:
    """How values and weights are rounded. seen: of each group's value. roundings: by group and format. moments: of
    values, by group, for error feedback. corrected: whether the mean of what rounded weights change is added back.
    """

    seen: Mapping[str, Seen]
    roundings: Mapping[tuple[str, str], Rounding] = field(default_factory=dict)
    moments: Mapping[str, np.ndarray] = field(default_factory=dict)
    corrected: bool = True
    _made: dict[tuple[Node, WeightAxes, str, bytes], Quantized] = field(default_factory=dict, compare=False, repr=False)
    _nodes: dict[int, Node] = field(default_factory=dict, compare=False, repr=False)
    _shifts: dict[tuple[str, str, bytes], np.ndarray] = field(default_factory=dict, compare=False, repr=False)
    _uppers: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def rounding(self, group: Group, form: str) -> Rounding:
        return self.roundings.get((group.name, form), PLAIN)

    def known_levels(self, group: Group) -> Levels:
        """Those that all readers of the group's value share."""
        levels = self.rounding(group, SHARED).levels
        assert levels is not None
        return levels

    def weights(self, group: Group, site: Site, form: str) -> Quantized:
        """Of a format of levels."""
        factors = self.rounding(group, form).factors
        # those of values in 8 bits differ in their factors alone, and weights of several groups are stored once
        key = site.weights_node, site.axes, form if form in BITS else STATIC, _bytes_of(factors)
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = self._weights(group, site, form, factors)
        return made

    def node(self, group: Group, site: Site, form: str) -> Node:
        """`weights` as the graph has them."""
        made = self.weights(group, site, form)
        if id(made) not in self._nodes:
            self._nodes[id(made)] = made.node(site)
        return self._nodes[id(made)]

    def _weights(self, group: Group, site: Site, form: str, factors: np.ndarray | None) -> Quantized:
        upper = self._feedback(group, factors)
        if form in BITS:
            return in_blocks(site, site.weight(), BITS[form], upper)
        return by_channel(site, smoothed(site, factors), upper)

    def _feedback(self, group: Group, factors: np.ndarray | None) -> np.ndarray | None:
        moments = None if group.tied else self.moments.get(group.name)
        if moments is None:
            return None
        key = group.name, _bytes_of(factors)
        if self._uppers.get("key") != key:  # one is kept: those of one group are asked for one after the other
            own = moments if factors is None else moments * np.outer(factors, factors)
            self._uppers.update(key=key, upper=feedback(own))
        return self._uppers["upper"]

    def forget_feedback(self) -> None:
        """What error feedback was made of last, once all weights are made."""
        self._uppers.clear()

    def effective(self, group: Group, site: Site, form: str) -> np.ndarray:
        """The weights that the product is computed with, by what its value is multiplied with."""
        if form == FLOAT:
            return site.weight()
        if form in STORED:
            return site.weight().astype(STORED[form].numpy).astype(np.float32)
        return np.ascontiguousarray(self.weights(group, site, form).value(site))

    def shift(self, group: Group, site: Site, form: str, effective: np.ndarray) -> np.ndarray | None:
        """What the product's mean lost by rounded weights, by output channel (Nagel et al., arXiv 1906.04721)."""
        if not self.corrected or group.recurrent or form in (FLOAT, *STORED) or not self.seen[group.name].usable:
            return None
        factors = self.rounding(group, form).factors
        key = site.name, form, _bytes_of(factors)
        if key not in self._shifts:
            self._shifts[key] = self._lost(group, site, effective, factors)
        return self._shifts[key]

    def _lost(self, group: Group, site: Site, effective: np.ndarray, factors: np.ndarray | None) -> np.ndarray:
        seen = self.seen[group.name]
        own = effective if factors is None else effective * site.per_depth(factors)
        lost = (site.weight() - own) * site.per_depth(seen.mean().astype(np.float32))
        release(site.weight())
        return site.by_channel(lost).sum(axis=1, dtype=np.float64).astype(np.float32)


PLAIN = Rounding()


def _bytes_of(factors: np.ndarray | None) -> bytes:
    return b"" if factors is None else factors.tobytes()


def smoothed(site: Site, factors: np.ndarray | None) -> np.ndarray:
    """The weights that meet a value multiplied with `factors`."""
    return site.weight() if factors is None else site.weight() / site.per_depth(factors)


def formed(graph: Graph, groups: Sequence[Group], recipe: Recipe, formats: Formats) -> Graph:
    """`graph` with each group's products in its format."""
    places = {site.node: (group, site) for group in groups for site in group.sites}
    shared = {group.value: group for group in groups if formats.get(group.name) == SHARED}

    def product(n: Node, inputs: Sequence[Node]) -> Node:
        found = places.get(n)
        form = FLOAT if found is None else formats.get(found[0].name, FLOAT)
        if found is None or form == FLOAT:
            return n.with_inputs(inputs)
        group, site = found
        if isinstance(site, StateSite):
            return _layer(group, site, recipe, form, inputs)
        return _product(group, site, recipe, form, inputs[0])

    def image(n: Node, inputs: Sequence[Node]) -> Node:
        y = product(n, inputs)
        return _static(y, recipe.known_levels(shared[n])) if n in shared else y

    return graph.with_outputs(rebuilt(graph.outputs, rule=image))


def _product(group: Group, site: Site, recipe: Recipe, form: str, x: Node) -> Node:
    n = site.node
    if form in STORED:
        return _narrow(n, x, STORED[form], values=form == "bfloat16")
    quantized = recipe.weights(group, site, form)
    if form in (STATIC, DYNAMIC):  # shared ones are levels already
        rounding = recipe.rounding(group, form)
        x = x if rounding.factors is None else ops.mul(x, along(const(rounding.factors), group.axis, x), loc=x.loc)
        x = _dynamic(x) if rounding.levels is None else _static(x, rounding.levels)
    w = recipe.node(group, site, form)
    if form == PAIRED:
        levels = recipe.rounding(group, form).levels
        assert levels is not None
        high = _static(x, levels)
        low = _static(ops.sub(x, high, loc=x.loc), levels.within())
        y = ops.add(n.op(high, w, loc=n.loc), n.op(low, w, loc=n.loc), loc=n.loc)
    else:
        y = n.op(x, w, loc=n.loc)
    shift = recipe.shift(group, site, form, quantized.value(site))
    return y if shift is None or not shift.any() else ops.add(y, along(const(shift), site.axes.result, y), loc=n.loc)


def _layer(group: Group, site: StateSite, recipe: Recipe, form: str, inputs: Sequence[Node]) -> Node:
    """A recurrent layer that rounds its state at each step."""
    n, made = site.node, recipe.weights(group, site, form)
    assert isinstance(n.op, ops.Recurrent) and isinstance(made, Channels)
    scales = const(made.scale.reshape(made.q.shape[:2]))
    levels = (*inputs[: site.operand], const(made.q), *inputs[site.operand + 1 :], scales)
    return n.op.with_levels()(*levels, loc=n.loc)


def along(p: Node, axis: int, like: Node) -> Node:
    """A vector spread over the other axes of `like`."""
    return ops.BroadcastInDim(like.shape, (axis,))(p)


# what rounds a value has its location: in a fused kernel it is a part of what makes the value


def _static(x: Node, levels: Levels) -> Node:
    scale, zero = ops.scalar(levels.scale), ops.scalar(levels.zero, u8)
    return ops.Dequantize()(ops.quantized(x, scale, zero, x.loc), zero, scale, loc=x.loc)


def _dynamic(x: Node) -> Node:
    q, scale, zero = ops.dynamically_quantized(x, x.loc)
    return ops.Dequantize()(q, zero, scale, loc=x.loc)


def _narrow(n: Node, x: Node, stored: DType, values: bool) -> Node:
    """The product with weights of a narrower float, and values if asked for, summed in f32."""
    given = tuple(Input(label, node.type)() for label, node in (("x", x), ("w", n.inputs[1])))
    lowered = n.op.lower(*given)
    y = n.op(*given) if lowered is None else lowered
    assert isinstance(y, Node)

    def image(m: Node, inputs: Sequence[Node]) -> Node:
        if not m.op.stored_weights:
            return m.with_inputs(inputs)
        chosen = (*m.op.stored_weights, *(m.op.stored_values if values else ()))
        narrow = [ops.cast(i, stored) if at in chosen else i for at, i in enumerate(inputs)]
        return m.op.with_sums(f32)(*narrow, loc=n.loc)

    return rebuilt([y], {given[0]: x, given[1]: n.inputs[1]}, image)[0]


def stored_bytes(group: Group, form: str) -> int:
    """Of the group's weights in a file."""
    per = {FLOAT: 4, "bfloat16": 2, "float16": 2}.get(form)
    if per is not None:
        return per * group.weights
    if form in BITS:
        return sum(s.weights * BITS[form] // 8 + s.channels * -(-s.depth // 32) * 5 for s in group.sites)
    return sum(s.weights + 4 * s.channels for s in group.sites)


def offered(group: Group, seen: Seen, asked: Sequence[str]) -> tuple[str, ...]:
    """The formats of `asked` that the group can have, float32 first."""
    forms = [f for f in asked if f != FLOAT]
    if not seen.usable:
        forms = [f for f in forms if f not in (STATIC, SHARED, PAIRED)]
    if not group.shared:
        forms = [f for f in forms if f != SHARED]
    if not group.plain:
        forms = [f for f in forms if f not in BITS]
    if group.recurrent:
        forms = [f for f in forms if f == DYNAMIC]
    return (FLOAT, *forms)
