"""LSTM cells step by step: on floats with 8-bit weights, norms, projections and clips; and on levels.

    gate = activation(norm(W x + R h + P cell) + b)     cell = forget cell + input update     h = output tanh(cell)

Operands of a direction, as in TensorFlow Lite's schema: 4 weights of x in the order i f c o, 4 of the previous output,
3 of the cell (i f o), 4 biases, a projection and its bias. Without an input gate, it is 1 - the forget gate.
Source of the arithmetic on levels: the reference kernel of 8-bit values with 16-bit gates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np

from ingot import ops
from ingot.frontends.shared import bodies
from ingot.frontends.shared.refusal import Unsupported
from ingot.frontends.tflite import tables
from ingot.frontends.tflite.call import Call, activate, holds_levels
from ingot.frontends.tflite.file import Quantization
from ingot.frontends.tflite.fixed_point import Multiplier, multiplied, rounded_shift
from ingot.frontends.tflite.inverse_root import inverse_root, multiplied_by
from ingot.frontends.tflite.levels import centered, dequantized, saturated
from ingot.frontends.tflite.rows import hybrid
from ingot.ir import types as T
from ingot.ir.dims import product
from ingot.ir.node import Node, const
from ingot.support.dataclass import dataclass

INPUT, FORGET, UPDATE, OUTPUT = range(4)
_PEEPHOLES = {INPUT: 0, FORGET: 1, OUTPUT: 2}
_EPSILON = 1e-8  # added to a variance


@dataclass(frozen=True)
class Places:
    """Indices of operands: the first weight of a direction, its states, the norms' coefficients if the op may have
    any."""

    first: int = 1
    output: int = 18
    cell: int = 19
    norms: int | None = 20

    def input(self, gate: int) -> int:
        return self.first + gate

    def recurrent(self, gate: int) -> int:
        return self.first + 4 + gate

    def peephole(self, gate: int) -> int | None:
        return self.first + 8 + _PEEPHOLES[gate] if gate in _PEEPHOLES else None

    def bias(self, gate: int) -> int:
        return self.first + 11 + gate

    @property
    def projection(self) -> int:
        return self.first + 15


class Cell(ABC):
    """A direction of an LSTM layer."""

    def __init__(self, c: Call, at: Places) -> None:
        self.c, self.at = c, at
        self.is_coupled = not c.has(at.input(INPUT))
        self.is_projected = c.has(at.projection)

    def run(self, x: Node) -> Node:
        """y[S, B, U] from x[S, B, I]; also stores the final states."""
        c, at = self.c, self.at
        gates = [g for g in (INPUT, FORGET, UPDATE, OUTPUT) if g != INPUT or not self.is_coupled]

        def step(parts: Sequence[Node], states: Sequence[Node]) -> tuple[Sequence[Node], Sequence[Node]]:
            rows, (h, cell) = dict(zip(gates, parts, strict=True)), states
            entering = None if self.is_coupled else self.gate(INPUT, rows[INPUT], h, cell)
            forget, update = (self.gate(g, rows[g], h, cell) for g in (FORGET, UPDATE))
            cell = self.updated(cell, entering, forget, update)
            h = self.output(cell, self.gate(OUTPUT, rows[OUTPUT], h, cell))
            return (h,), (h, cell)

        parts = [self.of_input(g, x) for g in gates]
        (y,), (h, cell) = bodies.scan(c.importer.computed_sizes, step, parts, (c.x(at.output), c.x(at.cell)), c.loc)
        c.keep(at.output, h)
        c.keep(at.cell, cell)
        return y

    def norm(self, gate: int) -> int | None:
        place = None if self.at.norms is None else self.at.norms + gate
        return place if place is not None and self.c.has(place) else None

    def peephole(self, gate: int) -> int | None:
        place = self.at.peephole(gate)
        return place if place is not None and self.c.has(place) else None

    @abstractmethod
    def of_input(self, gate: int, x: Node) -> Node:
        """The contribution of x[S, B, I] to a gate, for all steps."""

    @abstractmethod
    def gate(self, gate: int, part: Node, h: Node, cell: Node) -> Node: ...

    @abstractmethod
    def updated(self, cell: Node, entering: Node | None, forget: Node, update: Node) -> Node: ...

    @abstractmethod
    def output(self, cell: Node, gate: Node) -> Node: ...


class Numbers(Cell):
    """On floats; weights may be levels, whose other factor is then quantized to 8 bits at each step."""

    def of_input(self, gate: int, x: Node) -> Node:
        return product_of(self.c, x, self.at.input(gate))

    def gate(self, gate: int, part: Node, h: Node, cell: Node) -> Node:
        c, bias = self.c, self.at.bias(gate)
        y = ops.add(part, product_of(c, h, self.at.recurrent(gate)))
        if (place := self.peephole(gate)) is not None:
            y = ops.add(y, ops.mul(self._numbers(place), cell))
        if (place := self.norm(gate)) is not None:
            deviation = ops.sub(y, ops.mean(y, -1, True))
            variance = ops.mean(ops.mul(deviation, deviation), -1, True)
            y = ops.mul(ops.mul(deviation, ops.Rsqrt()(ops.add(variance, _EPSILON))), self._numbers(place))
        y = ops.add(y, c.x(bias)) if c.has(bias) else y
        return activate(y, c.int("activation")) if gate == UPDATE else ops.Logistic()(y)

    def _numbers(self, i: int) -> Node:
        return dequantized(self.c.x(i), self.c.levels(i)) if holds_levels(self.c.tensors[i]) else self.c.x(i)

    def updated(self, cell: Node, entering: Node | None, forget: Node, update: Node) -> Node:
        entering = ops.sub(1, forget) if entering is None else entering
        cell = ops.add(ops.mul(forget, cell), ops.mul(entering, update))
        return _within(cell, self.c.float("cell_clip"))

    def output(self, cell: Node, gate: Node) -> Node:
        c, place = self.c, self.at.projection
        h = ops.mul(gate, activate(cell, c.int("activation")))
        if not self.is_projected:
            return h
        h = product_of(c, h, place)
        return _within(ops.add(h, c.x(place + 1)) if c.has(place + 1) else h, c.float("proj_clip"))


def _within(x: Node, limit: float) -> Node:
    return ops.clip(x, -limit, limit) if limit > 0 else x


def product_of(c: Call, x: Node, w: int) -> Node:
    """x[..., I] times the weights[U, I] of operand `w`."""
    if not holds_levels(c.tensors[w]):
        return ops.linear(x, c.x(w))
    if len(c.levels(w).scales) > 1:
        raise Unsupported("weights with several scales")
    flat = ops.reshape(x, (product(x.shape[:-1]), x.shape[-1]))
    levels, scale = hybrid.rounded(flat, c.flag("asymmetric"))
    kernel, scales = hybrid.weights(c, w)
    y = ops.mul(ops.linear(levels, kernel), ops.mul(scale, scales))
    return ops.reshape(y, (*x.shape[:-1], kernel.shape[0]))


class Levels(Cell):
    """8-bit values and outputs, 16-bit gates (Q3 before their activation, Q0 after it) and cells."""

    def __init__(self, c: Call, at: Places) -> None:
        super().__init__(c, at)
        inner = c.intermediates()
        if len(inner) != 5:
            raise Unsupported(f"levels with {len(inner)} inner values")
        self.inner = inner
        self.scale = float(np.float32(c.levels(at.cell).scale))
        exponent = int(np.round(np.log2(self.scale)))
        if abs(np.log2(self.scale) - exponent) > 1e-3 or not 0 <= 15 + exponent <= 6:
            raise Unsupported(f"a cell of scale {self.scale}")
        self.exponent = exponent

    def _inner(self, i: int) -> Quantization:
        quantization = self.inner[i]
        if quantization is None:
            raise Unsupported(f"inner value {i} has no scale")
        return quantization

    def _gate_scale(self, gate: int) -> np.float32:
        return np.float32(2**-12) if self.norm(gate) is None else np.float32(self._inner(gate).scale)

    def _product(self, x: Node, levels: Quantization, w: int, gate: int, bias: int | None) -> Node:
        """x times weights in units of the gate, i32."""
        weights = self._weights(w)
        total = ops.linear(centered(x, levels), weights)
        if bias is not None and self.c.has(bias):
            total = ops.add(total, self.c.x(bias))
        scale = np.float32(self.c.levels(w).scale) * np.float32(levels.scale) / self._gate_scale(gate)
        return multiplied(total, Multiplier.of(float(scale)))

    def _weights(self, i: int) -> Node:
        q = self.c.levels(i)
        if len(q.scales) > 1 or any(q.zeros):
            raise Unsupported("weights with several scales or zeros")
        return ops.cast(self.c.x(i), T.i32)

    def of_input(self, gate: int, x: Node) -> Node:
        bias = self.at.bias(gate) if self.norm(gate) is None else None
        return saturated(self._product(x, self.c.levels(0), self.at.input(gate), gate, bias), T.i16)

    def gate(self, gate: int, part: Node, h: Node, cell: Node) -> Node:
        at = self.at
        y = self._product(h, self.c.levels(at.output), at.recurrent(gate), gate, None)
        y = saturated(ops.add(y, ops.cast(part, T.i32)), T.i16)
        if (place := self.peephole(gate)) is not None:
            product_ = ops.mul(ops.cast(cell, T.i32), ops.cast(self.c.x(place), T.i32))
            scale = np.float32(2.0**self.exponent * self.c.levels(place).scale / float(self._gate_scale(gate)))
            y = saturated(ops.add(multiplied(product_, Multiplier.of(float(scale))), ops.cast(y, T.i32)), T.i16)
        if (place := self.norm(gate)) is not None:
            y = self._normalized(y, place, self.at.bias(gate))
        return _tabled(y, tables.tanh if gate == UPDATE else tables.logistic, 3)

    def _normalized(self, x: Node, coefficients: int, bias: int) -> Node:
        """Layer norm of rows, with 10 fractional bits."""
        c, wide, n = self.c, ops.cast(x, T.i64), x.shape[-1]
        if not isinstance(n, int):
            raise Unsupported(f"{n} units")
        scale = float(np.float32(c.levels(coefficients).scale))
        total, squares = ops.reduce_sum(wide, -1, True), ops.reduce_sum(ops.mul(wide, wide), -1, True)
        middle = ops.div(ops.mul(total, 1024), n)
        variance = ops.div(ops.sub(ops.mul(squares, (1 << 20) // n), ops.mul(middle, middle)), 1 << 20)
        variance = ops.where(ops.compare("LT", variance, 1), max(1, int(10000 * scale)), variance)
        deviation = ops.sub(ops.mul(wide, 1024), middle)
        m, shift = (ops.broadcast_to(v, x.shape) for v in inverse_root(ops.cast(variance, T.i32)))
        y = multiplied_by(deviation, m, shift, 0)
        y = ops.cast(ops.add(ops.mul(y, ops.cast(c.x(coefficients), T.i32)), c.x(bias)), T.i64)
        half = ops.where(ops.compare("GT", y, 0), ops.full(y.shape, 512, T.i64), ops.full(y.shape, -512, T.i64))
        y = ops.cast(ops.div(ops.add(y, half), 1024), T.i32)
        by = Multiplier.of(scale)
        return saturated(multiplied(y, Multiplier(by.m, tuple(s + 12 for s in by.shift))), T.i16)

    def updated(self, cell: Node, entering: Node | None, forget: Node, update: Node) -> Node:
        entering = ops.sub(32767, forget) if entering is None else entering
        kept_cell, new = _halved(forget, cell, 15), _halved(entering, update, 30 + self.exponent)
        cell = saturated(ops.add(ops.cast(kept_cell, T.i32), ops.cast(new, T.i32)), T.i16)
        clip = self.c.float("cell_clip")
        if not clip > 0:
            return cell
        limit = int(min(np.float32(clip) / np.float32(self.scale), 32767))
        return ops.clip(cell, -limit, limit)

    def output(self, cell: Node, gate: Node) -> Node:
        c, place = self.c, self.at.projection
        hidden, state = self._inner(4), c.levels(self.at.output)
        squashed = _tabled(cell, tables.tanh, 15 + self.exponent)
        scale = np.float32(2.0**-15 / hidden.scale * 2.0**-15)
        y = multiplied(ops.mul(ops.cast(gate, T.i32), ops.cast(squashed, T.i32)), Multiplier.of(float(scale)))
        if not self.is_projected:
            return saturated(ops.add(y, hidden.zero), T.i8)
        # the kernel shifts by -zero, and so do its products
        weights = self._weights(place)
        total = ops.linear(ops.add(ops.cast(saturated(ops.sub(y, hidden.zero), T.i8), T.i32), hidden.zero), weights)
        if c.has(place + 1):
            total = ops.add(total, c.x(place + 1))
        scale = np.float32(c.levels(place).scale) * np.float32(hidden.scale) / np.float32(state.scale)
        h = saturated(ops.add(multiplied(total, Multiplier.of(float(scale))), state.zero), T.i8)
        clip = c.float("proj_clip")
        if not clip > 0:
            return h
        limit = int(min(np.float32(clip) / np.float32(c.out_levels().scale), 127))
        return ops.clip(h, -limit, limit)


def _halved(a: Node, b: Node, shift: int) -> Node:
    """a * b / 2^times of i16, ties away from zero."""
    wide = ops.mul(ops.cast(a, T.i64), ops.cast(b, T.i64))
    return ops.cast(rounded_shift(wide, [shift]), T.i16)


def _tabled(x: Node, fn: Callable[[np.ndarray, int, tables.Word], np.ndarray], bits: int) -> Node:
    """A function of every Q`bits` of 16 bits."""
    values = fn(tables.levels_of(T.i16), bits, tables.SHORT)
    return ops.Take(0)(const(values.astype(np.int16)), ops.add(ops.cast(x, T.i32), 1 << 15))
