"""Recurrent layers as one kernel that keeps its weights, by the kernel interpreter beside the op's definition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from ingot.ir.dims import DimLike, symbol
from ingot.ir.kernel import AwaitProducers, Kernel, integer
from ingot.ir.node import Graph, Input, Node
from ingot.ir.types import TensorType, dtype_of, f32
from ingot.ops.nn.recurrent import GRU, LSTM, RNN, Recurrent
from ingot.schedule.gpu.blocks import HINT_32_BIT_INDICES
from ingot.schedule.gpu.machine import H100
from ingot.schedule.gpu.recurrent import Split, has_persistent_kernel
from ingot.targets.cuda.triton import print_kernel
from tests.conformance.checked import planned, run_planned

CUDA = "cuda:sm_90a"
GRU_LINEAR = GRU(5, linear_before_reset=True)


def operands(
    op: Recurrent, steps: int, batch: int, features: int = 3, dtype: type[np.floating] = np.float32
) -> list[np.ndarray]:
    rng = np.random.default_rng(steps + batch)
    passes, width, h = len(op.directions()), op.gates * op.hidden, op.hidden
    shapes: list[tuple[int, ...]] = [(steps, batch, features), (passes, width, features), (passes, width, h)]
    shapes += [(passes, 2 * width), *[(passes, batch, h)] * op.states]
    values: list[np.ndarray] = [rng.uniform(-1, 1, shape).astype(dtype) for shape in shapes]
    if op.has_lengths:
        values.append(rng.integers(0, steps + 1, batch))
    if op.has_peepholes():
        values.append(rng.uniform(-1, 1, (passes, 3 * h)).astype(dtype))
    return values


def graph_of(op: Recurrent, arrays: Sequence[np.ndarray], **free: DimLike) -> Graph:
    """free: sizes of x in place of those that the arrays have, "steps" and "batch"."""
    steps, batch, _ = arrays[0].shape
    sizes = {"steps": steps, "batch": batch, **free}
    shapes: list[tuple[DimLike, ...]] = [a.shape for a in arrays]
    shapes[0] = sizes["steps"], sizes["batch"], arrays[0].shape[2]
    for i in range(4, 4 + op.states):
        shapes[i] = (shapes[i][0], sizes["batch"], op.hidden)
    if op.has_lengths:
        shapes[4 + op.states] = (sizes["batch"],)
    inputs = [Input(f"a{i}", TensorType(dtype_of(a), s))() for i, (a, s) in enumerate(zip(arrays, shapes, strict=True))]
    return Graph(tuple(inputs), op(*inputs).results)


def run(op: Recurrent, arrays: Sequence[np.ndarray], **free: DimLike) -> list[Kernel]:
    """The kernels of rounds, once their results are those of the definition."""
    program, kernels = planned(graph_of(op, arrays, **free), CUDA)
    tolerance = 2e-3 if arrays[0].dtype == np.float16 else 2e-6
    for got, expected in zip(run_planned(program, kernels, arrays), op.reference(*arrays), strict=True):
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)
    return [kernel for kernel in kernels.values() if kernel.barrier is not None]


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", [LSTM(6), GRU_LINEAR, RNN(9)], ids=lambda op: op.name)
def test_all_steps_are_one_kernel(op: Recurrent, direction: str) -> None:
    op = replace(op, direction=direction, has_lengths=True)
    (kernel,) = run(op, operands(op, steps=4, batch=3))
    assert kernel.rounds == integer(4)
    assert not any(isinstance(s, AwaitProducers) for s in kernel.body)  # all programs run at once, behind others
    text = print_kernel(kernel).text
    before, loop = text.split("for round in")
    # R is read before the first step, and what steps write is not
    assert before.count("tl.load(in2 ") == op.gates and "tl.load(in2 " not in loop
    assert (
        "outputs" not in before.split("\n", 2)[2] and loop.rstrip().endswith(")") and "meet(arrived, round, 4," in loop
    )


@pytest.mark.parametrize(
    "op",
    [
        LSTM(4, has_peephole=True, input_forget=True, clip=0.3),
        LSTM(1),
        RNN(3, activations=(("relu", 0.0, 0.0),)),
        GRU(33, "bidirectional", linear_before_reset=True),
    ],
    ids=str,
)
@pytest.mark.parametrize("batch", [0, 1, 5])
def test_odd_layers(op: Recurrent, batch: int) -> None:
    run(op, operands(op, steps=2, batch=batch))


@pytest.mark.slow
def test_open_lengths_and_batches() -> None:
    op = LSTM(3, has_lengths=True)
    for steps, batch in ((3, 2), (0, 1)):
        (kernel,) = run(op, operands(op, steps, batch), steps=symbol("s") - 1, batch=symbol("b"))
        assert "s" in {v.name for v in kernel.dims}


def test_states_of_16_bits_are_kept_in_32() -> None:
    run(LSTM(8), operands(LSTM(8), 6, 2, dtype=np.float16))


def test_weights_of_16_bits_meet_rows_of_16_bits() -> None:
    """x and R are f32 beside them; W is multiplied with x as tensor cores take it."""
    arrays = operands(LSTM(16), 5, 4, features=32)
    arrays[1:3] = [a.astype(np.float16) for a in arrays[1:3]]
    program, kernels = planned(graph_of(LSTM(16), arrays), CUDA)
    rounded = [arrays[0].astype(np.float16).astype(np.float32), *arrays[1:]]
    got, expected = run_planned(program, kernels, arrays), LSTM(16).reference(*rounded)
    np.testing.assert_allclose(got[0], expected[0], atol=2e-6)
    assert any("tl.dot" in print_kernel(kernel).text for kernel in kernels.values())


def test_infinities_and_nans_stay_in_their_rows() -> None:
    op = RNN(4)
    arrays = operands(op, 3, 3)
    arrays[0][1, 0, 0], arrays[4][0, 1, 2] = np.nan, np.inf
    run(op, arrays)


def _node(op: Recurrent, steps: int = 7, batch: int = 1) -> Node:
    width, h = op.gates * op.hidden, op.hidden
    shapes = [(steps, batch, 2), (1, width, 2), (1, width, h), (1, 2 * width), *[(1, batch, h)] * op.states]
    return op(*(Input(f"a{i}", TensorType(f32, shape))() for i, shape in enumerate(shapes)))


@pytest.mark.parametrize(("steps", "narrow"), [(400_000, True), (600_000, False)])
def test_indices_are_as_wide_as_the_projections_need(steps: int, narrow: bool) -> None:
    """These have four places for each of the result, which has fewer than 2^31."""
    op = LSTM(256)
    graph = graph_of(op, operands(op, 1, 4), steps=steps)
    (kernel,) = (kernel for kernel in planned(graph, CUDA)[1].values() if kernel.barrier is not None)
    assert (HINT_32_BIT_INDICES in kernel.hints) == narrow


def test_who_keeps_weights() -> None:
    """All programs run at once, hold R in their registers and multiply few rows by it; others go step by step."""
    for op, batch, is_persistent in (
        (LSTM(512), 1, True), (LSTM(2048), 1, False), (LSTM(256), 4, True), (LSTM(256), 8, False),
        (LSTM(512), 2, False), (GRU(512), 1, False), (GRU(512, linear_before_reset=True), 1, True),
        (RNN(8, levels=True), 1, False),
    ):  # fmt: skip
        node = _node(op, batch=batch)
        assert has_persistent_kernel(node, H100) == is_persistent, op
        split = Split.of(node, H100)
        assert split is None or split.parts * split.blocks < H100.processors
    assert not has_persistent_kernel(_node(LSTM(4), steps=0), H100)


def test_layers_beyond_registers_are_loops() -> None:
    op = GRU(4)  # its second product reads what the first gave: two meetings a step
    assert run(op, operands(op, 3, 2)) == []
