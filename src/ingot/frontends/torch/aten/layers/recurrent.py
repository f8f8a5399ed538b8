"""LSTM, GRU and RNN stacks: PyTorch's gate order and weights to ONNX's, one op per layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ingot import ops
from ingot.frontends.shared.composites.movement import cut
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.torch.aten.create import filled
from ingot.frontends.torch.aten.random import dropped
from ingot.frontends.torch.aten.shape import reshape
from ingot.frontends.torch.table import Table
from ingot.frontends.torch.values import Context, expand, scalar_like
from ingot.ir.dims import Dim
from ingot.ir.node import Node, Op
from ingot.support.dataclass import dataclass

aten = Table()


@dataclass(frozen=True)
class Stack:
    """The layers of a recurrent call: parameters per layer and direction, and the layout of the sequence.

    is_projected: whether each direction has one more parameter, the projection of the hidden state.
    dropout: the rate between layers.
    """

    params: Sequence[Node]
    has_biases: bool
    layers: int
    directions: int
    batch_first: bool
    reverse: bool = False
    is_projected: bool = False
    dropout: Callable[[Node], Node] = lambda x: x

    @property
    def direction(self) -> str:
        return "bidirectional" if self.directions == 2 else "reverse" if self.reverse else "forward"

    def layer(self, index: int) -> list[Sequence[Node]]:
        """Per direction (w_ih, w_hh[, b_ih, b_hh][, w_hr])."""
        count_per_direction = (4 if self.has_biases else 2) + self.is_projected
        first = index * self.directions * count_per_direction
        return [
            self.params[first + d * count_per_direction : first + (d + 1) * count_per_direction]
            for d in range(self.directions)
        ]


def _ordered(x: Node, order: Sequence[int]) -> Node:
    """`x` with the gates, stacked along axis 0, in another order."""
    size = x.shape[0]
    if isinstance(size, Dim):
        raise Unsupported("recurrent weights of symbolic size")
    gate = size // len(order)
    if tuple(order) == tuple(range(len(order))):
        return x
    return ops.Concat(0)(*(cut(x, 0, g * gate, (g + 1) * gate) for g in order))


def _stacked(parts: Sequence[Node]) -> Node:
    """The parts stacked along a leading axis of directions."""
    rows = [ops.expand_dims(p, 0) for p in parts]
    return rows[0] if len(rows) == 1 else ops.Concat(0)(*rows)


def _weights(stack: Stack, layer: int, order: Sequence[int]) -> tuple[Node, Node, Node]:
    """(w, r, b) of one layer as ONNX has them."""
    directions = stack.layer(layer)
    w = _stacked([_ordered(s[0], order) for s in directions])
    r = _stacked([_ordered(s[1], order) for s in directions])
    if stack.has_biases:
        b = _stacked([ops.Concat(0)(_ordered(s[2], order), _ordered(s[3], order)) for s in directions])
    else:
        b = filled((stack.directions, w.shape[1] * 2), 0, w.dtype)
    return w, r, b


def _run(
    x: Node, states: Sequence[Node], stack: Stack, order: Sequence[int], make: Callable[[int, str], Op]
) -> tuple[Node, ...]:
    """Runs all layers: (output, final state, ...), with states stacked as in PyTorch."""
    unbatched = x.type.rank == 2
    if unbatched:
        x, states = ops.expand_dims(x, 1), [ops.expand_dims(s, 1) for s in states]
    elif stack.batch_first:
        x = ops.transpose(x, (1, 0, 2))
    finals: list[list[Node]] = [[] for _ in states]
    for layer in range(stack.layers):
        x = stack.dropout(x) if layer else x
        w, r, b = _weights(stack, layer, order)
        first = layer * stack.directions
        initial = [cut(s, 0, first, first + stack.directions) for s in states]
        shrink = _stacked([side[-1] for side in stack.layer(layer)]) if stack.is_projected else None
        if shrink is not None:
            x, w, r, initial[0] = _unprojected(x, w, r, initial[0], shrink)
        hidden = r.shape[2]
        if isinstance(hidden, Dim):
            raise Unsupported("a hidden state of symbolic size")
        y, *layer_states = make(hidden, stack.direction)(x, w, r, b, *initial).results
        if shrink is not None:
            narrow = ops.transpose(shrink, (0, 2, 1))
            y = ops.MatMul()(y, expand(narrow, (y.shape[0], *narrow.shape)))
            layer_states[0] = ops.MatMul()(layer_states[0], narrow)
        steps, _, batch, width = y.shape
        x = reshape(ops.transpose(y, (0, 2, 1, 3)), (steps, batch, stack.directions * width))
        for final_states, state in zip(finals, layer_states, strict=True):
            final_states.append(state)
    ends = [f[0] if len(f) == 1 else ops.Concat(0)(*f) for f in finals]
    if unbatched:
        return reshape(x, (x.shape[0], x.shape[2])), *(reshape(e, (e.shape[0], e.shape[2])) for e in ends)
    return (ops.transpose(x, (1, 0, 2)) if stack.batch_first else x), *ends


def _unprojected(x: Node, w: Node, r: Node, h: Node, shrink: Node) -> tuple[Node, ...]:
    """(x, w, r, h) of an equivalent layer without projection, whose recurrent matrix is r shrink.

    The initial state is already projected: it is passed as more columns of x, which are 0 at all other steps.
    """
    directions, steps, batch = w.shape[0], x.shape[0], x.shape[1]
    wide = ops.MatMul()(r, shrink)
    columns, weights = [x], [[w]]
    for d in range(int(directions)):
        begin = cut(h, 0, d, d + 1)
        other_steps = (0, steps - 1) if d == 0 else (steps - 1, 0)
        columns.append(ops.Pad((other_steps[0], 0, 0), (other_steps[1], 0, 0), (0, 0, 0))(begin, scalar_like(0, h)))
        direction_r = cut(r, 0, d, d + 1)
        weights.append(
            [direction_r if i == d else filled(direction_r.shape, 0, r.dtype) for i in range(int(directions))]
        )
    weights_of_directions = [ops.Concat(0)(*parts) if len(parts) > 1 else parts[0] for parts in weights]
    zero_state = filled((directions, batch, wide.shape[2]), 0, h.dtype)
    return ops.Concat(2)(*columns), ops.Concat(2)(*weights_of_directions), wide, zero_state


def _stack(
    c: Context, params: Sequence[Node], *, has_biases: bool, num_layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool,
) -> Stack:  # fmt: skip
    directions = 2 if bidirectional else 1
    is_projected = len(params) != num_layers * directions * (4 if has_biases else 2)
    drop = partial(dropped, c, p=dropout if train else 0.0)
    return Stack(params, has_biases, num_layers, directions, batch_first, is_projected=is_projected, dropout=drop)


@aten("lstm.input", by_name=True)
def lstm(c: Context, x: Node, hx: Sequence[Node], params: Sequence[Node], **layers: Any) -> tuple[Node, ...]:
    return _lstm(x, hx, _stack(c, params, **layers))


def _lstm(x: Node, hx: Sequence[Node], stack: Stack) -> tuple[Node, ...]:
    # PyTorch's gates are i f g o, ONNX's i o f g
    return _run(x, hx, stack, (0, 3, 1, 2), lambda hidden, direction: ops.LSTM(hidden=hidden, direction=direction))


@aten("mkldnn_rnn_layer.default", by_name=True)
def mkldnn_rnn_layer(
    c: Context, x: Node, w_ih: Node, w_hh: Node, b_ih: Node, b_hh: Node, hx: Node, cx: Node, *, reverse: bool,
    mode: int, num_layers: int, has_biases: bool, bidirectional: bool, batch_first: bool, **unused: object,
) -> tuple[Node | None, ...]:  # fmt: skip
    """One direction of one LSTM layer, to which torch decomposes LSTMs on CPUs."""
    lstm_mode = 2  # ideep::rnn_kind
    if mode != lstm_mode or num_layers != 1 or bidirectional or batch_first:
        raise Unsupported("another layer than one direction of an LSTM")
    # without biases, torch passes zeros in the weights' shapes
    params = (w_ih, w_hh, b_ih, b_hh) if has_biases else (w_ih, w_hh)
    stack = Stack(params, has_biases, 1, 1, False, reverse)
    no_workspace = None
    return *_lstm(x, (hx, cx), stack), no_workspace


@aten("gru.input", by_name=True)
def gru(c: Context, x: Node, hx: Node, params: Sequence[Node], **layers: Any) -> tuple[Node, ...]:
    # PyTorch's gates are r z n, ONNX's z r n; the reset gate acts after the product
    stack = _stack(c, params, **layers)
    return _run(x, [hx], stack, (1, 0, 2), lambda h, direction: ops.GRU(h, direction, linear_before_reset=True))


def _rnn(activation: str) -> Callable[..., tuple[Node, ...]]:
    def rnn(c: Context, x: Node, hx: Node, params: Sequence[Node], **layers: Any) -> tuple[Node, ...]:
        stack = _stack(c, params, **layers)
        functions = ((activation, 0.0, 0.0),) * stack.directions
        return _run(x, [hx], stack, (0,), lambda h, direction: ops.RNN(h, direction, activations=functions))

    return rnn


for _activation in ("tanh", "relu"):
    aten(f"rnn_{_activation}.input", by_name=True)(_rnn(_activation))


@aten("lstm.data", "gru.data", "rnn_tanh.data", "rnn_relu.data", "_pack_padded_sequence.default")
def packed(c: Context, *args: object, **named: object) -> Node:
    raise Unsupported("packed sequences; pass the padded batch")
