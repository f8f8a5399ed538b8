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
    """Compile a model whose one result is a loss, together with the loss's gradients by its inputs.

    Args:
        model, example_inputs, target, dynamic, threads: as for `compile`; the model's result is one float.
        wrt: the inputs to differentiate by, by name; all that hold floats unless given.

    Returns: a callable with the model's own arguments that gives (loss, {input: gradient}) (docs/training.md).

    Raises InputError for a loss that is no scalar and for inputs that are no floats, UnsupportedOpError naming all ops
    that have no reverse rule, and what `compile` raises.
    """
    with no_collection():
        from ingot.driver.compile import Options  # as in `compile`
        from ingot.transform.differentiate import differentiate

        options = Options(target, thread_count(threads))
        return differentiate(model, example_inputs, wrt, dynamic, options, value=True)


def grad(
    model: Any,
    example_inputs: Any = None,
    *,
    wrt: str | Sequence[str] | None = None,
    target: str = "native",
    dynamic: Any = None,
    threads: int | None = None,
) -> DifferentiatedModel:
    """Compile the gradients of a model whose one result is a loss: as `value_and_grad`, without the loss.

    Returns: a callable with the model's own arguments that gives {input: gradient}.
    """
    with no_collection():
        from ingot.driver.compile import Options  # as in `compile`
        from ingot.transform.differentiate import differentiate

        options = Options(target, thread_count(threads))
        return differentiate(model, example_inputs, wrt, dynamic, options, value=False)
