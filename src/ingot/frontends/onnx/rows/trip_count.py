"""The trip count of a loop whose condition compares a counter with a size.

    i = 0; n = len(x); while i < n: ...; i = i + 1      ->   n iterations

Exporters of `while` loops (such as tf2onnx for TensorFlow's recurrent layers) write no trip count. With one, the size
of the loop's stacked results is known at import.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot import ops
from ingot.ir.dims import DimLike, ceildiv, dim_max
from ingot.ir.node import Const, Node

_SWAPPED_DIRECTION = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE"}
MAX_EXACT_INTEGER = 1 << 24  # integers up to here are exact in f32, in which older exporters compare


def trip_count(
    is_going: Node, names: Sequence[Node], starts: Sequence[DimLike | None], ends: Sequence[Node]
) -> tuple[DimLike, bool] | None:
    """(trip count of a loop whose first iteration runs, whether it is exact only below MAX_EXACT_INTEGER); None where
    the condition has another form.

    is_going: the condition of another iteration, computed in the body from `names`, the values at its start. starts:
    their initial values, where they are known sizes. ends: their values after an iteration."""
    if not isinstance(is_going.op, ops.Compare) or is_going.op.direction not in _SWAPPED_DIRECTION:
        return None
    for direction, a, b in (
        (is_going.op.direction, *is_going.inputs),
        (_SWAPPED_DIRECTION[is_going.op.direction], *reversed(is_going.inputs)),
    ):
        counter, limit = (
            _counter(_without_conversions(a), names, starts, ends),
            _fixed(_without_conversions(b), names, starts, ends),
        )
        if counter is None or limit is None or direction not in ("LT", "LE"):
            continue
        start, offset, step = counter
        end = limit if direction == "LT" else limit + 1
        inexact = any(n.dtype.kind == "f" for n in is_going.inputs)
        return 1 + dim_max(0, ceildiv(end - start - offset, step)), inexact
    return None


def _without_conversions(x: Node) -> Node:
    """`x` without conversions between integers, and to the float type in which integers are compared."""
    while isinstance(x.op, ops.Convert | ops.Reshape) and x.type.size == 1:
        x = x.inputs[0]
    return x


def _integer_value(x: Node) -> int | None:
    return int(x.op.value.reshape(-1)[0]) if isinstance(x.op, Const) and x.type.size == 1 else None


def _split_sum(x: Node, names: Sequence[Node]) -> tuple[int, int] | None:
    """(k, c) of `names[k] + c`."""
    x = _without_conversions(x)
    if not x.dtype.is_integer:
        return None
    if x in names:
        return list(names).index(x), 0
    if not isinstance(x.op, ops.Add):
        return None
    for name, addend in (x.inputs, tuple(reversed(x.inputs))):
        base, increment = _without_conversions(name), _integer_value(_without_conversions(addend))
        if base in names and increment is not None:
            return list(names).index(base), increment
    return None


def _counter(
    x: Node, names: Sequence[Node], starts: Sequence[DimLike | None], ends: Sequence[Node]
) -> tuple[DimLike, int, int] | None:
    """(start, offset, step) of a value that is start + offset in the first iteration and grows by step in each."""
    addend = _split_sum(x, names)
    if addend is None:
        return None
    k, offset = addend
    next_value, start = _split_sum(ends[k], names), starts[k]
    if start is None or next_value is None or next_value[0] != k or next_value[1] < 1:
        return None
    return start, offset, next_value[1]


def _fixed(x: Node, names: Sequence[Node], starts: Sequence[DimLike | None], ends: Sequence[Node]) -> DimLike | None:
    """The value of `x` where it is a loop-invariant size, else None."""
    if isinstance(x.op, ops.DimValue):
        return x.op.dim
    value = _integer_value(x)
    if value is not None:
        return value if float(x.op.value.reshape(-1)[0]) == value else None  # type: ignore[attr-defined]
    if x not in names:
        return None
    k = list(names).index(x)
    return starts[k] if ends[k] is x else None
