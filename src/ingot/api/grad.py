"""`ingot.value_and_grad` and `ingot.grad`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ingot.runtime.cpu.pool import thread_count
from ingot.support.garbage import no_collection

if TYPE_CHECKING:
    from ingot.transform.differentiate import DifferentiatedModel


def value_and_grad(
    model: Any,
    example_inputs: Any = None,
    *,
    wrt: str | Sequence[str] | None = None,
    target: str = "native",
    dynamic: Any = None,
    threads: int | None = None,
) -> DifferentiatedModel:
    """Compile a model whose single result is a loss, together with the gradients of this loss.

    Args:
        model, example_inputs, target, dynamic, threads: as for `compile`; the model's result is one float.
        wrt: the names of the inputs to differentiate with respect to; by default all inputs of a float dtype.

    Returns: a callable that takes the model's own arguments and returns (loss, {input: gradient})
        (docs/reference/training.md).

    Raises InputError for a loss that is not a scalar and for inputs that are not floats, UnsupportedOpError naming
    every op that has no gradient, and what `compile` raises.
    """
    with no_collection():
        from ingot.driver.compile import Options  # as in `compile`
        from ingot.transform.differentiate import differentiate

        options = Options(target, thread_count(threads))
        return differentiate(model, example_inputs, wrt, dynamic, options, has_value=True)


def grad(
    model: Any,
    example_inputs: Any = None,
    *,
    wrt: str | Sequence[str] | None = None,
    target: str = "native",
    dynamic: Any = None,
    threads: int | None = None,
) -> DifferentiatedModel:
    """Compile the gradients of a model whose single result is a loss: as `value_and_grad`, without the loss.

    Returns: a callable that takes the model's own arguments and returns {input: gradient}.
    """
    with no_collection():
        from ingot.driver.compile import Options  # as in `compile`
        from ingot.transform.differentiate import differentiate

        options = Options(target, thread_count(threads))
        return differentiate(model, example_inputs, wrt, dynamic, options, has_value=False)
