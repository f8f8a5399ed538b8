"""`ingot.register_op`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any


def register_op(
    name: str,
    *,
    infer: Callable[..., Any],
    reference: Callable[..., Any],
    lower: Callable[..., Any] | None = None,
    host: Callable[..., Any] | None = None,
    c: Any = None,
    torch: str | None = None,
    onnx: str | tuple[str, str] | None = None,
    jax: Any = None,
    samples: Sequence[Sequence[Any]] = (),
    sample_attributes: Mapping[str, Any] | None = None,
) -> None:
    """Teach Ingot an op of your own, without a change of its sources.

        ingot.register_op(
            "example::squareplus",
            infer=lambda x, b: x,
            reference=lambda x, b: (x + np.sqrt(x * x + b)) / 2,
            lower=lambda x, b: ops.mul(ops.add(x, ops.Sqrt()(ops.add(ops.mul(x, x), b))), 0.5),
            torch="example::squareplus", onnx=("example", "Squareplus"), jax="squareplus",
            samples=[(np.linspace(-3, 3, 7, dtype=np.float32),)], sample_attributes={"b": 4.0},
        )

    Each function takes the operands in order and the attributes by name. A later registration of the same name replaces
    an earlier one. Gradients are those of the lowering (docs/how-to/custom-ops.md).

    Args:
        name: in messages, texts of graphs and `explain`.
        infer: types (`.dtype`, `.shape` with open sizes, `.with_shape`) to the type of the result, or to several.
        reference: numpy arrays to an array or several. `ingot compare` and the interpreter use it.
        lower: nodes to a node or several, built of `ingot.ops`; or, for CPUs and without a gradient, one of
        host: a Python function of arrays, which it must not write or keep, to an array or several;
        c: a function of `ctypes`, `void f(const void *const *operands, void *const *results, const int64_t *sizes,
            const double *attributes)`: sizes of all axes, operands' first; attributes in the order of their names.
        torch: the name of a torch.library op, "library::op" or "library::op.overload". Arguments that are no tensors
            are attributes, by the names of its schema.
        onnx: (domain, op type). Its attributes keep their names; the row that Ingot has for an op goes first.
        jax: the target of a StableHLO custom_call, as `jax.ffi.ffi_call` makes it; or a primitive (jax.extend.core),
            which gets a lowering to a call of `name`. Its parameters are attributes.
        samples, sample_attributes: operands on which the lowering is compared with the reference now.

    Raises InputError for rules that are no functions, for a name that another op has, and for a lowering that differs
    from the reference on a sample.
    """
    from ingot.driver.custom import Body, Names, register  # as in `compile`

    register(name, infer, reference, Body(lower, host, c), Names(torch, onnx, jax), samples, sample_attributes or {})
