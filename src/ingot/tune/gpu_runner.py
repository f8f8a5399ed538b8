"""The process that runs candidates on a GPU, for `Watched`. A request names a program and its inputs, the answer has
the seconds of its steps.

    {"program": "trial.ingot", "inputs": [[4096, "f16"], ...], "runs": 1}   ->   {"seconds": [[of each step], ...]}
    {"program": "trial.ingot", "inputs": ..., "compare": [[dtype, shape, strides, offset], ...]}   ->   {"wrong": ""}

"compare" compares the first half of the results with the second. After an error of the GPU nothing runs in the same
process any more, so an error is its last answer.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from ingot.debug.comparison.tolerance import agree
from ingot.runtime.artifact import load
from ingot.runtime.dtypes import numpy_dtype
from ingot.runtime.executor import CompiledModel
from ingot.tune.requests import answer_lines

_PERIOD = 1 << 20  # elements behind which random numbers repeat
_VALUE_SCALE = 0.1


@cache
def _random(kind: str) -> NDArray[np.uint8]:
    """Bytes of random numbers of a type, or random bits; integers that may be indices are zero."""
    rng = np.random.default_rng(0)
    if kind.startswith(("f", "bf")) and "8" not in kind:
        values = (_VALUE_SCALE * rng.standard_normal(_PERIOD)).astype(numpy_dtype(kind))
        return values.view(np.uint8)
    if kind in ("bytes", "bool"):
        return rng.integers(0, 2 if kind == "bool" else 256, _PERIOD, np.uint8)
    return np.zeros(_PERIOD, np.uint8)


def _inputs(request: dict[str, Any]) -> list[NDArray[Any]]:
    if "feeds" in request:  # bytes, as numpy's files know no types of others
        with np.load(request["feeds"]) as archive:
            arrays = [archive[name] for name in archive.files]
        return [
            x.view(numpy_dtype(dtype)).reshape(shape)
            for x, (dtype, shape) in zip(arrays, request["types"], strict=True)
        ]
    return [np.resize(_random(kind), nbytes) for nbytes, kind in request["inputs"]]


@cache
def _loaded_model(path: str) -> CompiledModel:
    return CompiledModel(load(Path(path)))


def answer(request: dict[str, Any]) -> dict[str, Any]:
    model = _loaded_model(request["program"]) if request.get("keep") else CompiledModel(load(Path(request["program"])))
    inputs = _inputs(request)
    if "compare" not in request:
        return {"seconds": [[t for _, t in model.profile(*inputs)] for _ in range(request["runs"])]}
    outputs = model(*inputs)
    results = outputs if isinstance(outputs, tuple) else (outputs,)
    values = [_view(x, place) for x, place in zip(results, request["compare"] * 2, strict=True)]
    half = len(values) // 2
    agreements = [agree(got, want) for want, got in zip(values[:half], values[half:], strict=True)]
    return {"wrong": next((str(a) for a in agreements if not a.ok), "")}


def _view(flat: Any, place: list[Any]) -> NDArray[Any]:
    dtype, shape, strides, offset = place
    values = np.asarray(flat).view(numpy_dtype(dtype))[offset:]
    return as_strided(values, shape, [values.itemsize * s for s in strides])


if __name__ == "__main__":
    answer_lines(answer)
