"""A program as C99: kernels, then one function that runs them in order on a static arena.

    steps 0..n   ->   int NAME_run_in(void *arena, const float *x, float *y) { for (chunk ...) kernel_0(...); ... }

No library is called, nothing is allocated, there are no threads. A jump of the plan is a `goto`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ingot.support.dataclass import dataclass
from ingot.support.errors import CompileError
from ingot.targets.c.prelude import PRELUDE
from ingot.targets.c.vectors import vector_types

_BYTES_PER_LINE = 24  # of weights
_UNSAFE_IN_COMMENT = re.compile(r"[^\w .:]", re.ASCII)  # characters that could end a comment
_C_TYPES = {"f32": "float", "f64": "double", "bool": "uint8_t", "f16": "uint16_t", "bf16": "uint16_t"}


@dataclass(frozen=True)
class Tensor:
    """An input, output or state tensor. name: in the model. dtype: Ingot's name."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def c_type(self) -> str:
        if self.dtype in _C_TYPES:
            return _C_TYPES[self.dtype]
        return f"{'u' * (self.dtype[0] == 'u')}int{self.dtype[1:]}_t"


@dataclass(frozen=True)
class Call:
    """A step. args: (base, byte offset). A jump has no kernel: it goes to step `target` if its flag is 0, or always."""

    kernel: str
    args: tuple[tuple[str, int], ...]
    dims: tuple[int, ...]
    count: int
    target: int | None = None


@dataclass(frozen=True)
class Plan:
    """The program to print. arena_fills: (step, offset, size, byte value) of arena ranges to fill before a step.
    state: the initial bytes of the state. state_tensors: (tensor, offset in the state). state_copies: (target, source,
    size) of copies in the state after the last step.
    """

    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    calls: Sequence[Call]
    arena_bytes: int
    scratch_bytes: int
    arena_fills: Sequence[tuple[int, int, int, int]]
    weights: bytes
    state: bytes = b""
    state_tensors: Sequence[tuple[Tensor, int]] = ()
    state_copies: Sequence[tuple[int, int, int]] = ()


