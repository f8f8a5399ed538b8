"""alpha-CROWN: optimization of the slopes of lower lines.

Xu et al., Fast and Complete: Enabling Complete Verification with Rapid and Massively Parallel Incomplete Verifiers,
ICLR 2021. Any slope between those of a hinge's two sides is sound, so the bounds of each step hold. Each backward walk,
from the result or from an intermediate value, has its own slopes for each of its rows.
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
from ingot.transform.bounds.crown import Walk
from ingot.transform.bounds.forms import Hinge
from ingot.transform.bounds.graph import Bounded
from ingot.transform.bounds.intervals import Intervals
from ingot.transform.bounds.walks import lower_bounds

_RATE, _DECAY, _MOMENTS, _TINY = 0.25, 0.97, (0.9, 0.999), 1e-12  # of Adam


_MAX_SLOPE_BYTES = 1 << 28  # above it all rows of a walk share its slopes


@dataclass(frozen=True, eq=False)
class Slopes:
    """A compiled search over the slopes of a graph whose single result is a vector of rows. hinge_bounds: computes the
    lower and upper bounds of each hinge's operand. shapes: the shape of each slope array, with the index of its hinge.
    step: computes lower bounds of the rows, the bounds of operands, and the gradients of the slopes."""

    rows: int
    shapes: tuple[tuple[tuple[int, ...], int], ...]
    hinge_bounds: CompiledModel
    step: CompiledModel

    def run(
        self, box: list[np.ndarray], limits: np.ndarray, steps: int, deadline: float
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """The best lower bounds of the rows over a box within `steps`, or until each exceeds its limit, and the best
        lower and upper bounds of the hinges' operands. deadline: in seconds of `time.monotonic`."""
        ends = [np.asarray(v) for v in self.hinge_bounds.run(box)] if self.shapes else []
        initial = [(high > -low).astype(np.float64) for low, high in zip(ends[::2], ends[1::2], strict=True)]
        ascent = Ascent([np.broadcast_to(initial[at], shape).copy() for shape, at in self.shapes])
        best = np.full(self.rows, -np.inf)
        for _ in range(steps):
            weights = (best <= limits).astype(np.float64)
            lower, *outputs = self.step.run([*box, weights, *ascent.values])
            best = np.fmax(best, lower)
            slopes = outputs[len(ends) :]
            ends = [(np.fmin if i % 2 else np.fmax)(v, w) for i, (v, w) in enumerate(zip(ends, outputs, strict=False))]
            if (best > limits).all() or not slopes or time.monotonic() > deadline:
                break
            ascent.move(slopes)
            for alpha in ascent.values:
                np.clip(alpha, 0.0, 1.0, out=alpha)
        return best, ends


class Ascent:
    """Gradient ascent by Adam. values: f64 arrays, updated in place. rate: of the first step."""

    def __init__(self, values: Sequence[np.ndarray], rate: float = _RATE) -> None:
        self.rate = rate
        self.values = list(values)
        self._means, self._squares = ([np.zeros_like(v) for v in self.values] for _ in range(2))
        self._step = 0

    def move(self, slopes: Sequence[np.ndarray]) -> None:
        self._step += 1
        rate = self.rate * _DECAY**self._step
        corrections = (1 - moment**self._step for moment in _MOMENTS)
        mean_correction, square_correction = corrections
        for value, mean, square, slope in zip(self.values, self._means, self._squares, slopes, strict=True):
            g = np.nan_to_num(slope)
            mean += (1 - _MOMENTS[0]) * (g - mean)
            square += (1 - _MOMENTS[1]) * (g * g - square)
            value += rate * (mean / mean_correction) / (np.sqrt(square / square_correction) + _TINY)


def slopes_of(bounded: Bounded, options: Options) -> Slopes:
    """Compile the search. The rows are those of the question's spec."""
    (y,) = bounded.core.results
    intervals = bounded.walk().intervals
    hinges = [n for n in bounded.core.nodes() if isinstance(n.op, Hinge) and not intervals.is_exact(n)]
    ends = _operand_bounds(intervals, hinges)
    targets = [*(x for x in bounded.core.nodes() if x in bounded.walked), y]
    pairs = [(x, n) for x in targets for n in _hinges_of(x, hinges)]
    slope_bytes = sum(_row_count(x, y) * int(product(n.shape)) * 8 for x, n in pairs)
    walk_slopes = {(x, n): Input(f"slope {x.id} {n.id}", TensorType(f64, n.shape))() for x, n in pairs}
    slopes: dict[tuple[Node, Node], Node] = {}
    for i, (x, n) in enumerate(pairs):
        shape = n.shape if slope_bytes > _MAX_SLOPE_BYTES else (_row_count(x, y), *n.shape)
        slopes[x, n] = Input(f"slopes {i}", TensorType(f64, shape))()
    mapped = {walk_slopes[key]: node for key, node in slopes.items()} if slope_bytes <= _MAX_SLOPE_BYTES else {}
    slopes_by_walk = {
        x: {n: (walk_slopes if mapped else slopes)[x, n] for target, n in pairs if target is x} for x in targets
    }
    c = bounded.walk(slopes_by_walk, mapped).intervals
    lower, _ = lower_bounds(Walk(c, alphas=slopes_by_walk[y]), y, mapped)
    lower = lower_model_ops(Graph((), (c.guarded(lower, -float("inf")).node,))).outputs[0]
    weights = Input("weights", TensorType(f64, lower.shape))()
    loss = ops.DotGeneral(((), ()), ((0,), (0,)))(weights, lower)
    slope_gradients = gradients(loss, list(slopes.values())) if slopes else []
    step_graph = Graph(
        (*bounded.inputs, weights, *slopes.values()), (lower, *_operand_bounds(c, hinges), *slope_gradients)
    )
    programs = [
        CompiledModel(compiled_program(lower_model_ops(g), options), threads=options.threads)
        for g in (Graph(bounded.inputs, tuple(ends) or (lower,)), step_graph)
    ]
    shapes = tuple((static_shape(a.shape), hinges.index(n)) for (_, n), a in slopes.items())
    return Slopes(_row_count(y, y), shapes, programs[0], programs[1])


def _operand_bounds(c: Intervals, hinges: Sequence[Node]) -> list[Node]:
    return [v.node for n in hinges for v in (c.of(n.inputs[0]).lower, c.of(n.inputs[0]).upper)]


def _hinges_of(target: Node, hinges: Sequence[Node]) -> list[Node]:
    """The hinges on which a value depends."""
    nodes = set(topological([target]))
    return [n for n in hinges if n in nodes]


def _row_count(x: Node, y: Node) -> int:
    """The number of rows of the walk from x: a lower bound for each element of the result y, both bounds otherwise."""
    return int(product(x.shape)) * (1 if x is y else 2)
