"""`dynamic=`, for all frontends whose models declare their inputs.

    {"batch": 1}  {"batch": (1, 64)}             a symbol's size, or its bounds
    {"x": {0: "batch", 1: 128, 2: (1, 512)}}     of an input's axes: a name, a size, bounds

None keeps the sizes that the model leaves open, as symbols `<input>_<axis>`; False refuses them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ingot.frontends.shared.sizes import symbol_of
from ingot.ir.dims import DimLike, substitute, symbol, symbols_of
from ingot.ir.node import Graph
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError

Bound = int | tuple[int, int | None]
Dynamic = Mapping[str, Bound | Mapping[int, str | Bound]] | bool | None


def check_static(symbols: Sequence[str], dynamic: object) -> None:
    """Raise InputError where `dynamic` is False and sizes are open."""
    if dynamic is False and symbols:
        fix = f"give their sizes: dynamic={{{symbols[0]!r}: 1, ...}}"
        raise InputError("the model has dynamic dimensions", got=list(symbols), fix=fix)


@dataclass(frozen=True)
class Requests:
    """shapes: of the inputs by name, with symbols for open sizes. fixed: the replacements of symbols: a size, or a
    symbol that may be 0. spans: lower and upper bounds by symbol."""

    shapes: Mapping[str, tuple[DimLike, ...]]
    fixed: Mapping[str, DimLike]
    spans: Mapping[str, tuple[int, int | None]]
    dynamic: Dynamic = None

    def limits(self, graph: Graph) -> tuple[tuple[str, int, int | None], ...]:
        """Bounds of the graph's symbols. Raises InputError where `dynamic` is False and it has symbols."""
        symbols = graph.symbols()
        check_static(symbols, self.dynamic)
        return tuple((k, *self.spans[k]) for k in sorted(self.spans) if k in symbols)


def with_sizes(
    dynamic: Dynamic, sizes: Mapping[str, int], shapes: Mapping[str, Sequence[Any]]
) -> Mapping[str, Bound | Mapping[int, str | Bound]] | None:
    """`dynamic` with these symbols' sizes; None where its bounds of a symbol exclude the size.

    shapes: of a program's inputs by name; a size is a number, or has the names of symbols among its items.
    """
    requested = dict(dynamic) if isinstance(dynamic, Mapping) else {}
    for key, request in requested.items():
        of_axes = request.items() if isinstance(request, Mapping) else ()
        spans = [(shapes[key][axis], request_of_axis) for axis, request_of_axis in of_axes] or [((key,), request)]
        for size, span in spans:
            names = [] if isinstance(size, int) else [item for item in size if item in sizes]
            if isinstance(span, tuple) and any(not _within(sizes[name], span) for name in names):
                return None
    return {**requested, **sizes}


def _within(size: int, span: tuple[int, int | None]) -> bool:
    return span[0] <= size and (span[1] is None or size <= span[1])


def with_shapes(
    dynamic: Dynamic, shapes: Mapping[str, Sequence[Any]], given_shapes: Sequence[Sequence[int]]
) -> Mapping[str, Bound | Mapping[int, str | Bound]] | None:
    """`dynamic` with a call's sizes for all axes that a program leaves open; None where `dynamic` already has entries,
    which may not hold for the call.

    shapes: of the program's inputs by name, as in `with_sizes`.
    """
    if isinstance(dynamic, Mapping) and dynamic:
        return None
    return {
        name: {
            axis: size
            for axis, (size, declared_size) in enumerate(zip(sizes, shape, strict=True))
            if not isinstance(declared_size, int)
        }
        for (name, shape), sizes in zip(shapes.items(), given_shapes, strict=False)
    }


def with_axes(
    dynamic: Dynamic, sizes: Mapping[str, Mapping[int, int]], open_axes: Mapping[str, Collection[int]]
) -> Mapping[str, Bound | Mapping[int, str | Bound]] | None:
    """`dynamic` with sizes of inputs' axes; None where the model fixes those sizes or `dynamic` already has entries."""
    is_open = all(axis in open_axes.get(name, ()) for name, axes in sizes.items() for axis in axes)
    return None if dynamic is False or dynamic or not is_open else dict(sizes)


def requests(
    dynamic: Dynamic, declared: Mapping[str, Sequence[DimLike | None] | None], *, reopen: bool = False
) -> Requests:
    """declared: shapes of the inputs by name, None for an open size; None for an input that is no tensor. reopen:
    whether sizes that the model fixes can be requested, too.

    Raises InputError for an unknown input, axis or symbol, and for a request that is neither a size nor bounds.
    """
    axes: dict[str, dict[int, Any]] = {}
    requested: dict[str, Any] = {}
    for key, value in dynamic.items() if isinstance(dynamic, Mapping) else ():
        if isinstance(value, Mapping):
            axes[key] = _axes(key, value, declared, reopen)
        else:
            requested[key] = value
    shapes: dict[str, tuple[DimLike, ...]] = {}
    for label, shape in declared.items():
        label_axes = axes.get(label, {})
        shapes[label] = tuple(_size(label, i, d, label_axes.get(i), requested) for i, d in enumerate(shape or ()))
    symbols = {n for shape in shapes.values() for d in shape for n in symbols_of(d)}
    if unknown := [k for k in requested if k not in symbols]:
        raise InputError("dynamic (--dim) names no symbol", expected=f"one of {sorted(symbols)}", got=unknown)
    fixed: dict[str, DimLike] = {}
    spans: dict[str, tuple[int, int | None]] = {}
    for name, request in requested.items():
        match request:
            case int(size) if not isinstance(request, bool) and size >= 0:
                fixed[name] = size
            case (int(low), int() | None as high) if low >= 0 and (high is None or high >= low):
                spans[name] = (low, high)
                if low == 0:
                    fixed[name] = symbol(name, may_be_empty=True)
            case _:
                expected = "a size, (low, high) or a name for an axis"
                raise InputError(f"dynamic[{name!r}]", expected=expected, got=repr(request))
    shapes = {label: tuple(substitute(d, fixed) for d in shape) for label, shape in shapes.items()}
    return Requests(shapes, fixed, spans, dynamic)


def _axes(
    label: str, requests: Mapping[Any, Any], declared: Mapping[str, Sequence[DimLike | None] | None], reopen: bool
) -> dict[int, Any]:
    shape = declared.get(label)
    if shape is None:
        raise InputError("dynamic (--dim)", expected=f"an input of {list(declared)}", got=repr(label))
    requests_by_axis: dict[int, Any] = {}
    for axis, request in requests.items():
        if not isinstance(axis, int) or not -len(shape) <= axis < len(shape):
            raise InputError(f"dynamic[{label!r}]", expected=f"axes of {list(shape)}", got=repr(axis))
        if shape[axis] is not None and not reopen:
            raise InputError(f"dynamic[{label!r}]", expected=f"axes that {list(shape)} leaves open", got=axis)
        requests_by_axis[axis % len(shape)] = request
    return requests_by_axis


def _size(label: str, axis: int, declared: DimLike | None, request: Any, requested: dict[str, Any]) -> DimLike:
    """The size of an axis; a request for its size or bounds is recorded in `requested` by the axis's symbol."""
    if isinstance(request, str):
        return symbol(request)
    if request is None:
        return symbol_of(label, axis) if declared is None else declared
    dim = symbol_of(label, axis)
    requested.setdefault(str(dim), request)
    return dim
