"""Nests by their meaning: samples of integer ops and bodies with several reductions, in the kernel interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Op
from ingot.ir.types import i32
from ingot.support.errors import CompileError
from tests.conformance.checked import planned, run_checked
from tests.conformance.samples import combine, static
from tests.passes.check import arg, graph, random_inputs

OPS = (ops.DotGeneral, ops.Convolution, ops.Reduce, ops.Clamp, ops.Transpose)


@pytest.mark.parametrize("cls", OPS, ids=lambda cls: cls.name)
def test_samples_of_integers(cls: type[Op]) -> None:
    result = 0
    for sample in static(cls):
        types = sample.op.infer(*sample.types)
        kinds = {t.dtype.kind for t in (*sample.types, *(types if isinstance(types, tuple) else (types,)))}
        dilated = set(getattr(sample.op, "lhs_dilation", ())) | set(getattr(sample.op, "base_dilation", ()))
        if "f" in kinds or dilated - {1} or getattr(sample.op, "batch_groups", 1) != 1:
            continue
        if getattr(sample.op, "of_signs", False):
            with pytest.raises(CompileError, match="words of signs"):
                planned(combine([sample]).graph, "verilog")
            continue
        if sum(x.size for x in sample.inputs) > 3000 or result > 5:
            continue
        result += 1
        one = combine([sample])
        (got,) = run_checked(one.graph, one.arrays, "verilog")
        np.testing.assert_array_equal(got, interpret(one.graph, one.arrays)[0], err_msg=str(sample))
    assert result


def test_a_reduction_that_is_broadcast_back_has_a_nest_of_its_own() -> None:
    x = arg("x", 4, 6, dtype=i32)
    largest = ops.BroadcastInDim((4, 6), (0,))(ops.Reduce("max", (1,))(x))
    g = graph(ops.Sub()(largest, x))
    program, kernels = planned(g, "verilog")
    assert len(program.steps) == 2 and len(kernels) == 2
    data = random_inputs(g, {})
    np.testing.assert_array_equal(run_checked(g, data, "verilog")[0], interpret(g, data)[0])
