"""Fold per-channel scales behind a contraction into its weights.

    batch_norm(conv(x, w) + b, scale, bias, mean, var)  ->  conv(x, w * s) + ((b - mean) * s + bias),
                                                            s = scale / sqrt(var + eps)
    conv(x, w) * s[C] + t[C]                            ->  conv(x, w * s) + t                (a decomposed norm)

The same for transposed convolutions, and for matmuls with their last axis as the channels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ingot import ops
from ingot.ir.node import Const, Graph, Node, const, deferred
from ingot.ir.rewrite import current_fuel
from ingot.passes.constants import splat_of


def fold_batch_norm(graph: Graph) -> Graph:
    """batch_norm(conv(x, w)) -> conv(x, w') + b'

    Folded where the weights and the norm's parameters are constants and nothing else reads the values between. Sums are
    computed in f64 and rounded once to the weights' dtype; a scale that is not finite there is left alone.
    """
    return _Folder(graph).run()


@dataclass(frozen=True)
class _Chain:
    """scale[C] * contraction + shift[C]: the affine ops from `anchor` (the contraction) to `last`."""

    anchor: Node
    axis: int
    scale: np.ndarray
    shift: np.ndarray
    last: Node
    scaled: bool = False


class _Folder:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.uses = {n: len(users) for n, users in graph.uses().items()}
        for o in graph.outputs:
            self.uses[o] = self.uses.get(o, 0) + 2  # what the caller sees must exist
        self.memo: dict[Node, Node] = {}
        self.chains: dict[Node, _Chain] = {}
        self.fuel = current_fuel()

    def run(self) -> Graph:
        nodes = self.graph.nodes()
        for n in nodes:
            chain = self.anchor(n) or self.extend(n)
            if chain is not None:
                self.chains[n] = chain
            else:
                self.plain(n)
        outputs = tuple(self.image(o) for o in self.graph.outputs)
        return self.graph if outputs == self.graph.outputs else self.graph.with_outputs(outputs)

    def plain(self, n: Node) -> None:
        self.memo[n] = n.with_inputs([self.image(i) for i in n.inputs])

    def image(self, n: Node) -> Node:
        """The new node for `n`, chains turned into nodes where they end."""
        if n not in self.memo:
            chain = self.chains[n]
            folded = self.fold(chain) if chain.scaled else None
            if folded is None:
                self.plain(n)
            else:
                self.memo[n] = folded
        return self.memo[n]

    def anchor(self, n: Node) -> _Chain | None:
        # weights that something else reads too would be stored twice
        return _anchor(n) if len(n.inputs) == 2 and self.uses.get(n.inputs[1]) == 1 else None

    def extend(self, n: Node) -> _Chain | None:
        """`n` as one more affine op on a chain that only it reads."""
        for at, source in enumerate(n.inputs):
            chain = self.chains.get(source)
            if chain is not None and self.uses.get(source, 0) == 1:
                return _extended(chain, n, at)
        return None

    def fold(self, chain: _Chain) -> Node | None:
        op, (x, w) = chain.anchor.op, chain.anchor.inputs
        assert isinstance(w.op, Const)
        weights, anchor, dtype = w.op.array, chain.anchor, w.dtype.numpy
        parts, spread = _channels(anchor)
        scale = chain.scale.reshape(spread)

        def scaled() -> np.ndarray:
            """The weights, in f64 until they are rounded."""
            return (weights.value.astype(np.float64).reshape(parts) * scale).astype(dtype).reshape(weights.value.shape)

        # as rounding is monotonous, the largest weight of a channel tells of all of them
        others = tuple(d for d, size in enumerate(spread) if size == 1)
        largest = np.abs(weights.value).reshape(parts).max(axis=others, keepdims=True, initial=0)
        shift = chain.shift.astype(chain.last.dtype.numpy)
        with np.errstate(all="ignore"):
            finite = np.isfinite((largest.astype(np.float64) * scale).astype(dtype)).all()
        if not (finite and np.isfinite(shift).all()) or not self.fuel.burn("fold-batch-norm"):
            return None
        loc = anchor.loc
        y = op(self.image(x), deferred(w.type, scaled, w.loc), loc=loc)
        if not shift.any():
            return y
        spread = ops.BroadcastInDim(y.shape, (chain.axis,))(const(shift), loc=chain.last.loc)
        return ops.Add()(y, spread, loc=chain.last.loc or loc)


def _anchor(n: Node) -> _Chain | None:
    """A contraction with constant float weights, as a chain without affine ops."""
    if not isinstance(n.op, ops.Conv | ops.ConvTranspose | ops.MatMul):
        return None
    x, w = n.inputs
    if not isinstance(w.op, Const) or not w.dtype.is_float or w.dtype.bits < 16:
        return None
    if isinstance(n.op, ops.MatMul) and (len(w.shape) != 2 or len(x.shape) < 2):
        return None
    axis = len(n.shape) - 1 if isinstance(n.op, ops.MatMul) else 1
    channels = n.shape[axis]
    if not isinstance(channels, int):
        return None
    return _Chain(n, axis, np.ones(channels), np.zeros(channels), n)


def _channels(anchor: Node) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape in which the weights' output channels are dimensions, and that of what has a value for each of them."""
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


def _extended(chain: _Chain, n: Node, at: int) -> _Chain | None:
    """`chain` with the affine op `n`, whose operand `at` is the chain; None for any other op."""
    if isinstance(n.op, ops.BatchNorm):
        return _norm(chain, n, n.op.eps) if at == 0 else None
    if not isinstance(n.op, ops.Add | ops.Sub | ops.Mul | ops.Div):
        return None
    v = channel_vector(n.inputs[1 - at], chain.axis, len(chain.scale))
    if v is None:
        return None
    match n.op:
        case ops.Add():
            return replace(chain, shift=chain.shift + v, last=n)
        case ops.Sub() if at == 0:
            return replace(chain, shift=chain.shift - v, last=n)
        case ops.Sub():
            return replace(chain, scale=-chain.scale, shift=v - chain.shift, last=n, scaled=True)
        case ops.Mul():
            return replace(chain, scale=chain.scale * v, shift=chain.shift * v, last=n, scaled=True)
        case ops.Div() if at == 0 and v.all():
            return replace(chain, scale=chain.scale / v, shift=chain.shift / v, last=n, scaled=True)
    return None


def _norm(chain: _Chain, n: Node, eps: float) -> _Chain | None:
    parameters = [i.op.value.astype(np.float64) for i in n.inputs[1:] if isinstance(i.op, Const)]
    if len(parameters) != 4 or chain.axis != 1:
        return None
    scale, bias, mean, var = parameters
    with np.errstate(all="ignore"):
        s = scale / np.sqrt(var + eps)
    if not np.isfinite(s).all():
        return None
    return replace(chain, scale=chain.scale * s, shift=(chain.shift - mean) * s + bias, last=n, scaled=True)


def channel_vector(n: Node, axis: int, channels: int) -> np.ndarray | None:
    """The f64 values by channel of a constant that varies along `axis` of its shape only; None for any other node."""
    splat = splat_of(n)
    if splat is not None:
        return np.full(channels, float(splat))  # type: ignore[arg-type]
    shape = n.shape
    if not isinstance(n.op, ops.BroadcastInDim):
        return _along(n, axis, channels) if len(shape) > axis else None
    (source,) = n.inputs
    if axis not in n.op.dims:
        return None
    return _along(source, n.op.dims.index(axis), channels)


def _along(n: Node, axis: int, channels: int) -> np.ndarray | None:
    """The values of a constant (perhaps reshaped) whose only size beside 1 is `axis`."""
    if any(d != (channels if i == axis else 1) for i, d in enumerate(n.shape)):
        return None
    while isinstance(n.op, ops.Reshape):
        n = n.inputs[0]
    return n.op.value.reshape(-1).astype(np.float64) if isinstance(n.op, Const) else None
