"""Dropout of attention's weights: which scores of a tile are kept is computed in registers, the same in all passes."""

from __future__ import annotations

from ingot.ir import kernel as k
from ingot.ir.dims import DimLike
from ingot.ir.kernel import Expr
from ingot.ir.node import Node
from ingot.ir.types import DType, u32
from ingot.ops.nn.attention import Trained
from ingot.ops.random import kept_scores, score_keys, without_bit_3
from ingot.schedule.block import Block
from ingot.schedule.gpu.attention.scores import Operand
from ingot.schedule.gpu.blocks import Group
from ingot.schedule.index import ZERO, dim_expr, integer
from ingot.support.dataclass import dataclass

Position = tuple[Expr, Expr]  # a multiple of 16, and a tile's lanes from it on


@dataclass(frozen=True)
class _Word:
    """An integer with the operators that `ingot.ops.random` computes with."""

    value: Expr

    def _with(self, fn: str, other: _Word | int) -> _Word:
        operand = other.value if isinstance(other, _Word) else k.lit(other, self.value.dtype)
        return _Word(k.binary(fn, self.value, operand))

    def __add__(self, other: _Word | int) -> _Word:
        return self._with("add", other)

    __radd__ = __add__

    def __sub__(self, other: _Word) -> _Word:
        return self._with("sub", other)

    def __mul__(self, other: _Word | int) -> _Word:
        return self._with("mul", other)

    def __and__(self, other: int) -> _Word:
        return self._with("and", other)

    def __or__(self, other: _Word) -> _Word:
        return self._with("or", other)

    def __xor__(self, other: _Word | int) -> _Word:
        return self._with("xor", other)

    def __lshift__(self, by: int) -> _Word:
        return self._with("shl", by)

    def __rshift__(self, by: int) -> _Word:
        return self._with("lshr", by)

    def __lt__(self, other: int) -> _Word:
        return self._with("lt", other)

    def cast(self, dtype: DType) -> _Word:
        return _Word(k.cast(self.value, dtype))


@dataclass(frozen=True)
class Dropout:
    """The dropout of the scores of `heads` query heads."""

    op: Trained
    seed: Operand
    heads: DimLike

    @staticmethod
    def of(anchor: Node, group: Group) -> Dropout | None:
        """None: all scores are kept."""
        op = anchor.op
        if not isinstance(op, Trained) or not op.dropout:
            return None
        (seed,) = op.seed(anchor.inputs)
        return Dropout(op, Operand.of(group, seed), anchor.inputs[0].shape[1])

    def keys(self, block: Block, b: Expr, h: Expr) -> tuple[Expr, Expr]:
        """The keys of the scores of a sample and a head."""
        seed = block.let(self.seed.read(block, (), None), "seed")
        head = k.add(k.mul(b, dim_expr(self.heads)), h)
        first, second = score_keys(_Word(seed), _Word(k.cast(head, u32)))
        return block.let(first.value, "head_key"), block.let(second.value, "row_key")

    def kept(self, block: Block, keys: tuple[Expr, Expr], query: Position, key: Position) -> Expr:
        """Whether each score of a tile is kept."""
        first, second = map(_Word, keys)
        kept: _Word = kept_scores((first, second), _without_bit_3(query), _without_bit_3(key), self.op.dropout)
        return block.let(kept.value, "kept")


def _without_bit_3(position: Position) -> tuple[_Word, _Word]:
    start, lanes = position
    pair, bit = without_bit_3(_Word(k.cast(lanes, u32)))
    return (pair if start == ZERO else pair + _Word(k.cast(k.binary("div", start, integer(2)), u32))), bit


__all__ = ["Dropout", "Position"]