def identifier(text: str) -> str:
    """Return a C identifier for the name of a model or tensor."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    return name if name[:1].isalpha() else f"x{name}"


def print_program(
    name: str, kernels: str, plan: Plan, header: str, separate_weights: bool
) -> tuple[str, str, bytes | None]:
    """Return (the .c file, the .h file, the weights' file if `separate_weights`). header: the .h file's name."""
    parameters, names = c_parameters(plan)
    inputs, outputs = names[: len(plan.inputs)], names[len(plan.inputs) :]
    if separate_weights:
        parameters.insert(0, "const void *weights")
    arguments = [d.rpartition("*")[2] for d in parameters]
    bases = {"arena": "arena", "weights": "base", "state": "state_bytes"}
    bases |= {f"input{i}": n for i, n in enumerate(inputs)} | {f"output{i}": n for i, n in enumerate(outputs)}
    source = _source(name, kernels, plan, parameters, arguments, bases, header, separate_weights)
    return (
        source,
        print_header(name, plan, parameters, names, separate_weights),
        plan.weights if separate_weights else None,
    )


def c_parameters(plan: Plan) -> tuple[list[str], list[str]]:
    """Return the declarations and the names of the parameters for inputs and outputs."""
    names = _parameters([*plan.inputs, *plan.outputs])
    kinds = [f"const {t.c_type}" for t in plan.inputs] + [t.c_type for t in plan.outputs]
    return [f"{kind} *{name}" for kind, name in zip(kinds, names, strict=True)], names


def _parameters(tensors: Sequence[Tensor]) -> list[str]:
    """Return unique parameter names that do not clash with those of the code."""
    used = {"arena", "weights", "base", "scratch", "chunk", "state_bytes", "state"}
    names: list[str] = []
    for t in tensors:
        name = base = f"t_{identifier(t.name)}"
        for i in range(2, len(tensors) + 3):
            if name not in used:
                break
            name = f"{base}_{i}"
        used.add(name)
        names.append(name)
    return names


def _source(
    name: str,
    kernels: str,
    plan: Plan,
    parameters: Sequence[str],
    arguments: Sequence[str],
    bases: Mapping[str, str],
    header: str,
    separate_weights: bool,
) -> str:
    upper = name.upper()
    lines = [f'#include "{header}"', "#include <stddef.h>", "", PRELUDE, vector_types(kernels), kernels]
    if plan.weights and not separate_weights:
        lines += _constant("weights_", plan.weights)
    if plan.state:
        lines += _reset(name, plan.state)
    state = ["void *state"] if plan.state else []
    lines += [f"int {name}_run_in(void *memory, {', '.join([*state, *parameters])}) {{"]
    lines += ["  unsigned char *state_bytes = (unsigned char *)state;"] if plan.state else []
    lines += ["  unsigned char *arena = (unsigned char *)memory;", "  ig_index chunk;"]
    base = "(const unsigned char *)weights" if separate_weights else "weights_.bytes" if plan.weights else "NULL"
    lines += [f"  const unsigned char *base = {base};", "  (void)base; (void)arena; (void)chunk;"]
    nulls = " || ".join(f"{p} == NULL" for p in ("arena", *(["state_bytes"] if plan.state else []), *arguments))
    lines += [f"  if ({nulls}) return {upper}_NULL;"]
    lines += [f"  if (((uintptr_t)arena & 7U) != 0U) return {upper}_ALIGNMENT;"]
    for pointer in ["base"] * separate_weights + ["state_bytes"] * bool(plan.state):
        lines += [f"  if (((uintptr_t){pointer} & 7U) != 0U) return {upper}_ALIGNMENT;"]
    targets = {c.target for c in plan.calls if c.target is not None}
    for number, call in enumerate(plan.calls):
        if number in targets:
            lines += [f"step_{number}:"]
        lines += [
            f"  for (chunk = 0; chunk < {nbytes}; chunk++) arena[{offset} + chunk] = {byte};"
            for step, offset, nbytes, byte in plan.arena_fills
            if step == number
        ]
        addresses = [_address(bases, base, position) for base, position in call.args]
        if call.target is not None:
            guard = f"if (*((const unsigned char *){addresses[0]}) == 0) " if addresses else ""
            lines += [f"  {guard}goto step_{call.target};"]
            continue
        scratch = f"arena + {plan.arena_bytes}"
        args = ", ".join([*addresses, *map(str, call.dims), "chunk", scratch])
        lines += [f"  for (chunk = 0; chunk < {call.count}; chunk++) {call.kernel}({args});"]
    if len(plan.calls) in targets:
        lines += [f"step_{len(plan.calls)}:"]
    for target, source, nbytes in plan.state_copies:
        copy = f"state_bytes[{target} + chunk] = state_bytes[{source} + chunk];"
        lines += [f"  for (chunk = 0; chunk < {nbytes}; chunk++) {copy}"]
    lines += [f"  return {upper}_OK;", "}", ""]
    reset = [f"  if (!is_reset_) is_reset_ = {name}_reset(state_) == {upper}_OK;"] if plan.state else []
    lines += [
        f"#ifndef {upper}_NO_ARENA",
        f"int {name}_run({', '.join(parameters)}) {{",
        f"  static uint64_t memory[({upper}_ARENA_BYTES + 7) / 8];",
        *reset,
        f"  return {name}_run_in({', '.join(['memory', *(['state_'] if plan.state else []), *arguments])});",
        "}",
        "#endif",
        "",
    ]
    return "\n".join(lines)


def _constant(name: str, content: bytes) -> list[str]:
    """Return the lines of a byte array, aligned to 8."""
    # the member that is initialized is the second: C99's designated initializer
    lines = [f"static const union {{ uint64_t align; uint8_t bytes[{len(content)}]; }} {name} = {{", " .bytes = {"]
    for i in range(0, len(content), _BYTES_PER_LINE):
        lines.append("  " + ",".join(map(str, content[i : i + _BYTES_PER_LINE])) + ",")
    return [*lines, " }", "};", ""]


def _reset(name: str, initial: bytes) -> list[str]:
    """Return the function that resets the state, and the static state of `NAME_run`."""
    upper = name.upper()
    is_zero = not any(initial)
    return [
        *([] if is_zero else _constant("initial_state_", initial)),
        f"#ifndef {upper}_NO_ARENA",
        f"static uint64_t state_[({upper}_STATE_BYTES + 7) / 8];",
        "static int is_reset_;",
        "#endif",
        f"int {name}_reset(void *state) {{",
        "  unsigned char *state_bytes = (unsigned char *)state;",
        "  ig_index i;",
        f"#ifndef {upper}_NO_ARENA",
        "  if (state_bytes == NULL) state_bytes = (unsigned char *)state_;",
        "#endif",
        f"  if (state_bytes == NULL) return {upper}_NULL;",
        f"  for (i = 0; i < {len(initial)}; i++) state_bytes[i] = {'0' if is_zero else 'initial_state_.bytes[i]'};",
        f"  return {upper}_OK;",
        "}",
        "",
    ]


def _address(bases: Mapping[str, str], base: str, offset: int) -> str:
    if base not in bases:
        raise CompileError("C: a buffer", expected=f"one of {', '.join(bases)}", got=base)
    if base in ("arena", "weights", "state"):
        return f"({bases[base]} + {offset})"
    assert offset == 0, "arguments and results are named whole"
    return bases[base]


def print_header(
    name: str, plan: Plan, parameters: Sequence[str], names: Sequence[str], separate_weights: bool = False,
    native: str = "",
) -> str:  # fmt: skip
    """Return the .h file. native: the machine that a native library is for; "": for the source in C."""
    upper = name.upper()
    tensors = [*plan.inputs, *plan.outputs]
    descriptions = [
        f" *   {n}: {t.dtype}[{', '.join(map(str, t.shape))}], {'in' if i < len(plan.inputs) else 'out'}put"
        for i, (n, t) in enumerate(zip(names, tensors, strict=True))
    ]
    arrays = [f" *   static {t.c_type} {n}[{max(1, _element_count(t))}];" for n, t in zip(names, tensors, strict=True)]
    leading = ["weights"] if separate_weights else []
    weights_text = [f" * weights: {len(plan.weights)} bytes, as in their file, at an address that is a multiple of 8."]
    state_text = [
        " *",
        f" * The state that calls hand on takes {upper}_STATE_BYTES bytes. {name}_run has its own, {name}_run_in takes",
        f" * the caller's, at an address that is a multiple of {64 if native else 8}, which {name}_reset has given its",
        " * first values.",
        f" * {name}_reset(NULL) sets that of {name}_run back.",
        " *",
        *(
            f" *   {_UNSAFE_IN_COMMENT.sub('_', t.name)}: {t.dtype}[{', '.join(map(str, t.shape))}], "
            f"from byte {offset} on"
            for t, offset in plan.state_tensors
        ),
    ]
    return "\n".join([
        f"/* Made by Ingot for {native}. No library, no allocation, no threads."
        if native
        else "/* Made by Ingot. C99, no library, no allocation, no threads; compile it without -ffast-math.",
        " *",
        *descriptions,
        *(weights_text if separate_weights else []),
        " *",
        *arrays,
        f" *   if ({name}_run({', '.join([*leading, *names])}) != {upper}_OK) return 1;",
        " *",
        f" * {name}_run has an arena of its own, of {upper}_ARENA_BYTES bytes, and is not reentrant;",
        *_arena_text(name, native),
        *(state_text if plan.state else []),
        " */",
        f"#ifndef {upper}_H",
        f"#define {upper}_H",
        "#include <stdint.h>",
        f"#define {upper}_ARENA_BYTES {max(8, plan.arena_bytes + plan.scratch_bytes)}",
        *([f"#define {upper}_STATE_BYTES {len(plan.state)}"] if plan.state else []),
        f"#define {upper}_OK 0",
        f"#define {upper}_NULL 1 /* an address is NULL */",
        f"#define {upper}_ALIGNMENT 2 /* memory of the caller is not aligned */",
        *([f"#define {upper}_PROCESSOR 3 /* this processor lacks an instruction of the code */"] if native else []),
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        *([] if native else [f"#ifndef {upper}_NO_ARENA"]),
        f"int {name}_run({', '.join(parameters)});",
        *([] if native else ["#endif"]),
        f"int {name}_run_in({', '.join(['void *arena', *(['void *state'] if plan.state else []), *parameters])});",
        *([f"int {name}_reset(void *state);"] if plan.state else []),
        "#ifdef __cplusplus",
        "}",
        "#endif",
        "#endif",
        "",
    ])  # fmt: skip


def _arena_text(name: str, native: str) -> list[str]:
    if native:
        return [
            f" * {name}_run_in takes one from the caller, at an address that is a multiple of 64: several threads",
            " * may call it at the same time, each with its own arena.",
        ]
    return [
        f" * {name}_run_in takes one from the caller, at an address that is a multiple of 8. Define",
        f" * {name.upper()}_NO_ARENA to leave the first out.",
    ]


def _element_count(t: Tensor) -> int:
    total = 1
    for n in t.shape:
        total *= n
    return total
