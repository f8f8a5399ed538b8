"""The parameters of a group's kernel: buffers of its operands and results, and the symbols it mentions."""

from __future__ import annotations

from ingot.ir import kernel as k
from ingot.ir.dims import Dim, DimLike, may_be_empty, symbols_of
from ingot.ir.kernel import Buffer
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node
from ingot.ir.types import i64
from ingot.schedule.emit import Emitter, Leaf, load_leaf
from ingot.schedule.lowered import Arg
from ingot.support.dataclass import dataclass

LeafByNode = dict[Node, Leaf]


@dataclass(frozen=True)
class Operands:
    """A group's inputs and outputs as kernel buffers."""

    ins: tuple[Buffer, ...]
    outs: tuple[Buffer, ...]

    @staticmethod
    def of(body: Graph) -> Operands:
        # users' arrays are aligned to their elements and no further
        ins = tuple(Buffer(f"in{i}", n.dtype, align=n.dtype.nbytes) for i, n in enumerate(body.inputs))
        outs = tuple(
            Buffer(f"out{i}", n.dtype, writable=True, align=n.dtype.nbytes) for i, n in enumerate(body.outputs)
        )
        return Operands(ins, outs)

    @property
    def params(self) -> tuple[Buffer, ...]:
        return (*self.ins, *self.outs)

    @property
    def args(self) -> tuple[Arg, ...]:
        return (*(Arg("in", i) for i in range(len(self.ins))), *(Arg("out", i) for i in range(len(self.outs))))

    def leaves(self, body: Graph, layouts: tuple[Layout, ...]) -> LeafByNode:
        return {n: load_leaf(b, lay) for n, b, lay in zip(body.inputs, self.ins, layouts, strict=True)}

    def emitter(self, body: Graph, layouts: tuple[Layout, ...]) -> Emitter:
        return Emitter(self.leaves(body, layouts))


def symbol_params(*dims: DimLike) -> tuple[k.Var, ...]:
    """The kernel's dim parameters: one per symbol in `dims`, sorted by name."""
    names = sorted(set().union(*(symbols_of(d) for d in dims)) if dims else set())
    return tuple(k.Var(i64, 1, n, may_be_empty=any(may_be_empty(d, n) for d in dims)) for n in names)


def body_dims(body: Graph, layouts: tuple[Layout, ...]) -> tuple[DimLike, ...]:
    """Every dimension that a group's code may use."""
    dims: list[DimLike] = []
    for n in body.nodes():
        for t in n.types:
            dims += t.shape
        dims += [d for v in n.op.attributes().values() for d in _dims_in(v)]
    for lay in layouts:
        dims += [*lay.shape, *lay.strides, lay.offset]
    return tuple(dims)


def _dims_in(value: object) -> list[DimLike]:
    if isinstance(value, Dim):
        return [value]
    return [d for v in value for d in _dims_in(v)] if isinstance(value, tuple) else []


__all__ = ["LeafByNode", "Operands", "body_dims", "symbol_params"]
