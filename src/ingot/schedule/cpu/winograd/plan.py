"""Whether and in which pieces to use Winograd's algorithm for a convolution: an analytic cost model.

    time = max(arithmetic, stream of weights from memory) + transforms + idle time at the end

The same constants model the direct convolution, so only ratios matter. docs/inside/winograd.md has measurements on the
shapes of ResNet, VGG, U-Net and DenseNet.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import inf, prod

from ingot import ops
from ingot.ir.dims import DimLike, ceildiv, estimate, floordiv, is_static
from ingot.ir.layout import Layout
from ingot.ir.node import Node
from ingot.ir.types import DType, f32, f64
from ingot.schedule.choice import Choice, Winograd
from ingot.schedule.cpu.contraction.cost_model import max_tile_rows, tile_cycles
from ingot.schedule.cpu.contraction.plan import Plan
from ingot.schedule.cpu.machine import Machine
from ingot.support.dataclass import dataclass

TILE_SIZES = {3: (2, 4), 5: (2,)}  # r -> m
# The speedup over the direct convolution that is worth the rounding errors and the larger weights.
MIN_SPEEDUP = 1.15
_F4_PENALTY = 0.07  # F(4) must be that much faster than F(2): its errors and weights are larger
CYCLES_PER_VECTOR = 3.5  # that a transform reads or writes, including store misses
_LATE_CYCLES_PER_VECTOR = 1.0  # that a transform of weights within a chunk moves
_LATE_CYCLES_PER_SUM = 0.8  # per vector of sums that a product is added to
_TILE_CYCLES, _CYCLES_PER_ACCUMULATOR = 20.0, 2.0  # outside a register tile's reduction loop, as in `cost_model`
_STEP_SECONDS = 2e-6  # of one more step: all threads synchronize
_CLAIM_SECONDS = 0.5e-6  # to claim a chunk and to set up its loops
_PEAK_RATIO = 1.3  # of the peak to `machine.gflops`, which every core reaches
# weights from memory, to one core and to all of them
_CORE_BYTES_PER_SECOND, _MEMORY_BYTES_PER_SECOND = 38e9, 45e9
# Per core, as far as prefetching does not hide it: weights that are streamed again from the shared cache; V written to
# and read from the shared cache, and from memory.
_REREAD_BYTES_PER_SECOND, _V_L3_BYTES_PER_SECOND, _V_MEMORY_BYTES_PER_SECOND = 160e9, 60e9, 25e9


@dataclass(frozen=True)
class Shape:
    """The shape of a convolution that Winograd's algorithm covers.

    images: N. h, w: of the output. ci, co: channels of a group. r: of the window.
    depth, taps, depth_dilation: of a third, outermost spatial dimension, which is one more sum: the output's extent,
    the window's extent, and its dilation.
    dilation: of the last two dimensions. A dilated slice is a set of images of every dilation-th row and column.
    packed: weights are packed when the model is compiled, not at each call.
    """

    images: DimLike
    h: DimLike
    w: DimLike
    ci: int
    co: int
    r: int
    dtype: DType
    groups: int = 1
    depth: int = 1
    taps: int = 1
    depth_dilation: int = 1
    dilation: tuple[int, int] = (1, 1)
    packed: bool = True

    @property
    def extra_slices(self) -> int:
        """The number of input slices minus the number of output slices."""
        return (self.taps - 1) * self.depth_dilation

    @property
    def k(self) -> int:
        """The terms of an output's sum, for each position of the two-dimensional window."""
        return self.taps * self.ci

    def tile_grid(self, m: int) -> tuple[DimLike, DimLike]:
        """Tiles of m x m outputs in a slice, or in the largest of a dilated slice's images."""
        (a, b), h, w = self.dilation, self.h, self.w
        return ceildiv(ceildiv(h, a), m), ceildiv(ceildiv(w, b), m)

    def min_image_size(self) -> tuple[DimLike, DimLike]:
        """Rows and columns of the smallest of a slice's images."""
        return floordiv(self.h, self.dilation[0]), floordiv(self.w, self.dilation[1])

    def estimated_tiles(self, m: int) -> int:
        """Tiles of a slice, for likely sizes."""
        return prod((*map(estimate, self.tile_grid(m)), *self.dilation))

    def units(self) -> tuple[DimLike, int]:
        """(units, output slices of a unit). All images are one unit if their number is static and each input slice
        serves one output slice; otherwise each image is a unit."""
        if isinstance(self.images, int) and not self.extra_slices:
            return 1, self.images * self.depth
        return self.images, self.depth


