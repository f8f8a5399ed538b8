"""Samples: calls for measuring formats, and held-out calls for checking the constraints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ingot.ir.dims import Dim, substitute
from ingot.ir.interp import bind_symbols
from ingot.ir.node import Graph, Input, size_elements
from ingot.ir.types import DType
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError

Call = tuple[np.ndarray, ...]  # an array for each input, in the model's order
MIN_CALLS = 4


@dataclass(frozen=True)
class Samples:
    """Calls of `batch` samples each, and labels: one for each call, or None."""

    calls: tuple[Call, ...]
    labels: tuple[Any, ...] | None
    batch: int = 1

    def __len__(self) -> int:
        return len(self.calls)

    def pick(self, indices: Sequence[int]) -> Samples:
        labels = self.labels
        picked = tuple(self.calls[i] for i in indices)
        return Samples(picked, None if labels is None else tuple(labels[i] for i in indices), self.batch)

    @property
    def count(self) -> int:
        return len(self) * self.batch

    def split(self, fraction: float, seed: int) -> tuple[Samples, Samples]:
        """The search samples, and the held-out ones."""
        order = np.random.default_rng(seed).permutation(len(self.calls)).tolist()
        held_out = min(max(1, round(fraction * len(order))), len(order) - 1)
        return self.pick(sorted(order[held_out:])), self.pick(sorted(order[:held_out]))


def read_samples(graph: Graph, data: Any, labels: Any, batch: int, flatten: Any = None) -> Samples:
    """Read and check samples.

    data: a mapping from inputs to arrays of many samples along their first axis, which are split into calls of `batch`
    (of the model's own size if that is fixed); or a sequence of calls, each a mapping, a tuple or one array. labels:
    one for each sample of a mapping's arrays, or one for each call.

    Raises InputError for samples that do not fit, are too few, constant or hold NaN.
    """
    names = [n.op.label for n in graph.inputs if isinstance(n.op, Input)]
    size = 1
    if isinstance(data, Mapping):
        calls, groups = _split_into_calls(graph, names, data, batch)
        size = groups[0].stop - groups[0].start if groups else batch
        call_labels = None if labels is None else _split_labels(labels, groups)
    elif _are_calls(data):
        calls = [_call(names, one, i, flatten) for i, one in enumerate(data)]
        call_labels = None if labels is None else list(labels)
    else:
        raise InputError("samples", expected=_KINDS, got=type(data).__name__)
    if len(calls) < MIN_CALLS:
        fix = "each call is a sample; some are held out to check the result"
        raise InputError("samples", expected=f"at least {MIN_CALLS} calls", got=len(calls), fix=fix)
    if call_labels is not None and len(call_labels) != len(calls):
        raise InputError("labels", expected=f"one for each of {len(calls)} calls", got=len(call_labels))
    checked = tuple(_check_call(graph, names, call, i) for i, call in enumerate(calls))
    _check_variety(names, checked)
    return Samples(checked, None if call_labels is None else tuple(call_labels), size)


def first_call(data: Any, batch: int) -> Any:
    """The first call of samples in any form that `read_samples` takes. Raises InputError if there is none."""
    if isinstance(data, Mapping):
        return {name: array[:batch] if np.ndim(array) else array for name, array in data.items()}
    if not _are_calls(data):
        raise InputError("samples", expected=_KINDS, got=type(data).__name__)
    if not len(data):
        raise InputError("samples", expected=f"at least {MIN_CALLS} calls", got=0)
    return data[0]


_KINDS = "a mapping from inputs to arrays, or a sequence of calls"


def _are_calls(value: Any) -> bool:
    return isinstance(value, Sequence | np.ndarray) and not isinstance(value, str | bytes)


def _split_into_calls(
    graph: Graph, names: Sequence[str], arrays_by_name: Mapping[str, Any], batch: int
) -> tuple[list[Call], list[slice]]:
    if sorted(arrays_by_name) != sorted(names):
        raise InputError("samples", expected=f"an array for each of {list(names)}", got=sorted(arrays_by_name))
    arrays = [_array(arrays_by_name[name]) for name in names]
    counts = {name: len(a) if a.ndim else 0 for name, a in zip(names, arrays, strict=True)}
    if len(set(counts.values())) != 1:
        raise InputError("samples", expected="the same number of samples for each input", got=counts)
    fixed = {n.shape[0] for n in graph.inputs if n.type.rank and isinstance(n.shape[0], int)}
    has_open = any(n.type.rank and isinstance(n.shape[0], Dim) for n in graph.inputs)
    if len(fixed) > 1 or (fixed and has_open) or any(n.type.rank == 0 for n in graph.inputs):
        fix = "pass a sequence of calls, each a mapping from inputs to arrays"
        raise InputError("samples", expected="inputs with a common batch axis 0", got=sorted(fixed), fix=fix)
    step = int(fixed.pop()) if fixed else batch
    (total,) = set(counts.values())
    slices = [slice(i, i + step) for i in range(0, total - step + 1, step)]
    return [tuple(a[s] for a in arrays) for s in slices], slices


def _split_labels(labels: Any, slices: Sequence[slice]) -> list[Any]:
    count = len(labels)
    sample_count = slices[-1].stop if slices else 0
    if count < sample_count:
        raise InputError("labels", expected=f"at least {sample_count}, one for each sample", got=count)
    return [labels[s] for s in slices]


def _call(names: Sequence[str], sample: Any, index: int, flatten: Any) -> Call:
    if isinstance(sample, Mapping) and sorted(sample) == sorted(names):
        return tuple(_array(sample[name]) for name in names)
    args, kwargs = (
        ((), sample) if isinstance(sample, Mapping) else (sample if isinstance(sample, tuple | list) else (sample,), {})
    )
    if flatten is not None:
        return tuple(_array(v) for v in flatten(args, kwargs))
    if kwargs or len(args) != len(names):
        raise InputError(
            f"sample {index}", expected=f"values of {list(names)}", got=sorted(kwargs) or f"{len(args)} values"
        )
    return tuple(_array(v) for v in args)


def _array(value: Any) -> np.ndarray:
    if type(value).__module__.partition(".")[0] != "torch":
        return np.asarray(value)
    from ingot.frontends.torch.convert import to_numpy  # needs an extra

    return to_numpy(value)


def _check_call(graph: Graph, names: Sequence[str], call: Call, index: int) -> Call:
    for name, node, array in zip(names, graph.inputs, call, strict=True):
        where = f"sample {index}, input {name!r}"
        if array.dtype != node.dtype.numpy:
            raise InputError(
                where, expected=node.dtype, got=array.dtype, fix=f"convert it with .astype({node.dtype.numpy})"
            )
        if _is_float(node.dtype) and not np.isfinite(array).all():
            bad = "NaN" if np.isnan(array).any() else "infinity"
            raise InputError(where, expected="finite numbers", got=bad, fix="ranges need finite numbers")
    elements = [a.reshape(-1).tolist() for n, a in zip(graph.inputs, call, strict=True) if size_elements(n)]
    try:
        sizes = bind_symbols(graph, [a.shape for a in call], elements)
    except InputError as error:
        raise InputError(f"sample {index}: {error}") from error
    for name, node, array in zip(names, graph.inputs, call, strict=True):
        shape = tuple(substitute(d, sizes) for d in node.shape)
        if array.shape != shape:
            raise InputError(f"sample {index}, input {name!r}", expected=f"shape {list(shape)}", got=list(array.shape))
    return tuple(np.ascontiguousarray(a) for a in call)


def _is_float(dtype: DType) -> bool:
    return dtype.is_float


def _check_variety(names: Sequence[str], calls: Sequence[Call]) -> None:
    """Raise InputError if all samples are equal: they do not determine ranges."""
    for i in range(len(names)):
        first = calls[0][i]
        if any(c[i].shape != first.shape or not np.array_equal(c[i], first) for c in calls[1:]):
            return
    raise InputError("samples", expected="calls that differ", got=f"{len(calls)} of the same values")
