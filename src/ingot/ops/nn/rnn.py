"""Recurrent layers: LSTM, GRU and RNN, with ONNX's parameters, gate orders and options.

    y[t], state = cell(x[t] W^T + b_W, state R^T + b_R, state)

The lowering computes x W^T + b for all steps as one contraction, then runs a While over steps. Padded sequences
(`lengths`) keep their state and give zeros beyond their end; a reverse layer starts at each sequence's own end.

For a schedule that keeps the layer whole: `directions()` names its passes over time, `parameters(...)` the operands of
one, `projection(...)` the contraction outside the loop, and `step(...)` everything inside it but the reading and
writing of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import numpy as np

from ingot.ir.dims import DimLike
from ingot.ir.node import Graph, Input, Node, Op, topological
from ingot.ir.types import TensorType, dtype_of, f32, i8, i64, u8
from ingot.ops.core.base import finish
from ingot.ops.core.binary import Compare
from ingot.ops.core.control import While
from ingot.ops.core.elementwise import Abs
from ingot.ops.core.functions import Expm1, Log1p
from ingot.ops.core.quantize import Quantize
from ingot.ops.core.shape import DimValue, DynamicSlice, DynamicUpdateSlice
from ingot.ops.nn import terms as t
from ingot.ops.nn.terms import Term, Value
from ingot.support.dataclass import dataclass

Samples = Iterator[tuple[Op, tuple[np.ndarray, ...]]]
# name, alpha, beta: lower-case ONNX names; alpha and beta where the function has them
Activation = tuple[str, float, float]
SIGMOID: Activation = ("sigmoid", 0.0, 0.0)
TANH: Activation = ("tanh", 0.0, 0.0)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _term(x: Value) -> Term:
    assert isinstance(x, Term)
    return x


_NUMPY: dict[str, Callable[[np.ndarray, float, float], np.ndarray]] = {
    "sigmoid": lambda x, a, b: _sigmoid(x),
    "tanh": lambda x, a, b: np.tanh(x),
    "relu": lambda x, a, b: np.maximum(x, 0),
    "affine": lambda x, a, b: a * x + b,
    "leakyrelu": lambda x, a, b: np.where(x >= 0, x, a * x),
    "thresholdedrelu": lambda x, a, b: np.where(x > a, x, 0),
    "scaledtanh": lambda x, a, b: a * np.tanh(b * x),
    "hardsigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "elu": lambda x, a, b: np.where(x >= 0, x, a * np.expm1(x)),
    "softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "softplus": lambda x, a, b: np.logaddexp(0, x),
}
_TERMS: dict[str, Callable[[Term, float, float], Value]] = {
    "sigmoid": lambda x, a, b: t.logistic(x),
    "tanh": lambda x, a, b: t.tanh(x),
    "relu": lambda x, a, b: t.maximum(x, 0),
    "affine": lambda x, a, b: x * a + b,
    "leakyrelu": lambda x, a, b: t.where(x >= 0, x, x * a),
    "thresholdedrelu": lambda x, a, b: t.where(x > a, x, 0),
    "scaledtanh": lambda x, a, b: t.tanh(x * b) * a,
    "hardsigmoid": lambda x, a, b: t.clamp(0, x * a + b, 1),
    "elu": lambda x, a, b: t.where(x >= 0, x, x.map(Expm1()) * a),
    "softsign": lambda x, a, b: x / (x.map(Abs()) + 1),
    # max(x, 0) + log(1 + e^-|x|): no overflow
    "softplus": lambda x, a, b: _term(t.maximum(x, 0)) + t.exp(-x.map(Abs())).map(Log1p()),
}


@dataclass(frozen=True)
class Pass:
    """One direction: its index in W, R, b and the initial state, and whether it runs from the end."""

    index: int
    reverse: bool


@dataclass(frozen=True)
class Parameters:
    """One direction's operands, of rank reduced by the direction: r[G*H,H], b[2*G*H], h0[B,H], ... in f32 or f64."""

    w: Term
    r: Term
    b: Term
    states: tuple[Term, ...]
    peephole: Term | None


