"""The pipeline: which passes run on a model, in which order, and why there.

    frontend -> MODEL graph -> CORE graph -> fused groups -> kernel IR -> machine code -> Program
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from ingot import tuned
from ingot.ir.dims import Dim, likely_sizes, substitute, symbols_of
from ingot.ir.kernel import Kernel
from ingot.ir.kernel.show import show_kernel
from ingot.ir.kernel.verify import verify_kernel
from ingot.ir.node import Const, Graph, Node, Op
from ingot.ir.rewrite import fueled
from ingot.ir.show import show
from ingot.ir.verify import verify
from ingot.link import Launch, link
from ingot.ops import GRU, LSTM, RNN, Attention, Dequantize
from ingot.passes.bodies import in_bodies
from ingot.passes.core.crop import crop_unread
from ingot.passes.core.dce import dce
from ingot.passes.core.fold_constants import fold_constants
from ingot.passes.core.layout import assign_layouts, explicit_padding
from ingot.passes.core.nest_concats import nest_concats
from ingot.passes.core.precision import lower_precision
from ingot.passes.core.quantized import lower_quantized
from ingot.passes.core.reshaped_reductions import reduce_unreshaped
from ingot.passes.core.simplify import simplify
from ingot.passes.core.transposed_conv import split_transposed
from ingot.passes.fusion.fuse import fuse
from ingot.passes.fusion.share_kernels import share_kernels
from ingot.passes.model.bound_sizes import bound_sizes
from ingot.passes.model.fold_batch_norm import fold_batch_norm
from ingot.passes.model.fuse_attention import fuse_attention
from ingot.passes.model.linear_order import order_linear
from ingot.passes.model.lower import lower_model_ops
from ingot.passes.model.merge_matmuls import merge_matmuls
from ingot.runtime.program import Program
from ingot.schedule.choice import Measured
from ingot.schedule.cpu.machine import Machine, machine_of
from ingot.support import flags, progress
from ingot.support.errors import CompileError, ShapeError
from ingot.support.limits import in_time, limited
from ingot.support.native import CodeObject, HostFeatures
from ingot.targets.cpu.assemble import Assembly
from ingot.targets.cpu.llvm import print_module
from ingot.targets.cpu.workers import host_features, submit

Pass = Callable[[Graph], Graph]

# ops with kernels of their own, and one that products are to see
KEPT: frozenset[type[Op]] = frozenset({Attention, LSTM, GRU, RNN, Dequantize})


def _has_kernel(node: Node) -> bool:
    """Whether the kernel of a kept op takes these operands: heads of attention have a static size."""
    if not isinstance(node.op, Attention):
        return True
    return all(isinstance(x.shape[3], int) for x in node.inputs[:3])


def cpu_passes(
    fast_math: bool = False,
    precision: str = "float32",
    isa: HostFeatures | None = None,
    outer: frozenset[str] = frozenset(),
) -> tuple[tuple[str, Pass], ...]:
    """The passes for CPUs, in order. isa: features to count on; outer: the symbols of the graphs around a body."""
    int8_dot = isa is not None and machine_of(isa.arch, isa.features).int8_dot
    tidy = partial(simplify, fast_math=fast_math)

    def bodies(graph: Graph) -> Graph:
        known = outer.union(graph.symbols())
        return in_bodies(graph, lambda body: optimize(body, cpu_passes(fast_math, precision, isa, known), outer=known))

    return (
        # on MODEL ops, while they still have their names
        ("bound_sizes", bound_sizes),
        ("fold_model", fold_constants),  # weights that the model transposes or slices
        ("fold_batch_norm", fold_batch_norm),
        ("order_linear", order_linear),  # behind norms, which are then a constant that is added
        ("fuse_attention", fuse_attention),
        ("merge_matmuls", merge_matmuls),
        ("lower", lambda g: lower_model_ops(g, KEPT, _has_kernel)),
        ("quantized", partial(lower_quantized, int8_dot=int8_dot)),
        ("fold", fold_constants),
        ("simplify", tidy),
        ("crop", crop_unread),  # behind simplification, which turns lookups of constant positions into slices
        ("split_transposed", split_transposed),
        ("precision", partial(lower_precision, precision=precision)),  # before layout, which weights are folded after
        ("reshaped_reductions", reduce_unreshaped),
        ("layout", assign_layouts),
        ("padding", explicit_padding),  # after layout, so that pads are in the order that producers write
        ("fold_layout", fold_constants),  # transposed weights
        ("simplify_layout", tidy),
        ("nest_concats", nest_concats),  # last, as simplification joins nested concats
        ("dce", dce),
        ("fuse", fuse),
        ("share_kernels", share_kernels),
        ("bodies", bodies),
    )


@dataclass
class Trace:
    """What happened to a graph: (stage, seconds, graph after it); its kernels, and what each step belongs to."""

    stages: list[tuple[str, float, Graph]] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)


def optimize(
    graph: Graph,
    passes: tuple[tuple[str, Pass], ...],
    trace: Trace | None = None,
    outer: frozenset[str] = frozenset(),
) -> Graph:
    """Run `passes` in order; `outer` as for `cpu_passes`.

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


