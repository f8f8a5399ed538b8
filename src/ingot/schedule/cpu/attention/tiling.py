"""The register tiles and blocks of attention for many queries."""

from __future__ import annotations

from ingot.ir.dims import DimLike, estimate
from ingot.ir.types import DType
from ingot.schedule.cpu.contraction.cost_model import fits_registers
from ingot.schedule.cpu.machine import Machine
from ingot.support.dataclass import dataclass

SCORE_BLOCK_BYTES = 16 << 10  # shares the L1 cache with the queries and the result


@dataclass(frozen=True)
class Tiling:
    """lanes: of a vector. vectors: vectors of queries in a chunk. key_rows, value_rows: rows of the register tiles of
    the two products. block_keys: keys of a block."""

    lanes: int
    vectors: int
    key_rows: int
    value_rows: int
    block_keys: int

    @property
    def width(self) -> int:
        """Queries of a chunk."""
        return self.lanes * self.vectors


def tiling(rows: DimLike, keys: DimLike, cols: int, dtype: DType, machine: Machine) -> Tiling:
    lanes = machine.lanes(dtype)
    row_vectors = -(-estimate(rows) // lanes)

    def cost(vectors: int) -> float:
        # lanes without a query are wasted; a single vector needs a broadcast for each multiply-add
        return -(-row_vectors // vectors) * vectors * (1.1 if vectors == 1 else 1.0)

    vectors = min((v for v in (2, 3, 4, 1) if fits_registers(4, v, machine)), key=cost)
    target_rows = min(24 // vectors, 16 if vectors == 1 else 10)
    key_rows = next(m for m in range(target_rows, 0, -1) if fits_registers(m, vectors, machine))
    value_rows = -(-cols // -(-cols // key_rows))
    block_keys = max(1, SCORE_BLOCK_BYTES // (lanes * vectors * dtype.nbytes * key_rows)) * key_rows
    if isinstance(keys, int) and keys < 2 * block_keys:
        # one block, or two equal ones
        count = -(-keys // (block_keys + block_keys // 3)) or 1
        block_keys = -(-keys // count // key_rows) * key_rows or key_rows
    return Tiling(lanes, vectors, key_rows, value_rows, block_keys)


__all__ = ["Tiling", "tiling"]
