"""Recurrent layers over several calls: bit for bit what LiteRT's reference kernels give where they are of levels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.frontends.tflite.builder import Model, calls, feed, interpreted_calls

TABLES = {
    "UNIDIRECTIONAL_SEQUENCE_LSTM": "UnidirectionalSequenceLSTM",
    "UNIDIRECTIONAL_SEQUENCE_RNN": "SequenceRNN",
    "BIDIRECTIONAL_SEQUENCE_LSTM": "BidirectionalSequenceLSTM",
    "BIDIRECTIONAL_SEQUENCE_RNN": "BidirectionalSequenceRNN",
}


def _recurrent(
    op: str, x: tuple[Any, ...], operands: dict[int, Any], count: int, *outs: tuple[Any, ...],
    inner: tuple[Any, ...] = (), **values: Any,
) -> bytes:  # fmt: skip
    """x, outs: (sizes), or (sizes, dtype, scale and zero); operands: by their places, arrays of constants, those with
    scale and zero, or variables as x is given; inner: scales and zeros."""
    model = Model()
    g = model.subgraph()
    places = [g.input(*_tensor(x))] + [-1] * (count - 1)
    for i, v in operands.items():
        if isinstance(v, np.ndarray):
            places[i] = g.const(v)
        elif isinstance(v[0], np.ndarray):
            places[i] = g.const(*v)
        else:
            places[i] = g.tensor(*_tensor(v), is_variable=True, name=f"state{i}")
    states = [g.tensor((0,), np.int16, q) for q in inner]
    results = [g.tensor(*_tensor(o)) for o in outs]
    g.outputs = list(g.op(op, places, results, TABLES.get(op, op), inner=states, **values))
    return model.finish()


def _tensor(operand: tuple[Any, ...]) -> tuple[Any, ...]:
    return (operand,) if isinstance(operand[0], int) else operand


@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("gates", ["all", "coupled", "peephole"])
def test_a_sequence_lstm_goes_on_where_it_ended(gates: str, time_major: bool, tmp_path: Path):
    batch, steps, size, units = 2, 3, 4, 5
    operands: dict[int, object] = {}
    for n in range(4):
        operands[1 + n] = feed((units, size), seed=n)
        operands[5 + n] = feed((units, units), seed=10 + n) * 0.3
        operands[12 + n] = feed((units,), seed=20 + n)
        if n < 3 and gates == "peephole":
            operands[9 + n] = feed((units,), seed=30 + n)
    if gates == "coupled":
        operands = {i: v for i, v in operands.items() if i not in (1, 5, 12)}
    operands |= {18: (batch, units), 19: (batch, units)}
    lead = (steps, batch) if time_major else (batch, steps)
    data = _recurrent(
        "UNIDIRECTIONAL_SEQUENCE_LSTM", (*lead, size), operands, 24, (*lead, units), activation=4, time_major=time_major
    )
    feeds = [feed((*lead, size), seed=40 + n) for n in range(3)]
    for want, got in calls(data, feeds, tmp_path):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_a_sequence_rnn_goes_on_where_it_ended(tmp_path: Path):
    operands = {1: feed((5, 4)), 2: feed((5, 5), seed=1) * 0.3, 3: feed((5,), seed=2), 4: (2, 5)}
    data = _recurrent("UNIDIRECTIONAL_SEQUENCE_RNN", (2, 3, 4), operands, 5, (2, 3, 5), activation=4)
    for want, got in calls(data, [feed((2, 3, 4), seed=n) for n in range(3)], tmp_path):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rank", [1, 2])
def test_an_svdf_keeps_its_last_steps(rank: int, tmp_path: Path):
    units, memory = 3, 4
    filters = units * rank
    operands = {1: feed((filters, 5)), 2: feed((filters, memory), seed=1), 3: feed((units,)), 4: (2, filters * memory)}
    data = _recurrent("SVDF", (2, 5), operands, 5, (2, units), rank=rank, activation=1)
    for want, got in calls(data, [feed((2, 5), seed=n) for n in range(6)], tmp_path):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


W, UNITS, SIZE, PROJECTED = (0.01, 0), 6, 5, 4


def _lstm(kinds: str, weights: Any, other: Any, first: int = 1) -> dict[int, Any]:
    """Operands of a direction. weights, other: of sizes and a seed, a matrix and a vector's parts."""
    output_size = PROJECTED if "projected" in kinds else UNITS
    operands: dict[int, Any] = {}
    for n in range(4):
        operands[n] = weights((UNITS, SIZE), n)
        operands[4 + n] = weights((UNITS, output_size), 10 + n)
        operands[11 + n] = other("bias", (UNITS,), 20 + n)
        if n < 3 and "peephole" in kinds:
            operands[8 + n] = other("peephole", (UNITS,), 30 + n)
        if "norm" in kinds:
            operands[19 + n] = other("norm", (UNITS,), 40 + n)
    if "projected" in kinds:
        operands |= {15: weights((PROJECTED, UNITS), 50), 16: other("projection", (PROJECTED,), 51)}
    if "coupled" in kinds:
        operands = {i: v for i, v in operands.items() if i not in (0, 4, 8, 11, 19)}
    return {first + i: v for i, v in operands.items()}