class NativeAssembler:
    """Kernels to machine code. INGOT_DEBUG=4 prints them, 5 their assembly; INGOT_VERIFY=1 verifies them."""

    def __init__(self, isa: HostFeatures, trace: Trace | None = None) -> None:
        self._assembly, self._trace = Assembly(isa), trace

    def add(self, kernel: Kernel) -> None:
        isa, level = self._assembly.features, flags.debug_level()
        if self._trace is not None:
            self._trace.kernels.append(kernel)
        if flags.verify():
            verify_kernel(kernel, "schedule")
        text = print_module([kernel], isa)
        if level >= 4:
            print(show_kernel(kernel), file=sys.stderr)
        if level >= 5:
            print(submit(text, isa, assembly=True).result().decode(), file=sys.stderr)
        self._assembly.add(text)

    def finish(self) -> CodeObject:
        return self._assembly.finish()


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
    isa: HostFeatures,
    threads: int,
    *,
    fast_math: bool = False,
    precision: str = "float32",
    trace: Trace | None = None,
) -> Program:
    """Compile a MODEL graph for a CPU with the features `isa`. precision: see `ingot.passes.core.precision`."""
    machine = cpu_machine(isa, threads, tuned.measured(isa, threads))
    passes = cpu_passes(fast_math, precision, isa)
    with limited(), likely_sizes(likely(graph)):
        verify(graph, "import")
        with fueled():  # INGOT_FUEL counts the rewrites of all passes together
            fused = optimize(graph, passes, trace)
        verify(fused, "the passes (INGOT_VERIFY=1 tells which)")
        program = link(
            fused,
            machine,
            isa,
            NativeAssembler(isa, trace),
            stages={"model": show(graph), "fused": show(fused)},
            meta={"precision": precision},
            launches=None if trace is None else trace.launches,
        )
    program.check()
    return program


def cpu_machine(isa: HostFeatures, threads: int, measured: Mapping[str, Measured]) -> Machine:
    """What schedules know of a CPU with the features `isa`, and what was measured on it."""
    return machine_of(isa.arch, isa.features, threads, winograd=flags.winograd(), measured=measured)


def build_native(graph: Graph, threads: int, *, fast_math: bool = False, precision: str = "float32") -> Program:
    """Compile a MODEL graph for this machine's CPU."""
    return build_program(graph, host_features(), threads, fast_math=fast_math, precision=precision)


def identity(graph: Graph) -> list[bytes]:
    """What tells a graph from others: its text, in which large constants are numbered, and their contents."""
    parts = [show(graph).encode()]
    for n in graph.nodes():
        if isinstance(n.op, Const) and n.op.array.nbytes > 64:
            parts.append(hashlib.blake2b(np.ascontiguousarray(n.op.value).view(np.uint8).reshape(-1).data).digest())
    return parts
