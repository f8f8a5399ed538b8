"""The base of recurrent layers: operands, directions, padded sequences, and the loop that they lower to.

The lowering computes x W^T + b for all steps as one contraction, then runs a While over steps. After the end of a
padded sequence (`lengths`) the state is unchanged and the output is zero; a reverse layer starts at that end.

Schedules that compile a layer as one kernel use `directions()`, the passes over time, `parameters(...)`, the operands
of one direction, `projection(...)`, the contraction outside the loop, and `step(...)`, the loop body without loads and
stores of rows.
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
    """One pass over time: its direction index in W, R, b and the initial state, and whether it runs backwards."""

    index: int
    reverse: bool


@dataclass(frozen=True)
class Parameters:
    """The operands of one direction, without the direction axis, in f32 or f64: r[G*H,H], b[2*G*H], states [B,H],
    ..."""

    w: Term
    r: Term
    b: Term
    states: tuple[Term, ...]
    peephole: Term | None


@dataclass(frozen=True)
class Recurrent(Op):
    """Base of recurrent layers: S steps, batch B, I inputs, H = `hidden`, D directions, G gates.

    Operands: x[S,B,I], w[D,G*H,I], r[D,G*H,H], b[D,2*G*H] (b_W, b_R), an initial [D,B,H] for each state, then
    lengths[B] (if has_lengths), for LSTM peephole[D,3*H] (if has_peephole), and scales[D,G*H] (if has_scales). Results:
    y[S,D,B,H] and the final [D,B,H] of each state. If x is f32, w and r may be narrower floats.

    direction: forward, reverse or bidirectional. activations: the functions of each direction in order; () for the
    defaults. clip: the inputs of the activations are clamped to [-clip, clip]. levels: before each step the output is
    quantized to 256 levels from its minimum to its maximum, including 0 (ONNX DynamicQuantizeLinear), for the product
    with r. has_scales: r is i8, and its rows are multiplied by the last operand, scales.
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

    # --- queries of schedules

    def directions(self) -> tuple[Pass, ...]:
        """The passes over time."""
        if self.direction == "bidirectional":
            return Pass(0, False), Pass(1, True)
        return (Pass(0, self.direction == "reverse"),)

    def activation(self, index: int) -> tuple[Activation, ...]:
        """The gate functions of direction `index`."""
        count = len(self.functions)
        activations = self.activations or self.functions * len(self.directions())
        return activations[index * count : (index + 1) * count]

    def has_peepholes(self) -> bool:
        return False

    def parameters(self, inputs: Sequence[Node], index: int) -> Parameters:
        """The operands of one direction."""

        def part(node: Node) -> Term:
            x = t.widen_narrow(node)
            return x.slice(0, index, index + 1).reshape(x.shape[1:])

        _, w, r, b, *remaining = inputs
        peephole = part(remaining[self.states + self.has_lengths]) if self.has_peepholes() else None
        r_weights = part(r).cast(f32) * part(remaining[-1]).expand(1) if self.has_scales else part(r)
        return Parameters(part(w), r_weights, part(b), tuple(part(s) for s in remaining[: self.states]), peephole)

    def projection(self, x: Term, p: Parameters) -> Term:
        """[S,B,G*H]: the part of all steps that is independent of the state, x W^T + b_W + outer_bias."""
        width = self.gates * self.hidden
        bias = p.b.slice(0, 0, width)
        return t.contract(x, p.w, [(2, 1)]) + (bias + self.outer_bias(p))

    def rounds_state(self) -> bool:
        """Whether the cell multiplies r by the unmodified state, so that `levels` can quantize the state."""
        return True

    def with_levels(self) -> Recurrent:
        """This layer for an i8 r, with the scales of its rows as the last operand."""
        return replace(self, levels=True, has_scales=True)

    def outer_bias(self, p: Parameters) -> Term:
        """The part of b_R[G*H] that can be added outside the loop: all of it, unless the cell scales it."""
        width = self.gates * self.hidden
        return p.b.slice(0, width, 2 * width)

    def cell_reads_bias(self) -> bool:
        """Whether the cell reads p.b."""
        return False

    def cell(self, index: int, row: Term, p: Parameters) -> tuple[Term, ...]:
        """The states after a step, from `row` [B,G*H] of the projection and p.states. The first state is the output."""
        raise NotImplementedError(f"{type(self).__name__}.cell")

    def step(self, index: int, row: Term, p: Parameters, valid: Term | None) -> tuple[Term, ...]:
        """(output, states...) after a step; where `valid` [B,1] is False, states are unchanged and the output is 0."""
        new = self.cell(index, row, p)
        if valid is None:
            return new[0], *new
        states = tuple(t.term(t.where(valid, n, old)) for n, old in zip(new, p.states, strict=True))
        return t.term(t.where(valid, new[0], 0.0)), *states

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
        n_functions = passes * len(self.functions)
        self.expect(
            len(self.activations) in (0, n_functions) and all(name in TERMS for name, _, _ in self.activations),
            f"activations: expected {n_functions} of {' '.join(TERMS)}, got {self.activations}",
        )
        x, w, r, b, *remaining = inputs
        self.expect(x.rank == 3, f"expected x [S,B,I], got {x}")
        steps, batch, features = x.shape
        state = (passes, batch, h)
        shapes: list[tuple[str, TensorType, tuple[DimLike, ...]]] = [
            ("w", w, (passes, width, features)),
            ("r", r, (passes, width, h)),
            ("b", b, (passes, 2 * width)),
            *(("state", s, state) for s in remaining[: self.states]),
        ]
        if self.has_peepholes():
            shapes.append(("peephole", remaining[self.states + self.has_lengths], (passes, 3 * h)))
        if self.has_scales:
            shapes.append(("scales", remaining[-1], (passes, width)))
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
            lengths = remaining[self.states]
            is_matching = lengths.dtype.is_integer and lengths.shape == (batch,)
            self.expect(is_matching, f"lengths: expected integers [{batch}], got {lengths}")
        final_state = x.with_shape(state)
        return x.with_shape((steps, passes, batch, h)), *(final_state for _ in range(self.states))

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        dtype = dtype_of(inputs[0])
        x, w, r, b, *remaining = (t.as_f64(v) for v in inputs)
        if self.has_scales:
            r = r * remaining[-1][:, :, None]
        steps, batch, _ = x.shape
        lengths = remaining[self.states] if self.has_lengths else np.full(batch, steps)
        y = np.zeros((steps, len(self.directions()), batch, self.hidden))
        final_states = [s.copy() for s in remaining[: self.states]]
        for d in self.directions():
            peephole = remaining[self.states + self.has_lengths][d.index] if self.has_peepholes() else None
            states = tuple(s[d.index] for s in final_states)
            for i in range(steps):
                time = steps - 1 - i if d.reverse else i
                new = self.compute(d.index, x[time] @ w[d.index].T, r[d.index], b[d.index], states, peephole)
                valid = (time < lengths)[:, None]
                states = tuple(np.where(valid, n, o) for n, o in zip(new, states, strict=True))
                y[time, d.index] = np.where(valid, new[0], 0)
            for s, final in zip(final_states, states, strict=True):
                s[d.index] = final
        return round_to(y, dtype), *(round_to(s, dtype) for s in final_states)

    def compute(
        self,
        index: int,
        row: np.ndarray,
        r: np.ndarray,
        b: np.ndarray,
        states: tuple[np.ndarray, ...],
        peephole: np.ndarray | None,
    ) -> tuple[np.ndarray, ...]:
        """`cell` in numpy; `row` is x W^T without biases."""
        raise NotImplementedError(f"{type(self).__name__}.compute")

    def lower(self, *inputs: Node) -> tuple[Node, ...]:
        x = t.widen_narrow(inputs[0])
        lengths = Term(inputs[4 + self.states]).cast(i64) if self.has_lengths else None
        outputs: list[Term] = []
        finals: list[tuple[Term, ...]] = []
        for d in self.directions():
            y, *final_states = self._scan(d, self.projection(x, p := self.parameters(inputs, d.index)), p, lengths)
            outputs.append(y.expand(1))
            finals.append(tuple(s.expand(0) for s in final_states))
        results = [t.concat(outputs, 1), *(t.concat(parts, 0) for parts in zip(*finals, strict=True))]
        return tuple(v.cast(inputs[0].dtype).node for v in results)

    def _scan(self, d: Pass, rows: Term, p: Parameters, lengths: Term | None) -> list[Term]:
        """y[S,B,H] and the final states of one direction: a While over (step, steps, y, states, invariants)."""
        steps, batch, width = rows.shape
        count = Term(DimValue(steps)())
        y = t.full((steps, batch, self.hidden), 0.0, rows.dtype)
        if steps == 0:
            return [y, *p.states]
        optional = (p.b if self.cell_reads_bias() else None, p.peephole, lengths)
        # constant weights stay in the body, where they are packed
        r_is_constant = not any(isinstance(n.op, Input) for n in topological((p.r.node,)))
        weights = () if r_is_constant else (p.r,)
        operands = [t.scalar(0, i64), count, y, *p.states, rows, *weights, *(v for v in optional if v is not None)]
        entry = tuple(Input(f"s{i}", v.node.type)() for i, v in enumerate(operands))
        step, total, out, *entry_values = (Term(n) for n in entry)
        states, (values, *invariants) = entry_values[: self.states], entry_values[self.states :]
        remaining = iter(invariants)
        r = p.r if r_is_constant else next(remaining)
        b, peephole, ends = (None if v is None else next(remaining) for v in optional)
        zero = t.scalar(0, i64).node
        time = total - 1 - step if d.reverse else step
        row = Term(DynamicSlice((1, batch, width))(values.node, time.node, zero, zero)).reshape((batch, width))
        valid = None if ends is None else (time < ends).expand(1)
        inner = Parameters(p.w, r, p.b if b is None else b, tuple(states), peephole)
        value, *new_states = self.step(d.index, row, inner, valid)
        next_out = DynamicUpdateSlice()(out.node, value.expand(0).node, time.node, zero, zero)
        exit_ = ((step + 1).node, total.node, next_out, *(s.node for s in new_states), *entry[3 + self.states :])
        cond = Graph(entry, (Compare("LT")(step.node, total.node),))
        results = While(cond, Graph(entry, exit_))(*(v.node for v in operands)).results
        return [Term(n) for n in results[2 : 3 + self.states]]

    # --- shared by the cells

    def _split(self, x: Term, count: int) -> list[Term]:
        return [x.slice(x.rank - 1, i * self.hidden, (i + 1) * self.hidden) for i in range(count)]

    def _quantize_state(self, x: Term) -> Term:
        """x quantized and dequantized if `levels`, else x."""
        if not self.levels:
            return x
        levels, zero, scale = self.rounding(x)
        return (levels.cast(f32) - zero.spread(x.shape, ()).cast(f32)) * scale.spread(x.shape, ())

    def rounding(self, x: Term) -> tuple[Term, Term, Term]:
        """(u8 levels of x, zero point, scale)."""
        axes = tuple(range(x.rank))
        low, high = (
            t.term(fn(x.reduce(kind, axes, False), 0)) for fn, kind in ((t.minimum, "min"), (t.maximum, "max"))
        )
        range_step = (high - low) / 255.0
        scale = t.term(t.where(range_step.equals(0.0), 1.0, range_step))
        zero = t.term(t.clamp(0, t.round_even(-low / scale), 255)).cast(u8)
        step, offset = scale.spread(x.shape, ()), zero.spread(x.shape, ())
        return Term(Quantize()(x.node, step.node, offset.node)), zero, scale

    def _quantize_state_reference(self, x: np.ndarray) -> np.ndarray:
        """`_quantize_state` in numpy; levels are computed in f32."""
        if not self.levels or not x.size:
            return x
        x32 = x.astype(np.float32)
        low, high = np.minimum(x32.min(), 0), np.maximum(x32.max(), 0)
        scale = (high - low) / np.float32(255) or np.float32(1)
        zero = np.clip(np.rint(-low / scale), 0, 255)
        return (np.clip(np.rint(x32 / scale) + zero, 0, 255) - zero) * np.float64(scale)

    def _clip(self, x: Term) -> Term:
        return x if self.clip is None else t.term(t.clamp(-self.clip, x, self.clip))

    def _clip_reference(self, x: np.ndarray) -> np.ndarray:
        return x if self.clip is None else np.clip(x, -self.clip, self.clip)