def winograd_shape_of(anchor: Node, x: Layout, w: Layout, packed: bool = True) -> Shape | None:
    """Return the shape of a convolution that `lower_winograd` supports, else None: two spatial dimensions, or three
    with a static outermost one; stride 1; padding in the input's memory; contiguous channels. packed: constant weights.
    """
    op = anchor.op
    types = {anchor.dtype, *(i.dtype for i in anchor.inputs)}
    if not isinstance(op, ops.Convolution) or any(map(any, op.padding)) or len(types) != 1:
        return None
    if not is_static((*w.strides, w.offset)) or x.strides[op.lhs_layout.index("C")] != 1:
        return None
    shape = _shape_of(anchor, op, packed)
    return None if shape is None or shape.dtype not in (f32, f64) else shape


def is_faster_by_winograd(anchor: Node, machine: Machine) -> bool:
    """Whether a convolution takes less time by Winograd's algorithm in f32 than in integers."""
    op = anchor.op
    if machine.int8_rate >= 4 or not machine.winograd:  # four products in the place of one
        return False
    shape = _shape_of(anchor, op, True) if isinstance(op, ops.Convolution) else None
    if shape is None or shape.ci == 1:
        return False
    seconds = min((t for t, _ in _timed_candidates(replace(shape, dtype=f32), machine)), default=inf)
    return seconds < estimate(op.flops(*(x.type for x in anchor.inputs))) / (machine.int8_rate * machine.gflops * 1e9)


def _shape_of(anchor: Node, op: ops.Convolution, packed: bool) -> Shape | None:
    """The shape of a convolution that Winograd's algorithm covers once its operands have their layouts, else None."""
    if len(op.spatial) not in (2, 3):
        return None
    if any(v != 1 for v in (*op.strides, *op.lhs_dilation, op.batch_groups)):
        return None
    w = anchor.inputs[1]
    *depth_dim, row_dim, column_dim = op.spatial
    out = dict(zip(op.out_layout, anchor.shape, strict=True))
    window = dict(zip(op.rhs_layout, w.shape, strict=True))
    depth_sizes = (out[depth_dim[0]], window[depth_dim[0]]) if depth_dim else (1, 1)
    sizes = (window["I"], window["O"], window[row_dim], window[column_dim], *depth_sizes)
    static = [v for v in sizes if isinstance(v, int)]
    if len(static) != len(sizes):
        return None
    ci, co, r, s, depth, taps = static
    if r != s or r not in TILE_SIZES or 0 in (*static, *anchor.shape):
        return None
    groups = op.feature_groups
    *depth_dilation, row_dilation, column_dilation = op.rhs_dilation
    return Shape(
        out["N"], out[row_dim], out[column_dim], ci, co // groups, r, anchor.dtype, groups, depth, taps,
        *(depth_dilation or [1]), dilation=(row_dilation, column_dilation), packed=packed,
    )  # fmt: skip


def plan_winograd(s: Shape, plan: Plan, machine: Machine, nonzero_share: float = 1.0) -> Winograd | None:
    """Return the fastest pieces for likely sizes, or None if the direct convolution with `plan` is as fast.

    nonzero_share: the part of the window's products that the direct convolution computes; the others are with padding.
    """
    weight_bytes = s.r * s.r * s.k * s.co * s.groups * s.dtype.nbytes
    max_seconds = _seconds(nonzero_share * _direct_cycles(s, plan, machine), 0.0, weight_bytes, machine) / MIN_SPEEDUP
    seconds, pieces = min(_timed_candidates(s, machine), key=lambda x: x[0], default=(max_seconds, None))
    return pieces if seconds < max_seconds else None


def best_pieces(s: Shape, machine: Machine) -> list[Choice]:
    """Return the fastest pieces by the cost model."""
    return [pieces for _, pieces in sorted(_timed_candidates(s, machine), key=lambda x: x[0])[:MAX_CANDIDATES]]


MAX_CANDIDATES = 10


