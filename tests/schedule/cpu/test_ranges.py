"""Functions whose operands are known to lie in a range: e^-|x|, and log(1 + e^-|x|) behind it."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.node import Graph, Node
from ingot.ir.types import DTYPES
from ingot.ops import build
from tests.ir.kernel.math.test_math import Real, samples, ulps
from tests.schedule.compiled import MACHINES, inputs_like, run


def softplus(x: Node) -> Node:
    small = ops.Log1p()(ops.Exp()(ops.Neg()(ops.Abs()(x))))
    return build.add(build.maximum(x, 0.0), small)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize(("dtype", "bound"), [("f32", 2.6), ("f64", 2.6)])
def test_softplus(dtype: str, bound: float, machine) -> None:
    x = samples(DTYPES[dtype], np.random.default_rng(0))
    (node,) = inputs_like([x])
    (got,) = run(Graph((node,), (softplus(node),)), [x], machine)
    with np.errstate(all="ignore"):
        wide = x.astype(Real)
        want = np.maximum(wide, 0) + np.log1p(np.exp(-np.abs(wide)))
        error = ulps(got, want)
    worst = int(np.argmax(error))
    assert error[worst] <= bound, (error[worst], x[worst], got[worst], want[worst])


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_softplus_of_narrow_floats(dtype: str) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(DTYPES[dtype].numpy)
    (node,) = inputs_like([x])
    with np.errstate(all="ignore"):
        got = [np.asarray(v, np.float32) for v in run(Graph((node,), (softplus(node),)), [x])]
        want = np.maximum(x, 0).astype(Real) + np.log1p(np.exp(-np.abs(x.astype(Real))))
    finite = np.isfinite(want)
    np.testing.assert_array_equal(np.isnan(got[0]), np.isnan(want))
    # the exponential, its logarithm and the sum are rounded once each
    eps = 2.0**-11 if dtype == "f16" else 2.0**-8
    assert (np.abs(got[0][finite] - want[finite]) <= 3 * eps * want[finite] + 2.0**-24).all()
