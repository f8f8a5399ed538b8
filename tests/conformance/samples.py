"""Samples of ops: with sizes for symbols and with symbols, one by one and many as one graph.

Each sample is a subgraph of its own there, so one compilation serves them all."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ingot import ops
from ingot.ir.dims import DimLike, is_negative, substitute, symbol
from ingot.ir.node import Const, Graph, Input, Node, Op, Project
from ingot.ir.types import DType, TensorType, dtype_of, i8, u8
from ingot.ops.custom import Custom, HostCall
from ingot.support.errors import IngotError

# what types that programs have inside but not at their borders come in as
BORDER = {"i4": i8, "u4": u8, "f8e5m2": u8, "f8e4m3fn": u8}
Arrays = tuple[np.ndarray, ...]
# sources without operands, constants' forms, and ops that hold graphs of static shapes, have nothing to make symbolic
STATIC_ONLY = (ops.Iota, ops.DimValue, ops.While, ops.Case, ops.RandomBits, ops.RandomKey, ops.Densify,
               ops.PerDevice)  # fmt: skip
# a group is what the pipeline makes, not what it takes; what users register has samples of theirs
_OTHERS = Const | Input | Project | ops.Group | Custom | HostCall
OPS = [c for c in Op.REGISTRY.values() if not issubclass(c, _OTHERS) and c.__module__.startswith("ingot.ops")]


@dataclass(frozen=True)
class Sample:
    """An op on `inputs`.

    types: the operands' types, which may be symbolic. origin: the op with sizes for symbols, whose reference is right.
    """

    op: Op
    inputs: Arrays
    types: tuple[TensorType, ...]
    origin: Op

    @staticmethod
    def static(op: Op, inputs: Arrays) -> Sample:
        return Sample(op, inputs, tuple(TensorType(dtype_of(x), x.shape) for x in inputs), op)

    @property
    def is_dynamic(self) -> bool:
        return any(not isinstance(d, int) for t in self.types for d in t.shape)

    def __str__(self) -> str:
        return f"{self.op}({', '.join(map(str, self.types))})"


@dataclass(frozen=True)
class Combined:
    """Samples as one graph: what it is called with, how many results each sample has, and their dtypes."""

    graph: Graph
    arrays: list[np.ndarray]
    counts: list[int]
    dtypes: list[DType]


def combine(samples: Sequence[Sample]) -> Combined:
    """Each sample as a subgraph of its own, with operands of types that programs have at their borders."""
    inputs: list[Node] = []
    arrays: list[np.ndarray] = []
    outputs: list[Node] = []
    counts: list[int] = []
    dtypes: list[DType] = []
    zero = sorted({d for s in samples for t, x in zip(s.types, s.inputs, strict=True) for d in _empty(t, x)})
    for i, s in enumerate(samples):
        nodes: list[Node] = []
        for j, (t, x) in enumerate(zip(s.types, s.inputs, strict=True)):
            outside = BORDER.get(t.dtype.name, t.dtype)
            inputs.append(Input(f"x{i}_{j}", TensorType(outside, t.shape))())
            arrays.append(cast(x, outside))
            nodes.append(_inside(inputs[-1], t.dtype))
        results = s.op(*nodes).results
        counts.append(len(results))
        outputs += [_inside(r, BORDER.get(r.dtype.name, r.dtype)) for r in results]
        dtypes += [r.dtype for r in results]
    graph = Graph(tuple(inputs), tuple(outputs), bounds=tuple((name, 0, None) for name in zero))
    return Combined(graph, arrays, counts, dtypes)


def split_results(combined: Combined, got: Sequence[object]) -> list[Arrays]:
    """The results of a combined graph sample by sample, in their own types."""
    flat = iter(cast(np.asarray(g), t) for g, t in zip(got, combined.dtypes, strict=True))
    return [tuple(next(flat) for _ in range(n)) for n in combined.counts]


def static(cls: type[Op]) -> list[Sample]:
    return [Sample.static(op, inputs) for op, inputs in cls.samples()]


def symbolic(samples: Iterable[tuple[Op, Arrays]]) -> list[Sample]:
    return [s for op, inputs in samples if (s := dynamic(op, inputs)) is not None]


def _inside(x: Node, dtype: DType) -> Node:
    if x.dtype == dtype:
        return x
    return (ops.BitcastConvert if x.dtype.bits == dtype.bits else ops.Convert)(dtype)(x)


def cast(x: np.ndarray, dtype: DType) -> np.ndarray:
    if dtype_of(x) == dtype:
        return x
    op = ops.BitcastConvert(dtype) if dtype_of(x).bits == dtype.bits else ops.Convert(dtype)
    return op.reference(x)


def _empty(t: TensorType, x: np.ndarray) -> list[str]:
    return [str(d) for d, n in zip(t.shape, x.shape, strict=True) if n == 0 and not isinstance(d, int)]


def dynamic(op: Op, inputs: Arrays) -> Sample | None:
    """The sample with all dimensions symbolic that the type rule accepts as such; None where it accepts none.

    Equal sizes at equal distance from the end share a symbol, or else all equal sizes do, or else each dimension is
    tried alone. Sizes that an attribute names become symbols there as well.
    """
    sizes = sorted({n for x in inputs for n in x.shape})
    sample = Sample.static(op, inputs)
    for n in sizes:
        places = [(i, a) for i, x in enumerate(inputs) for a in range(x.ndim) if x.shape[a] == n]
        by_axis = {p: f"n{n}a{inputs[p[0]].ndim - p[1]}" for p in places}
        dynamic_dims = dict.fromkeys(places, f"n{n}")
        result = _accepted(sample, by_axis, n) or _accepted(sample, dynamic_dims, n)
        if result is not None:
            sample = result
            continue
        for p in places:
            sample = _accepted(sample, {p: f"n{n}i{p[0]}a{p[1]}"}, n) or sample
    return sample if sample.is_dynamic else None


def _accepted(sample: Sample, names: dict[tuple[int, int], str], size: int) -> Sample | None:
    types = tuple(
        t.with_shape(tuple(symbol(names[i, a]) if (i, a) in names else d for a, d in enumerate(t.shape)))
        for i, t in enumerate(sample.types)
    )
    for op in _variants(sample.op, size, sorted(set(names.values()))):
        try:
            op.infer(*types)
        except IngotError:
            continue
        sizes = {
            str(d): n for t, x in zip(types, sample.inputs, strict=True) for d, n in zip(t.shape, x.shape, strict=True)
        }
        if not any(is_negative(substitute(margin, sizes)) for margin, _ in op.constraints(*types)):
            return dataclasses.replace(sample, op=op, types=types)
    return None


def _variants(op: Op, size: int, names: list[str]) -> Iterator[Op]:
    """The op, then with `size` replaced by a symbol in one of its shape attributes."""
    yield op
    for field in ("shape", "sizes"):
        value = getattr(op, field, None)
        if not isinstance(value, tuple) or size not in value:
            continue
        for name in names:
            yield _with(op, field, tuple(symbol(name) if d == size else d for d in value))
        if value.count(size) == len(names) > 1:
            remaining_names = iter(reversed(names))
            yield _with(op, field, tuple(symbol(next(remaining_names)) if d == size else d for d in value))


def _with(op: Op, field: str, value: tuple[DimLike, ...]) -> Op:
    return dataclasses.replace(op, **{field: value})  # type: ignore[arg-type]
