"""`ingot.bounds`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ingot.runtime.cpu.pool import thread_count
from ingot.support.garbage import no_collection

if TYPE_CHECKING:
    from ingot.transform.bounds.run import Bounds


def bounds(
    model: Any,
    x: Any,
    *,
    eps: Any = None,
    lower: Any = None,
    upper: Any = None,
    method: str = "crown",
    spec: Any = None,
    numerics: bool = False,
    slope_steps: int = 0,
    dynamic: Any = None,
    precision: str = "float32",
    activations: str = "float32",
    target: str = "native",
    threads: int | None = None,
) -> Bounds:
    """Bounds of the model's results for all inputs of a box: compiled, run once, and a program that can be saved.

        lower, upper = ingot.bounds(net, x, eps=0.03)

    Args:
        model, dynamic, precision, activations, target, threads: as for `compile`. Precision and activations are part of
            what numerics include.
        x: the arguments of the model: an array or tensor, a tuple of them, or a dict by input name. Inputs that are no
            floats are constant.
        eps: the box reaches this far around x: a number or an array that broadcasts to x, or a list of them, one for
            each input of floats.
        lower, upper: the ends of the box, instead of eps: numbers, or as x.
        method: "crown": linear bounds of the results and of all values that a relaxation needs; "auto": the same, but
            for values from which a walk costs too much: they get affine forms where the inputs are few, as with
            "forward", and else intervals; "crown-ibp": linear bounds of the results, from intervals of all values;
            "forward": affine forms of all values, computed in one pass; "ibp": intervals alone.
        spec: [rows, elements] factors of the elements of the only result, such as differences of two classes, whose
            sums are bounded instead.
        numerics: include the rounding of the compiled program, in any order of its sums. Without, the bounds hold for
            the network over the real numbers.
        slope_steps: how often the slopes of the lower lines are improved (alpha-CROWN), for lower and upper alone: the
            monitor has those of CROWN.

    Returns: `Bounds`, which unpacks to (lower, upper), arrays of the results' types and shapes, rounded outwards. Its
    `monitor` is the compiled program, called with the lower and upper end of each input.

    Raises InputError for a box that is empty or not finite, eps below 0, open sizes, results of integers;
    UnsupportedOpError naming all ops that have no bounds; and what `compile` raises.
    """
    with no_collection():
        from ingot.driver.compile import Options  # as in `compile`
        from ingot.transform.bounds.run import bound_model

        return bound_model(
            model, x, eps=eps, lower=lower, upper=upper, method=method, spec=spec, numerics=numerics,
            slope_steps=slope_steps, dynamic=dynamic,
            options=Options(target, thread_count(threads), precision=precision, activations=activations),
        )  # fmt: skip
