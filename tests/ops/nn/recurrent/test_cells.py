"""Recurrent layers against their equations, one element of the batch and one step at a time, in f64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ingot.ops.nn.recurrent.cells import GRU, LSTM, RNN
from ingot.ops.nn.recurrent.layer import Recurrent
from tests.ops.nn.check import check, run

RNG = np.random.default_rng(0)
S, B, I, H = 5, 3, 2, 4
States = tuple[np.ndarray, ...]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def lstm(x: np.ndarray, states: States, w: np.ndarray, r: np.ndarray, b: np.ndarray) -> States:
    h, c = states
    i, o, f, g = np.split(w @ x + r @ h + b[: len(w)] + b[len(w) :], 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def gru(x: np.ndarray, states: States, w: np.ndarray, r: np.ndarray, b: np.ndarray) -> States:
    """With the reset gate before the product, the default of ONNX."""
    (h,) = states
    of_x, of_h = w @ x + b[: len(w)], b[len(w) :]
    z, reset = (sigmoid(of_x[k : k + H] + r[k : k + H] @ h + of_h[k : k + H]) for k in (0, H))
    new = np.tanh(of_x[2 * H :] + r[2 * H :] @ (reset * h) + of_h[2 * H :])
    return ((1 - z) * new + z * h,)


def rnn(x: np.ndarray, states: States, w: np.ndarray, r: np.ndarray, b: np.ndarray) -> States:
    return (np.tanh(w @ x + r @ states[0] + b[:H] + b[H:]),)


CELLS: dict[type[Recurrent], Callable[..., States]] = {LSTM: lstm, GRU: gru, RNN: rnn}


def operands(cls: type[Recurrent], passes: int = 1) -> tuple[np.ndarray, ...]:
    width = cls.gates * H
    shapes = [(S, B, I), (passes, width, I), (passes, width, H), (passes, 2 * width)]
    return tuple(RNG.normal(size=shape) for shape in (*shapes, *([(passes, B, H)] * cls.states)))


def by_steps(cls: type[Recurrent], arrays: tuple[np.ndarray, ...], lengths: np.ndarray, backwards: bool) -> States:
    """y[S,1,B,H] and the final states; each element has as many steps as its length, in either direction."""
    x, w, r, b, *starts = arrays
    y, last = np.zeros((S, 1, B, H)), [s.copy() for s in starts]
    for e in range(B):
        order = range(lengths[e])
        for step in reversed(order) if backwards else order:
            new = CELLS[cls](x[step, e], tuple(s[0, e] for s in last), w[0], r[0], b[0])
            y[step, 0, e] = new[0]
            for old, value in zip(last, new, strict=True):
                old[0, e] = value
    return (y, *last)


@pytest.mark.parametrize("cls", CELLS)
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_a_layer_is_its_cells_one_after_another(cls: type[Recurrent], direction: str) -> None:
    inputs, lengths = operands(cls), np.array([S, 2, 0])
    backwards = direction == "reverse"
    open_sizes = {0: {0: "s", 1: "b"}, **{4 + i: {1: "b"} for i in range(cls.states)}}
    check(cls(H, direction), *inputs, want=by_steps(cls, inputs, np.full(B, S), backwards), dynamic=open_sizes)
    ragged = cls(H, direction, has_lengths=True)
    check(ragged, *inputs, lengths, want=by_steps(cls, inputs, lengths, backwards))


@pytest.mark.parametrize("cls", CELLS)
def test_both_directions_are_one_of_each(cls: type[Recurrent]) -> None:
    inputs = operands(cls, 2)
    halves = [
        run(cls(H, way), inputs[0], *(v[i : i + 1] for v in inputs[1:])) for i, way in enumerate(("forward", "reverse"))
    ]
    y, *last = (np.concatenate(parts, axis) for axis, parts in zip((1, 0, 0), zip(*halves, strict=True), strict=False))
    check(cls(H, "bidirectional"), *inputs, want=(y, *last))


def test_a_bound_that_nothing_reaches_changes_nothing() -> None:
    inputs = operands(LSTM)
    check(LSTM(H, clip=1e3), *inputs, want=run(LSTM(H), *inputs))
    tight = run(LSTM(H, clip=1e-9), *inputs)  # gates of nothing: half of the cell is kept in each step
    np.testing.assert_allclose(tight[2], inputs[5] * 0.5**S, atol=1e-6)