def neighbor_pieces(s: Shape, pieces: Winograd, machine: Machine) -> list[Choice]:
    """Return the pieces that differ from `pieces` by a small step in one number."""
    candidates = [p for _, p in _timed_candidates(s, machine) if p.m == pieces.m]
    neighbors = [p for p in candidates if (p.tiles, p.columns) == (pieces.tiles, pieces.columns)]
    for varied, fixed in (("tiles", "columns"), ("columns", "tiles")):
        value = getattr(pieces, varied)
        matches = [p for p in candidates if getattr(p, fixed) == getattr(pieces, fixed) and p.split == pieces.split]
        neighbors += sorted((p for p in matches if getattr(p, varied) < value), key=lambda p: getattr(p, varied))[-2:]
        neighbors += sorted((p for p in matches if getattr(p, varied) > value), key=lambda p: getattr(p, varied))[:2]
    return [p for p in neighbors if p != pieces]


def admits_pieces(s: Shape, pieces: Choice, machine: Machine) -> bool:
    """Whether `pieces` are valid. They may have been read from a file."""
    return any(p == pieces for _, p in _timed_candidates(s, machine))


def _timed_candidates(s: Shape, machine: Machine) -> list[tuple[float, Winograd]]:
    """All pieces with their predicted seconds, F(4)'s with its penalty."""
    # computed once, as sizes may be symbolic and there are hundreds of candidates
    slice_tiles = {m: s.estimated_tiles(m) for m in TILE_SIZES[s.r]}

    def seconds(p: Winograd) -> float:
        return predicted_seconds(s, p, slice_tiles[p.m], machine) * (1 + _F4_PENALTY * (p.m > 2))

    return [(seconds(p), p) for p in _candidates(s, machine)]


