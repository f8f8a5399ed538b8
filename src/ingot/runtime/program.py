"""The compiled program: what the compiler hands to the runtime, and what an artifact stores. Plain data.

    Program = symbols + inputs/outputs + state + buffers + steps + code blob + weights
    one call = bind symbols from the input shapes -> place buffers -> run the steps in order

A step runs `kernel(ptr bases, ptr args, i64 chunk, ptr scratch)` for 0 <= chunk < chunks, in any order, on any
thread; it starts when all chunks of the step before it are done. With `rounds`, chunks r * chunks to (r + 1) *
chunks - 1 make up round r, and a round starts when all chunks of the one before are done. `bases` holds the addresses
of the arena, the weights, the arguments, the results, the sizes and the table. `args` is the step's table of i64: for
its buffer i, args[2i] = index into bases and args[2i + 1] = byte offset; then one entry for each of its dims. A step
with a `target` is a jump.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from math import prod
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from ingot.runtime import dtypes, expr
from ingot.runtime.expr import Expr
from ingot.support.dataclass import dataclass
from ingot.support.errors import VerifyError
from ingot.support.native import Code, Features

_ALIGNMENT = 64  # of weights, in bytes
BufferKind: TypeAlias = Literal["arena", "weight", "input", "output", "size", "table"]


@dataclass(frozen=True)
class Symbol:
    """A dynamic dim, or a number that sizes depend on: lo <= value <= hi (None: no bound)."""

    name: str
    lo: int | None = 0
    hi: int | None = None


@dataclass(frozen=True)
class Size:
    """A size that steps find: i64 number i of the sizes is the i-th. lo <= value <= min(most, hi).

    most: over the symbols, and the sizes before it.
    """

    name: str
    lo: int
    most: Expr
    hi: int | None = None


@dataclass(frozen=True)
class TensorSpec:
    """An input or output: C-contiguous, dtype by Ingot's name ("f32").

    elements: of an input whose values are sizes, what they are, flattened; () for any other.
    """

    name: str
    dtype: str
    shape: tuple[Expr, ...]
    elements: tuple[Expr, ...] = ()

    def __str__(self) -> str:
        told = f" = [{', '.join(map(expr.show, self.elements))}]" if self.elements else ""
        return f"{self.name}: {self.dtype}[{', '.join(map(expr.show, self.shape))}]{told}"

    def __repr__(self) -> str:
        return f"TensorSpec({self})"

    @property
    def static_size(self) -> int | None:
        """How many elements it has; None where only a call tells."""
        sizes = [dim for dim in self.shape if isinstance(dim, int)]
        return prod(sizes) if len(sizes) == len(self.shape) else None


def zeros(nbytes: int) -> NDArray[np.uint8]:
    """So many bytes of zero, as one that is read again and again: moments of an optimizer start so."""
    return np.broadcast_to(np.uint8(0), nbytes)


@dataclass(frozen=True)
class State:
    """A tensor of fixed size that lasts from call to call. first: its bytes before the first call. copied: why a call
    writes its new value to memory of its own, which the next call reads; "" where it writes it over the old one."""

    spec: TensorSpec
    first: NDArray[np.uint8]
    copied: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(dim for dim in self.spec.shape if isinstance(dim, int))

    def starting(self, value: NDArray[np.generic] | None) -> State:
        """With another first value; None: with its own."""
        if value is None:
            return self
        if (value.dtype, value.shape) != (dtypes.numpy_dtype(self.spec.dtype), self.shape):
            raise VerifyError(
                f"state {self.spec}", expected="a first value of its type", got=(value.dtype, value.shape)
            )
        own = np.array(value, order="C").reshape(-1).view(np.uint8)
        return replace(self, first=own if own.any() else zeros(own.size))

    def check(self) -> None:
        nbytes = prod(map(abs, self.shape)) * dtypes.itemsize(self.spec.dtype)
        if len(self.shape) != len(self.spec.shape) or nbytes != self.first.nbytes:
            raise VerifyError(f"state {self.spec}", expected="a fixed size, and as many bytes", got=self.first.nbytes)


@dataclass(frozen=True)
class Buffer:
    """Memory that steps read and write.

    arena: placed by the runtime; lives from first_step to last_step, inclusive. weight: at byte `offset` of the
    weights. input/output: number `index` of the program's arguments or results. size: number `index` of the sizes that
    steps find. table: the steps' records and tables (`table_places`), which the step behind a size writes. halo: an
    arena buffer whose bytes are all `fill` when its program is bound and whose halo no step ever writes; it shares
    memory only with buffers of the same key, fill and size. alias: (buffer id, byte offset): a part of another buffer;
    needs no memory of its own. device: whose memory it is.
    """

    id: int
    kind: BufferKind
    nbytes: Expr
    first_step: int = 0
    last_step: int = 0
    offset: int = 0
    index: int = 0
    halo: str | None = None
    fill: int = 0
    alias: tuple[int, Expr] | None = None
    name: str = ""
    device: str = "cpu"


@dataclass(frozen=True)
class Step:
    """One kernel launch. args: (buffer id, byte offset) pairs. dims: the kernel's run-time sizes. chunks: of a round.
    device: what runs it; its kernel is in the code that is filed under that name.

    With a `target` it launches nothing but goes on at that step: if the byte that its argument names is 0, or, without
    an argument, always. The target may be the number of steps: the end. `dims` then holds the turns of the loop that is
    left, where they are known beforehand.
    """

    kernel: str
    args: tuple[tuple[int, Expr], ...]
    dims: tuple[Expr, ...] = ()
    chunks: Expr = 1
    label: str = ""
    rounds: Expr = 1
    target: int | None = None
    device: str = "cpu"


def table_places(steps: Sequence[Step]) -> Callable[[int, int], int]:
    """Where entries lie in the table of i64 that all steps share: (step, 0) -> its chunks, 1 -> rounds, 2 -> first dim.

    A record of 4 entries per step (see `targets/cpu/driver.py`), then for each step two per argument and its dims.
    """
    starts = [4 * len(steps)]
    for step in steps:
        starts.append(starts[-1] + 2 * len(step.args) + len(step.dims))

    def place(step: int, entry: int) -> int:
        return 4 * step + 2 + entry if entry < 2 else starts[step] + 2 * len(steps[step].args) + entry - 2

    return place


@dataclass(frozen=True)
class Program:
    """A whole compiled model. `weights` is uint8; a base address that is a multiple of 64 avoids a copy.

    code: by the name of the target that made it, which is that of the device that runs it. The first is the program's
    own: its device has the arena.
    conditions: expressions over the symbols and sizes that must not be negative.
    sizes: what steps find; buffers and results are as large as these may be. Offsets know none.
    state: what the kernels read as arguments behind the inputs, and write there, or anew as results before the outputs.
    scratch_bytes: private memory each thread needs, the maximum over the kernels. stages: name -> IR text, for
    `dump`. meta: what it was compiled from and for, for people.
    """

    symbols: tuple[Symbol, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    code: Mapping[str, Code]
    weights: NDArray[np.uint8]
    conditions: tuple[Expr, ...] = ()
    sizes: tuple[Size, ...] = ()
    state: tuple[State, ...] = ()
    scratch_bytes: int = 0
    stages: Mapping[str, str] = field(default_factory=lambda: dict[str, str]())
    meta: Mapping[str, str] = field(default_factory=lambda: dict[str, str]())

    @property
    def device(self) -> str:
        """The device that runs the program, and others for it where steps are for them."""
        return next(iter(self.code))

    @property
    def features(self) -> Features:
        """What the program's own device has to have."""
        return self.code[self.device].features

    @property
    def code_bytes(self) -> int:
        return sum(len(code.blob) for code in self.code.values())

    @property
    def arguments(self) -> tuple[TensorSpec, ...]:
        return (*self.inputs, *(s.spec for s in self.state))

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        return (*(s.spec for s in self.state), *self.outputs)

    def with_state(self, first: Mapping[str, NDArray[np.generic]]) -> Program:
        """This program with other first values of some of its state. Raises VerifyError for a name, dtype or shape that
        is not its."""
        if unknown := first.keys() - {s.spec.name for s in self.state}:
            what = f"state {sorted(unknown)}: the graph has to name it, as `Graph.state`"
            raise VerifyError(what, expected=[s.spec.name for s in self.state])
        return replace(self, state=tuple(s.starting(first.get(s.spec.name)) for s in self.state))

    def check(self) -> None:
        """Raise VerifyError unless ids, indices, lifetimes, extents, expressions and symbols fit together: in time
        linear in the plan, which may come from a file. `check_extents` checks what depends on a call's sizes.
        """
        _Check(self).run()

    def unwritten(self) -> list[TensorSpec]:
        """The results that no step writes, though they have elements: they would be what lies in memory."""
        by_id = {buffer.id: buffer for buffer in self.buffers}
        named = {identity for step in self.steps if step.target is None for identity, _ in step.args}
        roots = (by_id[alias[0]] if (alias := by_id[i].alias) else by_id[i] for i in named)
        written = {root.index for root in roots if root.kind == "output"}
        written.update(i for i, state in enumerate(self.state) if not state.copied)  # where the old value lies
        return [spec for i, spec in enumerate(self.results) if i not in written and 0 not in spec.shape]

    def check_extents(self, size: Callable[[Expr], int | None]) -> None:
        """Raise VerifyError unless each buffer lies in its memory, and what a step is given in its buffer. size: of an
        expression; None where it is not known yet."""
        itemsize, tensors = dtypes.itemsize, {"input": self.arguments, "output": self.results}
        rooms = {
            kind: [_product((itemsize(spec.dtype), *map(size, spec.shape))) for spec in specs]
            for kind, specs in tensors.items()
        }
        rooms["size"] = [8 * n for n in range(len(self.sizes), 0, -1)]
        held: dict[int, int | None] = {b.id: size(b.nbytes) for b in self.buffers}
        for buffer in self.buffers:
            nbytes, room, offset = held[buffer.id], None, 0
            if buffer.alias is not None:
                room, offset = held[buffer.alias[0]], size(buffer.alias[1])
            elif buffer.kind in rooms:
                room = rooms[buffer.kind][buffer.index]
            if nbytes is not None and room is not None and offset is not None and not 0 <= offset <= room - nbytes:
                got = f"{nbytes} behind byte {offset}"
                raise VerifyError(f"buffer {buffer.id} ({buffer.kind})", expected=f"at most {room} bytes", got=got)
        for number, step in enumerate(self.steps):
            for identity, at in step.args:
                offset, nbytes = size(at), held[identity]
                # a jump reads a byte
                if offset is not None and nbytes is not None and not 0 <= offset <= nbytes - (step.target is not None):
                    expected = f"an offset into the {nbytes} bytes of buffer {identity}"
                    raise VerifyError(f"step {number} ({step.label or step.kernel})", expected=expected, got=offset)


