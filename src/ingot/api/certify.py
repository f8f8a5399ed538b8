"""`ingot.certify`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ingot.runtime.cpu.pool import thread_count
from ingot.support.garbage import no_collection

if TYPE_CHECKING:
    from ingot.transform.bounds.search.certify import Verdict
    from ingot.transform.bounds.search.vnnlib import Property


def certify(
    model: Any,
    property: str | os.PathLike[str] | Property,
    *,
    seconds: float = 60,
    method: str = "auto",
    numerics: bool = False,
    dynamic: Any = None,
    seed: int = 0,
    precision: str = "float32",
    threads: int | None = None,
) -> Verdict:
    """Decide whether a model has a property: an attack looks for a counterexample, bounds over boxes of inputs, which
    are split where needed, for a proof.

        verdict = ingot.certify("model.onnx", "property.vnnlib")
        verdict.answer             # "proved", "refuted" or "unknown"
        verdict.counterexample     # refuted: the input and the program's result for it

    Args:
        model, dynamic, precision, threads: as for `compile`; a model of one input and one result of floats. Open sizes
            are 1.
        property: a VNN-LIB file, version 1 or 2, or a `Property`: what must not happen.
        seconds: the time to search.
        method: how boxes are bounded, as for `bounds`.
        numerics: prove it for the compiled program, with its rounding in any order of its sums. Without, a proof holds
            for the network over the real numbers; only with it is the model called certified.
        seed: of the attack's starting points.

    Returns: a `Verdict`: answer, counterexample, boxes, seconds, reason.

    Raises ImportModelError for a file that is no property, InputError for one of other inputs or results,
    UnsupportedOpError naming all ops that have no bounds.
    """
    with no_collection():
        from ingot.driver.compile import Options  # as in `compile`
        from ingot.transform.bounds.search.certify import certify_model
        from ingot.transform.bounds.search.vnnlib import read_property

        read = read_property(property) if isinstance(property, (str, os.PathLike)) else property
        options = Options(threads=thread_count(threads), precision=precision)
        return certify_model(
            model, read, seconds=seconds, method=method, numerics=numerics, dynamic=dynamic, seed=seed, options=options
        )
