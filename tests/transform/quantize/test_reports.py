"""Kinds of models and samples that trackers of quantization tools have reports of, in every format that is offered.

A channel of zeros or of subnormal numbers, an input that is constant, a bias or a weight that convolutions share, one
value that several read, depthwise channels of unlike ranges, sums that overflow 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType, f32
from ingot.transform.quantize.calibrate import Probe
from ingot.transform.quantize.formats import FORMATS, Recipe, apply_formats, candidate_formats
from ingot.transform.quantize.rounding import roundings
from ingot.transform.quantize.sites import find_groups, prepare
from tests.transform.quantize.nets import normal, vector

W = normal(1, 12, 7)
ONES, PADS = (1, 1), ((1, 1), (1, 1))


def _product(w: np.ndarray) -> Callable[[Node], Node]:
    return lambda x: ops.MatMul()(x, const(np.asarray(w, np.float32)), loc="layer")


def _without(w: np.ndarray) -> np.ndarray:
    w = w.copy()
    w[:, 2], w[3] = 0, 0
    return w


def _conv(x: Node, w: np.ndarray, groups: int = 1, loc: str = "conv") -> Node:
    return ops.Conv(ONES, PADS, ONES, groups)(x, const(w), loc=loc)


def _shared_bias(x: Node) -> Node:
    a, b = _conv(x, normal(2, 4, 3, 3, 3), loc="a"), _conv(x, 100 * normal(3, 4, 3, 3, 3), loc="b")
    bias = vector(normal(4, 4), 1, a)
    return ops.concat([ops.add(a, bias), ops.add(b, bias)], 1)


def _shared_weight(x: Node) -> Node:
    w = normal(2, 3, 3, 3, 3)
    return _conv(ops.Relu()(_conv(x, w, loc="a")), w, loc="b")


def _read_twice(x: Node) -> Node:
    concatenated = ops.concat([ops.Relu()(x), x], 1)
    return ops.concat(
        [
            _conv(concatenated, normal(2, 4, 6, 3, 3), loc="a"),
            _conv(concatenated, normal(3, 2, 6, 3, 3), loc="b"),
            concatenated,
        ],
        1,
    )


def _depthwise(x: Node) -> Node:
    spread = np.array([0.01, 1, 100], np.float32).reshape(3, 1, 1, 1)
    return _conv(ops.Relu()(_conv(x, normal(2, 3, 1, 3, 3) * spread, 3, "a")), normal(3, 4, 3, 3, 3), loc="b")


ROWS, IMAGES = normal(8, 5, 12), normal(9, 2, 3, 6, 6)
CASES: dict[str, tuple[Callable[[Node], Node], np.ndarray]] = {
    "channel of zeros": (_product(_without(W)), ROWS),
    "weights of zeros": (_product(0 * W), ROWS),
    "one subnormal channel": (_product(W * np.array([1, 1e-40, 1, 1, 1, 1, 1])), ROWS),
    "sums beyond float16": (_product(W * 1e3), ROWS * 1e2),
    "inputs of zeros": (_product(W), 0 * ROWS),
    "row of zeros": (_product(W), ROWS * np.array([[0], [1], [1], [1], [1]], np.float32)),
    "constant input": (_product(W), 0 * ROWS + 3),
    "negative inputs": (_product(W), -np.abs(ROWS) - 1),
    "shared bias": (_shared_bias, IMAGES),
    "shared weight": (_shared_weight, IMAGES),
    "value read twice": (_read_twice, IMAGES),
    "depthwise": (_depthwise, IMAGES),
}
# of the largest output
BOUNDS = {"float32": 1e-6, "weight4": 0.3, "float16": 3e-3}


@pytest.mark.parametrize("name", CASES)
def test_each_format_that_is_offered(name: str):
    net, sample = CASES[name]
    x = Input("x", TensorType(f32, sample.shape))()
    graph = prepare(Graph((x,), (net(x),), ("y",)))
    groups, samples = find_groups(graph), [(sample,)] * 2
    ranges, _ = Probe(graph, groups, 1).calibrate(samples)
    recipe = Recipe(ranges, roundings(groups, ranges, FORMATS))
    (want,) = interpret(graph, (sample,))
    for form in FORMATS:
        formats = {g.name: form for g in groups if form in candidate_formats(g, ranges[g.name], FORMATS)}
        (got,) = interpret(apply_formats(graph, groups, recipe, formats), (sample,))
        bound = BOUNDS.get(form, 5e-2) * np.abs(want).max()
        assert np.abs(got - want).max() <= bound, (form, formats)
