"""The CPU target: options of the passes, schedules, LLVM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from ingot.ir.kernel import Kernel
from ingot.ir.node import Const, Node, Op
from ingot.ir.types import bf16, f16, f32
from ingot.ops import (
    GRU,
    LEVEL_FORMS,
    LSTM,
    RNN,
    Attention,
    Dequantize,
    DequantizeBlocks,
    EmbeddingLookup,
    KernelGradient,
    Recurrent,
)
from ingot.passes.constants import is_constant
from ingot.passes.fusion.policy import FusionPolicy
from ingot.pipeline.cores import CORES
from ingot.pipeline.functions import library
from ingot.pipeline.passes import Choices, common_passes
from ingot.pipeline.target import DEFAULT_OPTIONS, NamedPass, Options
from ingot.runtime.executable import LIBRARY_SUFFIXES, save
from ingot.runtime.program import Program
from ingot.schedule.choice import Measured
from ingot.schedule.cpu.contraction.compressed.sparse_plan import sparse_height
from ingot.schedule.cpu.lower import lower
from ingot.schedule.cpu.machine import AVX2, Machine, machine_of
from ingot.schedule.cpu.winograd.kernel_gradient import has_winograd_gradient
from ingot.schedule.cpu.winograd.plan import is_faster_by_winograd
from ingot.support import flags
from ingot.support.errors import InputError
from ingot.support.native import Code, Features
from ingot.targets.cpu import workers
from ingot.targets.cpu.assemble import Assembly
from ingot.targets.cpu.objects import KERNEL, compiled
from ingot.targets.cpu.printer.llvm import print_module
from ingot.targets.cpu.workers import host_features, submit
from ingot.targets.objects import Object

POLICY = FusionPolicy(loads_channels=True)
_NODES_PER_KERNEL = 4  # roughly; nodes of a MODEL graph, constants included
# ops that have kernels, and forms of weights, which products fuse
KEPT_OPS: frozenset[type[Op]] = frozenset(
    {Attention, LSTM, GRU, RNN, Dequantize, DequantizeBlocks, EmbeddingLookup, KernelGradient}
)


def _has_kernel(node: Node, machine: Machine) -> bool:
    """Whether a kept op's kernel supports these operands: attention needs a static head size, a quantized recurrence
    needs constant weights."""
    if isinstance(node.op, KernelGradient):
        return node.op.depthwise or (machine.winograd and has_winograd_gradient(node))
    if isinstance(node.op, Recurrent) and node.op.has_scales:
        return all(isinstance(node.inputs[i].op, Const) for i in (2, -1))
    if isinstance(node.op, EmbeddingLookup):
        table = node.inputs[0]
        if not isinstance(table.op, LEVEL_FORMS):
            return table.constant is not None and table.type.rank == 2 and table.dtype in (f32, f16, bf16)
        is_of_levels = table.dtype == f32 and table.type.rank > 1 and table.inputs[0].dtype.is_integer
        return is_of_levels and all(map(is_constant, table.inputs))
    if not isinstance(node.op, Attention):
        return True
    return all(isinstance(x.shape[3], int) for x in node.inputs[:3])


def cpu_passes(
    options: Options = DEFAULT_OPTIONS, machine: Machine = AVX2, policy: FusionPolicy = POLICY
) -> tuple[NamedPass, ...]:
    """The passes for CPUs, in order."""
    height = partial(sparse_height, machine=machine)
    has_kernel = partial(_has_kernel, machine=machine)
    widens = (bf16, f16) if machine.f16 else (bf16,)
    return common_passes(
        options,
        Choices(
            policy,
            KEPT_OPS,
            has_kernel,
            machine.int8_dot,
            least_weight=machine.least_weight,
            faster_in_floats=partial(is_faster_by_winograd, machine=machine),
            depthwise_sums=machine.depthwise_sums,
            packs_signs=True,
            widens=widens,
            height=height,
            narrow_caches=True,
            pairs_levels=machine.lanes(f32) > 1,
            narrow_integers=machine.in_order,
        ),
    )


class CpuTarget:
    """See `ingot.pipeline.target.Target`."""

    name = "cpu"
    policy = POLICY
    forms = ("llvm", "asm")
    lower = staticmethod(lower)
    merge_launches = None
    chain_kernels = None
    has_fixed_sizes = False
    overlaps_exchanges = False
    has_paged_attention = False

    @staticmethod
    def export(program: Program, path: Path, weights: Path | None = None) -> None:
        """Write a native library and its header where the path's suffix says so, and else an artifact."""
        (library.export if path.suffix in LIBRARY_SUFFIXES else save)(program, path, weights)

    def features(self, variant: str) -> Features:
        """variant: a name of `CORES`."""
        if not variant:
            return host_features()
        if variant.startswith(("riscv64-scalable", "aarch64-sve")):
            raise InputError(
                "target", expected="vectors of a length known when the model is compiled", got=f"cpu:{variant}",
                fix="cpu:riscv64 and cpu:aarch64 use 128 bits of vectors of any length, cpu:riscv64-zvl256b 256",
            )  # fmt: skip
        core = CORES.get(variant)
        if core is None:
            raise InputError("target", expected=f"cpu:NAME with one of {', '.join(CORES)}", got=f"cpu:{variant}")
        return Features(core.arch, tuple(sorted(core.features)), "" if core.level else variant)

    def prepare(self, nodes: int) -> None:
        workers.start(nodes // _NODES_PER_KERNEL)

    def machine(self, features: Features, threads: int, measured: Mapping[str, Measured]) -> Machine:
        """Describe the machine: vectors by `features`, caches as detected or as the named core has them, the core's
        throughput."""
        default = machine_of(features.arch, features.features, threads, winograd=flags.winograd(), measured=measured)
        core = CORES.get(features.cpu)
        caches = features.caches or (core and (core.l1, core.l2, core.l3)) or (default.l1, default.l2, default.l3)
        machine = replace(default, **dict(zip(("l1", "l2", "l3"), caches, strict=True)))
        if core is None or machine_of(core.arch, core.features).vector_bits != default.vector_bits:
            return machine  # the core's figures are for wider vectors
        return replace(
            machine, fma_per_cycle=core.fma, loads_per_cycle=core.loads, fma_latency=core.latency,
            gflops=default.gflops * core.fma / default.fma_per_cycle,
        )  # fmt: skip

    def passes(self, features: Features, options: Options) -> tuple[NamedPass, ...]:
        return cpu_passes(options, self.machine(features, options.threads, {}))

    def assembler(self, features: Features) -> KernelAssembler:
        return KernelAssembler(features)

    def source(self, kernel: Kernel, features: Features, form: str) -> str:
        text = print_module([kernel], features)
        return text if form == "llvm" else submit(text, features, assembly=True).result().decode()


class KernelAssembler:
    """Compiles kernels to machine code while the next ones are being lowered."""

    def __init__(self, features: Features) -> None:
        self._assembly = Assembly(features)

    def add(self, kernel: Kernel) -> None:
        self.include(self.begin(kernel))

    def begin(self, kernel: Kernel) -> Object:
        features = self._assembly.features
        return compiled(print_module([replace(kernel, name=KERNEL)], features), features, kernel.name)

    def include(self, part: Object) -> None:
        self._assembly.include(part)

    def finish(self) -> Code:
        return self._assembly.finish()


TARGET = CpuTarget()
