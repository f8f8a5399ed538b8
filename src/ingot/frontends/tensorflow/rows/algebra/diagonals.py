"""Diagonals of matrices, one or a band of them, and solvers for band matrices.

A band from `low` to `high` is stored as rows of one length, the highest diagonal first. `align` is the side of shorter
diagonals: "LEFT_RIGHT" aligns those above the main diagonal left and those below right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tensorflow.values import Call, Table
from ingot.ir.dims import DimLike, dim_max, dim_min
from ingot.ir.node import Node
from ingot.ops import linalg
from ingot.support.dataclass import dataclass

row = Table()


@dataclass(frozen=True)
class _Band:
    rows: DimLike
    columns: DimLike
    low: int = 0
    high: int = 0
    align: str = "LEFT_LEFT"

    @property
    def diagonals(self) -> Iterator[int]:
        return iter(range(self.high, self.low - 1, -1))

    @property
    def longest(self) -> DimLike:
        return dim_min(self.rows + min(self.high, 0), self.columns - max(self.low, 0))

    def length(self, k: int) -> DimLike:
        return dim_min(self.rows + min(k, 0), self.columns - max(k, 0))

    def before(self, k: int) -> DimLike:
        """The padding in front of a diagonal."""
        side = self.align.split("_")[k < 0]
        return self.longest - self.length(k) if side == "RIGHT" else 0

    def spread(self, band: Node, fill: Node) -> Node:
        """[..., rows, columns]: `fill` with the band on its diagonals."""
        rows_index, columns_index = (
            ops.expand_dims(ops.arange(self.rows), 1),
            ops.expand_dims(ops.arange(self.columns), 0),
        )
        for i, k in enumerate(self.diagonals):
            line = band if self.low == self.high else ops.index_axis(band, -2, i)
            line = ops.slice_axis(line, -1, self.before(k), self.before(k) + self.length(k))
            # a diagonal above the main one is extended to one element per row, one below to one per column
            size, axis = (self.rows, -1) if k >= 0 else (self.columns, -2)
            rest = (0,) * (line.type.rank - 1)
            line = ops.expand_dims(ops.pad(line, (*rest, 0), (*rest, size - self.length(k))), axis)
            fill = ops.where(ops.compare("EQ", ops.sub(columns_index, rows_index), k), line, fill)
        return fill

    def of(self, x: Node, padding: Node) -> Node:
        """The band of a matrix."""
        lines: list[Node] = []
        for k in self.diagonals:
            n, rest = self.length(k), (0,) * (x.type.rank - 2)
            square = ops.slice_axis(x, -2, max(-k, 0), max(-k, 0) + n)
            line = linalg.diagonal(ops.slice_axis(square, -1, max(k, 0), max(k, 0) + n))
            low = self.before(k)
            lines.append(ops.pad(line, (*rest, low), (*rest, self.longest - n - low), padding))
        return lines[0] if len(lines) == 1 else ops.stack(lines, -2)


def _band(c: Call, shape: Sequence[DimLike], k: Node | None) -> _Band:
    ends = (0,) if k is None else c.numbers(k)
    default = "RIGHT_LEFT" if c.op.endswith("V3") else "LEFT_LEFT"
    return _Band(shape[-2], shape[-1], ends[0], ends[-1], c.str("align", default))


@row("MatrixDiagV3", "MatrixDiagV2", "MatrixDiag", "Diag")
def diag(c: Call, x: Node, *rest: Node) -> Node:
    """Matrices with a band on their diagonals; a size of -1 is the smallest that holds the band, or makes it square."""
    if c.op == "Diag" and x.type.rank != 1:
        raise Unsupported(f"of a tensor of rank {x.type.rank}")
    k, count, column_count, fill = rest or (None, None, None, ops.full((), 0, x.dtype))
    ends = (0,) if k is None else c.numbers(k)
    rows, columns = (-1 if n is None else c.size(n) for n in (count, column_count))
    least = x.shape[-1] - min(ends[-1], 0), x.shape[-1] + max(ends[0], 0)
    if rows == -1 and columns == -1:
        rows = columns = dim_max(*least)
    shape = [low if d == -1 else d for d, low in zip((rows, columns), least, strict=True)]
    return _band(c, shape, k).spread(x, fill)


@row("MatrixDiagPartV3", "MatrixDiagPartV2", "MatrixDiagPart", "DiagPart")
def diag_part(c: Call, x: Node, *rest: Node) -> Node:
    if c.op == "DiagPart" and x.type.rank != 2:
        raise Unsupported(f"of {x.type}")
    k, padding = rest or (None, ops.full((), 0, x.dtype))
    return _band(c, x.shape, k).of(x, padding)


@row("MatrixSetDiagV3", "MatrixSetDiagV2", "MatrixSetDiag")
def set_diagonal(c: Call, x: Node, values: Node, *k: Node) -> Node:
    return _band(c, x.shape, k[0] if k else None).spread(values, x)


@row("MatrixBandPart")
def band_part(c: Call, x: Node, lower: Node, upper: Node) -> Node:
    """The elements at most `lower` below and `upper` above the diagonal, zeros elsewhere; a negative number means
    unbounded."""
    rows, columns = x.shape[-2], x.shape[-1]
    offset_below = ops.sub(ops.expand_dims(ops.arange(rows), 1), ops.expand_dims(ops.arange(columns), 0))
    low, high = c.size(lower), c.size(upper)
    on = ops.full(offset_below.shape, True, ops.compare("EQ", offset_below, 0).dtype)
    if low != -1 and not (isinstance(low, int) and low < 0):
        on = ops.and_(on, ops.compare("LE", offset_below, low))
    if high != -1 and not (isinstance(high, int) and high < 0):
        on = ops.and_(on, ops.compare("GE", offset_below, 0 - high))
    return ops.where(on, x, 0)


# --- band systems, as full matrices


def _tridiagonal(band: Node) -> Node:
    n = band.shape[-1]
    return _Band(n, n, -1, 1, "LEFT_RIGHT").spread(band, ops.full((), 0, band.dtype))


@row("TridiagonalSolve")
def tridiagonal_solve(c: Call, band: Node, b: Node) -> Node:
    return linalg.solve(_tridiagonal(band), b)


@row("TridiagonalMatMul")
def tridiagonal_product(c: Call, superdiagonal: Node, diagonal: Node, subdiagonal: Node, b: Node) -> Node:
    return ops.MatMul()(_tridiagonal(ops.concat([superdiagonal, diagonal, subdiagonal], -2)), b)


@row("BandedTriangularSolve")
def banded_solve(c: Call, band: Node, b: Node) -> Node:
    lower, (diagonals, n) = c.flag("lower") or not c.has("lower"), band.shape[-2:]
    if not isinstance(diagonals, int):
        raise Unsupported("of an open number of diagonals")
    band_shape = _Band(n, n, 1 - diagonals if lower else 0, 0 if lower else diagonals - 1, "LEFT_RIGHT")
    matrix = band_shape.spread(band if diagonals > 1 else ops.squeeze(band, -2), ops.full((), 0, band.dtype))
    return linalg.solve_triangular(matrix, b, upper=not lower, transpose=c.flag("adjoint"))