@dataclass(frozen=True)
class Recurrent(Op):
    """Base. Operands: x[S,B,I], w[D,G*H,I], r[D,G*H,H], b[D,2*G*H], one initial [D,B,H] per state, then the optional
    lengths[B] (has_lengths) and, for LSTM, peephole[D,3*H] (has_peephole). Results: y[S,D,B,H] and a last [D,B,H] per
    state. w and r may be narrower floats than x of f32.

    activations: of every gate function in turn, for each direction; () for the defaults. clip: the gates' inputs are
    clamped to [-clip, clip]. levels: the output before each step is rounded to 256 levels between its least and
    greatest elements, 0 among them (ONNX's DynamicQuantizeLinear), before it is multiplied with r. has_scales: r is of
    i8, and the last operand [D,G*H] is what its rows are multiplied with.
    """

    stored_weights: ClassVar[tuple[int, ...]] = (1, 2)
    gates: ClassVar[int] = 1
    states: ClassVar[int] = 1
    functions: ClassVar[tuple[Activation, ...]] = (TANH,)

    hidden: int
    direction: str = "forward"
    clip: float | None = None
    activations: tuple[Activation, ...] = ()
    has_lengths: bool = False
    levels: bool = False
    has_scales: bool = False

    # --- what a schedule asks

    def directions(self) -> tuple[Pass, ...]:
        """The passes over time."""
        if self.direction == "bidirectional":
            return Pass(0, False), Pass(1, True)
        return (Pass(0, self.direction == "reverse"),)

    def activation(self, index: int) -> tuple[Activation, ...]:
        """The gate functions of direction `index`."""
        count = len(self.functions)
        chosen = self.activations or self.functions * len(self.directions())
        return chosen[index * count : (index + 1) * count]

    def has_peepholes(self) -> bool:
        return False

    def parameters(self, inputs: Sequence[Node], index: int) -> Parameters:
        """The operands of one direction."""

        def part(node: Node) -> Term:
            x = t.floating(node)
            return x.slice(0, index, index + 1).reshape(x.shape[1:])

        _, w, r, b, *rest = inputs
        peephole = part(rest[self.states + self.has_lengths]) if self.has_peepholes() else None
        known = part(r).cast(f32) * part(rest[-1]).expand(1) if self.has_scales else part(r)
        return Parameters(part(w), known, part(b), tuple(part(s) for s in rest[: self.states]), peephole)

    def projection(self, x: Term, p: Parameters) -> Term:
        """[S,B,G*H]: what every step adds that does not depend on the state: x W^T + b_W (+ b_R where it only adds)."""
        width = self.gates * self.hidden
        bias = p.b.slice(0, 0, width)
        return t.contract(x, p.w, [(2, 1)]) + (bias + self.outer_bias(p))

    def outer_bias(self, p: Parameters) -> Term:
        """The part of b_R[G*H] that may be added outside the loop: all of it, unless a cell scales it."""
        width = self.gates * self.hidden
        return p.b.slice(0, width, 2 * width)

    def bias_inside(self) -> bool:
        """Whether the cell reads p.b."""
        return False

    def cell(self, index: int, row: Term, p: Parameters) -> tuple[Term, ...]:
        """The states after a step: `row` [B,G*H] of the projection, p.states before. The first state is the output."""
        raise NotImplementedError(f"{type(self).__name__}.cell")

    def step(self, index: int, row: Term, p: Parameters, valid: Term | None) -> tuple[Term, ...]:
        """(output, states...) of a step; where `valid` [B,1] is False the states stay and the output is 0."""
        new = self.cell(index, row, p)
        if valid is None:
            return new[0], *new
        kept = tuple(_term(t.where(valid, n, old)) for n, old in zip(new, p.states, strict=True))
        return _term(t.where(valid, new[0], 0.0)), *kept

    # --- the op

    def flops(self, *inputs: TensorType) -> DimLike:
        x, w, r = inputs[:3]
        return x.shape[0] * x.shape[1] * (w.size + r.size) * 2

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        self.expect(not self.levels or inputs[0].dtype == f32, f"levels: expected x of f32, got {inputs[0]}")
        self.expect(self.levels or not self.has_scales, "has_scales: expected levels of the state, too")
        count = 4 + self.states + self.has_lengths + self.has_peepholes() + self.has_scales
        self.expect(len(inputs) == count, f"expected {count} operands, got {len(inputs)}")
        choices = ("forward", "reverse", "bidirectional")
        self.expect(self.direction in choices, f"direction: expected one of {' '.join(choices)}, got {self.direction}")
        passes, h, width = len(self.directions()), self.hidden, self.gates * self.hidden
        wanted = passes * len(self.functions)
        self.expect(
            len(self.activations) in (0, wanted) and all(name in _TERMS for name, _, _ in self.activations),
            f"activations: expected {wanted} of {' '.join(_TERMS)}, got {self.activations}",
        )
        x, w, r, b, *rest = inputs
        self.expect(x.rank == 3, f"expected x [S,B,I], got {x}")
        steps, batch, features = x.shape
        state = (passes, batch, h)
        shapes: list[tuple[str, TensorType, tuple[DimLike, ...]]] = [
            ("w", w, (passes, width, features)),
            ("r", r, (passes, width, h)),
            ("b", b, (passes, 2 * width)),
            *(("state", s, state) for s in rest[: self.states]),
        ]
        if self.has_peepholes():
            shapes.append(("peephole", rest[self.states + self.has_lengths], (passes, 3 * h)))
        if self.has_scales:
            shapes.append(("scales", rest[-1], (passes, width)))
        for what, got, shape in shapes:
            if what == "r" and self.has_scales:
                self.expect(got == TensorType(i8, shape), f"r: expected {TensorType(i8, shape)}, got {got}")
                continue
            narrow = what in ("w", "r") and x.dtype == f32 and got.dtype.is_float and got.dtype.bits < 32
            self.expect(
                got == TensorType(got.dtype if narrow else x.dtype, shape),
                f"{what}: expected {TensorType(x.dtype, shape)} for x {x}, got {got}",
                next(((a, b) for a, b in zip(got.shape, shape, strict=False) if a != b), None),
            )
        self.expect(x.dtype.is_float, f"expected float operands, got {x}")
        if self.has_lengths:
            lengths = rest[self.states]
            fits = lengths.dtype.is_integer and lengths.shape == (batch,)
            self.expect(fits, f"lengths: expected integers [{batch}], got {lengths}")
        last = x.with_shape(state)
        return x.with_shape((steps, passes, batch, h)), *(last for _ in range(self.states))

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        dtype = dtype_of(inputs[0])
        x, w, r, b, *rest = (t.exact(v) for v in inputs)
        if self.has_scales:
            r = r * rest[-1][:, :, None]
        steps, batch, _ = x.shape
        lengths = rest[self.states] if self.has_lengths else np.full(batch, steps)
        y = np.zeros((steps, len(self.directions()), batch, self.hidden))
        last = [s.copy() for s in rest[: self.states]]
        for d in self.directions():
            peephole = rest[self.states + self.has_lengths][d.index] if self.has_peepholes() else None
            states = tuple(s[d.index] for s in last)
            for i in range(steps):
                at = steps - 1 - i if d.reverse else i
                new = self.compute(d.index, x[at] @ w[d.index].T, r[d.index], b[d.index], states, peephole)
                valid = (at < lengths)[:, None]
                states = tuple(np.where(valid, n, o) for n, o in zip(new, states, strict=True))
                y[at, d.index] = np.where(valid, new[0], 0)
            for s, final in zip(last, states, strict=True):
                s[d.index] = final
        return finish(y, dtype), *(finish(s, dtype) for s in last)

    def compute(
        self,
        index: int,
        row: np.ndarray,
        r: np.ndarray,
        b: np.ndarray,
        states: tuple[np.ndarray, ...],
        peephole: np.ndarray | None,
    ) -> tuple[np.ndarray, ...]:
        """`cell` in numpy; `row` is x W^T alone."""
        raise NotImplementedError(f"{type(self).__name__}.compute")

    def lower(self, *inputs: Node) -> tuple[Node, ...]:
        x = t.floating(inputs[0])
        lengths = Term(inputs[4 + self.states]).cast(i64) if self.has_lengths else None
        outputs: list[Term] = []
        finals: list[tuple[Term, ...]] = []
        for d in self.directions():
            y, *last = self._scan(d, self.projection(x, p := self.parameters(inputs, d.index)), p, lengths)
            outputs.append(y.expand(1))
            finals.append(tuple(s.expand(0) for s in last))
        results = [t.concat(outputs, 1), *(t.concat(parts, 0) for parts in zip(*finals, strict=True))]
        return tuple(v.cast(inputs[0].dtype).node for v in results)

    def _scan(self, d: Pass, rows: Term, p: Parameters, lengths: Term | None) -> list[Term]:
        """y[S,B,H] and the last states of one direction: a While over (step, steps, y, states, what the body reads)."""
        steps, batch, width = rows.shape
        count = Term(DimValue(steps)())
        y = t.full((steps, batch, self.hidden), 0.0, rows.dtype)
        if steps == 0:
            return [y, *p.states]
        optional = (p.b if self.bias_inside() else None, p.peephole, lengths)
        # weights that are known belong to the body, which packs them
        held = not any(isinstance(n.op, Input) for n in topological((p.r.node,)))
        weights = () if held else (p.r,)
        operands = [t.scalar(0, i64), count, y, *p.states, rows, *weights, *(v for v in optional if v is not None)]
        entry = tuple(Input(f"s{i}", v.node.type)() for i, v in enumerate(operands))
        step, total, out, *others = (Term(n) for n in entry)
        states, (values, *more) = others[: self.states], others[self.states :]
        rest = iter(more)
        r = p.r if held else next(rest)
        b, peephole, ends = (None if v is None else next(rest) for v in optional)
        zero = t.scalar(0, i64).node
        at = total - 1 - step if d.reverse else step
        row = Term(DynamicSlice((1, batch, width))(values.node, at.node, zero, zero)).reshape((batch, width))
        valid = None if ends is None else (at < ends).expand(1)
        inner = Parameters(p.w, r, p.b if b is None else b, tuple(states), peephole)
        value, *new = self.step(d.index, row, inner, valid)
        written = DynamicUpdateSlice()(out.node, value.expand(0).node, at.node, zero, zero)
        exit_ = ((step + 1).node, total.node, written, *(s.node for s in new), *entry[3 + self.states :])
        cond = Graph(entry, (Compare("LT")(step.node, total.node),))
        results = While(cond, Graph(entry, exit_))(*(v.node for v in operands)).results
        return [Term(n) for n in results[2 : 3 + self.states]]

    # --- shared by the cells

    def _split(self, x: Term, count: int) -> list[Term]:
        return [x.slice(x.rank - 1, i * self.hidden, (i + 1) * self.hidden) for i in range(count)]

    def _rounded(self, x: Term) -> Term:
        """What `levels` makes of x."""
        if not self.levels:
            return x
        levels, zero, scale = self.rounding(x)
        return (levels.cast(f32) - zero.spread(x.shape, ()).cast(f32)) * scale.spread(x.shape, ())

    def rounding(self, x: Term) -> tuple[Term, Term, Term]:
        """(u8 levels of x, their zero, their scale)."""
        axes = tuple(range(x.rank))
        low, high = (_term(fn(x.reduce(kind, axes, False), 0)) for fn, kind in ((t.minimum, "min"), (t.maximum, "max")))
        least = (high - low) / 255.0
        scale = _term(t.where(least.equals(0.0), 1.0, least))
        zero = _term(t.clamp(0, t.round_even(-low / scale), 255)).cast(u8)
        step, offset = scale.spread(x.shape, ()), zero.spread(x.shape, ())
        return Term(Quantize()(x.node, step.node, offset.node)), zero, scale

    def _levelled(self, x: np.ndarray) -> np.ndarray:
        """`_rounded` in numpy, the levels found in f32."""
        if not self.levels or not x.size:
            return x
        given = x.astype(np.float32)
        low, high = np.minimum(given.min(), 0), np.maximum(given.max(), 0)
        scale = (high - low) / np.float32(255) or np.float32(1)
        zero = np.clip(np.rint(-low / scale), 0, 255)
        return (np.clip(np.rint(given / scale) + zero, 0, 255) - zero) * np.float64(scale)

    def _clip(self, x: Term) -> Term:
        return x if self.clip is None else _term(t.clamp(-self.clip, x, self.clip))

    def _clipped(self, x: np.ndarray) -> np.ndarray:
        return x if self.clip is None else np.clip(x, -self.clip, self.clip)


