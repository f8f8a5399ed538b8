"""How a contraction is computed in registers, panels and chunks: what `cost_model.py` decides and kernels follow."""

from __future__ import annotations

from ingot.ir.dims import DimLike
from ingot.schedule.axes import Contraction, merge_axes
from ingot.support.dataclass import dataclass

LINE = 64  # bytes of a cache line
AHEAD = 8192  # bytes: some hundred cycles of the stream before it is needed


@dataclass(frozen=True)
class Plan:
    """lanes: of a vector. lines, width: the register tile's rows along the last two row axes. vectors: its columns.
    unroll: of the innermost reduction loop. row_run: line groups of a chunk; row_block: rows along the last row axis
    of a chunk (a multiple of `width`, or the whole axis); panels: column panels of a chunk. batch_run: batch entries
    (and outer columns) of a chunk. prefetch: cache lines of B per turn of the innermost loop: of the next panel, or
    of what lies `ahead` elements further on. k_block: turns of the outermost reduction loop of which sums are kept in
    scratch (0: all at once). panel_at, rows_at: byte offsets in scratch of a panel of B that is transposed at run time
    and of the rows of a computed A (-1: none); partial sums lie before both. rows_at_once: rows of A that are computed
    before all panels of the chunk read them. scratch_bytes: what a worker needs.
    """

    lanes: int
    lines: int
    width: int
    vectors: int
    unroll: int
    row_run: int
    row_block: DimLike
    panels: int
    masks: bool
    batch_run: int = 1
    prefetch: int = 0
    ahead: int = 0
    k_block: int = 0
    panel_at: int = -1
    rows_at: int = -1
    rows_at_once: int = 0
    scratch_bytes: int = 0

    @property
    def panel(self) -> int:
        """Columns of a full panel."""
        return self.lanes * self.vectors

    @property
    def sums_bytes(self) -> int:
        return next(at for at in (self.panel_at, self.rows_at, self.scratch_bytes) if at >= 0)


def pieces(c: Contraction) -> int:
    """Of how many elements the pieces are that a batch entry reads of each place of an image, as grouped convolutions
    do: a cache line or less, with others between them, which no hardware prefetcher follows. 0: A is read otherwise."""
    run, step = merge_axes(c.reduce)[-1], c.rows[-1].a
    if len(c.rows) < 2 or run.a != 1 or not isinstance(run.extent, int) or not isinstance(step, int):
        return 0
    return run.extent if run.extent * c.a.nbytes <= LINE < step * c.a.nbytes else 0


def transposed(c: Contraction) -> bool:
    """A run-time B whose reduction lies side by side and whose columns do not: panels are transposed in scratch."""
    return not c.packed and c.cols[-1].b != 1 and len(merge_axes(c.reduce)) == 1 and merge_axes(c.reduce)[0].b == 1


__all__ = ["AHEAD", "LINE", "Plan", "pieces", "transposed"]
