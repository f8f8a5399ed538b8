"""LSTM, GRU and RNN."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ingot import ops
from ingot.frontends.onnx.call import Call, Result, Value, onnx_op
from ingot.frontends.shared.refusal import Unsupported
from ingot.ir.node import Const, Node, const
from ingot.ir.types import Shape

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def _operands(c: Call, kind: str) -> tuple[Node, Node, Node, Node, Node, int, bool]:
    """(x [S,B,I], w, r, b, h0 [D,B,H], hidden, batch first)."""
    x, w, r = c.x(0), c.x(1), c.x(2)
    batch_first = c.flag("layout")
    if batch_first:
        x = ops.transpose(x, (1, 0, 2))
    hidden = c.int("hidden_size") if c.has_attr("hidden_size") else r.shape[-1]
    if not isinstance(hidden, int):
        raise Unsupported(f"a hidden size of {hidden}")
    directions = w.shape[0]
    b = c.x(3) if c.has(3) else ops.full((directions, 2 * _GATES[kind] * hidden), 0, x.dtype)
    state = _state(c, 5, (directions, x.shape[1], hidden), x, batch_first)
    return x, w, r, b, state, hidden, batch_first


def _state(c: Call, i: int, shape: Shape, x: Node, batch_first: bool) -> Node:
    if not c.has(i):
        return ops.full(shape, 0, x.dtype)
    state = c.x(i)
    return ops.transpose(state, (1, 0, 2)) if batch_first else state


# ONNX's default alpha and beta of the functions that have them
_DEFAULT_PARAMETERS: dict[str, tuple[float | None, float | None]] = {
    "affine": (1.0, 0.0),
    "leakyrelu": (0.01, None),
    "thresholdedrelu": (1.0, None),
    "scaledtanh": (1.0, 1.0),
    "hardsigmoid": (0.2, 0.5),
    "elu": (1.0, None),
}
_FUNCTIONS_WITHOUT_PARAMETERS = ("sigmoid", "tanh", "relu", "softsign", "softplus")


def _activations(c: Call) -> tuple[tuple[str, float, float], ...]:
    """(name, alpha, beta) of every function in order; () where the node names none. Values of alpha and beta are
    consumed in order by the functions that have them."""
    names = c.attr("activations")
    if not isinstance(names, tuple):
        return ()
    alphas, betas = (iter(c.float_list(f"activation_{n}") or ()) for n in ("alpha", "beta"))
    functions: list[tuple[str, float, float]] = []
    for name in (str(f).lower() for f in names):
        if name not in _DEFAULT_PARAMETERS and name not in _FUNCTIONS_WITHOUT_PARAMETERS:
            raise Unsupported(f"activation {name}")
        alpha, beta = _DEFAULT_PARAMETERS.get(name, (None, None))
        first = 0.0 if alpha is None else next(alphas, alpha)
        functions.append((name, first, 0.0 if beta is None else next(betas, beta)))
    return tuple(functions)


def _clip(c: Call) -> float | None:
    return c.float("clip") if c.has_attr("clip") else None


def _outputs(y: Node, states: tuple[Node, ...], batch_first: bool) -> Result:
    """y [S,D,B,H] and states [D,B,H], or batch first: [B,S,D,H] and [B,D,H]."""
    if not batch_first:
        return [y, *states]
    return [ops.transpose(y, (2, 0, 1, 3)), *(ops.transpose(s, (1, 0, 2)) for s in states)]


@onnx_op("LSTM")
def lstm(c: Call) -> Result:
    return _lstm(c)


def _lstm(c: Call, *, levels: bool = False, scales: tuple[Node, ...] = ()) -> Result:
    x, w, r, b, h, hidden, first = _operands(c, "LSTM")
    cell = _state(c, 6, (w.shape[0], x.shape[1], hidden), x, first)
    op = ops.LSTM(
        hidden,
        c.str("direction", "forward"),
        _clip(c),
        _activations(c),
        c.has(4),
        levels,
        bool(scales),
        input_forget=c.flag("input_forget"),
        has_peephole=c.has(7),
    )
    y, *states = op(x, w, r, b, h, cell, *(c.x(i) for i in (4, 7) if c.has(i)), *scales).results
    return _outputs(y, tuple(states), first)


@onnx_op("DynamicQuantizeLSTM", domain="com.microsoft")
def dynamic_quantize_lstm(c: Call) -> Result | None:
    """An LSTM with quantized matrices [D, I, 4H] and [D, H, 4H], whose activations are quantized dynamically at each
    step."""

    def matrix(i: int, scale: int) -> Value:
        step, zero = (ops.reshape(c.x(n), (c.shape(i)[0], 1, -1)) for n in (scale, scale + 1))
        return Value(ops.transpose(ops.apply(ops.Dequantize(), c.x(i), zero, step), (0, 2, 1)))

    rounded, scale, low = ops.dynamic_quantize(c.x(0))
    x = Value(ops.apply(ops.Dequantize(), rounded, low, scale))
    constant_levels = _known_levels(c)
    r, scales = (matrix(2, 10), ()) if constant_levels is None else (Value(constant_levels[0]), constant_levels[1:])
    return _lstm(replace(c, inputs=(x, matrix(1, 8), r, *c.inputs[3:8])), levels=True, scales=scales)


def _known_levels(c: Call) -> tuple[Node, Node] | None:
    """R [D, 4H, H] in bytes and the scales of its rows, where they are constants with zero points of 0."""
    r, step, zero = (n.op.value if isinstance((n := c.x(i)).op, Const) else None for i in (2, 10, 11))
    if r is None or step is None or zero is None or r.dtype != np.int8 or zero.any():
        return None
    scales = np.broadcast_to(step.reshape(len(r), -1), (len(r), r.shape[2]))
    return const(np.ascontiguousarray(r.swapaxes(1, 2))), const(np.ascontiguousarray(scales))


@onnx_op("GRU")
def gru(c: Call) -> Result:
    x, w, r, b, h, hidden, first = _operands(c, "GRU")
    op = ops.GRU(
        hidden,
        c.str("direction", "forward"),
        _clip(c),
        _activations(c),
        c.has(4),
        linear_before_reset=c.flag("linear_before_reset"),
    )
    y, *states = op(x, w, r, b, h, *([c.x(4)] if c.has(4) else [])).results
    return _outputs(y, tuple(states), first)


@onnx_op("RNN")
def rnn(c: Call) -> Result:
    x, w, r, b, h, hidden, first = _operands(c, "RNN")
    op = ops.RNN(hidden, c.str("direction", "forward"), _clip(c), _activations(c), c.has(4))
    y, *states = op(x, w, r, b, h, *([c.x(4)] if c.has(4) else [])).results
    return _outputs(y, tuple(states), first)
