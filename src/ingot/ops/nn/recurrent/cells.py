"""The cells: LSTM, GRU and plain RNN."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ingot.ir.node import Samples
from ingot.ops.nn import terms as t
from ingot.ops.nn.recurrent.activations import SIGMOID, TANH, TERMS, Activation, apply_numpy, apply_term
from ingot.ops.nn.recurrent.layer import Parameters, Recurrent
from ingot.ops.nn.terms import Term
from ingot.support.dataclass import dataclass


@dataclass(frozen=True)
class LSTM(Recurrent):
    """Long short-term memory (Hochreiter and Schmidhuber 1997; ONNX LSTM). Gates are in the order i, o, f, c; states h,
    c.

        i = a(x Wi + h Ri + Pi c)   f = a(x Wf + h Rf + Pf c)   c' = f c + i u(x Wc + h Rc)
        o = a(x Wo + h Ro + Po c')  h' = o v(c')                a, u, v: activations[0], [1], [2]

    Operands and attributes: see `Recurrent`. input_forget: f = 1 - i. has_peephole: the operand peephole has Pi, Po,
    Pf.
    """

    name: ClassVar[str] = "lstm"
    gates: ClassVar[int] = 4
    states: ClassVar[int] = 2
    functions: ClassVar[tuple[Activation, ...]] = (SIGMOID, TANH, TANH)
    input_forget: bool = False
    has_peephole: bool = False

    def has_peepholes(self) -> bool:
        return self.has_peephole

    def cell(self, index: int, row: Term, p: Parameters) -> tuple[Term, ...]:
        gate, update, output = self.activation(index)
        h, c = p.states
        i, o, f, g = self._split(row + t.contract(self._quantize_state(h), p.r, [(1, 1)]), 4)
        pi, po, pf = self._split(p.peephole, 3) if p.peephole is not None else (None, None, None)
        i = apply_term(gate, self._clip(i if pi is None else i + c * pi))
        f = 1.0 - i if self.input_forget else apply_term(gate, self._clip(f if pf is None else f + c * pf))
        new = f * c + i * apply_term(update, self._clip(g))
        o = apply_term(gate, self._clip(o if po is None else o + new * po))
        return o * apply_term(output, new), new

    def compute(
        self,
        index: int,
        row: np.ndarray,
        r: np.ndarray,
        b: np.ndarray,
        states: tuple[np.ndarray, ...],
        peephole: np.ndarray | None,
    ) -> tuple[np.ndarray, ...]:
        gate, update, output = self.activation(index)
        h, c = states
        i, o, f, g = np.split(
            row + self._quantize_state_reference(h) @ r.T + b[: b.size // 2] + b[b.size // 2 :], 4, axis=1
        )
        pi, po, pf = np.split(peephole, 3) if peephole is not None else (0, 0, 0)
        i = apply_numpy(gate, self._clip_reference(i + pi * c))
        f = 1 - i if self.input_forget else apply_numpy(gate, self._clip_reference(f + pf * c))
        new = f * c + i * apply_numpy(update, self._clip_reference(g))
        return apply_numpy(gate, self._clip_reference(o + po * new)) * apply_numpy(output, new), new

    @classmethod
    def samples(cls) -> Samples:
        for direction, passes in (("forward", 1), ("reverse", 1), ("bidirectional", 2)):
            base = _data(4, 2, passes)
            lengths = np.asarray([3, 0, 5], np.int32)
            peephole = _values(passes, 12)
            yield cls(4, direction), base
            yield cls(4, direction, has_lengths=True), (*base, lengths)
            yield cls(4, direction, has_peephole=True), (*base, peephole)
            yield (
                cls(4, direction, 0.3, has_lengths=True, input_forget=True, has_peephole=True),
                (
                    *base,
                    lengths,
                    peephole,
                ),
            )
            yield cls(4, direction, has_lengths=True, levels=True), (*base, lengths)
            levels, scales = _bytes(4, passes)
            yield cls(4, direction, levels=True, has_scales=True), (*base[:2], levels, *base[3:], scales)
        yield cls(4), tuple(v.astype(np.float16) for v in _data(4, 2, 1))
        yield cls(4), tuple(v.astype(np.float64) for v in _data(4, 2, 1))
        functions = (("hardsigmoid", 0.2, 0.5), ("softsign", 0.0, 0.0), ("scaledtanh", 1.5, 0.7))
        yield cls(4, activations=functions), _data(4, 2, 1)
        yield cls(4), _data(4, 2, 1, steps=0)
        yield cls(4), _data(4, 2, 1, steps=1)


@dataclass(frozen=True)
class GRU(Recurrent):
    """Gated recurrent unit (Cho et al. 2014; ONNX GRU). Gates are in the order z, r, h; state h.

    h' = (1 - z) n + z h with n = g(x Wh + (r h) Rh + bias), or, if linear_before_reset (PyTorch, cuDNN),
    n = g(x Wh + b_Wh + r (h Rh + b_Rh)). Operands and attributes: see `Recurrent`.
    """

    name: ClassVar[str] = "gru"
    gates: ClassVar[int] = 3
    functions: ClassVar[tuple[Activation, ...]] = (SIGMOID, TANH)
    linear_before_reset: bool = False

    def cell_reads_bias(self) -> bool:
        return self.linear_before_reset

    def rounds_state(self) -> bool:
        return self.linear_before_reset

    def outer_bias(self, p: Parameters) -> Term:
        if not self.linear_before_reset:
            return super().outer_bias(p)
        # b_Rh is scaled by r
        h = self.hidden
        return p.b.slice(0, 3 * h, 5 * h).pad(0, 0, h, 0.0)

    def cell(self, index: int, row: Term, p: Parameters) -> tuple[Term, ...]:
        gate, update = self.activation(index)
        (h,) = p.states
        n = self.hidden
        if self.linear_before_reset:
            inner = t.contract(self._quantize_state(h), p.r, [(1, 1)])
            (xz, xr, xn), (hz, hr, hn) = self._split(row, 3), self._split(inner, 3)
            z, r = apply_term(gate, self._clip(xz + hz)), apply_term(gate, self._clip(xr + hr))
            new = apply_term(update, self._clip(xn + r * (hn + p.b.slice(0, 5 * n, 6 * n))))
        else:
            inner = t.contract(h, p.r.slice(0, 0, 2 * n), [(1, 1)])
            (xz, xr, xn), (hz, hr) = self._split(row, 3), self._split(inner, 2)
            z, r = apply_term(gate, self._clip(xz + hz)), apply_term(gate, self._clip(xr + hr))
            new = apply_term(update, self._clip(xn + t.contract(r * h, p.r.slice(0, 2 * n, 3 * n), [(1, 1)])))
        return ((1.0 - z) * new + z * h,)

    def compute(
        self,
        index: int,
        row: np.ndarray,
        r: np.ndarray,
        b: np.ndarray,
        states: tuple[np.ndarray, ...],
        peephole: np.ndarray | None,
    ) -> tuple[np.ndarray, ...]:
        gate, update = self.activation(index)
        (h,) = states
        state = self._quantize_state_reference(h)
        (xz, xr, xn), (rz, rr, rn) = np.split(row, 3, axis=1), np.split(r, 3)
        wz, wr, wn, bz, br, bn = np.split(b, 6)
        z = apply_numpy(gate, self._clip_reference(xz + wz + state @ rz.T + bz))
        reset = apply_numpy(gate, self._clip_reference(xr + wr + state @ rr.T + br))
        inner = reset * (state @ rn.T + bn) if self.linear_before_reset else (reset * h) @ rn.T + bn
        return ((1 - z) * apply_numpy(update, self._clip_reference(xn + wn + inner)) + z * h,)

    @classmethod
    def samples(cls) -> Samples:
        for direction, passes in (("forward", 1), ("reverse", 1), ("bidirectional", 2)):
            base = _data(3, 1, passes)
            for linear_before_reset in (False, True):
                yield cls(4, direction, linear_before_reset=linear_before_reset), base
                lengths = np.asarray([5, 1, 0], np.int64)
                yield (
                    cls(4, direction, 0.4, has_lengths=True, linear_before_reset=linear_before_reset),
                    (*base, lengths),
                )
            levels = _bytes(3, passes)
            yield (
                cls(4, direction, levels=True, has_scales=True, linear_before_reset=True),
                (*base[:2], levels[0], *base[3:], levels[1]),
            )
        yield cls(4), tuple(v.astype(np.float16) for v in _data(3, 1, 1))


@dataclass(frozen=True)
class RNN(Recurrent):
    """The simple recurrent layer h' = f(x W + h R + b) (ONNX RNN); f is activations[0], tanh by default.

    Operands and attributes: see `Recurrent`.
    """

    name: ClassVar[str] = "rnn"

    def cell(self, index: int, row: Term, p: Parameters) -> tuple[Term, ...]:
        (function,) = self.activation(index)
        return (apply_term(function, self._clip(row + t.contract(self._quantize_state(p.states[0]), p.r, [(1, 1)]))),)

    def compute(
        self,
        index: int,
        row: np.ndarray,
        r: np.ndarray,
        b: np.ndarray,
        states: tuple[np.ndarray, ...],
        peephole: np.ndarray | None,
    ) -> tuple[np.ndarray, ...]:
        (function,) = self.activation(index)
        total = row + self._quantize_state_reference(states[0]) @ r.T + b[: b.size // 2] + b[b.size // 2 :]
        return (apply_numpy(function, self._clip_reference(total)),)

    @classmethod
    def samples(cls) -> Samples:
        for direction, passes in (("forward", 1), ("reverse", 1), ("bidirectional", 2)):
            base = _data(1, 1, passes)
            yield cls(4, direction), base
            yield cls(4, direction, 0.4, has_lengths=True), (*base, np.asarray([5, 1, 0], np.int64))
            yield cls(4, direction, levels=True), base
        for name in TERMS:
            yield cls(4, activations=((name, 0.7, 0.3),)), _data(1, 1, 1)


def _values(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype(np.float32)


def _bytes(gates: int, passes: int) -> tuple[np.ndarray, np.ndarray]:
    """Quantized r, and the scales of its rows."""
    rows = 4 * gates
    return (_values(passes, rows, 4) * 127).astype(np.int8), abs(_values(passes, rows)) * np.float32(0.02)


def _data(gates: int, states: int, passes: int, steps: int = 5) -> tuple[np.ndarray, ...]:
    batch, features, hidden = 3, 2, 4
    width = gates * hidden
    initial = (_values(passes, batch, hidden) * (1 + i) for i in range(states))
    parameters = (_values(passes, width, features), _values(passes, width, hidden), _values(passes, 2 * width))
    return (_values(steps, batch, features), *parameters, *initial)
