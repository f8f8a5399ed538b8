"""The compiled program: the plain data that the compiler passes to the runtime and an artifact stores.

    Program = symbols + inputs/outputs + state + buffers + steps + code blob + weights
    one call = bind symbols from the input shapes -> place buffers -> run the steps in order

A step runs `kernel(ptr bases, ptr args, i64 chunk, ptr scratch)` for 0 <= chunk < chunks, in any order, on any
thread. It starts when all chunks of the previous step are done. With `rounds`, chunks r * chunks to (r + 1) *
chunks - 1 make up round r, and a round starts when all chunks of the previous round are done. `bases` holds the
addresses of the arena, the weights, the arguments, the results, the sizes and the table. `args` is the step's table of
i64: args[2i] is the index into bases of its buffer i, and args[2i + 1] the byte offset; one entry for each of its dims
follows. A step with a `target` is a jump.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from math import prod
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from ingot.runtime import dtypes, expr
from ingot.runtime.cpu.host_call import HostCall as HostCall
from ingot.runtime.expr import Expr
from ingot.support.dataclass import dataclass
from ingot.support.errors import ArtifactError, VerifyError
from ingot.support.native import Code, Features

WEIGHT_ALIGNMENT = 64  # of weights, in bytes
BufferKind: TypeAlias = Literal["arena", "weight", "input", "output", "size", "table"]


@dataclass(frozen=True)
class Symbol:
    """A dynamic dim, or a number that sizes depend on: lo <= value <= hi (None: unbounded)."""

    name: str
    lo: int | None = 0
    hi: int | None = None


@dataclass(frozen=True)
class Size:
    """A size that a step computes, stored as an i64 at its index among the sizes: lo <= value <= min(bound, hi).

    bound: an expression over the symbols and the preceding sizes.
    """

    name: str
    lo: int
    bound: Expr
    hi: int | None = None


@dataclass(frozen=True)
class TensorSpec:
    """An input or output: C-contiguous. dtype: Ingot's name for it ("f32").

    elements: for an input whose elements are sizes, their expressions, flattened; () for any other.
    """

    name: str
    dtype: str
    shape: tuple[Expr, ...]
    elements: tuple[Expr, ...] = ()

    def __str__(self) -> str:
        elements = f" = [{', '.join(map(expr.show, self.elements))}]" if self.elements else ""
        return f"{self.name}: {self.dtype}[{', '.join(map(expr.show, self.shape))}]{elements}"

    def __repr__(self) -> str:
        return f"TensorSpec({self})"

    @property
    def static_size(self) -> int | None:
        """The number of elements; None if it depends on the call."""
        sizes = [dim for dim in self.shape if isinstance(dim, int)]
        return prod(sizes) if len(sizes) == len(self.shape) else None


def zeros(nbytes: int) -> NDArray[np.uint8]:
    """`nbytes` zeros, stored as a single broadcast byte: the moments of an optimizer start as zeros."""
    return np.broadcast_to(np.uint8(0), nbytes)


@dataclass(frozen=True)
class State:
    """A tensor of fixed size that is kept from call to call.

    initial: its bytes before the first call. copy_reason: the reason why a call writes the new value to separate
    memory, which the next call reads; "" if it updates the value in place.
    """

    spec: TensorSpec
    initial: NDArray[np.uint8]
    copy_reason: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(dim for dim in self.spec.shape if isinstance(dim, int))

    def with_initial(self, value: NDArray[np.generic] | None) -> State:
        """This state with another initial value; None: unchanged."""
        if value is None:
            return self
        if (value.dtype, value.shape) != (dtypes.numpy_dtype(self.spec.dtype), self.shape):
            raise VerifyError(
                f"state {self.spec}", expected="an initial value of its type", got=(value.dtype, value.shape)
            )
        data = np.array(value, order="C").reshape(-1).view(np.uint8)
        return replace(self, initial=data if data.any() else zeros(data.size))

    def check(self) -> None:
        nbytes = prod(map(abs, self.shape)) * dtypes.itemsize(self.spec.dtype)
        if len(self.shape) != len(self.spec.shape) or nbytes != self.initial.nbytes:
            raise VerifyError(f"state {self.spec}", expected="a fixed size of as many bytes", got=self.initial.nbytes)


@dataclass(frozen=True)
class Buffer:
    """Memory that steps read and write.

    arena: placed by the runtime; live from first_step to last_step, inclusive. weight: at byte `offset` of the weights.
    input/output: number `index` of the program's arguments or results. size: number `index` of the sizes that steps
    compute. table: the steps' records and tables (`table_offsets`), which the step after a size updates. halo: the key
    of an arena buffer whose bytes are all `fill` when its program is bound, and whose halo no step ever writes; it
    shares memory only with buffers of the same key, fill and size. alias: (buffer id, byte offset) of the buffer that
    this one is a part of; it needs no memory of its own. device: the device that has its memory.
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


