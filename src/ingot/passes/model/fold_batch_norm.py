"""Fold per-channel scales after a contraction into its weights.

    batch_norm(conv(x, w) + b, scale, bias, mean, var)  ->  conv(x, w * s) + ((b - mean) * s + bias),
                                                            s = scale / sqrt(var + eps)
    conv(x, w) * s[C] + t[C]                            ->  conv(x, w * s) + t                (a decomposed norm)
    transpose(conv(x, w)) * s[C] + t[C]                 ->  transpose(conv(x, w * s) + t)     (channels last)

The same for transposed convolutions, and for matmuls with their last axis as channels. Weights of 16 bits are not
scaled, as this would round them once more: the sums, in f32, are scaled instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ingot import ops
from ingot.ir.node import Graph, Node, const, deferred_const, splat_of
from ingot.ir.rewrite import Fuel, current_fuel, replace_nodes
from ingot.ir.types import f32
from ingot.support.dataclass import dataclass


def fold_batch_norm(graph: Graph) -> Graph:
    """batch_norm(conv(x, w)) -> conv(x, w') + b'

    If the weights and the norm's parameters are constants and nothing else reads the intermediate values. The new
    weights are computed in f64 and rounded once to their dtype; a scale that makes one infinite is not folded.
    """
    fuel = current_fuel()
    uses = {n: len(users) for n, users in graph.uses().items()}
    for o in graph.outputs:
        uses[o] = uses.get(o, 0) + 2  # outputs must exist
    chains: dict[Node, _Chain] = {}
    for n in graph.nodes():
        chain = _anchor(n, uses) or _extended_chain(n, chains, uses)
        if chain is not None:
            chains[n] = chain
    replacements: dict[Node, Node] = {}
    anchors: set[Node] = set()
    for n, chain in reversed(chains.items()):  # the longest first
        new = _folded(chain, fuel) if chain.scaled and chain.anchor not in anchors else None
        if new is not None:
            replacements[n] = new
            anchors.add(chain.anchor)
    return replace_nodes(graph, replacements)


@dataclass(frozen=True)
class _Chain:
    """scale[C] * contraction + shift[C]: the affine ops from `anchor` (the contraction) to `last`. order: the anchor's
    axes in the order of `last`, after transposes."""

    anchor: Node
    axis: int
    scale: np.ndarray
    shift: np.ndarray
    last: Node
    order: tuple[int, ...]
    scaled: bool = False

    @property
    def channel_axis(self) -> int:
        """The channels' axis in `last`."""
        return self.order.index(self.axis)


def _extended_chain(n: Node, chains: Mapping[Node, _Chain], uses: Mapping[Node, int]) -> _Chain | None:
    """The chain that `n` extends by an affine op, if only `n` reads it."""
    for operand, source in enumerate(n.inputs):
        chain = chains.get(source)
        if chain is not None and uses[source] == 1:
            return _extended(chain, n, operand)
    return None


def _anchor(n: Node, uses: Mapping[Node, int]) -> _Chain | None:
    """A contraction with constant float weights, as a chain without affine ops."""
    if not isinstance(n.op, ops.Conv | ops.ConvTranspose | ops.MatMul):
        return None
    x, w = n.inputs
    if uses[w] > 1:  # they would be stored twice
        return None
    if w.constant is None or not w.dtype.is_float or w.dtype.bits < 16:
        return None
    if isinstance(n.op, ops.MatMul) and (len(w.shape) != 2 or len(x.shape) < 2):
        return None
    axis = len(n.shape) - 1 if isinstance(n.op, ops.MatMul) else 1
    channels = n.shape[axis]
    if not isinstance(channels, int):
        return None
    return _Chain(n, axis, np.ones(channels), np.zeros(channels), n, tuple(range(len(n.shape))))


def _folded(chain: _Chain, fuel: Fuel) -> Node | None:
    """The contraction with scaled weights, and its bias; None where they are not finite."""
    anchor = chain.anchor
    x, w = anchor.inputs
    assert w.constant is not None
    if w.dtype.bits == 16 and not _is_power_of_two(chain.scale):
        return _scaled_sums(chain) if np.isfinite(chain.shift).all() and fuel.burn("fold-batch-norm") else None
    weights, dtype = w.constant, w.dtype.numpy
    split_shape, channel_shape = _channels(anchor)
    scale = chain.scale.reshape(channel_shape)

    def scaled() -> np.ndarray:
        """The scaled weights, computed in f64 and rounded once."""
        return (weights.value.astype(np.float64).reshape(split_shape) * scale).astype(dtype).reshape(weights.shape)

    # as rounding is monotonic, it is enough to check the largest weight of a channel
    others = tuple(d for d, size in enumerate(channel_shape) if size == 1)
    largest = np.abs(weights.value).reshape(split_shape).max(axis=others, keepdims=True, initial=0)
    shift = chain.shift.astype(anchor.dtype.numpy)
    with np.errstate(all="ignore"):
        finite = np.isfinite((largest.astype(np.float64) * scale).astype(dtype)).all() and np.isfinite(shift).all()
    if not finite or not fuel.burn("fold-batch-norm"):
        return None
    y = anchor.op(x, deferred_const(w.type, scaled, w.loc), loc=anchor.loc)
    if shift.any():
        broadcast_shift = ops.BroadcastInDim(y.shape, (chain.axis,))(const(shift), loc=chain.last.loc)
        y = ops.Add()(y, broadcast_shift, loc=chain.last.loc or anchor.loc)
    return ops.cast(ops.transpose(y, chain.order), chain.last.dtype)


def _is_power_of_two(scale: np.ndarray) -> bool:
    """Whether all elements are powers of two, so that products are exact."""
    mantissa, _ = np.frexp(scale)
    return bool((np.abs(mantissa) == 0.5).all())


def _scaled_sums(chain: _Chain) -> Node:
    """The contraction with its sums scaled and shifted before they are rounded."""
    op, loc = chain.anchor.op, chain.last.loc
    assert isinstance(op, ops.Conv | ops.ConvTranspose | ops.MatMul)
    y = replace(op, dtype=f32)(*chain.anchor.inputs, loc=chain.anchor.loc)
    for affine, values in ((ops.Mul(), chain.scale), (ops.Add(), chain.shift)):
        y = affine(y, ops.BroadcastInDim(y.shape, (chain.axis,))(const(values.astype(np.float32)), loc=loc), loc=loc)
    return ops.cast(ops.transpose(y, chain.order), chain.last.dtype)


def _channels(anchor: Node) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape of the weights with separate axes for output channels, and the shape of a value per output channel."""
    shape = tuple(int(d) for d in anchor.inputs[1].shape)
    if isinstance(anchor.op, ops.MatMul):
        return shape, (1, shape[1])
    ones = (1,) * (len(shape) - 2)
    if isinstance(anchor.op, ops.Conv):
        return shape, (shape[0], 1, *ones)
    assert isinstance(anchor.op, ops.ConvTranspose)
    # w[C, O / groups, *K]: the outputs of group g read the g-th part of C
    groups = anchor.op.groups
    return (groups, shape[0] // groups, *shape[1:]), (groups, 1, shape[1], *ones)


def _extended(chain: _Chain, n: Node, operand: int) -> _Chain | None:
    """`chain` with the affine op `n`, whose operand `at` is the chain; None for any other op."""
    if isinstance(n.op, ops.BatchNorm):
        return _norm(chain, n, n.op.eps) if operand == 0 else None
    if isinstance(n.op, ops.Convert) and chain.anchor.dtype.bits > n.dtype.bits and n.dtype.is_float:
        return replace(chain, last=n)  # sums are wider than the stored result
    if isinstance(n.op, ops.Transpose):
        return replace(chain, last=n, order=tuple(chain.order[p] for p in n.op.permutation))
    if not isinstance(n.op, ops.Add | ops.Sub | ops.Mul | ops.Div):
        return None
    v = channel_vector(n.inputs[1 - operand], chain.channel_axis, len(chain.scale))
    if v is None:
        return None
    match n.op:
        case ops.Add():
            return replace(chain, shift=chain.shift + v, last=n)
        case ops.Sub() if operand == 0:
            return replace(chain, shift=chain.shift - v, last=n)
        case ops.Sub():
            return replace(chain, scale=-chain.scale, shift=v - chain.shift, last=n, scaled=True)
        case ops.Mul():
            return replace(chain, scale=chain.scale * v, shift=chain.shift * v, last=n, scaled=True)
        case ops.Div() if operand == 0 and v.all():
            return replace(chain, scale=chain.scale / v, shift=chain.shift / v, last=n, scaled=True)
    return None


def _norm(chain: _Chain, n: Node, eps: float) -> _Chain | None:
    parameters = [i.constant.value.astype(np.float64) for i in n.inputs[1:] if i.constant is not None]
    if len(parameters) != 4 or chain.channel_axis != 1:
        return None
    scale, bias, mean, var = parameters
    with np.errstate(all="ignore"):
        s = scale / np.sqrt(var + eps)
    if not np.isfinite(s).all():
        return None
    return replace(chain, scale=chain.scale * s, shift=(chain.shift - mean) * s + bias, last=n, scaled=True)


def channel_vector(n: Node, axis: int, channels: int) -> np.ndarray | None:
    """The f64 values by channel of a constant that only varies along `axis`; None for any other node."""
    splat = splat_of(n)
    if splat is not None:
        return np.full(channels, float(splat))
    shape = n.shape
    if not isinstance(n.op, ops.BroadcastInDim):
        return _vector_along(n, axis, channels) if len(shape) > axis else None
    (source,) = n.inputs
    if axis not in n.op.dims:
        return None
    return _vector_along(source, n.op.dims.index(axis), channels)


def _vector_along(n: Node, axis: int, channels: int) -> np.ndarray | None:
    """The values of a constant (perhaps reshaped) whose dimensions other than `axis` have size 1."""
    if any(d != (channels if i == axis else 1) for i, d in enumerate(n.shape)):
        return None
    while isinstance(n.op, ops.Reshape):
        n = n.inputs[0]
    return n.constant.value.reshape(-1).astype(np.float64) if n.constant is not None else None