def _apply(activation: Activation, x: Term) -> Term:
    name, alpha, beta = activation
    return _term(_TERMS[name](x, alpha, beta))


def _compute(activation: Activation, x: np.ndarray) -> np.ndarray:
    name, alpha, beta = activation
    return _NUMPY[name](x, alpha, beta)


@dataclass(frozen=True)
class LSTM(Recurrent):
    """Long short-term memory (Hochreiter and Schmidhuber 1997), gates in ONNX's order i o f c; states h, c.

        i = f(x Wi + h Ri + Pi c)   f likewise   c' = f c + i g(x Wc + h Rc)   o = f(x Wo + h Ro + Po c')   h' = o h(c')

    input_forget couples f = 1 - i. has_peephole: the last operand holds Pi, Po, Pf.
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
        i, o, f, g = self._split(row + t.contract(self._rounded(h), p.r, [(1, 1)]), 4)
        pi, po, pf = self._split(p.peephole, 3) if p.peephole is not None else (None, None, None)
        i = _apply(gate, self._clip(i if pi is None else i + c * pi))
        f = 1.0 - i if self.input_forget else _apply(gate, self._clip(f if pf is None else f + c * pf))
        new = f * c + i * _apply(update, self._clip(g))
        o = _apply(gate, self._clip(o if po is None else o + new * po))
        return o * _apply(output, new), new

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
        i, o, f, g = np.split(row + self._levelled(h) @ r.T + b[: b.size // 2] + b[b.size // 2 :], 4, axis=1)
        pi, po, pf = np.split(peephole, 3) if peephole is not None else (0, 0, 0)
        i = _compute(gate, self._clipped(i + pi * c))
        f = 1 - i if self.input_forget else _compute(gate, self._clipped(f + pf * c))
        new = f * c + i * _compute(update, self._clipped(g))
        return _compute(gate, self._clipped(o + po * new)) * _compute(output, new), new

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
            levels, scales = (_values(passes, 16, 4) * 127).astype(np.int8), abs(_values(passes, 16)) * np.float32(0.02)
            yield cls(4, direction, levels=True, has_scales=True), (*base[:2], levels, *base[3:], scales)
        yield cls(4), tuple(v.astype(np.float16) for v in _data(4, 2, 1))
        yield cls(4), tuple(v.astype(np.float64) for v in _data(4, 2, 1))
        functions = (("hardsigmoid", 0.2, 0.5), ("softsign", 0.0, 0.0), ("scaledtanh", 1.5, 0.7))
        yield cls(4, activations=functions), _data(4, 2, 1)
        yield cls(4), _data(4, 2, 1, steps=0)
        yield cls(4), _data(4, 2, 1, steps=1)


@dataclass(frozen=True)
class GRU(Recurrent):
    """Gated recurrent unit (Cho et al. 2014), gates in ONNX's order z r h; state h.

    h' = (1 - z) n + z h with n = g(x Wh + (r h) Rh + bias), or, with linear_before_reset (PyTorch, cuDNN),
    n = g(x Wh + b_Wh + r (h Rh + b_Rh)).
    """

    name: ClassVar[str] = "gru"
    gates: ClassVar[int] = 3
    functions: ClassVar[tuple[Activation, ...]] = (SIGMOID, TANH)
    linear_before_reset: bool = False

    def bias_inside(self) -> bool:
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
            inner = t.contract(h, p.r, [(1, 1)])
            (xz, xr, xn), (hz, hr, hn) = self._split(row, 3), self._split(inner, 3)
            z, r = _apply(gate, self._clip(xz + hz)), _apply(gate, self._clip(xr + hr))
            new = _apply(update, self._clip(xn + r * (hn + p.b.slice(0, 5 * n, 6 * n))))
        else:
            inner = t.contract(h, p.r.slice(0, 0, 2 * n), [(1, 1)])
            (xz, xr, xn), (hz, hr) = self._split(row, 3), self._split(inner, 2)
            z, r = _apply(gate, self._clip(xz + hz)), _apply(gate, self._clip(xr + hr))
            new = _apply(update, self._clip(xn + t.contract(r * h, p.r.slice(0, 2 * n, 3 * n), [(1, 1)])))
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
        (xz, xr, xn), (rz, rr, rn) = np.split(row, 3, axis=1), np.split(r, 3)
        wz, wr, wn, bz, br, bn = np.split(b, 6)
        z = _compute(gate, self._clipped(xz + wz + h @ rz.T + bz))
        reset = _compute(gate, self._clipped(xr + wr + h @ rr.T + br))
        inner = reset * (h @ rn.T + bn) if self.linear_before_reset else (reset * h) @ rn.T + bn
        return ((1 - z) * _compute(update, self._clipped(xn + wn + inner)) + z * h,)

    @classmethod
    def samples(cls) -> Samples:
        for direction, passes in (("forward", 1), ("reverse", 1), ("bidirectional", 2)):
            base = _data(3, 1, passes)
            for linear in (False, True):
                yield cls(4, direction, linear_before_reset=linear), base
                lengths = np.asarray([5, 1, 0], np.int64)
                yield cls(4, direction, 0.4, has_lengths=True, linear_before_reset=linear), (*base, lengths)
        yield cls(4), tuple(v.astype(np.float16) for v in _data(3, 1, 1))


@dataclass(frozen=True)
class RNN(Recurrent):
    """h' = f(x W + h R + b): the simple recurrent layer; f is activations[0], tanh unless told."""

    name: ClassVar[str] = "rnn"

    def cell(self, index: int, row: Term, p: Parameters) -> tuple[Term, ...]:
        (function,) = self.activation(index)
        return (_apply(function, self._clip(row + t.contract(p.states[0], p.r, [(1, 1)]))),)

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
        total = row + states[0] @ r.T + b[: b.size // 2] + b[b.size // 2 :]
        return (_compute(function, self._clipped(total)),)

    @classmethod
    def samples(cls) -> Samples:
        for direction, passes in (("forward", 1), ("reverse", 1), ("bidirectional", 2)):
            base = _data(1, 1, passes)
            yield cls(4, direction), base
            yield cls(4, direction, 0.4, has_lengths=True), (*base, np.asarray([5, 1, 0], np.int64))
        for name in _TERMS:
            yield cls(4, activations=((name, 0.7, 0.3),)), _data(1, 1, 1)


def _values(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype(np.float32)


def _data(gates: int, states: int, passes: int, steps: int = 5) -> tuple[np.ndarray, ...]:
    batch, features, hidden = 3, 2, 4
    width = gates * hidden
    initial = (_values(passes, batch, hidden) * (1 + i) for i in range(states))
    parameters = (_values(passes, width, features), _values(passes, width, hidden), _values(passes, 2 * width))
    return (_values(steps, batch, features), *parameters, *initial)


__all__ = ["GRU", "LSTM", "RNN", "SIGMOID", "TANH", "Activation", "Parameters", "Pass", "Recurrent"]
