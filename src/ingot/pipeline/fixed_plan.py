"""Programs with fixed sizes as plain calls: every offset is known, for portable C and for native libraries."""

from __future__ import annotations

from ingot.runtime.bind import Binding
from ingot.runtime.expr import evaluate
from ingot.runtime.program import Buffer, Program, TensorSpec
from ingot.support.errors import CompileError
from ingot.targets.c.program import Call, Plan, Tensor


def fixed_plan(program: Program) -> Plan:
    """Return the offsets of all buffers and the calls. Raises CompileError for a program with symbolic sizes."""
    if program.symbols or program.sizes:
        names = ", ".join(s.name for s in (*program.symbols, *program.sizes))
        raise CompileError(
            "C functions for a model with symbolic sizes",
            expected="fixed sizes",
            got=names,
            fix="fix them: --dim NAME=SIZE",
        )
    if any(step.collective is not None for step in program.steps):
        raise CompileError("C functions for a program of several ranks", expected="one rank", got="collectives")
    inputs, outputs = map(_tensors, (program.inputs, program.outputs))
    binding = Binding(program, [*(t.shape for t in inputs), *(s.shape for s in program.state)])
    read_offsets, initial = _state_offsets(program, b"")
    written_offsets, state = _state_offsets(program, initial, copied=True)
    by_id = {b.id: b for b in program.buffers}

    def location(buffer: Buffer) -> tuple[str, int]:
        if buffer.alias is not None:
            base, at = location(by_id[buffer.alias[0]])
            return base, at + evaluate(buffer.alias[1], {})
        match buffer.kind:
            case "arena":
                return "arena", binding.layout.offsets[buffer.id]
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
    layout = binding.layout
    return Plan(
        inputs, outputs, calls, -(-layout.nbytes // 64) * 64, program.scratch_bytes, layout.fills,
        program.weights.tobytes(), state,
        list(zip(_tensors(tuple(s.spec for s in program.state)), read_offsets, strict=True)),
        [(read_offsets[i], written_offsets[i], s.initial.nbytes) for i, s in enumerate(program.state) if s.copy_reason],
    )  # fmt: skip


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
