"""The canonical form computes what the model does, and has the forms that relaxations know."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.driver.open import Request, open_model
from ingot.ir.interp import interpret
from ingot.transform.bounds.canonical import canonical
from ingot.transform.bounds.forms import Form, Hinge, Reciprocal, Shift, Silu, Square
from ingot.transform.bounds.rounding import Rounding
from tests.transform.bounds.test_bounds import NETS, net_of

FORMS: dict[str, tuple[type, ...]] = {
    "relu": (Hinge,), "silu": (Silu,), "gelu": (ops.Gelu,), "pools": (Hinge, Shift), "norms": (Square, ops.Rsqrt),
    "attention": (Reciprocal, Shift), "ratio": (Square, Reciprocal, ops.Erf), "residual": (Hinge,),
}  # fmt: skip


@pytest.mark.parametrize("name", NETS)
def test_it_computes_the_same(name: str) -> None:
    net, x = net_of(name)
    graph = open_model(net, Request((x,))).graph
    core = canonical(graph, Rounding())
    rng = np.random.default_rng(0)
    for scale in (0.0, 1.0, 30.0):
        value = rng.normal(size=x.shape).astype(np.float32) * scale
        (expected,), (got,) = interpret(graph, [value]), interpret(core, [value])
        np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-4)
    kinds = {type(n.op) for n in core.nodes()}
    assert kinds >= set(FORMS.get(name, ()))
    assert not kinds & {ops.Max, ops.Min, ops.Abs, ops.Clamp, ops.Softmax}


def test_forms_are_functions_of_elements() -> None:
    x = np.asarray([-3.0, -0.5, 0.0, 0.5, 3.0], np.float32)
    np.testing.assert_allclose(Hinge(0.1, 2.0).reference(x), [-0.3, -0.05, 0, 1, 6], rtol=1e-6)
    for form in Form.__subclasses__():
        y = form().reference(x)
        assert y.shape == x.shape and y.dtype == x.dtype and np.isfinite(y[-2:]).all()
