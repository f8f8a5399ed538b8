"""The passes that targets share, in order, from a MODEL graph to fused groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from ingot.ir.dims import Interval, is_computed
from ingot.ir.node import Graph, Node, Op
from ingot.ir.types import DType, f32
from ingot.passes.bodies import in_bodies
from ingot.passes.core.block_quantized import round_floats
from ingot.passes.core.crop import crop_unread
from ingot.passes.core.dce import dce
from ingot.passes.core.dtypes.narrow_integers import narrow_integers
from ingot.passes.core.dtypes.narrow_products import narrow_caches, narrow_products, narrow_weights
from ingot.passes.core.dtypes.precision import STORED, lower_precision
from ingot.passes.core.fold_constants import fold_constants
from ingot.passes.core.layout import assign_layouts, explicit_padding
from ingot.passes.core.positions.indexed_caches import indexed_caches
from ingot.passes.core.quantized import lower_quantized
from ingot.passes.core.reshaped_reductions import reduce_unreshaped
from ingot.passes.core.rewrites.rewrite import apply_rewrites
from ingot.passes.core.signs import pack_signs, unpack_signs
from ingot.passes.core.simplify import simplify
from ingot.passes.core.sparse import Height, always_dense, keep_blocks
from ingot.passes.core.storage.aligned_rows import align_rows
from ingot.passes.core.storage.nest_concats import nest_concats
from ingot.passes.core.storage.reshaped_concats import concat_before_reshapes
from ingot.passes.core.storage.shared_copies import share_copies
from ingot.passes.core.storage.updated_sums import update_sums
from ingot.passes.core.summed_products import sum_products
from ingot.passes.core.transposed_conv import split_transposed
from ingot.passes.fusion.fuse import fuse
from ingot.passes.fusion.policy import FusionPolicy
from ingot.passes.fusion.share_kernels import share_kernels
from ingot.passes.model.bound_sizes import bound_sizes, check_in_run
from ingot.passes.model.fold_batch_norm import fold_batch_norm
from ingot.passes.model.fuse_attention import fuse_attention
from ingot.passes.model.fuse_attention_gradients import fuse_attention_gradients
from ingot.passes.model.linear_order import order_linear
from ingot.passes.model.lower import lower_model_ops
from ingot.passes.model.merge_matmuls import merge_matmuls
from ingot.passes.model.shared_heads import share_gradients
from ingot.pipeline.build import optimize
from ingot.pipeline.target import NamedPass, Options
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class Choices:
    """The parameters of a target's passes.

    policy: parameters of fusion. kept_ops: MODEL ops that are not lowered, as they have kernels or later passes match
    them. has_kernel: whether a kept op's kernel supports these operands. int8_dot: the type that the dot-product
    instruction multiplies with i8, None without such an instruction. least_weight: of those that it multiplies
    exactly. faster_in_floats: whether a product of levels is faster without it. depthwise_sums: the type of depthwise
    convolutions' sums of levels. packs_signs: whether products of signs are computed on their bits. f8_dot: whether
    products take 8-bit floats directly. max_slice_elements: see `reduce_unreshaped`. levels: the types that weights of
    few bits may stand for in products. blocks: whether these also read block formats as they are. byte_rows: whether
    they read values that are rounded to bytes. same_operand_types: products need operands of one type, so a reduced
    precision applies to both. widens: the types of 16 bits that products widen as they load them. target_passes: run
    before the shared ones. narrow_integers: 64-bit integers cost more than those of 32 bits. height: see
    `keep_blocks`. narrow_caches: attention of few queries widens keys and values as it reads them, from any positions.
    pairs_levels: products widen weights in blocks to pairs of bfloat16, where that is the precision.
    row_alignment_bytes: see `align_rows`. adds_updates_first: scatters add the updates of an element before they add
    the element. joins_products: sums of products of few terms are one product."""

    policy: FusionPolicy
    kept_ops: frozenset[type[Op]]
    has_kernel: Callable[[Node], bool]
    int8_dot: DType | None = None
    least_weight: int = -128
    faster_in_floats: Callable[[Node], bool] = lambda n: False
    depthwise_sums: DType = f32
    packs_signs: bool = False
    f8_dot: bool = False
    max_slice_elements: int = 0
    levels: tuple[DType, ...] = (f32,)
    blocks: bool = True
    byte_rows: bool = True
    narrow_caches: bool = False
    pairs_levels: bool = False
    same_operand_types: bool = False
    widens: tuple[DType, ...] = ()
    target_passes: tuple[NamedPass, ...] = ()
    narrow_integers: bool = False
    row_alignment_bytes: int = 1
    adds_updates_first: bool = False
    joins_products: bool = False
    height: Height = always_dense


def common_passes(
    options: Options,
    choices: Choices,
    outer: frozenset[str] = frozenset(),
    limits: Mapping[str, Interval] = MappingProxyType({}),
) -> tuple[NamedPass, ...]:
    """Return the passes in order. outer: the symbols of the graphs that enclose a body. limits: the bounds of those
    that a call tells."""
    simplified = partial(simplify, fast_math=options.fast_math)
    bound = partial(bound_sizes, outer=outer)
    precision = partial(
        lower_precision, precision=options.precision, same_types=choices.same_operand_types,
        pairs_levels=choices.pairs_levels,
    )  # fmt: skip
    rounds = options.activations == "int8"
    quantized = partial(
        lower_quantized, int8_dot=choices.int8_dot, floats=choices.levels, f8_dot=choices.f8_dot,
        depthwise_sums=choices.depthwise_sums, blocks=choices.blocks, widens=choices.widens,
        rounds=rounds, is_kept=choices.faster_in_floats, least_weight=choices.least_weight,
    )  # fmt: skip
    rewritten = partial(apply_rewrites, rewrites=options.rewrites, fast_math=options.fast_math)
    narrow = partial(narrow_weights, types=choices.widens)
    aligned = partial(align_rows, alignment_bytes=choices.row_alignment_bytes)

    def bodies(graph: Graph) -> Graph:
        symbols = outer.union(graph.symbols())
        bounds = {**limits, **{name: (low, high) for name, low, high in graph.bounds if not is_computed(name)}}
        passes = common_passes(options, choices, symbols, bounds)
        return in_bodies(graph, lambda body: optimize(body, passes, outer=symbols))

    return (
        ("attention_gradients", fuse_attention_gradients),  # before keys are shared
        ("shared_heads", share_gradients),  # before attention's results are transposed
        *choices.target_passes,
        # on MODEL ops, while they still have their names
        ("bound_sizes", bound),
        # before constants are folded
        *((("narrow_weights", narrow),) if choices.widens and STORED.get(options.precision) == f32 else ()),
        ("fold_model", fold_constants),  # weights that the model transposes or slices
        ("fold_batch_norm", fold_batch_norm),
        ("order_linear", order_linear),  # after norms, which add a constant by now
        ("fuse_attention", fuse_attention),
        ("merge_matmuls", merge_matmuls),
        ("lower", lambda g: lower_model_ops(g, choices.kept_ops, choices.has_kernel)),
        *(() if choices.packs_signs else (("unpack_signs", unpack_signs),)),
        ("bound_lowered", bound),  # by the reads of lowered ops
        ("check_in_run", partial(check_in_run, outer=outer, limits=limits)),
        ("quantized", quantized),
        ("fold", fold_constants),
        ("simplify", simplified),
        ("crop", crop_unread),  # after simplification, which turns lookups of constant positions into slices
        *((("rewrites", rewritten),) if options.rewrites else ()),  # of simplified ops that no layout has changed
        ("split_transposed", split_transposed),
        # before layout, after which weights are folded
        *((("narrow_products", narrow_products),) if choices.same_operand_types else ()),
        ("precision", precision),
        ("reshaped_reductions", partial(reduce_unreshaped, max_slice_elements=choices.max_slice_elements)),
        ("layout", assign_layouts),
        ("padding", explicit_padding),  # after layout, so that pads are in the order that producers write
        ("fold_layout", fold_constants),  # transposed weights
        ("simplify_layout", simplified),
        *((("signs", pack_signs),) if choices.packs_signs else ()),  # once the axis that words pack is contiguous
        ("sparse", partial(keep_blocks, height=choices.height)),  # weights have their final order
        *((("narrow_integers", narrow_integers),) if choices.narrow_integers else ()),  # once constants are folded
        *((("narrow_caches", partial(narrow_caches, types=choices.widens)),) if choices.narrow_caches else ()),
        *((("indexed_caches", indexed_caches),) if choices.narrow_caches else ()),
        *((("updated_sums", update_sums),) if choices.adds_updates_first else ()),
        *((("summed_products", sum_products),) if choices.joins_products else ()),
        ("reshaped_concats", concat_before_reshapes),
        ("nest_concats", nest_concats),  # last, as simplification joins nested concats
        *((("round_floats", partial(round_floats, bytes_kept=choices.byte_rows)),) if rounds else ()),
        *((("aligned_rows", aligned),) if choices.row_alignment_bytes > 1 else ()),
        ("shared_copies", share_copies),  # last, as simplification shortens chains of views
        ("dce", dce),
        ("fuse", partial(fuse, policy=choices.policy)),
        ("share_kernels", share_kernels),
        ("bodies", bodies),
    )
