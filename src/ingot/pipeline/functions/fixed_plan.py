"""Programs with fixed sizes as plain calls: every offset is known, for portable C and for native libraries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ingot.runtime.bind import Binding
from ingot.runtime.expr import evaluate
from ingot.runtime.placement import Request, place
from ingot.runtime.program import Buffer, Program, TensorSpec
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError
from ingot.targets.c.program import Call, Plan, Tensor


def fixed_plan(program: Program, shares_halos: bool = False) -> Plan:
    """Return the offsets of all buffers and the calls.

    shares_halos: buffers with a halo share memory with others, and are filled in each run; else, once.

    Raises InputError for a program with symbolic sizes.
    """
    if program.symbols or program.sizes:
        names = ", ".join(s.name for s in (*program.symbols, *program.sizes))
        raise InputError(
            "C functions for a model with symbolic sizes",
            expected="fixed sizes",
            got=names,
            fix="fix them: --dim NAME=SIZE",
        )
    if any(step.collective is not None for step in program.steps):
        raise InputError("C functions for a program of several ranks", expected="one rank", got="collectives")
    if hosted := [step.label for step in program.steps if step.host is not None]:
        raise InputError("C functions for a program that calls Python's", expected="no such calls", got=hosted)
    inputs, outputs = map(_tensors, (program.inputs, program.outputs))
    binding = Binding(program, [*(t.shape for t in inputs), *(s.shape for s in program.state)])
    read_offsets, initial = _state_offsets(program, b"")
    written_offsets, state = _state_offsets(program, initial, copied=True)
    by_id = {b.id: b for b in program.buffers}
    arena = _Arena.of(program, binding, shares_halos)

    def location(buffer: Buffer) -> tuple[str, int]:
        if buffer.alias is not None:
            base, at = location(by_id[buffer.alias[0]])
            return base, at + evaluate(buffer.alias[1], {})
        match buffer.kind:
            case "arena":
                return "arena", arena.offsets[buffer.id]
            case "weight":
                return "weights", buffer.offset
        at = buffer.index - (len(inputs) if buffer.kind == "input" else 0)
        if buffer.kind == "input" and at >= 0:
            return "state", read_offsets[at]
        if buffer.kind == "output":
            at -= len(program.state)
            return ("state", written_offsets[buffer.index]) if at < 0 else (f"output{at}", 0)
        return f"{buffer.kind}{buffer.index}", 0

    calls: list[Call] = []
    for step, (chunks, rounds) in zip(program.steps, binding.counts, strict=True):
        args = tuple((base, at + evaluate(offset, {})) for i, offset in step.args for base, at in (location(by_id[i]),))
        dims = tuple(evaluate(d, {}) for d in step.dims)
        calls.append(Call(step.kernel, args, dims, chunks * rounds, step.target))
    return Plan(
        inputs, outputs, calls, -(-arena.nbytes // 64) * 64, program.scratch_bytes, arena.fills,
        program.weights.tobytes(), state,
        list(zip(_tensors(tuple(s.spec for s in program.state)), read_offsets, strict=True)),
        [(read_offsets[i], written_offsets[i], s.initial.nbytes) for i, s in enumerate(program.state) if s.copy_reason],
    )  # fmt: skip


@dataclass(frozen=True)
class _Arena:
    """offsets: of each arena buffer that is not an alias. fills: (step, offset, bytes, value) of ranges that are filled
    with a byte before a step."""

    offsets: Mapping[int, int]
    nbytes: int
    fills: Sequence[tuple[int, int, int, int]]

    @staticmethod
    def of(program: Program, binding: Binding, shares_halos: bool) -> _Arena:
        """Buffers with a halo are filled before the first step that writes them, so that they share memory with others;
        where steps repeat, or `shares_halos` is false, they have memory of their own and are filled once."""
        if not shares_halos or any(step.target is not None for step in program.steps):
            layout = binding.layout
            return _Arena(layout.offsets, layout.nbytes, [(0, *fill) for fill in layout.fills])
        buffers = [b for b in program.buffers if b.kind == "arena" and b.alias is None]
        requests = [Request(evaluate(b.nbytes, {}), b.first_step, b.last_step) for b in buffers]
        offsets, nbytes = place(requests)
        fills = [
            (b.first_step, offset, r.nbytes, b.fill)
            for b, r, offset in zip(buffers, requests, offsets, strict=True)
            if b.halo is not None
        ]
        return _Arena({b.id: offset for b, offset in zip(buffers, offsets, strict=True)}, nbytes, fills)


def _state_offsets(program: Program, data: bytes, copied: bool = False) -> tuple[list[int], bytes]:
    """Append the initial values of the state's tensors to `data`; return their offsets and the extended bytes. copied:
    omit the values of tensors that are updated in place."""
    offsets: list[int] = []
    for s in program.state:
        offsets.append(len(data))
        data += b"" if copied and not s.copy_reason else s.initial.tobytes() + bytes(-s.initial.nbytes % 64)
    return offsets, data


def _tensors(specs: tuple[TensorSpec, ...]) -> list[Tensor]:
    return [Tensor(s.name, s.dtype, tuple(evaluate(d, {}) for d in s.shape)) for s in specs]
