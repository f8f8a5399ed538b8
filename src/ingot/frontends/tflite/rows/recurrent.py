"""Recurrent layers. Their states between calls are variables of the model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ingot import ops
from ingot.frontends.shared import bodies
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tflite.call import Call, Table, activate, holds_levels
from ingot.frontends.tflite.fixed_point import Multiplier, multiplied
from ingot.frontends.tflite.levels import centered, dequantized, saturated
from ingot.frontends.tflite.rows.lstm import Levels, Numbers, Places, product_of
from ingot.ir import types as T
from ingot.ir.node import Node, const

row, on_levels = Table(), Table()
_ACTIVATIONS = {0: ("affine", 1.0, 0.0), 1: ("relu", 0.0, 0.0), 4: ("tanh", 0.0, 0.0)}


def _function(c: Call) -> tuple[str, float, float]:
    activation = _ACTIVATIONS.get(c.int("activation"))
    if activation is None:
        raise Unsupported(f"activation {c.int('activation')}")
    return activation


def _numbers(c: Call) -> None:
    if any(isinstance(v, Node) and not v.dtype.is_float for v in c.values):
        raise Unsupported("of quantized weights")


def _time_first(c: Call, x: Node) -> Node:
    """Conversion between the layer's order of batch and time and [S, B, ...]."""
    return x if c.flag("time_major") else ops.swap_axes(x, 0, 1)


@row("UNIDIRECTIONAL_SEQUENCE_LSTM")
def sequence_lstm(c: Call) -> Node:
    return _time_first(c, _lstm(c, _time_first(c, c.x())))


@row("BIDIRECTIONAL_SEQUENCE_LSTM")
def bidirectional_lstm(c: Call) -> Sequence[Node]:
    if any(c.has(i) for i in range(39, 48)):
        raise Unsupported("a second input")
    x = _time_first(c, c.x())
    forward = Numbers(c, Places(1, 35, 36, None)).run(x)
    backward = ops.flip(Numbers(c, Places(18, 37, 38, None)).run(ops.flip(x, 0)), 0)
    return _merged(c, forward, backward)


def _merged(c: Call, forward: Node, backward: Node) -> Sequence[Node]:
    if c.flag("merge_outputs"):
        return (_time_first(c, ops.concat([forward, backward], -1)),)
    return _time_first(c, forward), _time_first(c, backward)


def _lstm(c: Call, x: Node) -> Node:
    """y[S, B, U] from x[S, B, I], as a whole LSTM op where that can express it."""
    special = any(c.has(i) for i in (16, 17, 20, 21, 22, 23)) or c.float("cell_clip") > 0 or c.float("proj_clip") > 0
    if special or any(isinstance(v, Node) and not v.dtype.is_float for v in c.values):
        return Numbers(c, Places()).run(x)
    units = c.x(6).shape[0]
    if not isinstance(units, int):
        raise Unsupported(f"{units} units")

    def gates(first: int) -> Node:
        i, f, g, o = (c.x(first + n) if c.has(first + n) else None for n in range(4))
        assert f is not None and g is not None and o is not None
        # without an input gate, it is 1 - the forget gate: the logistic of the negated operand
        return ops.concat([ops.Neg()(f) if i is None else i, o, f, g], 0)

    w, r = gates(1), gates(5)
    b = gates(12) if c.has(13) else ops.full((4 * units,), 0, T.f32)
    biases = ops.concat([b, ops.full((4 * units,), 0, T.f32)], 0)
    operands = [x, *(ops.expand_dims(v, 0) for v in (w, r, biases, c.x(18), c.x(19)))]
    peephole = c.has(10)
    if peephole:
        i, f, o = (c.x(n) if c.has(n) else None for n in (9, 10, 11))
        assert f is not None and o is not None
        operands.append(ops.expand_dims(ops.concat([ops.Neg()(f) if i is None else i, o, f], 0), 0))
    functions = (("sigmoid", 0.0, 0.0), _function(c), _function(c))
    y, h, cell = ops.LSTM(units, activations=functions, has_peephole=peephole)(*operands).results
    c.keep(18, ops.index_axis(h, 0, 0))
    c.keep(19, ops.index_axis(cell, 0, 0))
    return ops.index_axis(y, 1, 0)


@row("LSTM")
def lstm(c: Call) -> Sequence[Node]:
    if c.int("kernel_type") == 1:
        return _basic_lstm(c)
    return (ops.index_axis(_lstm(c, ops.expand_dims(c.x(), 0)), 0, 0),)


def _basic_lstm(c: Call) -> Sequence[Node]:
    """One step. Operands: x, the previous output, weights of both in rows i c f o, biases, the cell."""
    _numbers(c)
    operand = ops.concat([c.x(0), c.x(1)], -1)
    gates = ops.linear(operand, c.x(2), c.x(3))
    units = c.x(4).shape[-1]
    i, g, f, o = ops.split(gates, [units] * 4, -1)
    logistic, tanh = ops.Logistic(), ops.Tanh()
    cell = ops.add(ops.mul(logistic(i), tanh(g)), ops.mul(logistic(f), c.x(4)))
    return ops.mul(logistic(o), tanh(cell)), cell, operand, gates