def _floats(kind: str, sizes: tuple[int, ...], seed: int) -> np.ndarray:
    return feed(sizes, seed=seed) * 0.3


def _eighths(sizes: tuple[int, ...], seed: int) -> Any:
    return np.maximum(feed(sizes, np.int8, seed), -127), W


CLIPS = {"cell_clip": 0.5, "proj_clip": 0.2}


@pytest.mark.parametrize(
    ("kinds", "options"),
    [
        ("norm", {}),
        ("projected", {}),
        ("norm projected coupled peephole", CLIPS),
        ("8 bits", {}),
        ("8 bits", {"asymmetric": True}),
        ("8 bits norm projected coupled", CLIPS),
        ("8 bits projected peephole", {"asymmetric": True}),
    ],
)
def test_an_lstm_with_more(kinds: str, options: dict[str, Any]):
    def weights(sizes: tuple[int, ...], seed: int) -> Any:
        return _eighths(sizes, seed) if "8 bits" in kinds else _floats("", sizes, seed)

    def other(kind: str, sizes: tuple[int, ...], seed: int) -> Any:
        return _eighths(sizes, seed) if kind == "peephole" and "8 bits" in kinds else _floats("", sizes, seed)

    output_size = PROJECTED if "projected" in kinds else UNITS
    operands = _lstm(kinds, weights, other) | {18: (2, output_size), 19: (2, UNITS)}
    data = _recurrent(
        "UNIDIRECTIONAL_SEQUENCE_LSTM", (2, 3, SIZE), operands, 24, (2, 3, output_size), activation=4, **options
    )  # fmt: skip
    for want, got in interpreted_calls(data, [feed((2, 3, SIZE), seed=60 + n) for n in range(3)]):
        np.testing.assert_allclose(got[0], want[0], rtol=1e-5, atol=1e-5)


STATE, CELL, HIDDEN = (0.006, -3), (2**-12, 0), (0.005, 7)


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize(
    ("kinds", "options"),
    [
        ("", {}),
        ("coupled peephole", {"cell_clip": 1.5}),
        ("projected", {"proj_clip": 0.4}),
        ("norm", {}),
        ("norm projected coupled", {}),
    ],
)
def test_an_lstm_of_levels_is_that_of_the_reference_kernel(kinds: str, options: dict[str, Any], steps: int):
    data, x = _lstm_of_levels(kinds, steps, options)
    for want, got in interpreted_calls(data, x):
        np.testing.assert_array_equal(got[0], want[0])
        assert len(np.unique(want[0])) > 3


def _lstm_of_levels(kinds: str, steps: int, options: dict[str, Any]) -> tuple[bytes, list[np.ndarray]]:
    def other(kind: str, sizes: tuple[int, ...], seed: int) -> Any:
        if kind in ("peephole", "norm"):
            return feed(sizes, np.int16, seed), (2**-15, 0)
        return np.random.default_rng(seed).integers(-3000, 3000, sizes, dtype=np.int32)

    projected = "projected" in kinds
    output_size = PROJECTED if projected else UNITS
    state = STATE if projected else HIDDEN
    operands = _lstm(kinds, _eighths, other) | {
        18: ((2, output_size), np.int8, state),
        19: ((2, UNITS), np.int16, CELL),
    }
    data = _recurrent(
        "UNIDIRECTIONAL_SEQUENCE_LSTM", ((2, steps, SIZE), np.int8, (0.02, 5)), operands, 24,
        ((2, steps, output_size), np.int8, state), inner=((2**-12, 0),) * 4 + (HIDDEN,), activation=4, **options,
    )  # fmt: skip
    return data, [feed((2, steps, SIZE), np.int8, seed=70 + n) for n in range(4)]


