"""Kernels of tiles by their meaning, in cases that no sample of an op is. Every op: test_targets.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, const
from ingot.ir.types import TensorType, dtype_of
from tests.conformance.checked import planned, run_checked
from tests.conformance.samples import Sample
from tests.conformance.targets import H100
from tests.conformance.test_targets import conform


def test_a_product_of_no_common_type_is_summed_step_by_step(tmp_path: Path) -> None:
    """Tiles of 32-bit integers are no tensor cores' business."""
    a = np.arange(35, dtype=np.int32).reshape(5, 7)
    conform("null:cuda", [Sample.static(ops.DotGeneral(((), ()), ((1,), (0,))), (a, a.reshape(7, 5)))], tmp_path)


def test_long_reductions_of_few_rows_are_cut_into_parts(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=s).astype(np.float32) for s in ((3, 1100), (1100, 40)))
    op = ops.DotGeneral(((), ()), ((1,), (0,)))
    conform("null:cuda", [Sample.static(op, (a, b))], tmp_path)
    inputs = tuple(Input(f"x{i}", TensorType(dtype_of(x), x.shape))() for i, x in enumerate((a, b)))
    program, _ = planned(Graph(inputs, (op(*inputs),)), H100)
    assert [step.kernel.split("_")[0] for step in program.steps] == ["product", "sums"]


def test_rows_that_are_stored_reshaped_into_padding() -> None:
    """The rows' own order of axes is not that of the image which a convolution reads behind them."""
    rng = np.random.default_rng(1)
    x, w = (rng.normal(size=s).astype(np.float32) for s in ((2, 12, 8), (3, 3, 8, 4)))
    given = Input("x", TensorType(dtype_of(x), x.shape))()
    image = ops.reshape(ops.Softmax(2)(given), (2, 4, 3, 8))
    shape = {"lhs_layout": "NHWC", "rhs_layout": "HWIO", "out_layout": "NHWC", "padding": ((1, 1), (1, 1))}
    plain = {"strides": (1, 1), "lhs_dilation": (1, 1), "rhs_dilation": (1, 1)}
    graph = Graph((given,), (ops.Convolution(**plain, **shape)(image, const(w)),))
    np.testing.assert_allclose(run_checked(graph, [x], H100)[0], interpret(graph, [x])[0], rtol=1e-5, atol=1e-6)