CollectiveKind: TypeAlias = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute"]
_MAX_RANKS = 1 << 16


@dataclass(frozen=True)
class Collective:
    """An exchange of contiguous tensors between the devices of a group; parts of several devices follow each other in
    the order of the group. groups: of ranks, all of one size. dtype: of the elements. reduction: sum, prod, max or min
    for those that reduce. shift: of a permutation: member i receives the tensor of member i - shift."""

    kind: CollectiveKind
    groups: tuple[tuple[int, ...], ...]
    dtype: str
    reduction: str = ""
    shift: int = 0

    def __str__(self) -> str:
        return f"{self.kind}{f' {self.reduction}' if self.reduction else ''} of {len(self.groups[0])} devices"

    def group_of(self, rank: int) -> tuple[int, ...]:
        """The group with this rank. Raises ArtifactError if there is none."""
        group = next((group for group in self.groups if rank in group), None)
        if group is None:
            raise ArtifactError(f"{self}", expected=f"a group with rank {rank}", got=self.groups)
        return group

    def result_count(self, count: int) -> int:
        """The elements of the result for an operand of `count` elements."""
        size = len(self.groups[0])
        return count * size if self.kind == "all_gather" else count // size if self.kind == "reduce_scatter" else count

    def check(self, where: str) -> None:
        members = [rank for group in self.groups for rank in group]
        is_valid = (
            self.kind in get_args(CollectiveKind)
            and bool(members)
            and len({len(group) for group in self.groups}) == 1
            and len({*members}) == len(members) <= _MAX_RANKS
            and min(members) >= 0
            and (self.reduction in ("sum", "prod", "max", "min")) == (self.kind in ("all_reduce", "reduce_scatter"))
        )
        if not is_valid:
            raise VerifyError(where, expected="a collective of groups of one size", got=self)
        dtypes.itemsize(self.dtype)


@dataclass(frozen=True)
class Step:
    """One kernel launch. args: (buffer id, byte offset) pairs. dims: the kernel's run-time sizes. chunks: the chunks of
    a round. device: the device that runs it, whose code has the kernel.

    A step with a `target` is a jump to that step: taken if the byte at its argument is 0, or always if it has no
    argument. The target may be the number of steps, which is the end. For the exit of a loop, `dims` holds the trip
    count if it is known before the loop starts.

    A step with a `collective` exchanges the tensor at its first argument, and stores the result at its second. Its only
    dim is the number of elements of the first.

    A step with a `host` calls a function with the tensors at its arguments, operands first; dims: the sizes of all
    their axes.
    """

    kernel: str
    args: tuple[tuple[int, Expr], ...]
    dims: tuple[Expr, ...] = ()
    chunks: Expr = 1
    label: str = ""
    rounds: Expr = 1
    target: int | None = None
    device: str = "cpu"
    collective: Collective | None = None
    host: HostCall | None = None


def table_offsets(steps: Sequence[Step]) -> Callable[[int, int], int]:
    """A function from (step, entry) to an offset in the table of i64 that all steps share.

    Entry 0 is the step's chunks, 1 its rounds, 2 its first dim. The table has a record of 4 items for each step (see
    `targets/cpu/driver.py`), then for each step two items for each argument, and its dims.
    """
    starts = [4 * len(steps)]
    for step in steps:
        starts.append(starts[-1] + 2 * len(step.args) + len(step.dims))

    def offset(step: int, entry: int) -> int:
        return 4 * step + 2 + entry if entry < 2 else starts[step] + 2 * len(steps[step].args) + entry - 2

    return offset


