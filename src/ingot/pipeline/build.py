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
from ingot.ops import with_random_state
from ingot.ops.group import Group
from ingot.passes.core.rewrites.rewrite import Rewrite
from ingot.pipeline import tuning
from ingot.pipeline.target import NamedPass, Options, PartAssembler, features_of, target_of
from ingot.pipeline.variants import Variants
from ingot.plan import work
from ingot.plan.arena import arena_of
from ingot.plan.link import Launch, link
from ingot.plan.recompute import Cost, fit_in_memory
from ingot.runtime.plan_json import sealed
from ingot.runtime.program import Program
from ingot.runtime.state import RANDOM, seed_state
from ingot.support import flags, progress
from ingot.support.dataclass import dataclass
from ingot.support.errors import CompileError, KernelError, ShapeError, UnsupportedOpError
from ingot.support.limits import check_time, limited
from ingot.support.native import Code, Features

# Return the seconds of each step of a program for inputs of these sizes; None if it cannot run
Measure = Callable[[Program, Mapping[str, int]], Sequence[float] | None]


@dataclass
class Trace:
    """The record of a compilation. stages: (name, seconds, graph after it). launches: the node that each step belongs
    to."""

    stages: list[tuple[str, float, Graph]] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)


def optimize(
    graph: Graph,
    passes: Sequence[NamedPass],
    trace: Trace | None = None,
    outer: frozenset[str] = frozenset(),
) -> Graph:
    """Run `passes` in order; outer: the symbols of the graphs that enclose this one.

    INGOT_DEBUG=1 prints each pass and its time, 2 also each changed graph; INGOT_VERIFY=1 verifies each graph.
    """
    level, is_verifying = flags.debug_level(), flags.verify()
    for name, run in passes:
        progress.report(name)
        check_time(name)
        previous, start = graph, time.perf_counter()
        try:
            graph = run(graph)
        except ShapeError as e:  # the model is right: the frontend checked its types
            raise CompileError(f"the pass {name} made a graph whose sizes do not fit: {e}") from e
        seconds = time.perf_counter() - start
        if is_verifying:
            verify(graph, name, outer)
        if trace is not None:
            trace.stages.append((name, seconds, graph))
        if level >= 1:
            print(f"{name}: {seconds * 1e3:.2f} ms, {len(graph.nodes())} nodes", file=sys.stderr)
        if level >= 2 and graph.outputs != previous.outputs:
            print(show(graph), file=sys.stderr)
    return graph


class _RecordingAssembler:
    """An assembler that records its kernels. INGOT_DEBUG=4 prints them, 5 also the target's code for each;
    INGOT_VERIFY=1 verifies them."""

    def __init__(self, features: Features, previous: _RecordingAssembler | None = None) -> None:
        """previous: an assembler of an earlier attempt, whose compiled kernels are reused."""
        self.target, self.features = target_of(features), features
        self._assembler = self.target.assembler(features)
        self._starter: PartAssembler = self._assembler if previous is None else previous._starter
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
        self._assembler.include(self._starter.begin(kernel))

    def finish(self) -> Code:
        return self._assembler.finish()


LIKELY_BATCH, LIKELY_LENGTH = 1, 128  # sizes of symbolic dimensions to optimize for
WAVEFORM_FACTOR = 256  # samples per unit of length, where strided convolutions shrink a length to nothing


def size_hints(graph: Graph) -> dict[str, int]:
    """Return sizes to optimize for. A symbol that is only ever the first dimension of inputs is a batch, others are
    lengths."""
    sizes: dict[str, int] = {}
    for n in graph.inputs:
        for axis, d in enumerate(n.shape):
            for s in symbols_of(d):
                sizes[s] = max(sizes.get(s, 0), LIKELY_LENGTH if axis else LIKELY_BATCH)
    dims = {d for n in graph.nodes() for t in n.types for d in t.shape if isinstance(d, Dim)}
    waveforms = {s for d in dims if _is_empty(d, sizes) for s in symbols_of(d) if sizes.get(s) == LIKELY_LENGTH}
    sizes |= dict.fromkeys(waveforms, WAVEFORM_FACTOR * LIKELY_LENGTH)
    for name, low, high in graph.bounds:
        if name in sizes:
            size = sizes[name] if low is None else max(sizes[name], low)
            sizes[name] = min(size, high or size)
    return sizes


