"""`ingot.quantize`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ingot.api.compile import Model
    from ingot.transform.quantize.run import QuantizedModel


def quantize(
    model: Model | Any,
    samples: Any,
    labels: Any = None,
    *,
    metric: Callable[..., Any] | None = None,
    at_least: float | None = None,
    latency_ms: float | None = None,
    size_mb: float | None = None,
    seconds: float = 60.0,
    example_inputs: Any = None,
    dynamic: Any = None,
    formats: Sequence[str] | None = None,
    batch: int = 1,
    threads: int | None = None,
    seed: int = 0,
    table: str | os.PathLike[str] | None = None,
) -> QuantizedModel:
    """Compile a float model with a number format of its own for each product, chosen by measurement on this machine.

    Args:
        model, example_inputs, dynamic: as for `compile`. Without inputs, the first sample is the example.
        samples: what the model is called with: a mapping from inputs to arrays of many samples along their first axis,
            which are cut into calls of `batch`, or a sequence of calls, each a mapping, a tuple or one array. A part is
            kept apart, and what is promised is checked on it. latency: of the first call.
        labels: of the samples, handed to `metric`.
        metric: (outputs of each call as a list, labels if there are any) -> a number, higher is better. Without one it
            is the cosine of the outputs to the float model's.
        at_least: the part of the float model's metric that is kept, such as 0.99. latency_ms: of a call. size_mb: of
            code and weights. Without any of them: what is fastest within 0.99 of the metric, or a cosine of 0.997.
        seconds: about how long to search. formats: what to try, of float32, bfloat16, float16, int8, int8-dynamic,
            int16, weight8, weight4. seed: of what is kept apart.
        table: a file that keeps what was measured; a search with the same one repeats no measurement.

    Returns: a compiled model with a `report` (docs/quantize.md).

    Raises InputError for samples, a metric or a model that do not fit, ConstraintError with the nearest models that
    were measured where the constraints cannot be kept, and what `compile` raises.
    """
    from ingot.transform.quantize.run import Asked, quantize_model  # as in `compile`

    asked = Asked(metric, at_least, latency_ms, size_mb, seconds, formats, threads, seed)
    return quantize_model(
        model, samples, labels, example_inputs=example_inputs, dynamic=dynamic, batch=batch, table=table, asked=asked
    )
