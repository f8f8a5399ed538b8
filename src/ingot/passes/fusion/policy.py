"""The parameters of fusion: limits that follow from a target's caches, cores and compiler."""

from __future__ import annotations

import sys

from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class FusionPolicy:
    """The defaults are a CPU core's, with a second-level cache of about 1 MB.

    max_copies: the most groups that may each recompute a cheap value.
    max_repeated: the most ops in a row that such groups repeat.
    max_paths: the most ways from a group's loop to one value through views: each is separate code, and each further
        view doubles their number.
    max_ops: the most ops of a group: longer kernels (unrolled loops) gain nothing and compile slowly.
    min_gathered_elements: elements of a group; from this number on, gathering the elements of a view costs more than a
        kernel.
    min_gathers_each: gathers of each element of the view; from this number on, storing a copy pays.
    min_scattered_elements: elements of a convolution's result; from this number on, storing them one by one in
        transposed order costs more than a kernel that transposes.
    max_block_bytes: the largest block of rows that stays in a core's caches while all columns read it.
    min_block_rows: the fewest rows of such a block.
    max_weights_bytes: the largest operand that is streamed from a core's caches for each block of rows.
    min_image_bytes: the smallest image that is worth keeping out of memory.
    min_hidden_bytes: the same for rows between two contractions: more than a core's caches hold.
    max_column_bytes: the largest column of cache lines that a core's caches hold between two passes over it.
    min_shared_rows: the fewest rows that are split between the cores; fewer are split by columns, and each core would
        compute all of them.
    max_row_ops: the most ops that compute a row.
    computes_rows: whether contractions compute rows of their first operand that nothing else reads.
    pools_images: whether a global pool joins the kernel that produces its image.
    max_single_row: elements of the only row of a product, up to which each program recomputes its norm, and two
        products of the row whose results are combined share a kernel; 0: neither.
    computes_updates: whether values that are written into a slice are computed as they are written.
    stores_narrow_results: whether a value of 8 bits is what an anchor stores, whatever its readers make of it, as
        memory is dearer than arithmetic; else where they are pointwise and only dequantize it.
    joins_row_results: whether a row group also stores the values by row that it reads and that other groups need.
    widens_values: whether each group widens the 16-bit values that it reads by itself, so that they are stored narrow.
    repeats_vectors: whether plain arithmetic on small stored values, and the borders of pads, may be repeated for each
        element that reads them, as a kernel of its own costs more.
    loads_channels: whether depthwise convolutions and kernels' gradients load vectors of channels: transposed images
        are copied for them, and images that are given are read without their padding.
    computes_padded_rows: whether an input whose rows are padded is stored with its padding, by aligned vectors, instead
        of being copied to where a padded value lies.
    max_costly_epilogue: the most ops by element, with a costly function among them, that follow a product in its kernel
        if they read another value of its size, and min_costly_epilogue_elements: the fewest elements of such a product,
        as a kernel of its own takes time to start.
    joins_epilogues: whether what is computed by element from a stored result is another result of its kernel.
    """

    max_copies: int = 3
    max_repeated: int = 4
    max_paths: int = 8
    max_ops: int = 128
    min_gathered_elements: int = 1 << 14
    min_gathers_each: int = 4
    min_scattered_elements: int = 1 << 14
    max_block_bytes: int = 256 << 10
    min_block_rows: int = 16
    max_weights_bytes: int = 1 << 20
    min_image_bytes: int = 256 << 10
    min_hidden_bytes: int = 1 << 20
    max_column_bytes: int = 256 << 10
    min_shared_rows: int = 128
    max_row_ops: int = 32
    computes_rows: bool = True
    pools_images: bool = True
    max_single_row: int = 0
    computes_updates: bool = False
    stores_narrow_results: bool = False
    joins_row_results: bool = False
    max_costly_epilogue: int = sys.maxsize
    min_costly_epilogue_elements: int = 0
    joins_epilogues: bool = False
    widens_values: bool = False
    repeats_vectors: bool = False
    loads_channels: bool = False
    computes_padded_rows: bool = False


DEFAULT = FusionPolicy()
