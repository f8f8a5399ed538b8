"""NVIDIA GPUs: the passes in order and why they stand there, schedules of tiles, Triton, cubins."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ingot.ir.kernel import Kernel
from ingot.ir.node import Graph, Node, Op
from ingot.ops import Attention
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
from ingot.pipeline.target import PLAIN, NamedPass, Options
from ingot.schedule.choice import Measured
from ingot.schedule.gpu.lower import lower
from ingot.schedule.gpu.machine import MACHINES, Machine
from ingot.support.errors import CompileError, InputError
from ingot.support.native import Features
from ingot.targets.cuda.assemble import CubinAssembler, capability
from ingot.targets.cuda.triton import print_kernel

# a row of a matrix that a program would compute for itself, or a pool's, is many programs' here
POLICY = FusionPolicy(computed_rows=False, pooled_images=False)
KEPT: frozenset[type[Op]] = frozenset({Attention})
ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")
PLAINEST = "sm_90a"


def _has_kernel(node: Node) -> bool:
    """Whether the kernel of attention takes these operands: static heads, in types whose tiles are multiplied."""
    sized = all(isinstance(x.shape[3], int) for x in node.inputs[:3])
    return sized and node.inputs[0].dtype.bits <= 32


def _no_found_sizes(graph: Graph) -> Graph:
    if graph.found:
        raise CompileError(
            "sizes that only the run knows", expected="a target that finds them, such as native",
            got=", ".join(graph.found), fix="compile for a CPU",
        )  # fmt: skip
    return graph


def cuda_passes(options: Options = PLAIN, outer: frozenset[str] = frozenset()) -> tuple[NamedPass, ...]:
    """The passes for GPUs, in order. outer: the symbols of the graphs around a body."""
    tidy = partial(simplify, fast_math=options.fast_math)

    def bodies(graph: Graph) -> Graph:
        known = outer.union(graph.symbols())
        return in_bodies(graph, lambda body: optimize(body, cuda_passes(options, known), outer=known))

    return (
        ("no_found_sizes", _no_found_sizes),
        # on MODEL ops, while they still have their names
        ("bound_sizes", bound_sizes),
        ("fold_model", fold_constants),  # weights that the model transposes or slices
        ("fold_batch_norm", fold_batch_norm),
        ("order_linear", order_linear),  # behind norms, which are then a constant that is added
        ("fuse_attention", fuse_attention),
        ("merge_matmuls", merge_matmuls),
        ("lower", lambda g: lower_model_ops(g, KEPT, _has_kernel)),
        ("quantized", partial(lower_quantized, int8_dot=False)),
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


class CudaTarget:
    """See `ingot.pipeline.target.Target`."""

    name = "cuda"
    forms = ("triton",)
    lower = staticmethod(lower)

    def features(self, asked: str) -> Features:
        """"sm_90a", or several with commas, the first of which schedules are made for."""
        archs = [a.strip() for a in (asked or PLAINEST).split(",")]
        unknown = [a for a in archs if a not in ARCHS]
        if unknown:
            raise InputError("target", expected=f"cuda:ARCH with some of {', '.join(ARCHS)}", got=f"cuda:{asked}")
        return Features(archs[0], tuple(archs[1:]), target="cuda")

    def prepare(self) -> None:
        pass

    def machine(self, features: Features, threads: int, measured: Mapping[str, Measured]) -> Machine:
        made = capability(features.arch)
        return MACHINES[max((c for c in MACHINES if c <= made), default=min(MACHINES))]

    def passes(self, features: Features, options: Options) -> tuple[NamedPass, ...]:
        return cuda_passes(options)

    def assembler(self, features: Features) -> CubinAssembler:
        return CubinAssembler(features)

    def source(self, kernel: Kernel, features: Features, form: str) -> str:
        return print_kernel(kernel).text


TARGET = CudaTarget()