def test_a_compiled_lstm_of_levels_is_the_same(tmp_path: Path):
    for want, got in calls(*_lstm_of_levels("", 3, {}), tmp_path):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("merged", [False, True])
def test_layers_of_two_directions(merged: bool):
    batch = 1 if merged else 2  # LiteRT's kernel reads states of others where it merges
    operands = _lstm("", lambda s, n: _floats("", s, n), _floats)
    operands |= _lstm("peephole", lambda s, n: _floats("", s, n + 5), _floats, 18)
    operands |= {35 + n: (batch, UNITS) for n in range(4)}
    outs = [(batch, 3, 2 * UNITS)] if merged else [(batch, 3, UNITS)] * 2
    options: dict[str, Any] = {"activation": 4, "merge_outputs": merged, "time_major": False}
    lstm = _recurrent("BIDIRECTIONAL_SEQUENCE_LSTM", (batch, 3, SIZE), operands, 48, *outs, **options)
    rnn_operands: dict[int, Any] = {}
    for first in (1, 5):
        rnn_operands |= {first: _floats("", (UNITS, SIZE), first), first + 1: _floats("", (UNITS, UNITS), first + 1)}
        rnn_operands |= {first + 2: _floats("", (UNITS,), first + 2), first + 3: (batch, UNITS)}
    rnn = _recurrent("BIDIRECTIONAL_SEQUENCE_RNN", (batch, 3, SIZE), rnn_operands, 12, *outs, **options)
    for data in (lstm, rnn):
        for expected, gots in interpreted_calls(data, [feed((batch, 3, SIZE), seed=n) for n in range(3)]):
            for want, got in zip(expected, gots, strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("asymmetric", [False, True])
def test_other_layers_with_weights_of_8_bits(asymmetric: bool):
    operands = {1: _eighths((UNITS, SIZE), 1), 2: _eighths((UNITS, UNITS), 2), 3: feed((UNITS,)), 4: (2, UNITS)}
    options: dict[str, Any] = {"activation": 4, "asymmetric": asymmetric}
    rnn = _recurrent("UNIDIRECTIONAL_SEQUENCE_RNN", (2, 3, SIZE), operands, 5, (2, 3, UNITS), **options)
    operands = {1: _eighths((UNITS, SIZE), 1), 2: _eighths((UNITS, 4), 2), 3: feed((3,)), 4: (2, UNITS * 4)}
    svdf = _recurrent("SVDF", (2, SIZE), operands, 5, (2, 3), rank=2, asymmetric=asymmetric)
    for data, shape in ((rnn, (2, 3, SIZE)), (svdf, (2, SIZE))):
        for want, got in interpreted_calls(data, [feed(shape, seed=n) for n in range(5)]):
            np.testing.assert_allclose(got[0], want[0], rtol=1e-5, atol=1e-5)


def test_an_svdf_of_levels():
    weights, time = _eighths((UNITS, SIZE), 1), (feed((UNITS, 4), np.int16, 2), (2**-14, 0))
    state, bias = ((2, UNITS * 4), np.int16, (0.001, 0)), np.arange(-3000, 3001, 3000, dtype=np.int32)
    operands = {1: weights, 2: time, 3: bias, 4: state}
    options: dict[str, Any] = {"rank": 2, "activation": 1}
    data = _recurrent("SVDF", ((2, SIZE), np.int8, (0.02, 5)), operands, 5, ((2, 3), np.int8, (0.1, -128)), **options)
    for want, got in interpreted_calls(data, [feed((2, SIZE), np.int8, seed=n) for n in range(6)]):
        np.testing.assert_array_equal(got[0], want[0])
