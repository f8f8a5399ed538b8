"""Whether a convolution should be done by Winograd's algorithm, and in which pieces: an analytic model.

    time = max(arithmetic, stream of weights from memory) + transforms + the idle end

The direct convolution's is modelled by the same numbers, so the answer rests on ratios. docs/winograd.md has what was
measured on the shapes of ResNet, VGG, U-Net and DenseNet.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

from ingot import ops
from ingot.ir.dims import DimLike, ceildiv, estimate, floordiv, is_static
from ingot.ir.layout import Layout
from ingot.ir.node import Node
from ingot.ir.types import DType, f32, f64
from ingot.schedule.choice import Choice, Pieces
from ingot.schedule.cpu.contraction.cost_model import most_rows, tile_cycles
from ingot.schedule.cpu.contraction.plan import Plan
from ingot.schedule.cpu.machine import Machine
from ingot.support.dataclass import dataclass

WINDOWS = {3: (2, 4), 5: (2,)}  # r -> m
# The direct convolution's time over Winograd's from which on the rounding errors and the larger weights are worth it.
GAIN = 1.15
_RESERVE = 0.07  # F(4)'s errors and weights are larger than F(2)'s: it must be that much faster
CYCLES_PER_VECTOR = 3.5  # cycles per vector that a transform reads or writes, in and out alike, store misses included
_PER_WEIGHT, _PER_SUM = 1.0, 0.8  # cycles per vector that a late transform moves, and of sums that are added to
_ENTRY, _PER_ACCUMULATOR = 20.0, 2.0  # cycles around a register tile's reduction loop, as in `tile`
_STEP = 2e-6  # seconds that a step more costs: all threads meet
_CLAIM = 0.5e-6  # seconds to claim a chunk and set up its loops
_PEAK = 1.3  # of `machine.gflops`, which is what a core surely does
_ONE_CORE, _ALL_CORES = 38e9, 45e9  # bytes per second that weights stream from memory
# Bytes per second and core, as far as they are not hidden: weights read again from the shared cache, which is a stream;
# V written to and read from the shared cache, and from memory.
_AGAIN, _SHARED, _FAR = 160e9, 60e9, 25e9


@dataclass(frozen=True)
class Shape:
    """A convolution that Winograd's algorithm covers. images: N; h, w: of the output; ci, co: of a group; r: of the
    window.

    A third spatial dimension before the two is one more sum. depth: of the output along it; taps: of the window,
    `apart` input slices from one to the next. dilation: of the last two; a slice is dilation^2 images then, each of
    every dilation-th row and column. packed: weights are laid out when the model is compiled, not at each call.
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
    apart: int = 1
    dilation: tuple[int, int] = (1, 1)
    packed: bool = True

    @property
    def extra(self) -> int:
        """Input slices beyond the output's."""
        return (self.taps - 1) * self.apart

    @property
    def k(self) -> int:
        """Terms of an output's sum, for each place of the two-dimensional window."""
        return self.taps * self.ci

    def grid(self, m: int) -> tuple[DimLike, DimLike]:
        """Tiles of m x m outputs in a slice, or in the largest of a dilated slice's images."""
        (a, b), h, w = self.dilation, self.h, self.w
        return ceildiv(ceildiv(h, a), m), ceildiv(ceildiv(w, b), m)

    def least(self) -> tuple[DimLike, DimLike]:
        """Rows and columns of the smallest of a slice's images."""
        return floordiv(self.h, self.dilation[0]), floordiv(self.w, self.dilation[1])

    def likely_tiles(self, m: int) -> int:
        return prod((*map(estimate, self.grid(m)), *self.dilation))

    def units(self) -> tuple[DimLike, int]:
        """(units, slices of the output in each): all images are one where their number is known and none of their
        slices serves several outputs."""
        if isinstance(self.images, int) and not self.extra:
            return 1, self.images * self.depth
        return self.images, self.depth


