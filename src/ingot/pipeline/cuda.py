"""The CUDA target: options of the passes, tile schedules, Triton, cubins."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from ingot.ir.dims import is_static
from ingot.ir.kernel import Kernel
from ingot.ir.node import Node, Op
from ingot.ir.types import bf16, f16, f32, f64, i8
from ingot.ops import (
    GRU,
    LSTM,
    RNN,
    Attention,
    AttentionGradients,
    AttentionMaskGradient,
    AttentionWithSums,
    Dequantize,
    DequantizeBlocks,
    KernelGradient,
    PagedAttention,
    Recurrent,
)
from ingot.passes.fusion.policy import FusionPolicy
from ingot.passes.model.attention_sums import keep_attention_sums
from ingot.passes.model.transposed_concat import transpose_parts
from ingot.pipeline.passes import Choices, common_passes
from ingot.pipeline.target import NamedPass, Options
from ingot.schedule.choice import Measured
from ingot.schedule.gpu.blocks import ALIGNMENT_BYTES
from ingot.schedule.gpu.launching import chain_kernels, merge_launches
from ingot.schedule.gpu.lower import lower
from ingot.schedule.gpu.machine import MACHINES, Machine
from ingot.schedule.gpu.recurrent import has_persistent_kernel
from ingot.schedule.gpu.rows import MAX_ROW_ELEMENTS
from ingot.support.errors import InputError
from ingot.support.native import Features
from ingot.targets.cuda import workers
from ingot.targets.cuda.assemble import CubinAssembler
from ingot.targets.cuda.codegen import capability
from ingot.targets.cuda.triton import EXACT_FUNCTIONS, Functions, print_kernel

ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")
DEFAULT_ARCH = "sm_90a"
MAX_SLICE_ELEMENTS = (
    1 << 17
)  # of a group of channels: larger ones keep the GPU busy one channel at a time, which reads faster
_ATTENTION = Attention, AttentionWithSums, AttentionGradients, AttentionMaskGradient
_NODES_PER_KERNEL = 16  # roughly; nodes of a MODEL graph


def _has_kernel(node: Node, machine: Machine) -> bool:
    """Whether a kept op's kernel supports these operands: attention needs a static head size and a type of tile
    products, a recurrent layer's weights must fit in registers, and kernel gradients must be depthwise."""
    if isinstance(node.op, KernelGradient):
        return node.op.depthwise
    if isinstance(node.op, Recurrent):
        return has_persistent_kernel(node, machine)
    if isinstance(node.op, AttentionGradients) and not node.op.has_sums(node.inputs):
        return False
    if isinstance(node.op, AttentionMaskGradient) and not _has_all_scores(node):
        return False
    if not isinstance(node.op, (*_ATTENTION, PagedAttention)):
        return True
    has_static_heads = all(isinstance(x.shape[3], int) for x in node.inputs[:3])
    if isinstance(node.op, PagedAttention):
        return has_static_heads and node.inputs[0].dtype != f64
    is_of_one_type = node.inputs[0].dtype == node.inputs[1].dtype
    if isinstance(node.op, Attention) and node.op.indexed:
        return False
    return has_static_heads and is_of_one_type and 16 <= node.inputs[0].dtype.bits <= 32


def _has_all_scores(node: Node) -> bool:
    """Whether a mask has all queries and keys, of static sizes, and there are scores."""
    q, key = node.inputs[:2]
    is_full = is_static((*q.shape, *key.shape)) and node.shape[-2:] == (q.shape[2], key.shape[2])
    return is_full and 0 not in (*q.shape, *key.shape)


# rows of a matrix or images of a pool are not recomputed per program, as many programs would share them, except for a
# single row; tiles can be stored in any order
POLICY = FusionPolicy(
    computes_rows=False, pools_images=False, min_scattered_elements=sys.maxsize, max_column_bytes=sys.maxsize,
    max_single_row=MAX_ROW_ELEMENTS, computes_updates=True, joins_row_results=True,
    joins_epilogues=True, widens_values=True, repeats_vectors=True, max_paths=16, max_copies=8, max_repeated=12,
    max_costly_epilogue=8, min_costly_epilogue_elements=1 << 19, computes_padded_rows=True,
)  # fmt: skip
KEPT_OPS: frozenset[type[Op]] = frozenset(
    {*_ATTENTION, PagedAttention, Dequantize, DequantizeBlocks, KernelGradient, LSTM, GRU, RNN}
)


class GpuTarget:
    """See `ingot.pipeline.target.Target`. GPUs whose kernels Triton compiles."""

    policy = POLICY
    forms = ("triton",)
    export = None
    has_fixed_sizes = False
    overlaps_exchanges = True
    has_paged_attention = True
    lower = staticmethod(lower)
    merge_launches = staticmethod(merge_launches)
    chain_kernels = staticmethod(chain_kernels)

    def __init__(
        self, name: str, machines: Mapping[str, Machine], default_arch: str, kept_ops: frozenset[type[Op]],
        functions: Functions,
    ) -> None:  # fmt: skip
        """machines: by architecture. functions: those of a library that kernels call, by name and type."""
        self.name, self._machines, self._default_arch = name, machines, default_arch
        self._kept_ops, self._functions = kept_ops, functions

    def features(self, variant: str) -> Features:
        """An architecture, "sm_90a", or several separated by commas; schedules target the first."""
        archs = [a.strip() for a in (variant or self._default_arch).split(",")]
        if any(a not in self._machines for a in archs):
            expected = f"{self.name}:ARCH with some of {', '.join(self._machines)}"
            raise InputError("target", expected=expected, got=f"{self.name}:{variant}")
        return Features(archs[0], tuple(archs[1:]), target=self.name)

    def prepare(self, nodes: int) -> None:
        workers.start(nodes // _NODES_PER_KERNEL)

    def machine(self, features: Features, threads: int, measured: Mapping[str, Measured]) -> Machine:
        """Describe the first architecture, limited to the shared memory, box copies and 8-bit floats that all of them
        have."""
        machines = [self._machines[arch] for arch in (features.arch, *features.features)]
        shared_bytes = min(m.shared_bytes for m in machines)
        boxes, f8 = all(m.has_box_copies for m in machines), all(m.has_f8_products for m in machines)
        return replace(
            machines[0], shared_bytes=shared_bytes, has_box_copies=boxes, has_f8_products=f8, measured=measured
        )

    def passes(self, features: Features, options: Options) -> tuple[NamedPass, ...]:
        has_kernel = partial(_has_kernel, machine=self.machine(features, 1, {}))
        choices = Choices(
            POLICY,
            self._kept_ops,
            has_kernel,
            int8_dot=i8,
            f8_dot=True,
            max_slice_elements=MAX_SLICE_ELEMENTS,
            levels=(f32, f16, bf16),
            blocks=False,
            byte_rows=False,
            same_operand_types=True,
            row_alignment_bytes=ALIGNMENT_BYTES,
            adds_updates_first=True,
            joins_products=True,
            target_passes=(("attention_sums", keep_attention_sums), ("transposed_concat", transpose_parts)),
        )
        return common_passes(options, choices)

    def assembler(self, features: Features) -> CubinAssembler:
        return CubinAssembler(features, self._functions, self.machine(features, 1, {}).shared_bytes)

    def source(self, kernel: Kernel, features: Features, form: str) -> str:
        return print_kernel(kernel, self._functions).text


TARGET = GpuTarget(
    "cuda", {arch: MACHINES[capability(arch)] for arch in ARCHS}, DEFAULT_ARCH, KEPT_OPS, EXACT_FUNCTIONS
)
