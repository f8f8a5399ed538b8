"""Kernels of tiles by their meaning, in cases that no sample of an op is. Every op: test_targets.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ingot import ops
from ingot.ir.node import Graph, Input
from ingot.ir.types import TensorType, dtype_of
from tests.conformance.checked import planned
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