def _is_empty(d: Dim, sizes: Mapping[str, int]) -> bool:
    """Whether a dimension is smaller than 1 at these sizes."""
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
    activations: str = "float32",
    memory: float | None = None,
    smaller_graph: Callable[[], Graph] | None = None,
    measure: Measure | None = None,
    rewrites: tuple[Rewrite, ...] | None = None,
    trace: Trace | None = None,
) -> Program:
    """Compile a MODEL graph for the machine that `features` describes.

    precision: see `ingot.passes.precision`. activations: see `ingot.compile`. memory: a limit, see
    `ingot.plan.recompute`. smaller_graph: builds the same graph with loops that save fewer values, which is tried if
    the limit cannot be met. measure: runs a program within the limit, to choose by measured times. rewrites: by default
    those that the tuning database has for the machine.

    If the graph draws random numbers, their seed is part of the program's state.
    """
    graph = with_random_state(graph, RANDOM)
    target = target_of(features)
    rules = tuning.rewrites(features, threads) if rewrites is None else rewrites
    options = Options(threads, fast_math, precision, activations, rules)
    variants = Variants(target, features, threads, tuning.measured(features, threads))
    with limited(), likely_sizes(size_hints(graph)):
        verify(graph, "import")
        with fueled() as fuel:  # INGOT_FUEL counts the rewrites of all passes together
            fused = optimize(graph, target.passes(features, options), trace)
        verify(fused, "the passes (INGOT_VERIFY=1 tells which)")
        check_sizes(fused, "the model")
        meta = {"precision": precision, "activations": activations}
        if used := [str(r) for r in rules if r.rule in fuel.rules]:
            meta["rewrites"] = "\n".join(used)
        if memory is not None:
            sizes = size_hints(graph)
            # sizes of the linked program
            arena_bytes = partial(arena_of, lower=variants.lower, join=variants.join, chain=variants.chain)
            sparing_passes = smaller_graph and (
                lambda: optimize(smaller_graph(), target.passes(features, options), trace)
            )

            def estimate_seconds(group: Group) -> float:
                return work.seconds(group.body, sizes)

            def measure_cost(graph: Graph) -> Cost | None:
                seconds = None if measure is None else _measure_groups(graph, variants, features, measure, sizes)
                return None if seconds is None else lambda group: seconds.get(group.body) or estimate_seconds(group)

            fused, recomputation = fit_in_memory(
                fused, memory, estimate_seconds, arena_bytes, sparing_passes, measure_cost
            )
            meta["memory"] = str(recomputation)
            progress.report(f"memory: {recomputation}")
        stages = {"model": show(graph), "fused": show(fused)}
        program = _link(fused, variants, _RecordingAssembler(features), stages, meta, trace)
    program.check()
    calls = [s.label for s in program.steps if s.host is not None]
    if calls and features.target_name != "cpu":
        raise UnsupportedOpError(calls, model=f"a program for {features.target_name}", fix="register a lowering")
    return sealed(program).with_state({RANDOM: seed_state(0)} if RANDOM in graph.state else {})


def _measure_groups(
    fused: Graph, variants: Variants, features: Features, measure: Measure, sizes: Mapping[str, int]
) -> dict[Graph, float] | None:
    """Return the measured seconds of each group by its body, the fastest of groups with equal bodies; None if nothing
    ran."""
    trace = Trace()
    seconds = measure(_link(fused, variants, _RecordingAssembler(features), {}, {}, trace), sizes)
    if seconds is None:
        return None
    fastest: dict[Graph, float] = {}
    for launch in trace.launches:
        if isinstance(launch.node.op, Group):
            body = launch.node.op.body
            fastest[body] = min(fastest.get(body, inf), sum(seconds[launch.first : launch.last]))
    return fastest


def _link(
    fused: Graph, variants: Variants, assembler: _RecordingAssembler, stages: Mapping[str, str], meta: dict[str, str],
    trace: Trace | None,
) -> Program:  # fmt: skip
    """Link the program. A choice whose kernel does not compile is replaced by another, and linking starts anew."""
    launches: list[Launch] = []
    try:
        program = link(
            fused, variants.lower, assembler, device=assembler.target.name, stages=stages, meta=meta, launches=launches,
            join=variants.join, chain=variants.chain,
        )  # fmt: skip
    except KernelError as error:
        variants.refuse(error, assembler.kernels)
        meta = {**meta, "variants": "\n".join(variants.substitutions)}
        return _link(fused, variants, _RecordingAssembler(assembler.features, assembler), stages, meta, trace)
    if trace is not None:
        trace.kernels += assembler.kernels.values()
        trace.launches += launches
    return program


def build_native(graph: Graph, threads: int, *, fast_math: bool = False, precision: str = "float32") -> Program:
    """Compile a MODEL graph for this machine's CPU."""
    return build_program(graph, features_of("native"), threads, fast_math=fast_math, precision=precision)


def identity(graph: Graph) -> list[bytes]:
    """Return bytes that identify a graph: its text, where large constants are numbered, and digests of these
    constants."""
    parts = [show(graph).encode()]
    for n in graph.nodes():
        if isinstance(n.op, Const) and n.op.array.nbytes > 64:
            parts.append(hashlib.blake2b(np.ascontiguousarray(n.op.value).view(np.uint8).reshape(-1).data).digest())
    return parts
