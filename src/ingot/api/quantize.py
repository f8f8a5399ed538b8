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
    energy_millijoules: float | None = None,
    seconds: float = 60.0,
    example_inputs: Any = None,
    dynamic: Any = None,
    formats: Sequence[str] | None = None,
    batch: int = 1,
    threads: int | None = None,
    seed: int = 0,
    table: str | os.PathLike[str] | None = None,
) -> QuantizedModel:
    """Compile a float model with a number format for each product, chosen by measurement on this machine.

    Args:
        model, example_inputs, dynamic: as for `compile`. Without example inputs, the first sample is the example.
        samples: inputs to measure with: a mapping from input names to arrays of many samples along their first axis,
            which are split into calls of `batch`; or a sequence of calls, each a mapping, a tuple or one array. Some
            samples are held out, and the constraints are checked on these. Latency is that of the first call.
        labels: the labels of the samples, which `metric` takes.
        metric: a function of (list of each call's outputs, labels if given) that returns a number; higher is better. By
            default the cosine similarity of the outputs to those of the float model.
        at_least: the fraction of the float model's metric to retain, such as 0.99.
        latency_ms: the longest time of a call. size_mb: the largest size of code and weights.
        energy_millijoules: the most energy of a call, on a machine with a counter (docs/how-to/energy.md); measuring
            it takes some 15 seconds for each model that meets the others. Without any of these four constraints: the
            fastest model that retains 0.99 of the metric, or a cosine similarity of 0.997.
        seconds: the approximate time to search for.
        formats: the formats to try, out of float32, bfloat16, float16, int8, int8-dynamic, int16, weight8, weight4.
        seed: selects the samples that are held out.
        table: a file that stores the measurements; a search with the same file repeats none of them.

    Returns: a compiled model with a `report` (docs/reference/quantize.md).

    Raises InputError for samples, a metric or a model that do not fit, ConstraintError with the nearest models that
    were measured if no model meets the constraints, and what `compile` raises.
    """
    from ingot.transform.quantize.run import SearchOptions, quantize_model  # as in `compile`

    options = SearchOptions(metric, at_least, latency_ms, size_mb, energy_millijoules, seconds, formats, threads, seed)
    return quantize_model(
        model,
        samples,
        labels,
        example_inputs=example_inputs,
        dynamic=dynamic,
        batch=batch,
        table=table,
        options=options,
    )
