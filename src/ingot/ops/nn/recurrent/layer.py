"""What recurrent layers share: their operands, passes over time, padded sequences, and the loop that they lower to.

The lowering computes x W^T + b for all steps as one contraction, then runs a While over steps. Padded sequences
(`lengths`) keep their state and give zeros beyond their end; a reverse layer starts at each sequence's own end.

For a schedule that keeps the layer whole: `directions()` names its passes over time, `parameters(...)` the operands of
one, `projection(...)` the contraction outside the loop, and `step(...)` everything inside it but the reading and
writing of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from ingot.ir.dims import DimLike
from ingot.ir.node import Graph, Input, Node, Op, topological
from ingot.ir.types import TensorType, dtype_of, f32, i8, i64, u8
from ingot.ops.core.base import round_to
from ingot.ops.core.binary import Compare
from ingot.ops.core.control import While
from ingot.ops.core.dynamic_slice import DynamicSlice, DynamicUpdateSlice
from ingot.ops.core.quantize import Quantize
from ingot.ops.core.source import DimValue
from ingot.ops.nn import terms as t
from ingot.ops.nn.recurrent.activations import TANH, TERMS, Activation
from ingot.ops.nn.terms import Term
from ingot.support.dataclass import dataclass


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

    def rounds_state(self) -> bool:
        """Whether the cell multiplies the state as it is with r, so that `levels` can round it."""
        return True

    def with_levels(self) -> Recurrent:
        """This layer with r in i8 and the scales of its rows as the last operand."""
        return replace(self, levels=True, has_scales=True)

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
        kept = tuple(t.term(t.where(valid, n, old)) for n, old in zip(new, p.states, strict=True))
        return t.term(t.where(valid, new[0], 0.0)), *kept

    # --- the op

    def flops(self, *inputs: TensorType) -> DimLike:
        x, w, r = inputs[:3]
        return x.shape[0] * x.shape[1] * (w.size + r.size) * 2

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        self.expect(not self.levels or inputs[0].dtype == f32, f"levels: expected x of f32, got {inputs[0]}")
        self.expect(
            not self.levels or self.rounds_state(), "levels: expected a cell that multiplies the state as it is"
        )
        self.expect(self.levels or not self.has_scales, "has_scales: expected levels of the state, too")
        count = 4 + self.states + self.has_lengths + self.has_peepholes() + self.has_scales
        self.expect(len(inputs) == count, f"expected {count} operands, got {len(inputs)}")
        choices = ("forward", "reverse", "bidirectional")
        self.expect(self.direction in choices, f"direction: expected one of {' '.join(choices)}, got {self.direction}")
        passes, h, width = len(self.directions()), self.hidden, self.gates * self.hidden
        wanted = passes * len(self.functions)
        self.expect(
            len(self.activations) in (0, wanted) and all(name in TERMS for name, _, _ in self.activations),
            f"activations: expected {wanted} of {' '.join(TERMS)}, got {self.activations}",
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
        return round_to(y, dtype), *(round_to(s, dtype) for s in last)

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
        low, high = (
            t.term(fn(x.reduce(kind, axes, False), 0)) for fn, kind in ((t.minimum, "min"), (t.maximum, "max"))
        )
        least = (high - low) / 255.0
        scale = t.term(t.where(least.equals(0.0), 1.0, least))
        zero = t.term(t.clamp(0, t.round_even(-low / scale), 255)).cast(u8)
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
        return x if self.clip is None else t.term(t.clamp(-self.clip, x, self.clip))

    def _clipped(self, x: np.ndarray) -> np.ndarray:
        return x if self.clip is None else np.clip(x, -self.clip, self.clip)
