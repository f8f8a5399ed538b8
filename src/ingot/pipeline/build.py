"""Compile a graph for a target: its passes, then kernels, plan and code.

frontend -> MODEL graph -> CORE graph -> fused groups -> kernel IR -> code -> Program
            `-------- the target's passes -------'   `- its schedules, its assembler
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from math import inf

import numpy as np

from ingot.ir.dims import Dim, likely_sizes, substitute, symbols_of
from ingot.ir.kernel import Kernel
from ingot.ir.kernel.show import show_kernel
from ingot.ir.kernel.verify import verify_kernel
from ingot.ir.node import Const, Graph
from ingot.ir.rewrite import fueled
from ingot.ir.show import show
from ingot.ir.verify import check_sizes, verify
from ingot.ops import seeded
from ingot.ops.group import Group
from ingot.pipeline import tuning
from ingot.pipeline.target import NamedPass, Options, PartAssembler, features_of, target_of
from ingot.pipeline.variants import Variants
from ingot.plan import work
from ingot.plan.link import Launch, arena_of, link
from ingot.plan.recompute import Cost, within
from ingot.runtime.plan_json import sealed
from ingot.runtime.program import Program
from ingot.runtime.state import RANDOM, seed_state
from ingot.support import flags, progress
from ingot.support.dataclass import dataclass
from ingot.support.errors import CompileError, KernelError, ShapeError
from ingot.support.limits import in_time, limited
from ingot.support.native import Code, Features

# seconds of each of a program's steps, of inputs of these sizes; None where it cannot run
Measure = Callable[[Program, Mapping[str, int]], Sequence[float] | None]


@dataclass
class Trace:
    """What happened to a graph: (stage, seconds, graph after it); its kernels, and what each step belongs to."""

    stages: list[tuple[str, float, Graph]] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)


def optimize(
    graph: Graph,
    passes: Sequence[NamedPass],
    trace: Trace | None = None,
    outer: frozenset[str] = frozenset(),
) -> Graph:
    """Run `passes` in order; outer: the symbols of the graphs around a body.

    INGOT_DEBUG=1 tells each pass and its time, 2 also the graph where it changed; INGOT_VERIFY=1 verifies it.
    """
    level, checked = flags.debug_level(), flags.verify()
    for name, run in passes:
        progress.report(name)
        in_time(name)
        before, begin = graph, time.perf_counter()
        try:
            graph = run(graph)
        except ShapeError as e:  # the model is right: the frontend's types fit together
            raise CompileError(f"the pass {name} made a graph whose sizes do not fit: {e}") from e
        seconds = time.perf_counter() - begin
        if checked:
            verify(graph, name, outer)
        if trace is not None:
            trace.stages.append((name, seconds, graph))
        if level >= 1:
            print(f"{name}: {seconds * 1e3:.2f} ms, {len(graph.nodes())} nodes", file=sys.stderr)
        if level >= 2 and graph.outputs != before.outputs:
            print(show(graph), file=sys.stderr)
    return graph


class _Watched:
    """An assembler whose kernels are kept. INGOT_DEBUG=4 prints them, 5 what the target makes of each; INGOT_VERIFY=1
    verifies them."""

    def __init__(self, features: Features, other: _Watched | None = None) -> None:
        """other: an assembler that has begun some of the kernels already."""
        self.target, self.features = target_of(features), features
        self._inner = self.target.assembler(features)
        self._begun: PartAssembler = self._inner if other is None else other._begun
        self.kernels: dict[str, Kernel] = {}

    def add(self, kernel: Kernel) -> None:
        level = flags.debug_level()
        self.kernels[kernel.name] = kernel
        if flags.verify():
            verify_kernel(kernel, "schedule")
        if level >= 4:
            print(show_kernel(kernel), file=sys.stderr)
        if level >= 5:
            print(self.target.source(kernel, self.features, self.target.forms[-1]), file=sys.stderr)
        self._inner.include(self._begun.begin(kernel))

    def finish(self) -> Code:
        return self._inner.finish()


BATCH, LENGTH = 1, 128  # likely sizes of symbolic dimensions: what latency is asked for
WAVE = 256  # times as many samples, where strided convolutions leave nothing of a length


def likely(graph: Graph) -> dict[str, int]:
    """Sizes to optimize symbolic dimensions for: one that only leads inputs is a batch, others are lengths."""
    sizes: dict[str, int] = {}
    for n in graph.inputs:
        for axis, d in enumerate(n.shape):
            for s in symbols_of(d):
                sizes[s] = max(sizes.get(s, 0), LENGTH if axis else BATCH)
    dims = {d for n in graph.nodes() for t in n.types for d in t.shape if isinstance(d, Dim)}
    waves = {s for d in dims if _vanishes(d, sizes) for s in symbols_of(d) if sizes.get(s) == LENGTH}
    sizes |= dict.fromkeys(waves, WAVE * LENGTH)
    for name, low, high in graph.bounds:
        if name in sizes:
            size = sizes[name] if low is None else max(sizes[name], low)
            sizes[name] = min(size, high or size)
    return sizes


def _vanishes(d: Dim, sizes: Mapping[str, int]) -> bool:
    """Whether nothing is left of a dimension at these sizes."""
    if not symbols_of(d) <= sizes.keys():
        return False
    try:
        return int(substitute(d, dict(sizes))) < 1
    except ZeroDivisionError:  # n // (m // 2) at m = 1
        return True


def build_program(
    graph: Graph,
    features: Features,
    threads: int,
    *,
    fast_math: bool = False,
    precision: str = "float32",
    memory: float | None = None,
    sparing: Callable[[], Graph] | None = None,
    measure: Measure | None = None,
    trace: Trace | None = None,
) -> Program:
    """Compile a MODEL graph for the machine that `features` tells. precision: see `ingot.passes.precision`; memory: a
    limit, see `ingot.plan.recompute`; sparing: makes the same graph with loops that keep less, for where it is out of
    reach; measure: what runs a program within the limit, for a choice by measured times.

    Where the graph draws random numbers, their seed is the program's state.
    """
    graph = seeded(graph, RANDOM)
    target = target_of(features)
    options = Options(threads, fast_math, precision)
    variants = Variants(target, features, threads, tuning.measured(features, threads))
    with limited(), likely_sizes(likely(graph)):
        verify(graph, "import")
        with fueled():  # INGOT_FUEL counts the rewrites of all passes together
            fused = optimize(graph, target.passes(features, options), trace)
        verify(fused, "the passes (INGOT_VERIFY=1 tells which)")
        check_sizes(fused, "the model")
        meta = {"precision": precision}
        if memory is not None:
            sizes = likely(graph)
            linked = partial(arena_of, lower=variants.lower, join=variants.join)  # what is predicted is linked
            fewer = sparing and (lambda: optimize(sparing(), target.passes(features, options), trace))

            def estimated(group: Group) -> float:
                return work.seconds(group.body, sizes)

            def timed(graph: Graph) -> Cost | None:
                seconds = None if measure is None else _timed(graph, variants, features, measure, sizes)
                return None if seconds is None else lambda group: seconds.get(group.body) or estimated(group)

            fused, found = within(fused, memory, estimated, linked, fewer, timed)
            meta["memory"] = str(found)
            progress.report(f"memory: {found}")
        stages = {"model": show(graph), "fused": show(fused)}
        program = _linked(fused, variants, _Watched(features), stages, meta, trace)
    program.check()
    return sealed(program).with_state({RANDOM: seed_state(0)} if RANDOM in graph.state else {})


def _timed(
    fused: Graph, variants: Variants, features: Features, measure: Measure, sizes: Mapping[str, int]
) -> dict[Graph, float] | None:
    """What groups take in a program of the graph, by their bodies: the least of those that compute the same."""
    trace = Trace()
    seconds = measure(_linked(fused, variants, _Watched(features), {}, {}, trace), sizes)
    if seconds is None:
        return None
    least: dict[Graph, float] = {}
    for launch in trace.launches:
        if isinstance(launch.node.op, Group):
            body = launch.node.op.body
            least[body] = min(least.get(body, inf), sum(seconds[launch.first : launch.last]))
    return least


def _linked(
    fused: Graph, variants: Variants, assembler: _Watched, stages: Mapping[str, str], meta: dict[str, str],
    trace: Trace | None,
) -> Program:  # fmt: skip
    """The program, with other choices in the place of those whose kernels give no code."""
    launches: list[Launch] = []
    try:
        program = link(
            fused, variants.lower, assembler, device=assembler.target.name, stages=stages, meta=meta, launches=launches,
            join=variants.join,
        )  # fmt: skip
    except KernelError as error:
        variants.refuse(error, assembler.kernels)
        meta = {**meta, "variants": "\n".join(variants.told)}
        return _linked(fused, variants, _Watched(assembler.features, assembler), stages, meta, trace)
    if trace is not None:
        trace.kernels += assembler.kernels.values()
        trace.launches += launches
    return program


def build_native(graph: Graph, threads: int, *, fast_math: bool = False, precision: str = "float32") -> Program:
    """Compile a MODEL graph for this machine's CPU."""
    return build_program(graph, features_of("native"), threads, fast_math=fast_math, precision=precision)


def identity(graph: Graph) -> list[bytes]:
    """What tells a graph from others: its text, in which large constants are numbered, and their contents."""
    parts = [show(graph).encode()]
    for n in graph.nodes():
        if isinstance(n.op, Const) and n.op.array.nbytes > 64:
            parts.append(hashlib.blake2b(np.ascontiguousarray(n.op.value).view(np.uint8).reshape(-1).data).digest())
    return parts