@dataclass(frozen=True)
class Program:
    """A complete compiled model. `weights` is uint8; a base address that is a multiple of 64 avoids a copy.

    code: by the name of the target that generated it, which is also the name of the device that runs it. The first
    entry is for the program's own device, which has the arena.
    conditions: expressions over the symbols and sizes that must not be negative.
    sizes: the sizes that steps compute. Buffers and results are allocated for their upper bounds; offsets do not depend
    on them.
    state: the kernels read it as arguments after the inputs, and update it in place or write it as results before the
    outputs.
    scratch_bytes: the private memory of a thread, the maximum over the kernels.
    stages: name -> IR text, for `dump`.
    meta: readable notes on the source and the target of the compilation.
    others: further programs by name, whose weights are part of this one's.
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
    others: Mapping[str, Program] = field(default_factory=lambda: dict[str, Program]())

    @property
    def device(self) -> str:
        """The device that runs the program; steps of other devices run on its behalf."""
        return next(iter(self.code))

    @property
    def is_on_gpu(self) -> bool:
        return self.device in ("cuda", "hip")

    @property
    def features(self) -> Features:
        """The features that the program's own device must have."""
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

    def with_state(self, initial: Mapping[str, NDArray[np.generic]]) -> Program:
        """This program with other initial values for some of its state. Raises VerifyError for a name, dtype or shape
        that does not match."""
        if unknown := initial.keys() - {s.spec.name for s in self.state}:
            where = f"state {sorted(unknown)}: the graph has to name it, as `Graph.state`"
            raise VerifyError(where, expected=[s.spec.name for s in self.state])
        return replace(self, state=tuple(s.with_initial(initial.get(s.spec.name)) for s in self.state))

    def check(self) -> None:
        """Raise VerifyError unless ids, indices, lifetimes, extents, expressions and symbols are consistent. It takes
        time linear in the plan, which may come from a file. `check_extents` checks what depends on a call's sizes.
        """
        _Checker(self).run()

    def unwritten_results(self) -> list[TensorSpec]:
        """The non-empty results that no step writes: they would be uninitialized memory."""
        by_id = {buffer.id: buffer for buffer in self.buffers}
        used = {identity for step in self.steps if step.target is None for identity, _ in step.args}
        roots = (by_id[alias[0]] if (alias := by_id[i].alias) else by_id[i] for i in used)
        written_indices = {root.index for root in roots if root.kind == "output"}
        written_indices.update(
            i for i, state in enumerate(self.state) if not state.copy_reason
        )  # they keep the old value
        return [spec for i, spec in enumerate(self.results) if i not in written_indices and 0 not in spec.shape]

    def check_extents(self, size: Callable[[Expr], int | None]) -> None:
        """Raise VerifyError unless each buffer is within its memory, and each step argument within its buffer. size:
        evaluates an expression; None if its value is not known yet."""
        itemsize, tensors = dtypes.itemsize, {"input": self.arguments, "output": self.results}
        capacities = {
            kind: [_product((itemsize(spec.dtype), *map(size, spec.shape))) for spec in specs]
            for kind, specs in tensors.items()
        }
        capacities["size"] = [8 * n for n in range(len(self.sizes), 0, -1)]
        buffer_bytes: dict[int, int | None] = {b.id: size(b.nbytes) for b in self.buffers}
        for buffer in self.buffers:
            nbytes, capacity, offset = buffer_bytes[buffer.id], None, 0
            if buffer.alias is not None:
                capacity, offset = buffer_bytes[buffer.alias[0]], size(buffer.alias[1])
            elif buffer.kind in capacities:
                capacity = capacities[buffer.kind][buffer.index]
            if (
                nbytes is not None
                and capacity is not None
                and offset is not None
                and not 0 <= offset <= capacity - nbytes
            ):
                got = f"{nbytes} bytes at offset {offset}"
                raise VerifyError(f"buffer {buffer.id} ({buffer.kind})", expected=f"at most {capacity} bytes", got=got)
        for number, step in enumerate(self.steps):
            exchanged = _exchanged_bytes(step, size) or (step.host and step.host.tensor_bytes([*map(size, step.dims)]))
            for i, (identity, offset_expr) in enumerate(step.args):
                offset, nbytes = size(offset_expr), buffer_bytes[identity]
                # a jump reads a byte
                accessed = exchanged[i] if exchanged else int(step.target is not None)
                if offset is not None and nbytes is not None and not 0 <= offset <= nbytes - accessed:
                    expected = f"an offset into the {nbytes} bytes of buffer {identity}"
                    raise VerifyError(f"step {number} ({step.label or step.kernel})", expected=expected, got=offset)


def _exchanged_bytes(step: Step, size: Callable[[Expr], int | None]) -> tuple[int, int] | None:
    """The bytes that a collective reads and writes; None for other steps, and for a size that is not known yet."""
    collective, count = step.collective, size(step.dims[0]) if step.collective is not None else None
    if collective is None or count is None:
        return None
    if count < 0 or (collective.kind == "reduce_scatter" and count % len(collective.groups[0])):
        raise VerifyError(str(collective), expected="equal parts of 0 elements or more", got=count)
    itemsize = dtypes.itemsize(collective.dtype)
    return count * itemsize, collective.result_count(count) * itemsize


def _product(factors: tuple[int | None, ...]) -> int | None:
    sizes = [n for n in factors if n is not None]
    return prod(sizes) if len(sizes) == len(factors) else None