def _product(factors: tuple[int | None, ...]) -> int | None:
    known = [n for n in factors if n is not None]
    return prod(known) if len(known) == len(factors) else None


MOST_RANK = 64  # numpy's and torch's


class _Check:
    """The checks of a program. names: its symbols and sizes; fixed: its symbols."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.fixed = dict.fromkeys(symbol.name for symbol in program.symbols)
        self.names = dict(self.fixed)
        self.by_id = {buffer.id: buffer for buffer in program.buffers}
        self.counts = {
            "input": len(program.arguments), "output": len(program.results), "size": len(program.sizes), "table": 1,
        }  # fmt: skip

    def run(self) -> None:
        program = self.program
        if not program.code:
            raise VerifyError("program", expected="code for a device", got="none")
        if wrong := [name for name, code in program.code.items() if code.features.target_name != name]:
            raise VerifyError("program", expected="code under its target's name", got=wrong)
        if program.scratch_bytes < 0:
            raise VerifyError("program", expected="scratch of 0 bytes or more", got=program.scratch_bytes)
        self._symbols()
        for spec in (*program.arguments, *program.results):
            self._spec(spec)
        for condition in program.conditions:
            expr.check(condition, self.names, "a condition")
        if len(self.by_id) != len(program.buffers):
            raise VerifyError("program: two buffers have the same id")
        for buffer in program.buffers:
            self._buffer(buffer)
        for number, step in enumerate(program.steps):
            self._step(number, step)
        program.check_extents(lambda e: e if isinstance(e, int) else None)

    def _symbols(self) -> None:
        program = self.program
        if len(self.names) != len(program.symbols):
            raise VerifyError("program: a symbol is declared twice", got=[s.name for s in program.symbols])
        for state in program.state:
            state.check()
        for spec in program.arguments:
            for dim in (*spec.shape, *spec.elements):
                expr.check(dim, self.names, spec.name)
        told = [dim for spec in program.arguments for dim in (*spec.shape, *spec.elements)]
        bound = {line[0] for dim in told if (line := expr.linear_in(dim))}
        if missing := [name for name in self.names if name not in bound]:
            raise VerifyError("program: no input dim tells the symbol", got=missing)
        for size in program.sizes:
            expr.check(size.most, self.names, size.name)
            if size.name in self.names:
                raise VerifyError("program: a size is declared twice", got=size.name)
            self.names[size.name] = None

    def _spec(self, spec: TensorSpec) -> None:
        dtypes.itemsize(spec.dtype)
        if len(spec.shape) > MOST_RANK:
            raise VerifyError(spec.name, expected=f"at most {MOST_RANK} dims", got=len(spec.shape))
        for dim in (*spec.shape, *spec.elements):
            expr.check(dim, self.names, spec.name)
        if any(isinstance(dim, int) and dim < 0 for dim in spec.shape):
            raise VerifyError(f"{spec}", expected="dims of 0 or more")
        if spec.elements and (spec.dtype[0] not in "iu" or spec.static_size != len(spec.elements)):
            raise VerifyError(f"input {spec}", expected="integers, and an element for each")

    def _buffer(self, buffer: Buffer) -> None:
        where = f"buffer {buffer.id}"
        expr.check(buffer.nbytes, self.names, where)
        if buffer.kind not in get_args(BufferKind):
            raise VerifyError(where, expected=f"kind in {get_args(BufferKind)}", got=buffer.kind)
        if buffer.device not in self.program.code or not 0 <= buffer.fill < 256:
            raise VerifyError(where, expected="memory of a device that has code, filled with a byte", got=buffer)
        if isinstance(buffer.nbytes, int) and buffer.nbytes < 0:
            raise VerifyError(where, expected="a size of 0 or more", got=buffer.nbytes)
        if buffer.alias is not None:
            expr.check(buffer.alias[1], self.fixed, where)
            root = self.by_id.get(buffer.alias[0])
            if root is None or root.alias is not None:
                raise VerifyError(where, expected="an alias of a buffer that is none itself", got=buffer.alias[0])
            if root.kind != buffer.kind:
                raise VerifyError(where, expected=f"the kind of the buffer it aliases, {root.kind}", got=buffer.kind)
            return
        count = self.counts.get(buffer.kind)
        if count is not None and not 0 <= buffer.index < count:
            raise VerifyError(where, expected=f"an {buffer.kind} index below {count}", got=buffer.index)
        if buffer.kind == "weight":
            size, held = buffer.nbytes if isinstance(buffer.nbytes, int) else -1, self.program.weights.nbytes
            if size < 0 or buffer.offset < 0 or buffer.offset % _ALIGNMENT or buffer.offset + size > held:
                expected = f"an aligned, constant range of the {held} bytes of weights"
                raise VerifyError(where, expected=expected, got=buffer.offset)

    def _step(self, number: int, step: Step) -> None:
        where, program = f"step {number} ({step.label or step.kernel})", self.program
        if step.target is not None:
            if not 0 <= step.target <= len(program.steps) or len(step.args) > 1:
                raise VerifyError(where, expected="a step to go on at, and at most one flag", got=step.target)
        elif step.device not in program.code or step.kernel not in program.code[step.device].symbols:
            raise VerifyError(where, expected=f"a kernel of the code for {step.device}", got=repr(step.kernel))
        for item in (step.chunks, step.rounds, *step.dims):
            expr.check(item, self.names, where)
        for identity, offset in step.args:
            expr.check(offset, self.fixed, where)
            buffer = self.by_id.get(identity)
            if buffer is None:
                raise VerifyError(where, expected="a declared buffer", got=identity)
            root = buffer if buffer.alias is None else self.by_id[buffer.alias[0]]
            if root.kind == "arena" and not root.first_step <= number <= root.last_step:
                raise VerifyError(
                    where, expected=f"buffer {root.id} alive", got=f"steps {root.first_step}..{root.last_step}"
                )
