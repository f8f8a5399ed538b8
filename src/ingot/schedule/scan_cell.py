"""A recurrent group's step as a graph, its products in stages, and the weights that these read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ingot.ir import kernel as k
from ingot.ir.kernel import Expr, Lit, Ramp, Var
from ingot.ir.node import Node
from ingot.ops.nn.rnn import Pass
from ingot.support.errors import CompileError


@dataclass(frozen=True)
class Stage:
    """One product of the cell: `node` [B, gates*H] = operand [B,H] times rows of R from `first` on.

    base: of its weights among the packed ones of a direction; vectors: of columns in a block, for each gate; rows: of a
    register tile.
    """

    node: Node
    operand: Node
    first: int
    gates: int
    vectors: int
    rows: int
    blocks: int
    base: int

    @property
    def width(self) -> int:
        """Vectors of a block."""
        return self.gates * self.vectors


@dataclass(frozen=True)
class Cell:
    """The graph of one step of one direction, over its own inputs."""

    at: Pass
    row: Node
    states: tuple[Node, ...]
    valid: Node | None
    results: tuple[Node, ...]
    stages: tuple[Stage, ...]


def pack_weights(stages: tuple[Stage, ...], hidden: int, lanes: int, r: np.ndarray, out: np.ndarray) -> None:
    """R[D, G*H, H] as [direction][stage][block][k][gate][columns of the block], missing columns zero."""
    for direction, line in zip(r, out.reshape(len(r), -1), strict=True):
        for s in stages:
            own = direction[s.first : s.first + s.gates * hidden].reshape(s.gates, hidden, hidden)
            wide = s.blocks * s.vectors * lanes
            padded = np.zeros((s.gates, wide, hidden), r.dtype)
            padded[:, :hidden] = own
            blocks = padded.reshape(s.gates, s.blocks, s.vectors * lanes, hidden).transpose(1, 3, 0, 2)
            line[s.base : s.base + blocks.size] = blocks.reshape(-1)


def offset_from(index: Expr, j: Var) -> int:
    """What was added to the column j: the gate's first row of R."""
    base = index.base if isinstance(index, Ramp) else index
    if base == j:
        return 0
    if isinstance(base, k.Binary) and base.fn == "add" and base.a == j and isinstance(base.b, Lit):
        return int(base.b.value)
    raise CompileError("a recurrent cell", expected="gates at fixed offsets", got=type(base).__name__)


__all__ = ["Cell", "Stage", "offset_from", "pack_weights"]