MAX_RANK = 64  # as in numpy and torch


class _Checker:
    """The checks of a program. symbols: the names of its symbols. names: these, and the names of its sizes."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.symbols = dict.fromkeys(symbol.name for symbol in program.symbols)
        self.names = dict(self.symbols)
        self.by_id = {buffer.id: buffer for buffer in program.buffers}
        self.counts = {
            "input": len(program.arguments), "output": len(program.results), "size": len(program.sizes), "table": 1,
        }  # fmt: skip

    def run(self) -> None:
        program = self.program
        if not program.code:
            raise VerifyError("program", expected="code for a device", got="none")
        if misnamed := [name for name, code in program.code.items() if code.features.target_name != name]:
            raise VerifyError("program", expected="code under its target's name", got=misnamed)
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
        declared = [dim for spec in program.arguments for dim in (*spec.shape, *spec.elements)]
        determined = {linear[0] for dim in declared if (linear := expr.linear_in(dim))}
        if missing := [name for name in self.names if name not in determined]:
            raise VerifyError("program: no input dim determines the symbol", got=missing)
        for size in program.sizes:
            expr.check(size.bound, self.names, size.name)
            if size.name in self.names:
                raise VerifyError("program: a size is declared twice", got=size.name)
            self.names[size.name] = None

    def _spec(self, spec: TensorSpec) -> None:
        dtypes.itemsize(spec.dtype)
        if len(spec.shape) > MAX_RANK:
            raise VerifyError(spec.name, expected=f"at most {MAX_RANK} dims", got=len(spec.shape))
        for dim in (*spec.shape, *spec.elements):
            expr.check(dim, self.names, spec.name)
        if any(isinstance(dim, int) and dim < 0 for dim in spec.shape):
            raise VerifyError(f"{spec}", expected="dims of 0 or more")
        if spec.elements and (spec.dtype[0] not in "iu" or spec.static_size != len(spec.elements)):
            raise VerifyError(f"input {spec}", expected="integers, with an expression for each")

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
            expr.check(buffer.alias[1], self.symbols, where)
            root = self.by_id.get(buffer.alias[0])
            if root is None or root.alias is not None:
                raise VerifyError(where, expected="an alias of a buffer that is not an alias", got=buffer.alias[0])
            if root.kind != buffer.kind:
                raise VerifyError(where, expected=f"the kind of the buffer it aliases, {root.kind}", got=buffer.kind)
            return
        count = self.counts.get(buffer.kind)
        if count is not None and not 0 <= buffer.index < count:
            raise VerifyError(where, expected=f"an {buffer.kind} index below {count}", got=buffer.index)
        if buffer.kind == "weight":
            size, weight_bytes = buffer.nbytes if isinstance(buffer.nbytes, int) else -1, self.program.weights.nbytes
            if size < 0 or buffer.offset < 0 or buffer.offset % WEIGHT_ALIGNMENT or buffer.offset + size > weight_bytes:
                expected = f"an aligned, constant range of the {weight_bytes} bytes of weights"
                raise VerifyError(where, expected=expected, got=buffer.offset)

    def _step(self, number: int, step: Step) -> None:
        where, program = f"step {number} ({step.label or step.kernel})", self.program
        if step.target is not None:
            if not 0 <= step.target <= len(program.steps) or len(step.args) > 1:
                raise VerifyError(where, expected="a step to jump to, and at most one flag", got=step.target)
        elif step.collective is not None:
            step.collective.check(where)
            if len(step.args) != 2 or len(step.dims) != 1 or (step.chunks, step.rounds) != (1, 1):
                raise VerifyError(where, expected="a tensor, a result and the number of elements", got=step)
        elif step.host is not None:
            step.host.check(where, len(step.args), len(step.dims), step.chunks == step.rounds == 1)
        elif step.device not in program.code or step.kernel not in program.code[step.device].symbols:
            raise VerifyError(where, expected=f"a kernel of the code for {step.device}", got=repr(step.kernel))
        for item in (step.chunks, step.rounds, *step.dims):
            expr.check(item, self.names, where)
        for identity, offset in step.args:
            expr.check(offset, self.symbols, where)
            buffer = self.by_id.get(identity)
            if buffer is None:
                raise VerifyError(where, expected="a declared buffer", got=identity)
            root = buffer if buffer.alias is None else self.by_id[buffer.alias[0]]
            if root.kind == "arena" and not root.first_step <= number <= root.last_step:
                raise VerifyError(
                    where, expected=f"buffer {root.id} alive", got=f"steps {root.first_step}..{root.last_step}"
                )
