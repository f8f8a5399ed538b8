"""The interpreter of kernel IR: runs a schedule's kernel with every access checked.

    run_kernel(kernel, {"A": a, "C": c}, {"s0": 7})     c now holds the result

It raises VerifyError for errors that native code does not detect: an access out of bounds, a read of memory that was
never written, a store to a param that is not writable, a data race between two chunks (unless an Increment orders
them), an integer division by zero, a shift by the width or more. It is slow: for tests on small sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial, reduce
from itertools import accumulate

import numpy as np

from ingot.ir import kernel as k
from ingot.ir.kernel.arithmetic import (
    ARITHMETIC,
    COMPARE,
    OF_LANES,
    SCALAR,
    UNARY,
    Value,
    convert,
    fma32,
    fma64,
    lanes_of,
    round_to,
    to_tf32,
    widen,
    wrap,
)
from ingot.ir.kernel.math.expand import expanded
from ingot.ir.kernel.show import show_expr
from ingot.ir.kernel.verify import children
from ingot.ir.types import dtype_of, i64
from ingot.support.dataclass import dataclass
from ingot.support.errors import VerifyError

NO_SPAN, MANY_SPANS = -1, -2


def run_kernel(
    kernel: k.Kernel,
    buffers: Mapping[str, np.ndarray],
    dims: Mapping[str, int] | None = None,
    *,
    order: Sequence[int] | None = None,
) -> None:
    """Run every chunk, each round in `order` (default: ascending), on `buffers`, which writable params change in place.

    Arrays are C-contiguous and of the params' dtypes; those with a size hold at least that many elements.
    """
    memory = {b.name: _param(b, buffers) for b in kernel.params}
    env: dict[str, Value] = {v.name: int((dims or {})[v.name]) for v in kernel.dims}
    machine = Machine(memory, env)
    with np.errstate(all="ignore"):
        count, rounds = map(int, _tape([kernel.chunks, kernel.rounds])(machine))
        body = _body(kernel.body)
        for first in range(0, count * rounds, max(count, 1)):
            for marks in (m for b in memory.values() for m in (b.writer, b.reader) if m is not None):
                marks[...] = NO_SPAN
            for b in memory.values():
                b.released.clear()
            machine.spans.clear()
            for chunk in range(count) if order is None else order:
                machine.chunk = first + chunk
                machine.finished = set()
                machine.begin_span()
                machine.env = {**env, kernel.chunk.name: first + chunk}
                machine.memory = dict(memory)
                body(machine)


@dataclass
class Memory:
    """One buffer. data: its elements, of registers rows of lanes. defined: which are written. writer, reader: the span
    (see `Machine`) that last accessed each. released: by element, the spans that had ended at its last increment."""

    buffer: k.Buffer
    data: np.ndarray
    defined: np.ndarray | None
    writer: np.ndarray | None = None
    reader: np.ndarray | None = None
    released: dict[int, set[int]] = field(default_factory=dict)


@dataclass
class Machine:
    """The state of a run. spans: the chunk of each span: a part of a chunk from its start or an Increment to the next
    one. finished: spans that certainly ended, and the current one: data that they wrote may be read."""

    memory: dict[str, Memory]
    env: dict[str, Value]
    chunk: int = NO_SPAN
    spans: list[int] = field(default_factory=list)
    finished: set[int] = field(default_factory=set)

    @property
    def span(self) -> int:
        return len(self.spans) - 1

    def begin_span(self) -> None:
        self.spans.append(self.chunk)
        self.finished.add(self.span)


def _param(b: k.Buffer, buffers: Mapping[str, np.ndarray]) -> Memory:
    if b.name not in buffers:
        raise VerifyError(f"param {b.name}", expected=f"an array among {sorted(buffers)}", got="none")
    array = buffers[b.name]
    if dtype_of(array) != b.dtype or not array.flags.c_contiguous or array.size < (b.size or 0):
        raise VerifyError(
            f"param {b.name}", expected=f"contiguous {b.dtype}[{b.size}]", got=f"{array.dtype}{list(array.shape)}"
        )
    flat = array.reshape(-1)[: b.size]
    if not b.writable:
        return Memory(b, flat, None)
    return Memory(b, flat, None, np.full(flat.size, NO_SPAN), np.full(flat.size, NO_SPAN))


# --- statements

Action = Callable[[Machine], None]


def _body(body: k.Body) -> Action:
    actions = [_statement(s) for s in body if not isinstance(s, k.Comment)]

    def run(m: Machine) -> None:
        for act in actions:
            act(m)

    return run


def _statement(s: k.Stmt) -> Action:
    match s:
        case k.For():
            return _loop(s)
        case k.If():
            return _if(s)
        case k.Let():
            return _let(s)
        case k.Store():
            return _store(s)
        case k.Alloc():
            return lambda m: _alloc(m, s.buffer)
        case k.Prefetch() | k.AwaitStores() | k.AwaitProducers() | k.ReleaseConsumers():
            return lambda m: None
        case k.Increment():
            return _increment(s)
    raise TypeError(f"unknown statement {type(s).__name__}")


def _loop(s: k.For) -> Action:
    limits, body, name = _tape([s.begin, s.end]), _body(s.body), s.var.name

    def run(m: Machine) -> None:
        begin, end = limits(m)
        outer = m.env
        for i in range(int(begin), int(end), s.step):
            m.env = {**outer, name: i}
            body(m)
        m.env = outer

    return run


def _if(s: k.If) -> Action:
    cond, then, orelse = _tape([s.cond]), _body(s.then), _body(s.orelse)

    def run(m: Machine) -> None:
        outer = m.env
        m.env = dict(outer)
        (then if cond(m)[0] else orelse)(m)
        m.env = outer

    return run


def _let(s: k.Let) -> Action:
    value, name = _tape([s.value]), s.var.name

    def run(m: Machine) -> None:
        m.env[name] = value(m)[0]

    return run


def _alloc(m: Machine, b: k.Buffer) -> None:
    shape = (b.size or 0, b.lanes) if b.space == "register" else (b.size or 0,)
    m.memory[b.name] = Memory(b, np.zeros(shape, b.dtype.numpy), np.zeros(b.size or 0, bool))


def _store(s: k.Store) -> Action:
    tape = _tape([s.index, s.value] if s.mask is None else [s.index, s.value, s.mask])
    lanes, name = s.value.lanes, s.buffer.name

    def run(m: Machine) -> None:
        index, value, *mask = tape(m)
        memory = _memory(m, name)
        indices = _element_indices(memory, index, lanes, mask[0] if mask else None, "store", s.index)
        if not memory.buffer.writable and memory.buffer.space == "param":
            raise VerifyError(f"store {name}[{indices}]", expected="a writable buffer")
        if memory.defined is not None:
            memory.defined[indices] = True
        _record_write(m, memory, indices)
        if memory.buffer.space == "register" or lanes == 1:
            memory.data[indices] = value
        else:
            memory.data[indices] = np.asarray(value)[_active_lanes(mask[0])] if mask else value

    return run


def _increment(s: k.Increment) -> Action:
    tape, name = _tape([s.index]), s.buffer.name

    def run(m: Machine) -> None:
        (index,) = tape(m)
        memory = _memory(m, name)
        indices = _element_indices(memory, index, 1, None, "increment", s.index)
        m.env[s.var.name] = int(memory.data[indices])
        memory.data[indices] += 1
        m.finished |= memory.released.get(int(index), set())
        memory.released[int(index)] = set(m.finished)
        m.begin_span()

    return run


# --- memory


def _memory(m: Machine, name: str) -> Memory:
    memory = m.memory.get(name)
    if memory is None:
        raise VerifyError(f"buffer {name}", expected="a param or an allocated buffer", got="neither")
    return memory


def _active_lanes(mask: Value) -> np.ndarray:
    return np.flatnonzero(np.atleast_1d(np.asarray(mask)))


def _element_indices(
    memory: Memory, index: Value, lanes: int, mask: Value | None, action: str, source: k.Expr
) -> int | slice | np.ndarray:
    """The indices of the elements that an access touches, after checking their bounds."""
    size = len(memory.data)
    if isinstance(index, int) and mask is None:
        count = 1 if memory.buffer.space == "register" else lanes
        if index >= 0 and index + count <= size:
            return index if count == 1 else slice(index, index + count)
        indices = np.arange(index, index + count)
    else:
        indices = index + np.arange(lanes) if isinstance(index, int) else np.asarray(index)
        if mask is not None:
            indices = indices[_active_lanes(mask)]
    if indices.size and not (indices.min() >= 0 and indices.max() < size):
        access = f"{action} {memory.buffer.name}[{show_expr(source)}]"
        raise VerifyError(access, expected=f"elements in [0, {size})", got=indices.tolist())
    return indices


def _record_write(m: Machine, memory: Memory, indices: int | slice | np.ndarray) -> None:
    if memory.writer is None or memory.reader is None:
        return
    for last_spans, verb in ((memory.writer, "writes"), (memory.reader, "reads")):
        others = _other_chunks(m, last_spans, indices)
        if others:
            problem = f"chunk {m.chunk} stores to {memory.buffer.name} what chunk {others[0]} {verb}"
            raise VerifyError(problem, fix="chunks run in any order: give each its own elements")
    memory.writer[indices] = m.span


def _other_chunks(m: Machine, last_spans: np.ndarray, indices: int | slice | np.ndarray) -> list[int | str]:
    """The chunks that touched these elements in a span that has not certainly ended."""
    spans_seen = np.atleast_1d(last_spans[indices])
    spans = set(spans_seen[(spans_seen != NO_SPAN) & (spans_seen != m.span)].tolist()) - m.finished
    return [m.spans[s] if s != MANY_SPANS else "among others" for s in spans]


def _record_read(m: Machine, memory: Memory, indices: int | slice | np.ndarray, source: k.Expr) -> None:
    if memory.defined is not None and not np.all(memory.defined[indices]):
        raise VerifyError(f"load {memory.buffer.name}[{show_expr(source)}]", expected="defined elements", got=indices)
    if memory.writer is None or memory.reader is None:
        return
    others = _other_chunks(m, memory.writer, indices)
    if others:
        problem = f"chunk {m.chunk} loads from {memory.buffer.name} what chunk {others[0]} writes"
        raise VerifyError(problem, fix="chunks run in any order: one must not need another's result")
    readers = memory.reader[indices]
    memory.reader[indices] = np.where((readers == NO_SPAN) | np.isin(readers, list(m.finished)), m.span, MANY_SPANS)


# --- expressions

Step = Callable[..., Value]
TileExpr = k.Spread | k.Transposed | k.ReduceAxis | k.ScanAxis | k.TileProduct


def _tape(roots: Sequence[k.Expr]) -> Callable[[Machine], list[Value]]:
    """Compile `roots`: every expression once (they are shared), operands first."""
    slots: dict[int, int] = {}
    steps: list[tuple[Step, list[int]]] = []

    def slot(e: k.Expr) -> int:
        if id(e) not in slots:
            operands = [slot(c) for c in children(e)]
            steps.append((_step(e), operands))
            slots[id(e)] = len(steps) - 1
        return slots[id(e)]

    results = [slot(e) for e in expanded(roots)]

    def run(m: Machine) -> list[Value]:
        values: list[Value] = []
        for fn, operands in steps:
            values.append(fn(m, *(values[i] for i in operands)))
        return [values[i] for i in results]

    return run


def _step(e: k.Expr) -> Step:
    match e:
        case k.Lit():
            value = _literal(e)
            return lambda m: value
        case k.Var():
            return _variable(e.name)
        case k.Unary():
            return _lift(UNARY[e.fn], e)
        case k.Binary():
            return _binary(e)
        case k.Fma():
            fused = fma32 if e.dtype.bits <= 32 else fma64
            return _lift(fused if e.dtype.is_float else lambda a, b, c: a * b + c, e)
        case k.Dot() | k.QuadProduct() | k.LaneSums():
            return _lift(partial(OF_LANES[type(e)], e), e)
        case k.Select():
            return _select(e)
        case k.Cast():
            return lambda m, a: round_to(convert(widen(a, e.a), e.dtype), e)
        case k.Bitcast():
            return lambda m, a: round_to(lanes_of(a, e.a).view(e.dtype.numpy), e)
        case k.Splat():
            return lambda m, a: np.full(e.lanes, a, e.dtype.numpy)
        case k.Ramp():
            return lambda m, a: wrap(np.array([int(a) + i * e.step for i in range(e.lanes)], object), e.dtype)
        case k.Load() | k.Gather():
            return _load(e)
        case k.TileLoad():
            return _load_tile(e)
        case k.Reduce():
            return _reduce(e)
        case k.Shuffle():
            return lambda m, a, b: round_to(np.concatenate([lanes_of(a, e.a), lanes_of(b, e.b)])[list(e.indices)], e)
        case k.Extract():
            return lambda m, a: round_to(lanes_of(a, e.a)[e.lane : e.lane + 1], e)
        case k.Range():
            values = round_to(np.arange(e.lanes), e)
            return lambda m: values
        case k.Spread() | k.Transposed() | k.ReduceAxis() | k.ScanAxis() | k.TileProduct():
            return _tile_step(e)
        case k.Either():
            return lambda m, a, b: a
        case k.Lookup():
            table = np.array(e.table, e.dtype.numpy)
            return lambda m, at: round_to(table[lanes_of(at, e.index) & (len(table) - 1)], e)
    raise TypeError(f"unknown expression {type(e).__name__}")


def _literal(e: k.Lit) -> Value:
    return round_to(np.full(e.lanes, e.value, e.dtype.numpy), e)


def _variable(name: str) -> Step:
    def read(m: Machine) -> Value:
        if name not in m.env:
            raise VerifyError(f"variable {name}", expected="one that is bound before its use", got=sorted(m.env))
        return m.env[name]

    return read


def _lift(fn: Callable[..., np.ndarray], e: k.Expr) -> Step:
    operands = children(e)

    def run(m: Machine, *values: Value) -> Value:
        return round_to(fn(*(widen(v, o) for v, o in zip(values, operands, strict=True))), e)

    return run


def _binary(e: k.Binary) -> Step:
    if e.a.dtype == i64 and e.lanes == 1 and e.tile is None and e.fn in SCALAR:
        fast = SCALAR[e.fn]

        def scalar(m: Machine, a: int, b: int) -> Value:
            value = fast(a, b)
            return (value + 2**63) % 2**64 - 2**63 if not -(2**63) <= value < 2**63 else value

        return scalar
    return _lift(COMPARE[e.fn] if e.fn in k.COMPARE else ARITHMETIC[e.fn], e)


def _select(e: k.Select) -> Step:
    def run(m: Machine, c: Value, a: Value, b: Value) -> Value:
        if e.cond.lanes == 1:
            return a if c else b
        return np.where(lanes_of(c, e.cond), lanes_of(a, e.a), lanes_of(b, e.b))

    return run


def _load(e: k.Load | k.Gather) -> Step:
    name, lanes = e.buffer.name, e.lanes

    def run(m: Machine, index: Value, *mask: Value) -> Value:
        memory = _memory(m, name)
        indices = _element_indices(memory, index, lanes, mask[0] if mask else None, "load", e.index)
        _record_read(m, memory, indices, e.index)
        if memory.buffer.space == "register":
            return round_to(memory.data[indices].copy(), e)
        if not mask:
            return round_to(np.atleast_1d(memory.data[indices]).copy(), e)
        out = np.zeros(lanes, e.dtype.numpy)
        out[_active_lanes(mask[0])] = memory.data[indices]
        return round_to(out, e)

    return run


def _load_tile(e: k.TileLoad) -> Step:
    matrix, name = e.buffer.matrix, e.buffer.name
    assert matrix is not None and e.tile is not None
    row_offsets, column_offsets = (np.arange(n) for n in e.tile)

    def run(m: Machine, row: int, column: int) -> Value:
        rows, columns = row + row_offsets[:, None], column + column_offsets
        inside = (rows >= 0) & (rows < matrix.rows) & (columns >= 0) & (columns < matrix.columns)
        memory, index = _memory(m, name), np.ravel(matrix.offset + rows * matrix.stride + columns)
        indices = _element_indices(memory, index, e.lanes, np.ravel(inside), "load", e.row)
        _record_read(m, memory, indices, e.row)
        out = np.zeros(e.lanes, e.dtype.numpy)
        out[np.ravel(inside)] = memory.data[indices]
        return round_to(out, e)

    return run


def _reduce(e: k.Reduce) -> Step:
    fn = ARITHMETIC[e.fn]

    def combine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        out = k.Expr(e.dtype, len(a))
        return widen(round_to(fn(a, b), out), out)

    def run(m: Machine, a: Value) -> Value:
        values = widen(a, e.a)
        rest: list[np.ndarray] = []
        while len(values) > 1:  # halves are combined until one lane is left; an odd lane joins at the end
            half = len(values) // 2
            rest += [values[2 * half :]] if len(values) % 2 else []
            values = combine(values[:half], values[half : 2 * half])
        return round_to(reduce(combine, rest, values), e)

    return run


def _tile_step(e: TileExpr) -> Step:
    """Values are vectors of lanes; tile operations see them as two-dimensional arrays."""
    fn, operands = _tile_function(e), children(e)

    def run(m: Machine, *values: Value) -> Value:
        tiles = (widen(v, o).reshape(o.tile or -1) for v, o in zip(values, operands, strict=True))
        return round_to(np.ravel(fn(*tiles)), e)

    return run


def _tile_function(e: TileExpr) -> Callable[..., np.ndarray]:
    match e:
        case k.Spread():
            return partial(np.broadcast_to, shape=e.tile or ())
        case k.Transposed():
            return np.transpose
        case k.ReduceAxis():
            return lambda a: reduce(ARITHMETIC[e.fn], np.moveaxis(a, e.axis, 0))
        case k.ScanAxis():
            return lambda a: np.stack([*accumulate(np.moveaxis(a, e.axis, 0), ARITHMETIC[e.fn])], e.axis)
    read = to_tf32 if isinstance(e, k.TileProduct) and e.tf32 else np.asarray
    return lambda a, b, c: c + read(a.astype(c.dtype)) @ read(b.astype(c.dtype))