@row("UNIDIRECTIONAL_SEQUENCE_RNN")
def sequence_rnn(c: Call) -> Node:
    return _time_first(c, _rnn(c, _time_first(c, c.x())))


@row("BIDIRECTIONAL_SEQUENCE_RNN")
def bidirectional_rnn(c: Call) -> Sequence[Node]:
    if any(c.has(i) for i in (9, 10, 11)):
        raise Unsupported("a second input")
    x = _time_first(c, c.x())
    return _merged(c, _rnn(c, x), ops.flip(_rnn(c, ops.flip(x, 0), 5), 0))


@row("RNN")
def rnn(c: Call) -> Node:
    return ops.index_axis(_rnn(c, ops.expand_dims(c.x(), 0)), 0, 0)


def _rnn(c: Call, x: Node, first: int = 1) -> Node:
    """Operands, from `first` on: weights of x and of the previous output, biases, that output."""
    w, r, b, state = range(first, first + 4)
    if holds_levels(c.tensors[w]):

        def step(parts: Sequence[Node], states: Sequence[Node]) -> tuple[Sequence[Node], Sequence[Node]]:
            y = ops.add(ops.add(parts[0], product_of(c, states[0], r)), c.x(b))
            h = activate(y, c.int("activation"))
            return (h,), (h,)

        (y,), (h,) = bodies.scan(c.importer.computed_sizes, step, [product_of(c, x, w)], [c.x(state)], c.loc)
        c.keep(state, h)
        return y
    units = c.x(w).shape[0]
    if not isinstance(units, int):
        raise Unsupported(f"{units} units")
    biases = ops.concat([c.x(b), const(np.zeros(units, np.float32))], 0)
    operands = (ops.expand_dims(v, 0) for v in (c.x(w), c.x(r), biases, c.x(state)))
    y, h = ops.RNN(units, activations=(_function(c),))(x, *operands).results
    c.keep(state, ops.index_axis(h, 0, 0))
    return ops.index_axis(y, 1, 0)


@row("SVDF")
def svdf(c: Call) -> Node:
    """A filter over features, whose results of the last steps a filter over time sums (Nakkiran et al. 2015). Operands:
    x, weights of features [F, I] and of time [F, M], maybe biases, the last steps [B, F M]."""
    time = dequantized(c.x(2), c.levels(2)) if holds_levels(c.tensors[2]) else c.x(2)
    y = _filtered(c, product_of(c, c.x(0), 1), time)
    return activate(ops.add(y, c.x(3)) if c.has(3) else y, c.int("activation"))


def _filtered(c: Call, features: Node, time: Node) -> Node:
    """[B, F / rank] from the features' new results [B, F] and the stored ones."""
    (filters, memory), rank, state = time.shape, c.int("rank"), c.x(4)
    if not isinstance(filters, int) or rank < 1 or filters % rank:
        raise Unsupported(f"{filters} filters of rank {rank}")
    batch = features.shape[0]
    old = ops.reshape(state, (batch, filters, memory))
    next_memory = ops.concat([ops.slice_axis(old, 2, 1), ops.expand_dims(features, -1)], 2)
    c.keep(4, ops.reshape(next_memory, state.shape))
    sums = ops.reduce_sum(ops.mul(ops.cast(next_memory, time.dtype), time), -1)
    return ops.reduce_sum(ops.reshape(sums, (batch, filters // rank, rank)), -1)


# --- on levels


@on_levels("UNIDIRECTIONAL_SEQUENCE_LSTM")
def sequence_lstm_of_levels(c: Call) -> Node:
    _eight_bits(c)
    return _time_first(c, Levels(c, Places()).run(_time_first(c, c.x())))


@on_levels("LSTM")
def lstm_of_levels(c: Call) -> Sequence[Node]:
    _eight_bits(c)
    if c.int("kernel_type") == 1:
        raise Unsupported("of levels, of the basic kind")
    return (ops.index_axis(Levels(c, Places()).run(ops.expand_dims(c.x(), 0)), 0, 0),)


@on_levels("SVDF")
def svdf_of_levels(c: Call) -> Node:
    """8-bit values, 16-bit results of features."""
    _eight_bits(c)
    x, w, time, state, result_levels = c.levels(0), c.levels(1), c.levels(2), c.levels(4), c.out_levels()
    scales = [np.float32(q.scale) for q in (x, w, state, time, result_levels)]
    by = [Multiplier.of(float(s)) for s in (scales[0] * scales[1] / scales[2], scales[2] * scales[3] / scales[4])]
    total = ops.linear(centered(c.x(0), x), ops.cast(c.x(1), T.i32))
    y = _filtered(c, saturated(multiplied(total, by[0]), T.i16), ops.cast(c.x(2), T.i32))
    y = ops.add(y, c.x(3)) if c.has(3) else y
    return saturated(ops.add(multiplied(y, by[1]), result_levels.zero), T.i8)


def _eight_bits(c: Call) -> None:
    if c.x().dtype != T.i8 or c.type() != T.i8:
        raise Unsupported(f"of {c.x().dtype} to {c.type()}")
