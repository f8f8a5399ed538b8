"""Functions whose gradient is taken from torch where the gradient of their decomposition would be NaN or differ.

y = norm(x)   ->   y = own_gradient([y], [cotangent(y)], [x], [x / y * cotangent(y), 0 where y is 0])

A norm of zeros, a standard deviation of equal numbers, a probability of exactly 1: PyTorch's formulas give a finite
number there. They are traced by autograd itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, fx
from torch._decomp import core_aten_decompositions
from torch.func import functionalize, vjp
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from ingot import ops
from ingot.frontends.torch.decompose import without_handled
from ingot.frontends.torch.values import Complex
from ingot.ir.node import Input, Node, rebuild
from ingot.ir.types import TensorType

Run = Callable[[fx.GraphModule, Sequence[object]], list[object]]

_DEVIATIONS = [f"{kind}.{form}" for kind in ("std", "std_mean") for form in ("default", "dim", "correction")]
_SPECIAL = ("entr", "erfcx", "i0e", "i1", "i1e", "log_ndtr", "ndtri")
_FAKE_QUANTIZATIONS = ("per_tensor_affine.default", "per_tensor_affine.tensor_qparams", "per_channel_affine.default")
SLOPES = frozenset(
    f"aten.{name}"
    for name in (
        # at zeros
        "linalg_vector_norm.default", "norm.Scalar", "norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype",
        "norm.ScalarOpt_dtype", "cdist.default", "_cdist_forward.default", "dist.default", "renorm.default",
        "abs.default", "angle.default", "atan2.default", "sinc.default", *_DEVIATIONS,
        # at the bounds of their domain, or where an untaken branch has no gradient
        "binary_cross_entropy.default", "erfc.default", "erfinv.default", "lgamma.default", "digamma.default",
        "i0.default", "logit.default", *(f"special_{name}.default" for name in _SPECIAL),
        # among equal numbers, the gradient goes to the chosen one
        "max.dim", "min.dim", "adaptive_max_pool1d.default", "adaptive_max_pool2d.default",
        "adaptive_max_pool3d.default",
        # rounding, or series
        *(f"fake_quantize_{kind}" for kind in _FAKE_QUANTIZATIONS), "linalg_matrix_exp.default", "matrix_exp.default",
    )
)  # fmt: skip
# the number of operands with gradients, where not all float operands have one
_DIFFERENTIATED_OPERANDS = {"fake_quantize": 1, "binary_cross_entropy": 2}


def has_slope(name: str, arguments: Sequence[object]) -> bool:
    """Whether the op has a gradient of torch's own here, with these arguments."""
    first = arguments[0] if name in SLOPES else None
    return isinstance(first, Complex) or (
        isinstance(first, Node) and first.dtype.is_float and name != "aten.abs.default"
    )


def with_slope(
    run: Run, op: torch._ops.OpOverload, node: fx.Node, env: Mapping[fx.Node, object], types: Sequence[TensorType]
) -> object:
    """The results of `op`, called as `node` calls it, with torch's gradients with respect to its float operands.

    run: a graph and its arguments -> its results. env: the values of nodes. types: of the results.
    """
    leaves, tree = pytree.tree_flatten((node.args, node.kwargs))
    values = [env[a] if isinstance(a, fx.Node) else a for a in leaves]
    places = [i for i, a in enumerate(leaves) if isinstance(a, fx.Node) and isinstance(a.meta.get("val"), Tensor)]
    fixed = [a.meta["val"] if isinstance(a, fx.Node) else a for a in leaves]
    results = pytree.tree_leaves(node.meta["val"])
    differentiable = [i for i, y in enumerate(results) if y.is_floating_point()]

    def differentiated(tensors: list[Tensor], cotangents: list[Tensor]) -> list[Tensor]:
        def called(*learned: Tensor) -> tuple[tuple[Tensor, ...], list[Tensor]]:
            remaining = iter([*learned, *tensors[len(learned) :]])
            for i in places:
                fixed[i] = (
                    torch.complex(next(remaining), next(remaining))
                    if isinstance(values[i], Complex)
                    else next(remaining)
                )
            args, kwargs = pytree.tree_unflatten(fixed, tree)
            ys = pytree.tree_leaves(op(*args, **kwargs))
            return tuple(ys[i] for i in differentiable), ys

        with torch.enable_grad():
            _, pulled_back, ys = vjp(called, *tensors[:count], has_aux=True)  # type: ignore[misc]  # three, with has_aux
        return [*ys, *pulled_back(tuple(cotangents))]

    with results[0].fake_mode:
        tensors = [
            x for i in places for x in (_empty_parts(fixed[i]) if isinstance(values[i], Complex) else (fixed[i],))
        ]
        # the tensors with a gradient precede the others
        integer_positions = (n for n, x in enumerate(tensors) if not x.is_floating_point())
        max_count = next((n for name, n in _DIFFERENTIATED_OPERANDS.items() if name in op.name()), len(tensors))
        count = min(max_count, next(integer_positions, len(tensors)))
        table = without_handled(core_aten_decompositions())
        traced = make_fx(functionalize(differentiated), table)(
            tensors, [torch.empty_like(results[i]) for i in differentiable]
        )
    operands = [x for i in places for x in _parts(values[i])]
    cotangents = [Input(f"cotangent{i}", types[i])() for i in differentiable]
    ys, gradients = _split(run(traced, [*operands, *cotangents]), len(results))
    own_cotangents = [ops.Cotangent(number)(ys[i]) for number, i in enumerate(differentiable)]
    gradients = rebuild(gradients, dict(zip(cotangents, own_cotangents, strict=True)))
    own_results = ops.CustomGradient(len(differentiable))(
        *(ys[i] for i in differentiable), *own_cotangents, *operands[:count], *gradients
    ).results
    for i, y in zip(differentiable, own_results, strict=True):
        ys[i] = y
    return ys[0] if isinstance(node.meta["val"], Tensor) else tuple(ys)


def _split(results: Sequence[object], count: int) -> tuple[list[Node], list[Node]]:
    nodes = [r for r in results if isinstance(r, Node)]
    return nodes[:count], nodes[count:]


def _empty_parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """Empty tensors of the types of a complex tensor's parts."""
    return torch.empty_like(x.real), torch.empty_like(x.real)


def _parts(value: object) -> tuple[Node, ...]:
    if isinstance(value, Complex):
        return value.real, value.imaginary
    assert isinstance(value, Node)
    return (value,)