def _candidates(s: Shape, machine: Machine) -> list[Winograd]:
    _, slices = s.units()
    lanes = machine.lanes(s.dtype)
    vectors = -(-s.co // lanes)
    candidates = []
    is_dynamic = not (isinstance(s.h, int) and isinstance(s.w, int))
    if is_dynamic and s.extra_slices:
        return []
    for m in TILE_SIZES[s.r]:
        if min(map(estimate, s.min_image_size())) < m:
            continue
        total = slices * s.estimated_tiles(m)
        products = (m + s.r - 1) ** 2
        for tiles in sorted({-(-total // -(-total // t)) for t in range(1, min(total, 64) + 1)}):
            if tiles < min(total, 7):
                continue
            for block_vectors in sorted({-(-vectors // -(-vectors // v)) for v in (2, 3, 4, 6, 8, 12, 16)}):
                # a slice that serves several outputs is transformed once; V of dynamic size must be scratch
                for split in (1,) if s.extra_slices else (0,) if is_dynamic else (0, 1):
                    v_channels = block_vectors * lanes + (0 if split else s.ci)
                    for late in _late_channels(s, m, block_vectors * lanes, machine):
                        if products * tiles * v_channels * s.dtype.nbytes <= 0.75 * machine.l2:
                            candidates.append(Winograd(m, tiles, block_vectors * lanes, split, late))
    return candidates


def _late_channels(s: Shape, m: int, columns: int, machine: Machine) -> list[int]:
    """The numbers of input channels, in full vectors, whose weights a chunk may transform at a time; 0: weights are
    transformed beforehand. A row of U, and the windows that are read for each row, must stay in L1."""
    channel_bytes = (s.r**2 + m + s.r - 1) * columns * s.dtype.nbytes
    lanes = machine.lanes(s.dtype)
    return [0, *(c for c in (16, 32) if s.taps == 1 and s.ci % c == c % lanes == 0 and c * channel_bytes <= machine.l1)]


def predicted_seconds(s: Shape, p: Winograd, slice_tiles: int, machine: Machine) -> float:
    """Return the predicted seconds. slice_tiles: tiles of a slice, for likely sizes."""
    units, slices = s.units()
    units = units if isinstance(units, int) else 1
    lanes, threads, size = machine.lanes(s.dtype), machine.threads, s.dtype.nbytes
    products = (p.m + s.r - 1) ** 2
    tile_runs = units * -(-(slices * slice_tiles) // p.tiles)
    column_blocks = -(-s.co // p.columns)
    blocks = s.groups * column_blocks
    cycles = tile_runs * blocks * products * _product_cycles(p.tiles, p.columns // lanes, s.k, machine)
    if p.late:
        sums = products * p.tiles * (s.ci // p.late) * _LATE_CYCLES_PER_SUM
        cycles += tile_runs * blocks * p.columns // lanes * (s.k * (s.r**2 + products) * _LATE_CYCLES_PER_VECTOR + sums)
    input_tiles = tile_runs * p.tiles + units * s.extra_slices * slice_tiles
    inputs = input_tiles * -(-s.ci * s.groups // lanes) if p.split else tile_runs * p.tiles * -(-s.ci // lanes) * blocks
    vectors = products * (inputs + tile_runs * p.tiles * blocks * p.columns // lanes)
    weight_bytes = (s.r**2 if p.late else products) * s.k * blocks * p.columns * size
    if not s.packed:
        vectors_per_column = 2 * s.r**2 + (0 if p.late else products)
        vectors += vectors_per_column * s.k * blocks * p.columns // lanes
    seconds = _seconds(cycles, vectors * CYCLES_PER_VECTOR, weight_bytes, machine) + (0 if s.packed else _STEP_SECONDS)
    rereads_weights = products * p.tiles * (s.k + p.columns) * size + weight_bytes / blocks > 0.9 * machine.l2
    traffic_seconds = (tile_runs - 1) * weight_bytes / _REREAD_BYTES_PER_SECOND if rereads_weights else 0.0
    v_bytes = products * input_tiles * s.ci * s.groups * size
    if p.split:
        seconds += _STEP_SECONDS
        v_reads = column_blocks if v_bytes > 0.7 * machine.l2 else threads - 1  # V stays in each thread's L2
        traffic_seconds += (
            v_bytes
            * (1 + v_reads)
            / (_V_L3_BYTES_PER_SECOND if v_bytes <= machine.l3 / 2 else _V_MEMORY_BYTES_PER_SECOND)
        )
    seconds += traffic_seconds / threads
    chunks = tile_runs * blocks
    chunk_seconds = seconds * threads / chunks
    idle_seconds = 0.0 if chunks % threads == 0 else chunk_seconds * (threads - 1) / threads
    return seconds + max(idle_seconds, 0.1 * chunk_seconds * (threads > 1)) + chunks * _CLAIM_SECONDS / threads


def _seconds(cycles: float, transform_cycles: float, weight_bytes: float, machine: Machine) -> float:
    """The seconds of `cycles` of arithmetic on all cores, overlapped with the stream of weights, and of the transforms
    that follow."""
    hertz = _PEAK_RATIO * machine.gflops * 1e9 / (2 * machine.fma_per_cycle * machine.lanes(f32))
    stream = weight_bytes / min(_CORE_BYTES_PER_SECOND * machine.threads, _MEMORY_BYTES_PER_SECOND)
    arithmetic = cycles / hertz / machine.threads
    return max(arithmetic, stream) + 0.15 * min(arithmetic, stream) + transform_cycles / hertz / machine.threads


@lru_cache(4096)  # called for each of hundreds of candidates
def _product_cycles(rows: int, vectors: int, k: int, machine: Machine) -> float:
    """The cycles of [rows, k] x [k, vectors] with the best even split into register tiles."""
    best = float("inf")
    for nv in range(1, min(vectors, machine.registers) + 1):
        width = min(rows, max_tile_rows(nv, machine))
        if width > 0:
            calls = -(-rows // width)
            best = min(best, calls * -(-vectors // nv) * _tile_cycles(-(-rows // calls), nv, k, machine))
    return best


def _tile_cycles(m: int, nv: int, k: int, machine: Machine) -> float:
    return tile_cycles(m, nv, machine) * k + _TILE_CYCLES + _CYCLES_PER_ACCUMULATOR * m * nv


def _direct_cycles(s: Shape, plan: Plan, machine: Machine) -> float:
    vectors = s.groups * -(-s.co // plan.lanes)
    slices = s.depth * (s.images if isinstance(s.images, int) else 1)
    tiles = slices * -(-estimate(s.h) // plan.lines) * estimate(s.w) / plan.width
    return tiles * vectors / plan.vectors * _tile_cycles(plan.lines * plan.width, plan.vectors, s.r**2 * s.k, machine)


__all__ = [
    "Shape",
    "Winograd",
    "admits_pieces",
    "best_pieces",
    "neighbor_pieces",
    "plan_winograd",
    "predicted_seconds",
    "winograd_shape_of",
]  # fmt: skip
