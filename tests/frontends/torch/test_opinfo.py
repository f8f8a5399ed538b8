"""PyTorch's own samples of its operators (OpInfo), float32, through export, import and the interpreter.

An operator may be refused (UnsupportedOpError, ImportModelError); it may not give a wrong value or crash.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ingot.frontends.torch import export_module, import_exported
from ingot.support.errors import ImportModelError, UnsupportedOpError
from tests.frontends.torch.agree import close, run

# OpInfo's own dependency
pytest.importorskip("expecttest")
op_db = pytest.importorskip("torch.testing._internal.common_methods_invocations").op_db

SAMPLES = 4
# uninitialised results, and a function of shapes alone
UNDEFINED = frozenset(
    {"broadcast_shapes", "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"}
)
OPS = [op for op in op_db if torch.float32 in op.dtypes and op.name not in UNDEFINED]


class Call(nn.Module):
    """An operator on a sample's tensors, its other arguments fixed."""

    def __init__(self, op: Any, leaves: list[Any], spec: pytree.TreeSpec):
        super().__init__()
        self.op, self.leaves, self.spec = op, leaves, spec

    def forward(self, *tensors: Tensor) -> Any:
        data = iter(tensors)
        leaves = [next(data) if isinstance(v, Tensor) else v for v in self.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return self.op(*args, **kwargs)


def _ordered(values: Tensor, vectors: Tensor | None = None) -> Any:
    """Eigenvalues, in an order that does not depend on who computes them, and their vectors."""
    order = (values.real + 1.4142 * values.imag).argsort(-1)
    sorted_values = values.gather(-1, order)
    if vectors is None:
        return sorted_values
    return sorted_values, vectors.gather(-1, order.unsqueeze(-2).expand(vectors.shape))


# results whose order is free
ORDERED = {"linalg.eig": lambda results: _ordered(*results), "linalg.eigvals": _ordered}


def kinds(results: Any) -> list[Any]:
    return [(t.dtype, t.shape) if isinstance(t, Tensor) else t for t in pytree.tree_leaves(results)]


@pytest.mark.slow
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.formatted_name)
def test_operator(op: Any) -> None:
    agreed = 0
    reasons: list[str] = []
    for sample in islice(op.sample_inputs("cpu", torch.float32), SAMPLES):
        leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), dict(sample.kwargs)))
        tensors = tuple(v.detach() for v in leaves if isinstance(v, Tensor))
        net = Call(op.op, leaves, spec).eval()
        if any(0 in t.shape for t in tensors):
            continue
        try:
            model = import_exported(export_module(net, tuple(t.clone() for t in tensors)))
        except (UnsupportedOpError, ImportModelError) as e:
            reasons.append(str(e).split("\n")[1 if isinstance(e, UnsupportedOpError) else 0][:200])
            continue
        try:
            with torch.no_grad():
                expected = net(*(t.clone() for t in tensors))
        except RuntimeError as e:
            assert "out of bounds for storage" in str(e)  # the sample reads around its operand, which a clone ends at
            reasons.append("reads beyond its operand")
            continue
        got = run(model, *tensors)
        if any(node.op.draws for node in model.graph.nodes()):
            assert kinds(got) == kinds(expected)  # test_random.py judges the numbers
        else:
            # what is free, the signs of singular vectors, OpInfo takes out of results before it compares
            facts = [sample.output_process_fn_grad(v) for v in (got, expected)]
            got, expected = map(ORDERED.get(op.name, lambda results: results), facts)
            close(got, expected, 1e-4)
        agreed += 1
    if not agreed:
        pytest.skip(reasons[0] if reasons else "no samples")
