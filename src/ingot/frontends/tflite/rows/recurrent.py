"""Recurrent layers on numbers. What they keep from call to call are variables of the model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ingot import ops
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tflite.call import Call, Table, activate
from ingot.ir import types as T
from ingot.ir.node import Node, const

row = Table()
_ACTIVATIONS = {0: ("affine", 1.0, 0.0), 1: ("relu", 0.0, 0.0), 4: ("tanh", 0.0, 0.0)}


def _function(c: Call) -> tuple[str, float, float]:
    found = _ACTIVATIONS.get(c.int("activation"))
    if found is None:
        raise Unsupported(f"activation {c.int('activation')}")
    return found


def _numbers(c: Call) -> None:
    if any(isinstance(v, Node) and not v.dtype.is_float for v in c.values):
        raise Unsupported("of quantized weights")


@row("UNIDIRECTIONAL_SEQUENCE_LSTM")
def sequence_lstm(c: Call) -> Node:
    x = c.x() if c.flag("time_major") else ops.swap_axes(c.x(), 0, 1)
    y = _lstm(c, x)
    return y if c.flag("time_major") else ops.swap_axes(y, 0, 1)


def _lstm(c: Call, x: Node) -> Node:
    """y[S, B, U] of x[S, B, I]. Operands in their gates' order i f c o: 1 of x, 5 of the output before, 9 of the cell
    (i f o), 12 biases; 16 a projection, 18 and 19 the output and the cell, 20 normalizations."""
    _numbers(c)
    refused = {"a projection": (16, 17), "normalized gates": (20, 21, 22, 23)}
    for what, places in refused.items():
        if any(c.has(i) for i in places):
            raise Unsupported(f"with {what}")
    if c.float("cell_clip") or c.float("proj_clip"):
        raise Unsupported("with a clipped cell")
    units = c.x(6).shape[0]
    if not isinstance(units, int):
        raise Unsupported(f"{units} units")

    def gates(first: int) -> Node:
        i, f, g, o = (c.x(first + n) if c.has(first + n) else None for n in range(4))
        assert f is not None and g is not None and o is not None
        # without an input gate it is 1 - the forget gate: the logistic of what is negated
        return ops.concat([ops.Neg()(f) if i is None else i, o, f, g], 0)

    w, r = gates(1), gates(5)
    b = gates(12) if c.has(13) else ops.full((4 * units,), 0, T.f32)
    both = ops.concat([b, ops.full((4 * units,), 0, T.f32)], 0)
    operands = [x, *(ops.expand_dims(v, 0) for v in (w, r, both, c.x(18), c.x(19)))]
    peephole = c.has(10)
    if peephole:
        i, f, o = (c.x(n) if c.has(n) else None for n in (9, 10, 11))
        assert f is not None and o is not None
        operands.append(ops.expand_dims(ops.concat([ops.Neg()(f) if i is None else i, o, f], 0), 0))
    functions = (("sigmoid", 0.0, 0.0), _function(c), _function(c))
    y, h, cell = ops.LSTM(units, activations=functions, has_peephole=peephole)(*operands, loc=c.loc).results
    c.keep(18, ops.index_axis(h, 0, 0))
    c.keep(19, ops.index_axis(cell, 0, 0))
    return ops.index_axis(y, 1, 0)


@row("LSTM")
def lstm(c: Call) -> Sequence[Node]:
    if c.int("kernel_type") == 1:
        return _basic_lstm(c)
    return (ops.index_axis(_lstm(c, ops.expand_dims(c.x(), 0)), 0, 0),)


def _basic_lstm(c: Call) -> Sequence[Node]:
    """One step. Operands: x, the output before, weights of both in rows i c f o, biases, the cell."""
    _numbers(c)
    joined = ops.concat([c.x(0), c.x(1)], -1)
    gates = ops.linear(joined, c.x(2), c.x(3), c.loc)
    units = c.x(4).shape[-1]
    i, g, f, o = ops.split(gates, [units] * 4, -1)
    logistic, tanh = ops.Logistic(), ops.Tanh()
    cell = ops.add(ops.mul(logistic(i), tanh(g)), ops.mul(logistic(f), c.x(4)))
    return ops.mul(logistic(o), tanh(cell)), cell, joined, gates


@row("UNIDIRECTIONAL_SEQUENCE_RNN")
def sequence_rnn(c: Call) -> Node:
    x = c.x() if c.flag("time_major") else ops.swap_axes(c.x(), 0, 1)
    y = _rnn(c, x)
    return y if c.flag("time_major") else ops.swap_axes(y, 0, 1)


@row("RNN")
def rnn(c: Call) -> Node:
    return ops.index_axis(_rnn(c, ops.expand_dims(c.x(), 0)), 0, 0)


def _rnn(c: Call, x: Node) -> Node:
    """Operands: x, weights of it and of the output before, biases, that output."""
    _numbers(c)
    units = c.x(1).shape[0]
    if not isinstance(units, int):
        raise Unsupported(f"{units} units")
    b = ops.concat([c.x(3), const(np.zeros(units, np.float32))], 0)
    operands = (ops.expand_dims(v, 0) for v in (c.x(1), c.x(2), b, c.x(4)))
    y, h = ops.RNN(units, activations=(_function(c),))(x, *operands, loc=c.loc).results
    c.keep(4, ops.index_axis(h, 0, 0))
    return ops.index_axis(y, 1, 0)


@row("SVDF")
def svdf(c: Call) -> Node:
    """A filter over features, whose results of the last steps a filter over time sums (Nakkiran et al. 2015). Operands:
    x, weights of features [F, I] and of time [F, M], maybe biases, the last steps [B, F M]."""
    _numbers(c)
    x, features, time, state = c.x(0), c.x(1), c.x(2), c.x(4)
    filters, memory = time.shape
    batch, rank = x.shape[0], c.int("rank")
    old = ops.reshape(state, (batch, filters, memory))
    new = ops.expand_dims(ops.linear(x, features, loc=c.loc), -1)
    kept = ops.concat([ops.slice_axis(old, 2, 1), new], 2)
    c.keep(4, ops.reshape(kept, state.shape))
    sums = ops.reduce_sum(ops.mul(kept, time), -1)
    if not isinstance(filters, int) or rank < 1 or filters % rank:
        raise Unsupported(f"{filters} filters of rank {rank}")
    y = ops.reduce_sum(ops.reshape(sums, (batch, filters // rank, rank)), -1, loc=c.loc)
    return activate(ops.add(y, c.x(3)) if c.has(3) else y, c.int("activation"))
