"""Slopes of lower lines that are optimized: alpha-CROWN.

Xu et al., Fast and Complete: Enabling Complete Verification with Rapid and Massively Parallel Incomplete Verifiers,
ICLR 2021. Any slope between those of a hinge's sides is sound: the bounds of each step hold. Each walk, from results or
from values that relaxations need, has slopes of its own for each of its rows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from ingot import ops
from ingot.autodiff import gradients
from ingot.driver.compile import Options, compiled_program
from ingot.ir.dims import product
from ingot.ir.node import Graph, Input, Node, topological
from ingot.ir.types import TensorType, f64, static_shape
from ingot.passes.model.lower import lower_model_ops
from ingot.runtime.executor import CompiledModel
from ingot.support.dataclass import dataclass
from ingot.transform.bounds.crown import Walk, lower_bounds
from ingot.transform.bounds.forms import Hinge
from ingot.transform.bounds.graph import Bounded
from ingot.transform.bounds.intervals import Intervals

_RATE, _DECAY, _MOMENTS, _TINY = 0.25, 0.97, (0.9, 0.999), 1e-12  # of Adam


_MAX_SLOPE_BYTES = 1 << 28  # beyond it the rows of a walk share its slopes


@dataclass(frozen=True, eq=False)
class Slopes:
    """A compiled search over the slopes of a graph whose only result is rows. ends: the lower and upper bounds of each
    hinge's operand. shapes: those of all slopes, with the index of their hinge. step: lower bounds of the rows, those
    bounds of operands, and the slopes' gradients."""

    rows: int
    shapes: tuple[tuple[tuple[int, ...], int], ...]
    ends: CompiledModel
    step: CompiledModel

    def run(
        self, box: list[np.ndarray], limits: np.ndarray, steps: int, deadline: float
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Lower bounds of the rows over a box, the best of `steps`, or until each is above its limit, and the best
        bounds of hinges' operands, a lower and an upper one each. deadline: of `time.monotonic`."""
        ends = [np.asarray(v) for v in self.ends.run(box)] if self.shapes else []
        starts = [(high > -low).astype(np.float64) for low, high in zip(ends[::2], ends[1::2], strict=True)]
        ascent = Ascent([np.broadcast_to(starts[at], shape).copy() for shape, at in self.shapes])
        best = np.full(self.rows, -np.inf)
        for _ in range(steps):
            weights = (best <= limits).astype(np.float64)
            lower, *others = self.step.run([*box, weights, *ascent.values])
            best = np.fmax(best, lower)
            slopes = others[len(ends) :]
            ends = [(np.fmin if i % 2 else np.fmax)(v, w) for i, (v, w) in enumerate(zip(ends, others, strict=False))]
            if (best > limits).all() or not slopes or time.monotonic() > deadline:
                break
            ascent.move(slopes)
            for alpha in ascent.values:
                np.clip(alpha, 0.0, 1.0, out=alpha)
        return best, ends


class Ascent:
    """Adam, upwards. values: arrays in f64, which are changed in place. rate: of the first step."""

    def __init__(self, values: Sequence[np.ndarray], rate: float = _RATE) -> None:
        self.rate = rate
        self.values = list(values)
        self._means, self._squares = ([np.zeros_like(v) for v in self.values] for _ in range(2))
        self._step = 0

    def move(self, slopes: Sequence[np.ndarray]) -> None:
        self._step += 1
        rate = self.rate * _DECAY**self._step
        parts = (1 - moment**self._step for moment in _MOMENTS)
        of_mean, of_square = parts
        for value, mean, square, slope in zip(self.values, self._means, self._squares, slopes, strict=True):
            g = np.nan_to_num(slope)
            mean += (1 - _MOMENTS[0]) * (g - mean)
            square += (1 - _MOMENTS[1]) * (g * g - square)
            value += rate * (mean / of_mean) / (np.sqrt(square / of_square) + _TINY)


def slopes_of(bounded: Bounded, options: Options) -> Slopes:
    """Compile the search. The rows are those of the question's spec."""
    (y,) = bounded.core.results
    plain = bounded.walk().intervals
    hinges = [n for n in bounded.core.nodes() if isinstance(n.op, Hinge) and not plain.is_exact(n)]
    ends = _ends(plain, hinges)
    targets = [*(x for x in bounded.core.nodes() if x in bounded.walked), y]
    pairs = [(x, n) for x in targets for n in _behind(x, hinges)]
    size = sum(_rows(x, y) * int(product(n.shape)) * 8 for x, n in pairs)
    single = {(x, n): Input(f"slope {x.id} {n.id}", TensorType(f64, n.shape))() for x, n in pairs}
    slopes: dict[tuple[Node, Node], Node] = {}
    for i, (x, n) in enumerate(pairs):
        shape = n.shape if size > _MAX_SLOPE_BYTES else (_rows(x, y), *n.shape)
        slopes[x, n] = Input(f"slopes {i}", TensorType(f64, shape))()
    mapped = {single[key]: node for key, node in slopes.items()} if size <= _MAX_SLOPE_BYTES else {}
    of_walks = {x: {n: (single if mapped else slopes)[x, n] for v, n in pairs if v is x} for x in targets}
    c = bounded.walk(of_walks, mapped).intervals
    lower, _ = lower_bounds(Walk(c, alphas=of_walks[y]), y, mapped)
    lower = lower_model_ops(Graph((), (c.guarded(lower, -float("inf")).node,))).outputs[0]
    weights = Input("weights", TensorType(f64, lower.shape))()
    loss = ops.DotGeneral(((), ()), ((0,), (0,)))(weights, lower)
    found = gradients(loss, list(slopes.values())) if slopes else []
    step = Graph((*bounded.inputs, weights, *slopes.values()), (lower, *_ends(c, hinges), *found))
    programs = [
        CompiledModel(compiled_program(lower_model_ops(g), options), threads=options.threads)
        for g in (Graph(bounded.inputs, tuple(ends) or (lower,)), step)
    ]
    shapes = tuple((static_shape(a.shape), hinges.index(n)) for (_, n), a in slopes.items())
    return Slopes(_rows(y, y), shapes, programs[0], programs[1])


def _ends(c: Intervals, hinges: Sequence[Node]) -> list[Node]:
    return [v.node for n in hinges for v in (c.of(n.inputs[0]).lower, c.of(n.inputs[0]).upper)]


def _behind(target: Node, hinges: Sequence[Node]) -> list[Node]:
    """The hinges on the way to a value."""
    nodes = set(topological([target]))
    return [n for n in hinges if n in nodes]


def _rows(x: Node, y: Node) -> int:
    """Of a walk: lower bounds of the result's elements, lower and upper ones of all others."""
    return int(product(x.shape)) * (1 if x is y else 2)
