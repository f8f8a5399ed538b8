"""CPUs: the passes in order and why they stand there, the schedules, LLVM."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from ingot.ir.kernel import Kernel
from ingot.ir.node import Graph, Node, Op
from ingot.ops import GRU, LSTM, RNN, Attention, Dequantize, Recurrent
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
from ingot.passes.fusion.policy import FusionPolicy
from ingot.passes.fusion.share_kernels import share_kernels
from ingot.passes.model.bound_sizes import bound_sizes
from ingot.passes.model.fold_batch_norm import fold_batch_norm
from ingot.passes.model.fuse_attention import fuse_attention
from ingot.passes.model.linear_order import order_linear
from ingot.passes.model.lower import lower_model_ops
from ingot.passes.model.merge_matmuls import merge_matmuls
from ingot.pipeline.build import optimize
from ingot.pipeline.cores import CORES
from ingot.pipeline.target import PLAIN, NamedPass, Options
from ingot.schedule.choice import Measured
from ingot.schedule.cpu.lower import lower
from ingot.schedule.cpu.machine import Machine, machine_of
from ingot.support import flags
from ingot.support.errors import InputError
from ingot.support.native import Code, Features
from ingot.targets.cpu import workers
from ingot.targets.cpu.assemble import Assembly
from ingot.targets.cpu.llvm import print_module
from ingot.targets.cpu.workers import host_features, submit

POLICY = FusionPolicy()
# ops with kernels of their own, and one that products are to see
KEPT: frozenset[type[Op]] = frozenset({Attention, LSTM, GRU, RNN, Dequantize})


def _has_kernel(node: Node) -> bool:
    """Whether the kernel of a kept op takes these operands: heads of attention have a static size, and a step of a
    recurrence folds no state to one number."""
    if isinstance(node.op, Recurrent):
        return not node.op.levels
    if not isinstance(node.op, Attention):
        return True
    return all(isinstance(x.shape[3], int) for x in node.inputs[:3])


def cpu_passes(
    options: Options = PLAIN, int8_dot: bool = False, outer: frozenset[str] = frozenset()
) -> tuple[NamedPass, ...]:
    """The passes for CPUs, in order. int8_dot: whether sums of products of bytes are one instruction; outer: the
    symbols of the graphs around a body."""
    tidy = partial(simplify, fast_math=options.fast_math)

    def bodies(graph: Graph) -> Graph:
        known = outer.union(graph.symbols())
        return in_bodies(graph, lambda body: optimize(body, cpu_passes(options, int8_dot, known), outer=known))

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
        # before layout, which weights are folded after
        ("precision", partial(lower_precision, precision=options.precision)),
        ("reshaped_reductions", reduce_unreshaped),
        ("layout", assign_layouts),
        ("padding", explicit_padding),  # after layout, so that pads are in the order that producers write
        ("fold_layout", fold_constants),  # transposed weights
        ("simplify_layout", tidy),
        ("nest_concats", nest_concats),  # last, as simplification joins nested concats
        ("dce", dce),
        ("fuse", partial(fuse, policy=POLICY)),
        ("share_kernels", share_kernels),
        ("bodies", bodies),
    )


class CpuTarget:
    """See `ingot.pipeline.target.Target`."""

    name = "cpu"
    policy = POLICY
    forms = ("llvm", "asm")
    lower = staticmethod(lower)
    export = None

    def features(self, asked: str) -> Features:
        """asked: a name of `CORES`."""
        if not asked:
            return host_features()
        core = CORES.get(asked)
        if core is None:
            raise InputError("target", expected=f"cpu:NAME with one of {', '.join(CORES)}", got=f"cpu:{asked}")
        return Features(core.arch, tuple(sorted(core.features)), "" if core.level else asked)

    def prepare(self) -> None:
        workers.start()

    def machine(self, features: Features, threads: int, measured: Mapping[str, Measured]) -> Machine:
        """By the features; caches as they were found or as the named core has them, and its arithmetic."""
        plain = machine_of(features.arch, features.features, threads, winograd=flags.winograd(), measured=measured)
        core = CORES.get(features.cpu)
        caches = features.caches or (core and (core.l1, core.l2, core.l3)) or (plain.l1, plain.l2, plain.l3)
        sized = replace(plain, **dict(zip(("l1", "l2", "l3"), caches, strict=True)))
        if core is None or machine_of(core.arch, core.features).vector_bits != plain.vector_bits:
            return sized  # what is known of the core is about wider vectors
        return replace(
            sized, fma_per_cycle=core.fma, loads_per_cycle=core.loads, fma_latency=core.latency,
            gflops=plain.gflops * core.fma / plain.fma_per_cycle,
        )  # fmt: skip

    def passes(self, features: Features, options: Options) -> tuple[NamedPass, ...]:
        return cpu_passes(options, self.machine(features, options.threads, {}).int8_dot)

    def assembler(self, features: Features) -> KernelAssembler:
        return KernelAssembler(features)

    def source(self, kernel: Kernel, features: Features, form: str) -> str:
        text = print_module([kernel], features)
        return text if form == "llvm" else submit(text, features, assembly=True).result().decode()


class KernelAssembler:
    """Kernels to machine code, which is made while the next ones are being lowered."""

    def __init__(self, features: Features) -> None:
        self._assembly = Assembly(features)

    def add(self, kernel: Kernel) -> None:
        self.include(self.begin(kernel))

    def begin(self, kernel: Kernel) -> Future[bytes]:
        features = self._assembly.features
        return submit(print_module([kernel], features), features)

    def include(self, part: Future[bytes]) -> None:
        self._assembly.include(part)

    def finish(self) -> Code:
        return self._assembly.finish()


TARGET = CpuTarget()
