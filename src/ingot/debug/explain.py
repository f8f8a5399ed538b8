"""Explain the time of a compiled model: for each kernel its time, its work, its share of the machine's limits, and the
reasons for its fusion.

A row is one fused group (one kernel, or a few). FLOPs are those of sums of products, 2 per multiply-add, as benchmarks
count them. Bytes are those that the group must read and write once: operands, weights and results; for a value that is
updated in place, only the updates. The floor is the larger of the two times that this work takes at the rates that the
machine reached in the same run, on as many bytes as the weights and the arena of the model have. The results of the
preceding group are still in a cache, so a small group can be faster than its floor.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from ingot import ops
from ingot.debug import gpu_probe
from ingot.debug.build import Build
from ingot.debug.feeds import Feeds
from ingot.debug.probe import Rates, measure
from ingot.ir.dims import DimLike, estimate, likely_sizes, substitute
from ingot.ir.node import Const, Graph, Input, Node, Project
from ingot.ir.types import DType, TensorType, f32
from ingot.ops.core.base import Category, category
from ingot.ops.group import Group
from ingot.passes.fusion.fuse import fuse
from ingot.pipeline.build import size_hints
from ingot.pipeline.target import target_of
from ingot.plan.link import Launch
from ingot.plan.work import group_bytes, group_flops
from ingot.runtime import describe
from ingot.runtime.bind import Binding, binding_shapes
from ingot.runtime.executor import CompiledModel
from ingot.runtime.expr import evaluate
from ingot.runtime.program import Program
from ingot.support import progress, timing
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Row:
    """One group. label: its ops as named in the model. seconds: median over runs. begin: seconds from the start of a
    call. fused: its primitives, with their places.

    flops_share, bytes_share: of the machine's measured rates while it ran. floor: the fewest seconds that these rates
    allow. reads: the rows whose results it reads. unfused_reason: why it is not fused into the kernel that reads it.
    """

    index: int
    label: str
    where: str
    kind: str
    kernels: tuple[str, ...]
    begin: float
    seconds: float
    share: float
    chunks: int
    flops: int
    bytes: int
    flops_share: float
    bytes_share: float
    floor: float
    result: str
    fused: tuple[str, ...]
    unfused_reason: str
    reads: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.label} @ {self.where}" if self.where else self.label


@dataclass(frozen=True)
class Block:
    """One buffer of the arena: alive from step `first` to `last`, at `offset`."""

    buffer: int
    first: int
    last: int
    offset: int
    nbytes: int
    halo: bool


@dataclass(frozen=True)
class Explanation:
    """The explanation of a model's run. call_seconds: of a whole call with arrays in host memory (`support.timing`).
    seconds: of its kernels, the sum of the rows. floor: the sum of their floors. state: for each state the reason why
    its new value is not written in place; "" if it is. graphs: the CUDA graphs that the steps are launched as. advice:
    what to try next. rewrites: those of the tuning database that were applied. notes: the weights that are copied to
    the GPU in each call."""

    model: str
    sizes: dict[str, int]
    rates: Rates
    rows: tuple[Row, ...]
    call_seconds: float
    seconds: float
    floor: float
    steps: int
    arena: int
    weights: int
    code: int
    blocks: tuple[Block, ...]
    passes: tuple[tuple[str, float], ...]
    state: tuple[tuple[str, str], ...] = ()
    graphs: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    rewrites: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """That all rows move."""
        return sum(r.bytes for r in self.rows)


def explain(
    name: str, build: Build, feeds: Feeds, repeats: int = 15, rates: Rates | None = None,
    device_memory: int | None = None,
) -> Explanation:  # fmt: skip
    """Run the model on `feeds` `repeats` times with a timer for each step, then without; measure the machine before and
    after."""
    progress.report("measure the machine")
    model = build.model(device_memory)
    model(**feeds)
    moved_bytes = sum(a.nbytes for a in feeds.values()) + model.arena_bytes + build.program.weights.nbytes
    before = rates or _measured(build, moved_bytes)
    inputs = [feeds[spec.name] for spec in build.program.inputs]
    seconds_of_runs: list[list[float]] = []
    for i in range(repeats):
        progress.report("run", i, repeats)
        seconds_of_runs.append([seconds for _, seconds in model.profile(*inputs)])
    times = [statistics.median(column) for column in zip(*seconds_of_runs, strict=True)]
    call_seconds = _called(model, feeds)
    after = rates or _measured(build, moved_bytes)
    # the better of two: a neighbour may have disturbed one
    limits = replace(before, gflops=max(before.gflops, after.gflops), gbytes=max(before.gbytes, after.gbytes))
    return replace(_explanation(name, build, feeds, times, call_seconds, limits), notes=tuple(model.notes()))


def _called(model: CompiledModel, feeds: Feeds) -> float:
    """Seconds of a call. The state is restored afterwards."""
    initial_state = model.state()
    try:
        return timing.median(partial(model, **feeds))
    finally:
        model.set_state(initial_state)


def _measured(build: Build, moved_bytes: int) -> Rates:
    """The measured rates of the machine for the kinds of work that the model has."""
    if build.program.is_on_gpu:
        return gpu_probe.measure(build.features, *_multiplied(build))
    return measure(build.threads, moved_bytes)


def _multiplied(build: Build) -> tuple[DType, bool | None]:
    """The operand type of the majority of the products, and their `tf32`."""
    sizes = size_hints(build.graph)
    flops: dict[tuple[DType, bool | None], int] = {}
    for launch in build.launches:
        assert isinstance(launch.node.op, Group)
        for node in launch.node.op.body.nodes():
            if node.op.stored_values:
                count = estimate(substitute(node.op.flops(*(i.type for i in node.inputs)), sizes))
                kind = node.inputs[0].dtype, getattr(node.op, "tf32", None)
                flops[kind] = flops.get(kind, 0) + count
    return max(flops, key=lambda kind: flops[kind], default=(f32, None))


def _explanation(
    name: str, build: Build, feeds: Feeds, times: list[float], call_seconds: float, rates: Rates
) -> Explanation:
    program = build.program
    instance = Binding(program, binding_shapes(program, [feeds[spec.name] for spec in program.inputs]))
    rows = _rows(build, instance, times, rates)
    explanation = Explanation(
        name,
        instance.upper_bounds,
        rates,
        rows,
        call_seconds,
        sum(times),
        sum(r.floor for r in rows),
        len(program.steps),
        instance.layout.nbytes,
        program.weights.nbytes,
        program.code_bytes,
        tuple(_blocks(program, instance)),
        tuple((stage, seconds) for stage, seconds, _ in build.trace.stages),
        tuple((s.spec.name, s.copy_reason) for s in program.state),
        tuple(describe.graphs(program)),
        rewrites=tuple(program.meta.get("rewrites", "").splitlines()),
    )
    return replace(explanation, advice=_advice(explanation, build))


_MIN_SHARE = 0.1  # of the time, of a kernel that is worth an advice of its own
_LOW_FLOPS_SHARE = 0.4  # of the multiply-add peak: a product below it may have better tiles
_HIGH_BYTES_SHARE = 0.6  # of the bandwidth
_MIN_PRODUCTS_SHARE = 0.5  # of the time, in products, for which another number format pays
_MIN_OVERHEAD_SHARE = 0.4  # of a call, around its kernels
_MAX_ADVICES = 4


def _advice(e: Explanation, build: Build) -> tuple[str, ...]:
    """Suggestions, the most useful first; empty if no part of the model stands out."""
    advices: list[str] = []
    on_cpu = not build.program.is_on_gpu
    products = [r for r in e.rows if r.flops]
    for r in sorted(products, key=lambda r: -r.seconds)[:2]:
        is_slow = r.flops_share < _LOW_FLOPS_SHARE and r.bytes_share < _HIGH_BYTES_SHARE
        if on_cpu and r.share >= _MIN_SHARE and is_slow and r.kind == "contraction":
            advices.append(f"{r.name}: {r.flops_share:.0%} of the peak and {r.share:.0%} of the time: try `ingot tune`")
    share = sum(r.share for r in products)
    if build.precision == "float32" and share >= _MIN_PRODUCTS_SHARE:
        has_bf16 = not on_cpu or "avx512bf16" in build.features.features or "bf16" in build.features.features
        formats = 'precision="bfloat16" or `ingot quantize`' if has_bf16 else "`ingot quantize`"
        advices.append(f"{share:.0%} of the time is in products of float32: try {formats}")
    memory = sum(r.share for r in e.rows if not r.flops and r.bytes_share >= _HIGH_BYTES_SHARE)
    if memory >= _MIN_SHARE:
        advices.append(f"{memory:.0%} of the time moves bytes at the memory's rate: only fewer bytes make it faster")
    outside = 1 - e.seconds / e.call_seconds if e.call_seconds else 0.0
    if outside >= _MIN_OVERHEAD_SHARE:
        advices.append(f"{outside:.0%} of a call is spent around the kernels: try larger batches")
    return tuple(advices[:_MAX_ADVICES])


def _rows(build: Build, instance: Binding, times: list[float], rates: Rates) -> tuple[Row, ...]:
    sizes, total = instance.upper_bounds, sum(times) or 1.0
    starts = np.concatenate([[0.0], np.cumsum(times)])
    writer = {node: i for i, launch in enumerate(build.launches) for node in launch.node.results}
    reason_of, ops_at = reasons(build), model_ops(build.graph)
    groups_of_launch = Counter((launch.first, launch.last) for launch in build.launches)
    rows: list[Row] = []
    for i, launch in enumerate(build.launches):
        group = launch.node.op
        assert isinstance(group, Group)
        # small groups may share a launch, and so its time
        seconds = sum(times[launch.first : launch.last]) / groups_of_launch[launch.first, launch.last]
        flops, moved_bytes = _number(group_flops(group.body), sizes), group_bytes(group.body, sizes, launch.updates)
        floor = max(flops / rates.gflops, moved_bytes / rates.gbytes) / 1e9
        positive_seconds = seconds or 1e-12
        rows.append(
            Row(
                index=i,
                label=title(group.body, ops_at),
                where=launch.node.loc,
                kind=group.kind,
                kernels=tuple(build.program.steps[n].kernel for n in range(launch.first, launch.last)),
                begin=float(starts[launch.first]),
                seconds=seconds,
                share=seconds / total,
                chunks=sum(instance.chunks[launch.first : launch.last]),
                flops=flops,
                bytes=moved_bytes,
                flops_share=flops / positive_seconds / rates.gflops / 1e9,
                bytes_share=moved_bytes / positive_seconds / rates.gbytes / 1e9,
                floor=floor,
                result=", ".join(_type_text(t, sizes) for t in launch.node.types),
                fused=fused_ops(group.body),
                unfused_reason=reason_of.get(launch.node, ""),
                reads=tuple(sorted(_sources(launch, writer))),
            )
        )
    return tuple(rows)


def reasons(build: Build) -> dict[Node, str]:
    """For each group the reason why it is not fused into its reader. Runs fusion again, which reports the reasons."""
    names = [name for name, _, _ in build.trace.stages]
    at = names.index("fuse")
    before = build.trace.stages[at - 1][2] if at else build.graph
    reason_of: dict[Node, str] = {}
    with likely_sizes(size_hints(build.graph)):  # as the pipeline does: fusion asks for them
        fuse(before, target_of(build.features).policy, reason_of)
    # shared kernels and storage's copies between groups change nodes: what they compute and their places stay
    by_place = {_place(node): text for node, text in reason_of.items()}
    copied = "a copy: its operand has a place in memory already, or a reader needs other strides"
    return {
        launch.node: reason_of.get(launch.node) or by_place.get(_place(launch.node), copied)
        for launch in build.launches
    }


def _place(node: Node) -> tuple[object, ...]:
    assert isinstance(node.op, Group)
    return (node.loc, node.types, fused_ops(node.op.body))


_QUIET = (Input, Const, Project, ops.BroadcastInDim, ops.Reshape, ops.Transpose)


_MAX_NAMES = 4  # of a group's title


def model_ops(graph: Graph) -> dict[str, tuple[str, ...]]:
    """The names of the model's ops by place: only the main one, such as a convolution with its bias, or all if there is
    none."""
    ops_by_place: dict[str, list[Node]] = {}
    for n in graph.nodes():
        if n.loc and not isinstance(n.op, _QUIET):
            ops_by_place.setdefault(n.loc, []).append(n)
    names: dict[str, tuple[str, ...]] = {}
    for place, nodes in ops_by_place.items():
        main = [n for n in nodes if category(n.op) is not Category.ELEMENTWISE]
        names[place] = tuple(dict.fromkeys(_op_name(n) for n in main or nodes))
    return names


def _op_name(n: Node) -> str:
    return "MatMul" if isinstance(n.op, ops.DotGeneral) else type(n.op).__name__


def title(body: Graph, ops_at: Mapping[str, tuple[str, ...]]) -> str:
    """The ops of a group as named in the model; if their places are unknown there, its primitives, each kind once."""
    nodes = [n for n in body.nodes() if not isinstance(n.op, _QUIET)]
    names: list[str] = []
    for place in dict.fromkeys(n.loc for n in nodes):
        names += ops_at.get(place, ())
    if not names:
        names = [*dict.fromkeys(n.op.name for n in nodes)]
    names = names or [*dict.fromkeys(n.op.name for n in body.nodes() if n.op.computes)] or ["copy"]
    rest = [f"{len(names) - _MAX_NAMES + 1} more"] if len(names) > _MAX_NAMES else []
    return " + ".join([*names[: _MAX_NAMES - len(rest)], *rest])


def fused_ops(body: Graph) -> tuple[str, ...]:
    """The ops of a group in order, with their places, without views and constants."""
    shown_nodes = (n for n in body.nodes() if not isinstance(n.op, _QUIET))
    return tuple(f"{n.op.name} @ {n.loc}" if n.loc else n.op.name for n in shown_nodes)


def _sources(launch: Launch, writer: Mapping[Node, int]) -> set[int]:
    """The groups whose results a group reads, through concats and pads."""
    groups: set[int] = set()
    stack = list(launch.node.inputs)
    while stack:
        node = stack.pop()
        if node in writer:
            groups.add(writer[node])
        elif not node.is_leaf:
            stack.extend(node.inputs)
    return groups


def _blocks(program: Program, instance: Binding) -> list[Block]:
    return [
        Block(
            b.id,
            b.first_step,
            b.last_step,
            instance.layout.offsets[b.id],
            evaluate(b.nbytes, instance.upper_bounds),
            b.halo is not None,
        )
        for b in program.buffers
        if b.kind == "arena" and b.alias is None
    ]


def _number(dim: DimLike, sizes: Mapping[str, int]) -> int:
    value = substitute(dim, sizes)
    assert isinstance(value, int)
    return value


def _type_text(t: TensorType, sizes: Mapping[str, int]) -> str:
    return f"{t.dtype}[{', '.join(str(_number(d, sizes)) for d in t.shape)}]"