def covered(anchor: Node, x: Layout, w: Layout, packed: bool = True) -> Shape | None:
    """The shape of a convolution that `lower_winograd` can do, None for others: two spatial dimensions, or three with a
    first of known size; stride 1; padding in the input's memory, channels side by side. packed: weights are a constant.
    """
    op = anchor.op
    if not isinstance(op, ops.Convolution) or len(op.spatial) not in (2, 3):
        return None
    ones = (*op.strides, *op.lhs_dilation, op.batch_groups)
    types = {anchor.dtype, *(i.dtype for i in anchor.inputs)}
    if any(v != 1 for v in ones) or any(map(any, op.padding)) or len(types) != 1 or anchor.dtype not in (f32, f64):
        return None
    *outer, a, b = op.spatial
    out = dict(zip(op.out_layout, anchor.shape, strict=True))
    window = dict(zip(op.rhs_layout, w.shape, strict=True))
    deep = (out[outer[0]], window[outer[0]]) if outer else (1, 1)
    sizes = (window["I"], window["O"], window[a], window[b], *deep)
    known = [v for v in sizes if isinstance(v, int)]
    if len(known) != len(sizes) or not is_static((*w.strides, w.offset)):
        return None
    ci, co, r, s, depth, taps = known
    if r != s or r not in WINDOWS or x.strides[op.lhs_layout.index("C")] != 1 or 0 in (*known, *anchor.shape):
        return None
    groups = op.feature_groups
    *apart, down, along = op.rhs_dilation
    return Shape(
        out["N"], out[a], out[b], ci, co // groups, r, anchor.dtype, groups, depth, taps, *(apart or [1]),
        dilation=(down, along), packed=packed,
    )  # fmt: skip


def plan_winograd(s: Shape, plan: Plan, machine: Machine, share: float = 1.0) -> Pieces | None:
    """The fastest pieces for likely sizes, or None where the direct convolution with `plan` is as fast, which computes
    a `share` of the window's products: the others are with zeros around the image."""
    weights = s.r * s.r * s.k * s.co * s.groups * s.dtype.nbytes
    goal = _time(share * _direct_cycles(s, plan, machine), 0.0, weights, machine) / GAIN
    cost, pieces = min(_ranked(s, machine), key=lambda x: x[0], default=(goal, None))
    return pieces if cost < goal else None


def other_pieces(s: Shape, machine: Machine) -> list[Choice]:
    """The pieces that the model ranks first."""
    return [pieces for _, pieces in sorted(_ranked(s, machine), key=lambda x: x[0])[:TRIED]]


TRIED = 10


def near_pieces(s: Shape, near: Pieces, machine: Machine) -> list[Choice]:
    """Pieces that differ from `near` by one step in one number."""
    found = [p for _, p in _ranked(s, machine) if p.m == near.m]
    out = [p for p in found if (p.tiles, p.columns) == (near.tiles, near.columns)]
    for mine, other in (("tiles", "columns"), ("columns", "tiles")):
        at = getattr(near, mine)
        line = [p for p in found if getattr(p, other) == getattr(near, other) and p.split == near.split]
        out += sorted((p for p in line if getattr(p, mine) < at), key=lambda p: getattr(p, mine))[-2:]
        out += sorted((p for p in line if getattr(p, mine) > at), key=lambda p: getattr(p, mine))[:2]
    return [p for p in out if p != near]


def admits_pieces(s: Shape, pieces: Choice, machine: Machine) -> bool:
    """Whether `pieces` give a kernel: they may have been read from a file."""
    return any(p == pieces for _, p in _ranked(s, machine))


def _ranked(s: Shape, machine: Machine) -> list[tuple[float, Pieces]]:
    """All pieces with their modelled time, that of F(4) with its reserve."""
    own = {m: s.likely_tiles(m) for m in WINDOWS[s.r]}  # once, as sizes may be symbolic and pieces are hundreds
    return [(modelled(s, p, own[p.m], machine) * (1 + _RESERVE * (p.m > 2)), p) for p in _candidates(s, machine)]


