"""NVIDIA GPUs: what passes are to know of them, schedules of tiles, Triton, cubins."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from ingot.ir.kernel import Kernel
from ingot.ir.node import Node, Op
from ingot.ir.types import bf16, f16, f32, i8
from ingot.ops import GRU, LSTM, RNN, Attention, Dequantize, KernelGradient, Recurrent
from ingot.passes.fusion.policy import FusionPolicy
from ingot.pipeline.passes import Choices, common_passes
from ingot.pipeline.target import NamedPass, Options
from ingot.schedule.choice import Measured
from ingot.schedule.gpu.launching import side_by_side
from ingot.schedule.gpu.lower import lower
from ingot.schedule.gpu.machine import MACHINES, Machine
from ingot.schedule.gpu.recurrent import keeps_weights
from ingot.schedule.gpu.rows import LONGEST
from ingot.support.errors import InputError
from ingot.support.native import Features
from ingot.targets.cuda import workers
from ingot.targets.cuda.assemble import CubinAssembler, capability
from ingot.targets.cuda.triton import print_kernel

ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")
PLAINEST = "sm_90a"
SLICE = 1 << 17  # elements of a group of channels: more keep the GPU busy channel by channel, and are read faster so
_NODES = 16  # of a MODEL graph for each kernel: about that


def _has_kernel(node: Node, machine: Machine) -> bool:
    """Whether the kernel of a kept op takes these operands: attention has static heads, in types whose tiles are
    multiplied, a recurrent layer's weights fit into registers, a kernel whose gradient is asked for is depthwise."""
    if isinstance(node.op, KernelGradient):
        return node.op.depthwise
    if isinstance(node.op, Recurrent):
        return keeps_weights(node, machine)
    if not isinstance(node.op, Attention):
        return True
    sized = all(isinstance(x.shape[3], int) for x in node.inputs[:3])
    return sized and 16 <= node.inputs[0].dtype.bits <= 32


# a row of a matrix that a program would compute for itself, or a pool's, is many programs' here, but where it is the
# only one; tiles are stored in any order
POLICY = FusionPolicy(
    computed_rows=False, pooled_images=False, scattered=sys.maxsize, column_bytes=sys.maxsize, single_row=LONGEST,
    computed_updates=True, joined_rows=True,
)  # fmt: skip
KEPT: frozenset[type[Op]] = frozenset({Attention, Dequantize, KernelGradient, LSTM, GRU, RNN})


class CudaTarget:
    """See `ingot.pipeline.target.Target`."""

    name = "cuda"
    policy = POLICY
    forms = ("triton",)
    export = None
    lower = staticmethod(lower)
    beside = staticmethod(side_by_side)

    def features(self, asked: str) -> Features:
        """ "sm_90a", or several with commas, the first of which schedules are made for."""
        archs = [a.strip() for a in (asked or PLAINEST).split(",")]
        unknown = [a for a in archs if a not in ARCHS]
        if unknown:
            raise InputError("target", expected=f"cuda:ARCH with some of {', '.join(ARCHS)}", got=f"cuda:{asked}")
        return Features(archs[0], tuple(archs[1:]), target="cuda")

    def prepare(self, nodes: int) -> None:
        workers.start(nodes // _NODES)

    def machine(self, features: Features, threads: int, measured: Mapping[str, Measured]) -> Machine:
        """The first architecture's, with what all of them have of shared memory, copies of boxes and 8-bit floats."""
        machines = [MACHINES[capability(arch)] for arch in (features.arch, *features.features)]
        shared, boxes = min(m.shared for m in machines), all(m.boxes for m in machines)
        f8 = all(m.f8 for m in machines)
        return replace(machines[0], shared=shared, boxes=boxes, f8=f8, measured=measured)

    def passes(self, features: Features, options: Options) -> tuple[NamedPass, ...]:
        serves = partial(_has_kernel, machine=self.machine(features, 1, {}))
        choices = Choices(
            POLICY, KEPT, serves, int8_dot=i8, f8_dot=True, at_once=SLICE, levels=(f32, f16, bf16), alike=True
        )
        return common_passes(options, choices)

    def assembler(self, features: Features) -> CubinAssembler:
        return CubinAssembler(features)

    def source(self, kernel: Kernel, features: Features, form: str) -> str:
        return print_kernel(kernel).text


TARGET = CudaTarget()
