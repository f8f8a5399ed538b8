"""Transposed convolutions: one convolution for all phases that read the same inputs."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import DimLike, likely_sizes, symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Node, const
from ingot.passes.core.fold_constants import fold_constants
from ingot.passes.core.layout import assign_layouts, explicit_padding
from ingot.passes.core.simplify import simplify
from ingot.passes.core.transposed_conv import split_transposed
from ingot.passes.model.lower import lower_model_ops
from tests.passes.check import arg, count, graph, random_inputs, same_values
from tests.schedule.compiled import check

RNG = np.random.default_rng(3)


def rises(
    shape: tuple[DimLike, ...], out_channels: int, kernel: int, stride: int, pad: int, output_padding: int = 0,
    groups: int = 1, trained: bool = False,
) -> Graph:  # fmt: skip
    """A graph with one transposed convolution of `shape`, as CORE ops, and what follows it. trained: its weights are
    an input."""
    x, rank = arg("x", *shape), len(shape) - 2
    w = RNG.standard_normal((int(x.shape[1]), out_channels // groups, *((kernel,) * rank))).astype(np.float32)  # type: ignore
    op = ops.ConvTranspose((stride,) * rank, ((pad, pad),) * rank, (output_padding,) * rank, (1,) * rank, groups)
    weights = arg("w", *w.shape) if trained else const(w)
    return fold_constants(lower_model_ops(graph(ops.maximum(op(x, weights), 0.0)), frozenset()))


def convolutions(g: Graph) -> list[Node]:
    return [n for n in g.nodes() if isinstance(n.op, ops.Convolution)]


CASES = [  # shape, out, kernel, stride, pad, output padding, groups, convolutions
    ((2, 64, 4, 4), 8, 4, 2, 1, 0, 1, 4),
    ((2, 64, 5, 7), 8, 3, 2, 1, 1, 1, 4),  # phases of 1, 2, 2 and 4 taps
    ((2, 64, 5, 7), 8, 3, 2, 1, 0, 1, 4),  # sizes that the stride does not divide
    ((2, 64, 9), 8, 16, 8, 4, 0, 1, 2),
    ((1, 3, 5, 4), 2, 16, 8, 4, 0, 1, 4),
    ((1, 4, 5, 4), 2, 7, 3, 2, 1, 2, 9),
    ((1, 4, 5, 4), 2, 3, 2, 3, 0, 1, 4),  # what is cut off reaches beyond the input
    ((1, 128, 5), 6, 4, 2, 1, 1, 2, 2),
    ((1, 128, 3, 2, 4), 8, 4, 2, 1, 0, 1, 8),
    ((2, 64, 4, 4), 8, 2, 2, 0, 0, 1, 1),  # phases of one tap, all the same
    ((2, 64, 4, 4), 8, 4, 4, 0, 0, 1, 1),
    ((2, 64, 4, 4), 8, 2, 3, 0, 0, 1, 1),  # phases without taps
    ((2, 64, 9), 8, 2, 5, 2, 0, 1, 1),
    ((2, 4, 4, 4), 8, 4, 2, 1, 0, 1, 4),
    ((2, 64, 3, 3), 64, 4, 2, 1, 0, 64, 4),
    ((symbol("n"), 64, 4, 4), 8, 4, 2, 1, 0, 1, 4),
    ((symbol("n"), 64, symbol("l")), 8, 4, 2, 1, 0, 1, 2),
]


@pytest.mark.parametrize("case", CASES)
def test_phases(case: tuple[tuple[DimLike, ...], int, int, int, int, int, int, int]) -> None:
    shape, out_channels, kernel, stride, pad, output_padding, groups, kernels = case
    before = rises(shape, out_channels, kernel, stride, pad, output_padding, groups)
    with likely_sizes({"n": 1, "l": 6}):
        after = split_transposed(before)
    assert len(convolutions(after)) == kernels
    assert all(d == 1 for n in convolutions(after) for d in n.op.lhs_dilation)  # type: ignore[union-attr]
    sizes = {"n": 3, "l": 6}
    same_values(before, after, 2e-4, **sizes)
    compiled = explicit_padding(assign_layouts(simplify(after)))
    check(compiled, random_inputs(before, sizes), rtol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_no_number_spreads_beyond_the_taps_that_read_it(
    case: tuple[tuple[DimLike, ...], int, int, int, int, int, int, int],
) -> None:
    before, sizes = rises(*case[:-1]), {"n": 3, "l": 6}
    compiled = explicit_padding(assign_layouts(simplify(split_transposed(before))))
    (x,) = random_inputs(before, sizes)
    x.reshape(-1)[RNG.permutation(x.size)[:3]] = np.nan, np.inf, -np.inf
    for got, want in zip(interpret(compiled, [x]), interpret(before, [x]), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    if case in CASES[1:4]:
        check(compiled, [x], rtol=1e-5)


@pytest.mark.parametrize("case", [CASES[n] for n in (1, 5, 7, 11, 14)])
def test_weights_that_are_trained_are_cut_by_the_program(
    case: tuple[tuple[DimLike, ...], int, int, int, int, int, int, int],
) -> None:
    before = rises(*case[:-1], trained=True)
    after = split_transposed(before)
    assert len(convolutions(after)) == case[-1]
    same_values(before, after, 2e-4)
    check(explicit_padding(assign_layouts(simplify(after))), random_inputs(before, {}), rtol=1e-5)


def test_phases_share_one_padded_input() -> None:
    after = explicit_padding(assign_layouts(split_transposed(rises((1, 64, 4, 4), 8, 4, 2, 1))))
    assert count(after, ops.Pad) == 1
