"""The numbers that fusion weighs: what a target's caches, cores and compiler make of a group."""

from __future__ import annotations

from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class FusionPolicy:
    """The defaults are a CPU core's, with a second-level cache of about 1 MB.

    copies: groups that may each compute a cheap value again.
    members: ops of a group that takes no more: longer kernels (unrolled loops) gain nothing and compile slowly.
    lookups: elements of a group from which on looking up each of a view's costs more than a kernel.
    lookups_each: times that each is looked up, from which on storing them pays.
    scattered: elements of a convolution's result from which on storing each of them apart, in transposed order, costs
        more than a kernel that transposes.
    block_bytes: of rows that surely stay in a core's caches while all columns read them.
    block_rows: that such a block has at least.
    weights_bytes: of an operand that is streamed from a core's caches for each block of rows.
    image_bytes: of an image that is worth keeping out of memory.
    hidden_bytes: of rows between two contractions that are worth it, and more than a core's caches hold.
    column_bytes: of a column of lines that a core's caches hold between two passes over it.
    shared_rows: fewer are cut by columns between the cores, each of which would compute them all.
    row_ops: that make a row.
    computed_rows: contractions compute rows of their first operand that nothing else reads.
    pooled_images: a global pool joins the kernel that makes its image.
    single_row: elements of a row that is multiplied alone, up to which each program of the product computes its norm
        again, and two products of one row whose results meet are one kernel; 0: neither.
    computed_updates: what is written into a slice of a value is computed as it is written.
    joined_rows: a value of each row that others read, too, has its kernel with the row group that reads it.
    """

    copies: int = 3
    members: int = 128
    lookups: int = 1 << 14
    lookups_each: int = 4
    scattered: int = 1 << 14
    block_bytes: int = 256 << 10
    block_rows: int = 16
    weights_bytes: int = 1 << 20
    image_bytes: int = 256 << 10
    hidden_bytes: int = 1 << 20
    column_bytes: int = 256 << 10
    shared_rows: int = 128
    row_ops: int = 32
    computed_rows: bool = True
    pooled_images: bool = True
    single_row: int = 0
    computed_updates: bool = False
    joined_rows: bool = False


DEFAULT = FusionPolicy()