def _candidates(s: Shape, machine: Machine) -> list[Pieces]:
    _, slices = s.units()
    lanes = machine.lanes(s.dtype)
    vectors = -(-s.co // lanes)
    out = []
    open_ = not (isinstance(s.h, int) and isinstance(s.w, int))
    if open_ and s.extra:
        return []
    for m in WINDOWS[s.r]:
        if min(map(estimate, s.least())) < m:
            continue
        total = slices * s.likely_tiles(m)
        products = (m + s.r - 1) ** 2
        for tiles in sorted({-(-total // -(-total // t)) for t in range(1, min(total, 64) + 1)}):
            if tiles < min(total, 7):
                continue
            for per in sorted({-(-vectors // -(-vectors // v)) for v in (2, 3, 4, 6, 8, 12, 16)}):
                # a slice that serves several outputs is transformed once; V of an open size is scratch
                for split in (1,) if s.extra else (0,) if open_ else (0, 1):
                    kept = per * lanes + (0 if split else s.ci)
                    for late in _late(s, m, per * lanes, machine):
                        if products * tiles * kept * s.dtype.nbytes <= 0.75 * machine.l2:
                            out.append(Pieces(m, tiles, per * lanes, split, late))
    return out


def _late(s: Shape, m: int, columns: int, machine: Machine) -> list[int]:
    """Input channels whose weights a chunk may transform at a time, whole vectors of them; 0: none. The windows, which
    are read for each row of U, and the row stay in the first-level cache."""
    held = (s.r**2 + m + s.r - 1) * columns * s.dtype.nbytes
    lanes = machine.lanes(s.dtype)
    return [0, *(c for c in (16, 32) if s.taps == 1 and s.ci % c == c % lanes == 0 and c * held <= machine.l1)]


def modelled(s: Shape, p: Pieces, own: int, machine: Machine) -> float:
    """Seconds. own: likely tiles of a slice."""
    units, slices = s.units()
    units = units if isinstance(units, int) else 1
    lanes, threads, size = machine.lanes(s.dtype), machine.threads, s.dtype.nbytes
    products = (p.m + s.r - 1) ** 2
    runs = units * -(-(slices * own) // p.tiles)
    per = -(-s.co // p.columns)
    blocks = s.groups * per
    cycles = runs * blocks * products * _product_cycles(p.tiles, p.columns // lanes, s.k, machine)
    if p.late:
        sums = products * p.tiles * (s.ci // p.late) * _PER_SUM
        cycles += runs * blocks * p.columns // lanes * (s.k * (s.r**2 + products) * _PER_WEIGHT + sums)
    reads = runs * p.tiles + units * s.extra * own
    inputs = reads * -(-s.ci * s.groups // lanes) if p.split else runs * p.tiles * -(-s.ci // lanes) * blocks
    vectors = products * (inputs + runs * p.tiles * blocks * p.columns // lanes)
    weights = (s.r**2 if p.late else products) * s.k * blocks * p.columns * size
    if not s.packed:
        moved = 2 * s.r**2 + (0 if p.late else products)
        vectors += moved * s.k * blocks * p.columns // lanes
    time = _time(cycles, vectors * CYCLES_PER_VECTOR, weights, machine) + (0 if s.packed else _STEP)
    again = products * p.tiles * (s.k + p.columns) * size + weights / blocks > 0.9 * machine.l2
    traffic = (runs - 1) * weights / _AGAIN if again else 0.0
    v = products * reads * s.ci * s.groups * size
    if p.split:
        time += _STEP
        times = per if v > 0.7 * machine.l2 else threads - 1  # else each thread's second-level cache keeps it
        traffic += v * (1 + times) / (_SHARED if v <= machine.l3 / 2 else _FAR)
    time += traffic / threads
    chunks = runs * blocks
    chunk = time * threads / chunks
    idle = 0.0 if chunks % threads == 0 else chunk * (threads - 1) / threads
    return time + max(idle, 0.1 * chunk * (threads > 1)) + chunks * _CLAIM / threads


def _time(cycles: float, more: float, weights: float, machine: Machine) -> float:
    """Seconds of `cycles` of arithmetic on all cores beside the stream of weights, and of `more` after it."""
    hertz = _PEAK * machine.gflops * 1e9 / (2 * machine.fma_per_cycle * machine.lanes(f32))
    stream = weights / min(_ONE_CORE * machine.threads, _ALL_CORES)
    arithmetic = cycles / hertz / machine.threads
    return max(arithmetic, stream) + 0.15 * min(arithmetic, stream) + more / hertz / machine.threads


@lru_cache(4096)  # asked for each of hundreds of pieces
def _product_cycles(rows: int, vectors: int, k: int, machine: Machine) -> float:
    """Cycles of [rows, k] x [k, vectors]: the best even cut into register tiles."""
    best = float("inf")
    for nv in range(1, min(vectors, machine.registers) + 1):
        width = min(rows, most_rows(nv, machine))
        if width > 0:
            calls = -(-rows // width)
            best = min(best, calls * -(-vectors // nv) * _tile(-(-rows // calls), nv, k, machine))
    return best


def _tile(m: int, nv: int, k: int, machine: Machine) -> float:
    return tile_cycles(m, nv, machine) * k + _ENTRY + _PER_ACCUMULATOR * m * nv


def _direct_cycles(s: Shape, plan: Plan, machine: Machine) -> float:
    vectors = s.groups * -(-s.co // plan.lanes)
    slices = s.depth * (s.images if isinstance(s.images, int) else 1)
    tiles = slices * -(-estimate(s.h) // plan.lines) * estimate(s.w) / plan.width
    return tiles * vectors / plan.vectors * _tile(plan.lines * plan.width, plan.vectors, s.r**2 * s.k, machine)


__all__ = ["Pieces", "Shape", "admits_pieces", "covered", "modelled", "near_pieces", "other_pieces", "plan_winograd"]
