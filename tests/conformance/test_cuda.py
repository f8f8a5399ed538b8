"""Every op x its samples x kernels of tiles: what they compute by their meaning is the reference, and Triton's text of
each can be printed. No GPU is needed; `benchmarks/gpu` runs the same samples on one."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.node import Graph, Input, Op
from ingot.ir.types import TensorType, dtype_of
from ingot.targets.cuda.triton import TYPES, print_kernel
from tests.conformance.bounds import check
from tests.conformance.checked import planned, run_checked
from tests.conformance.test_cpu import OPS

TARGET = "cuda:sm_90a"
# ops whose kernels are not there yet, and why
SKIPPED: dict[type[Op], str] = {}


def cases(cls: type[Op], most: int) -> list[tuple[Op, tuple[np.ndarray, ...]]]:
    """Some samples of types that GPUs store."""
    known = [
        (op, inputs) for op, inputs in cls.samples()
        if all(dtype_of(x) in TYPES for x in inputs) and sum(x.size for x in inputs) < 5000
    ]  # fmt: skip
    return known[:: max(1, len(known) // most)]


def conform(op: Op, arrays: tuple[np.ndarray, ...]) -> None:
    inputs = tuple(Input(f"x{i}", TensorType(dtype_of(a), a.shape))() for i, a in enumerate(arrays))
    node = op(*inputs)
    if any(t.dtype not in TYPES for t in node.types):
        return
    graph = Graph(inputs, node.results if len(node.types) > 1 else (node,))
    got = run_checked(graph, arrays, TARGET)
    want = op.reference(*arrays)
    for g, w in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        check(op, arrays, g, np.asarray(w), str(op))
    _, kernels = planned(graph, TARGET)
    for kernel in kernels.values():
        assert print_kernel(kernel).text.startswith("@triton.jit")


@pytest.mark.parametrize("cls", [pytest.param(c, id=c.name) for c in OPS])
def test_a_sample(cls: type[Op]) -> None:
    if cls in SKIPPED:
        pytest.skip(SKIPPED[cls])
    for op, arrays in cases(cls, 1):
        conform(op, arrays)


@pytest.mark.slow
@pytest.mark.parametrize("cls", [pytest.param(c, id=c.name) for c in OPS])
def test_samples(cls: type[Op]) -> None:
    if cls in SKIPPED:
        pytest.skip(SKIPPED[cls])
    for op, arrays in cases(cls, 16):
        conform(op, arrays)


def test_a_product_of_no_common_type_is_summed_step_by_step() -> None:
    """Tiles of 32-bit integers are no tensor cores' business."""
    a = np.arange(35, dtype=np.int32).reshape(5, 7)
    conform(ops.DotGeneral(((), ()), ((1,), (0,))), (a, a.reshape(7, 5)))


def test_long_reductions_of_few_rows_are_cut_into_parts() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=s).astype(np.float32) for s in ((3, 1100), (1100, 40)))
    op = ops.DotGeneral(((), ()), ((1,), (0,)))
    conform(op, (a, b))
    inputs = tuple(Input(f"x{i}", TensorType(dtype_of(x), x.shape))() for i, x in enumerate((a, b)))
    program, _ = planned(Graph(inputs, (op(*inputs),)), TARGET)
    assert [step.kernel.split("_")[0] for step in program.steps] == ["product", "sums"]
