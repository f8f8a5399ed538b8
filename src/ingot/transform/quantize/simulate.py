"""A single compiled program that simulates any choice of formats: weights and the rounding of values are its inputs.

So a choice of formats is scored at the speed of the float model, without compiling another program.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ingot import ops
from ingot.ir.node import Graph, Input, Node, Project, rebuild
from ingot.ir.types import TensorType, bf16, f32, i32, u8
from ingot.pipeline.build import build_native
from ingot.runtime.executor import CompiledModel
from ingot.transform.quantize.formats import DYNAMIC, FLOAT, SHARED_STATIC, STATIC, Formats, Recipe, broadcast_along
from ingot.transform.quantize.samples import Call
from ingot.transform.quantize.sites import Group, Site, StateSite

_PLAIN, _STATIC, _SHARED, _DYNAMIC, _BFLOAT16 = range(5)
# int16 is accurate enough that only the weights are rounded here
_MODES = {STATIC: _STATIC, SHARED_STATIC: _SHARED, DYNAMIC: _DYNAMIC, "bfloat16": _BFLOAT16}


class Simulator:
    """Simulates the rounding of a model with any formats. Sums are f32."""

    def __init__(self, graph: Graph, groups: Sequence[Group], threads: int, narrow: bool) -> None:
        """narrow: whether to support bfloat16. Raises what compiling raises."""
        self.groups = groups
        self._model = CompiledModel(build_native(_simulation_graph(graph, groups, narrow), threads), threads=threads)

    def run(self, calls: Sequence[Call], recipe: Recipe, formats: Formats) -> Iterator[tuple[np.ndarray, ...]]:
        """The outputs of each call."""
        feeds = self._feeds(recipe, formats)
        for call in calls:
            results = self._model.run([*call, *feeds])
            yield tuple(np.asarray(r) for r in results)

    def _feeds(self, recipe: Recipe, formats: Formats) -> list[np.ndarray]:
        modes = np.zeros(len(self.groups), np.int32)
        scales, zeros = np.ones(len(self.groups), np.float32), np.zeros(len(self.groups), np.uint8)
        vectors: list[np.ndarray] = []
        for i, group in enumerate(self.groups):
            form = formats.get(group.name, FLOAT)
            modes[i] = _MODES.get(form, _PLAIN)
            rounding = recipe.rounding(group, form)
            if rounding.levels is not None:
                scales[i], zeros[i] = rounding.levels.scale, rounding.levels.zero
            factors = rounding.factors
            vectors.append(np.ones(group.channels, np.float32) if factors is None else factors)
            for site in group.sites:
                w = recipe.effective(group, site, form)
                if isinstance(site, StateSite):
                    vectors.append(w)
                    continue
                shift = recipe.shift(group, site, form, w)
                vectors += [w, np.zeros(site.channels, np.float32) if shift is None else shift]
            if form != FLOAT:
                group.release()
        return [modes, scales, zeros, *vectors]


def _simulation_graph(graph: Graph, groups: Sequence[Group], narrow: bool) -> Graph:
    count = len(groups)
    kinds = (("modes", i32), ("scales", f32), ("zeros", u8))
    modes, scales, zeros = (Input(f"simulated.{name}", TensorType(t, (count,)))() for name, t in kinds)
    added = [modes, scales, zeros]
    layers: dict[Node, tuple[int, Node]] = {}
    rounded: dict[Node, tuple[int, Node]] = {}  # a layer of the new graph, and the one that rounds its state
    sites: dict[Node, tuple[int, Site, Node, Node, Node]] = {}
    for i, group in enumerate(groups):
        factors = Input(f"simulated.factors.{i}", TensorType(f32, (group.channels,)))()
        added.append(factors)
        for j, site in enumerate(group.sites):
            w = Input(f"simulated.weights.{i}.{j}", site.node.inputs[site.operand].type)()
            if isinstance(site, StateSite):
                added.append(w)
                layers[site.node] = i, w
                continue
            shift = Input(f"simulated.shift.{i}.{j}", TensorType(f32, (site.channels,)))()
            added += [w, shift]
            sites[site.node] = i, site, factors, w, shift

    values = {group.value: i for i, group in enumerate(groups) if group.is_shared}

    def image(n: Node, inputs: Sequence[Node]) -> Node:
        y = product(n, inputs)
        if n not in values:
            return y
        mode, scale, zero = (ops.index_axis(v, 0, values[n]) for v in (modes, scales, zeros))
        levels = ops.Dequantize()(ops.quantize(y, scale, zero), zero, scale)
        return ops.where(ops.compare("EQ", mode, _SHARED), levels, y)

    def layer(n: Node, inputs: Sequence[Node]) -> Node:
        i, r = layers[n]
        at = StateSite.operand
        operands = (*inputs[:at], r, *inputs[at + 1 :])
        plain = n.op(*operands, loc=n.loc)
        rounded[plain] = i, replace(n.op, levels=True)(*operands, loc=n.loc)  # type: ignore[call-arg]
        return plain

    def product(n: Node, inputs: Sequence[Node]) -> Node:
        if n in layers:
            return layer(n, inputs)
        if isinstance(n.op, Project) and inputs[0] in rounded:
            i, rounded_layer = rounded[inputs[0]]
            is_dynamic = ops.compare("EQ", ops.index_axis(modes, 0, i), _DYNAMIC)
            return ops.where(is_dynamic, n.op(rounded_layer), n.op(inputs[0]))
        match = sites.get(n)
        if match is None:
            return n.with_inputs(inputs)
        i, site, factors, w, shift = match
        mode, scale, zero = (ops.index_axis(v, 0, i) for v in (modes, scales, zeros))
        x = _rounded(inputs[0], broadcast_along(factors, groups[i].axis, inputs[0]), mode, scale, zero, narrow)
        y = n.op(x, w, loc=n.loc)
        return ops.add(y, broadcast_along(shift, site.axes.result, y), loc=n.loc)

    return replace(graph, inputs=(*graph.inputs, *added), outputs=rebuild(graph.outputs, rule=image), output_names=())


def _rounded(x: Node, factors: Node, mode: Node, scale: Node, zero: Node, narrow: bool) -> Node:
    y = ops.mul(x, factors)
    _, dynamic_scale, dynamic_zero = ops.dynamic_quantize(y)
    is_dynamic = ops.compare("EQ", mode, _DYNAMIC)
    scale, zero = ops.where(is_dynamic, dynamic_scale, scale), ops.where(is_dynamic, dynamic_zero, zero)
    levels = ops.Dequantize()(ops.quantize(y, scale, zero), zero, scale)
    out = ops.where(ops.compare("EQ", mode, _PLAIN), x, levels)
    if narrow:
        out = ops.where(ops.compare("EQ", mode, _BFLOAT16), ops.cast(ops.cast(x, bf16), f32), out)
    return out
