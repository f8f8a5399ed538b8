"""The C functions of a program with fixed sizes, in LLVM IR: its steps as calls of kernels, on memory of the caller.

    steps 0..n   ->   i32 @c_run_in(ptr arena, ptr x, ptr y) { call @kernel_0(bases, args, 0, scratch) ... }

They are what `targets/c/program.py` prints as C, linked to the kernels' blob: no library, no allocation, no threads.
The code finds the weights and the memory of `c_run` by distances, which the writer of the file fills in (`elf.py`).
A processor that lacks an instruction of the code is found by `cpuid` (Intel's manual, volume 2, CPUID) or by the
identification registers that Linux lets a program read (Arm ARM, D19; Linux, cpu-feature-registers.rst).
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot.support.dataclass import dataclass
from ingot.support.native import Features
from ingot.targets.c.program import Plan

WEIGHTS, MEMORY = "weights.distance", "memory.distance"  # symbols of i64: from their own address to the section's
RUN, RUN_IN, RESET = "c_run", "c_run_in", "c_reset"
ALIGNMENT = 64  # of arena and state, in bytes

# void cpuid(u32 leaf, u32 subleaf, u32 out[4]) and u32 xgetbv0(void) of the System V ABI; LLVM has no intrinsics
_CPUID = bytes.fromhex("53 4989d0 89f8 89f1 0fa2 418900 41895804 41894808 4189500c 5b c3")
_XGETBV = bytes.fromhex("31c9 0f01d0 c3")
# feature -> (leaf, subleaf, register of eax ebx ecx edx, bit)
_X86 = {
    "sse3": (1, 0, 2, 0), "ssse3": (1, 0, 2, 9), "fma": (1, 0, 2, 12), "cx16": (1, 0, 2, 13), "sse4.1": (1, 0, 2, 19),
    "sse4.2": (1, 0, 2, 20), "movbe": (1, 0, 2, 22), "popcnt": (1, 0, 2, 23), "avx": (1, 0, 2, 28),
    "f16c": (1, 0, 2, 29), "bmi": (7, 0, 1, 3), "avx2": (7, 0, 1, 5), "bmi2": (7, 0, 1, 8), "avx512f": (7, 0, 1, 16),
    "avx512dq": (7, 0, 1, 17), "avx512ifma": (7, 0, 1, 21), "avx512cd": (7, 0, 1, 28), "avx512bw": (7, 0, 1, 30),
    "avx512vl": (7, 0, 1, 31), "avx512vbmi": (7, 0, 2, 1), "avx512vbmi2": (7, 0, 2, 6), "gfni": (7, 0, 2, 8),
    "avx512vnni": (7, 0, 2, 11), "avx512bitalg": (7, 0, 2, 12), "avx512vpopcntdq": (7, 0, 2, 14),
    "avx512fp16": (7, 0, 3, 23), "avxvnni": (7, 1, 0, 4), "avx512bf16": (7, 1, 0, 5), "lzcnt": (0x80000001, 0, 2, 5),
}  # fmt: skip
_OSXSAVE = (1, 0, 2, 27)
# feature -> (register, first bit of a field of 4, smallest value)
_AARCH64 = {
    "lse": ("id_aa64isar0_el1", 20, 2), "rdm": ("id_aa64isar0_el1", 28, 1), "dotprod": ("id_aa64isar0_el1", 44, 1),
    "bf16": ("id_aa64isar1_el1", 44, 1), "i8mm": ("id_aa64isar1_el1", 52, 1),
    "fullfp16": ("id_aa64pfr0_el1", 20, 1),
}  # fmt: skip


@dataclass(frozen=True)
class Memory:
    """The layout of the zeroed memory of `c_run`: the arena with scratch, the state, a flag `begun` (the state was
    initialized) and a flag `fit` (the processor has the required features)."""

    state_offset: int
    begun_offset: int
    fit_offset: int
    nbytes: int

    @staticmethod
    def of(plan: Plan) -> Memory:
        state = _aligned(plan.arena_bytes + plan.scratch_bytes)
        begun = state + _aligned(len(plan.state))
        return Memory(state, begun, begun + 8, begun + 16)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def helpers(features: Features) -> tuple[bytes, dict[str, int]]:
    """Machine code of functions that the entry calls and that LLVM IR cannot express, and their offsets."""
    if features.arch != "x86_64":
        return b"", {}
    return _CPUID.ljust(32, b"\xcc") + _XGETBV.ljust(16, b"\xcc"), {"cpuid": 0, "xgetbv0": 32}


def entry_ir(plan: Plan, features: Features) -> str:
    """LLVM IR of `c_run_in`, `c_run` and, for a program with state, `c_reset`; kernels are declared."""
    tensors = len(plan.inputs) + len(plan.outputs)
    names = [*(f"%i{i}" for i in range(len(plan.inputs))), *(f"%o{i}" for i in range(len(plan.outputs)))]
    arguments = [*(["%state"] if plan.state else []), *names]
    kernels = sorted({c.kernel for c in plan.calls if c.target is None})
    return "\n".join([
        f"@{WEIGHTS} = constant i64 0",
        f"@{MEMORY} = constant i64 0",
        *(f'declare void @"{name}"(ptr, ptr, i64, ptr)' for name in kernels),
        _COMMON,
        _steps(plan),
        _check_processor(features, Memory.of(plan).fit_offset),
        f"define internal i32 @checked({_typed(['%arena', *arguments])}, i1 %fill) nounwind {{",
        "  %fit = call i1 @fit()",
        "  br i1 %fit, label %able, label %unfit",
        "unfit:",
        "  ret i32 3",
        "able:",
        *_any_null(["%arena", *arguments]),
        "null:",
        "  ret i32 1",
        "given:",
        *_any_odd(["%arena", *(["%state"] if plan.state else [])]),
        "odd:",
        "  ret i32 2",
        "aligned:",
        f"  %bases = alloca [{3 + tensors} x ptr], align 16",
        f"  %weights = call ptr @at(ptr @{WEIGHTS})",
        *_stores(["%arena", "%weights", "%state" if plan.state else "null", *names]),
        "  call void @steps(ptr %bases, i1 %fill)",
        *_state_copies(plan),
        "  ret i32 0",
        "}",
        f"define i32 @{RUN_IN}({_typed(['%arena', *arguments])}) nounwind {{",
        f"  %r = call i32 @checked({_typed(['%arena', *arguments])}, i1 1)",
        "  ret i32 %r",
        "}",
        *_run(plan, names),
        *(_reset(plan) if plan.state else []),
    ])  # fmt: skip


_COMMON = """
define internal ptr @at(ptr %field) nounwind {
  %distance = load volatile i64, ptr %field
  %address = getelementptr i8, ptr %field, i64 %distance
  ret ptr %address
}

define internal void @fill(ptr %to, i64 %lines, i8 %byte) nounwind noinline {
  %one = insertelement <64 x i8> poison, i8 %byte, i32 0
  %line = shufflevector <64 x i8> %one, <64 x i8> poison, <64 x i32> zeroinitializer
  br label %head
head:
  %i = phi i64 [ 0, %0 ], [ %next, %body ]
  %more = icmp ult i64 %i, %lines
  br i1 %more, label %body, label %done
body:
  %offset = shl i64 %i, 6
  %at = getelementptr i8, ptr %to, i64 %offset
  store <64 x i8> %line, ptr %at, align 8
  %next = add i64 %i, 1
  br label %head
done:
  ret void
}

define internal void @copy(ptr %to, ptr %from, i64 %nbytes) nounwind noinline {
  br label %head
head:
  %i = phi i64 [ 0, %0 ], [ %next, %body ]
  %more = icmp ult i64 %i, %nbytes
  br i1 %more, label %body, label %done
body:
  %source = getelementptr i8, ptr %from, i64 %i
  %target = getelementptr i8, ptr %to, i64 %i
  %line = load i64, ptr %source, align 8
  store i64 %line, ptr %target, align 8
  %next = add i64 %i, 8
  br label %head
done:
  ret void
}

define internal void @repeat(ptr %kernel, ptr %bases, ptr %args, i64 %count, ptr %scratch) nounwind noinline {
  br label %head
head:
  %i = phi i64 [ 0, %0 ], [ %next, %body ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %body, label %done
body:
  call void %kernel(ptr %bases, ptr %args, i64 %i, ptr %scratch)
  %next = add i64 %i, 1
  br label %head
done:
  ret void
}
"""


def _typed(names: Sequence[str]) -> str:
    return ", ".join(f"ptr {name}" for name in names)


def _any_null(names: Sequence[str]) -> list[str]:
    lines = [f"  %n{i} = icmp eq ptr {name}, null" for i, name in enumerate(names)]
    lines += [f"  %a{i} = or i1 {'%n0' if i == 1 else f'%a{i - 1}'}, %n{i}" for i in range(1, len(names))]
    return [*lines, f"  br i1 {'%n0' if len(names) == 1 else f'%a{len(names) - 1}'}, label %null, label %given"]


def _any_odd(names: Sequence[str]) -> list[str]:
    lines: list[str] = []
    for i, name in enumerate(names):
        lines += [f"  %p{i} = ptrtoint ptr {name} to i64", f"  %b{i} = or i64 %p{i}, {f'%b{i - 1}' if i else 0}"]
    low = [f"  %low = and i64 %b{len(names) - 1}, {ALIGNMENT - 1}", "  %is.odd = icmp ne i64 %low, 0"]
    return [*lines, *low, "  br i1 %is.odd, label %odd, label %aligned"]


def _stores(names: Sequence[str]) -> list[str]:
    lines: list[str] = []
    for i, name in enumerate(names):
        lines += [f"  %s{i} = getelementptr ptr, ptr %bases, i64 {i}", f"  store ptr {name}, ptr %s{i}"]
    return lines


def _steps(plan: Plan) -> str:
    """The function that fills halos and runs the steps. Its table has base and offset of each argument, then dims."""
    index = {"arena": 0, "weights": 1, "state": 2}
    index |= {f"input{i}": 3 + i for i in range(len(plan.inputs))}
    index |= {f"output{i}": 3 + len(plan.inputs) + i for i in range(len(plan.outputs))}
    table: list[int] = []
    lines: list[str] = []
    for number, call in enumerate(plan.calls):
        entry = f"getelementptr (i64, ptr @table, i64 {len(table)})"
        for base, offset in call.args:
            table += [index[base], offset]
        table += call.dims
        lines += [f"  br label %step{number}", f"step{number}:"]
        if call.target is not None:
            if not call.args:
                lines += [f"  br label %step{call.target}", f"after{number}:"]
                continue
            ((base, offset),) = call.args
            lines += [
                f"  %base.at{number} = getelementptr ptr, ptr %bases, i64 {index[base]}",
                f"  %base{number} = load ptr, ptr %base.at{number}",
                f"  %flag.at{number} = getelementptr i8, ptr %base{number}, i64 {offset}",
                f"  %flag{number} = load i8, ptr %flag.at{number}",
                f"  %off{number} = icmp eq i8 %flag{number}, 0",
                f"  br i1 %off{number}, label %step{call.target}, label %after{number}",
                f"after{number}:",
            ]
        elif call.count == 1:
            lines += [f'  call void @"{call.kernel}"(ptr %bases, ptr {entry}, i64 0, ptr %scratch)']
        elif call.count:
            lines += [
                f'  call void @repeat(ptr @"{call.kernel}", ptr %bases, ptr {entry}, i64 {call.count}, ptr %scratch)'
            ]
    fills: list[str] = []
    for i, (_, offset, nbytes, byte) in enumerate(plan.arena_fills):
        fills += [
            f"  %fill{i} = getelementptr i8, ptr %arena, i64 {offset}",
            f"  call void @fill(ptr %fill{i}, i64 {-(-nbytes // 64)}, i8 {byte})",
        ]
    return "\n".join([
        f"@table = internal constant [{len(table)} x i64] [{', '.join(f'i64 {n}' for n in table)}]",
        "define internal void @steps(ptr %bases, i1 %fill) nounwind noinline {",
        "  %arena = load ptr, ptr %bases",
        f"  %scratch = getelementptr i8, ptr %arena, i64 {plan.arena_bytes}",
        "  br i1 %fill, label %halos, label %begin",
        "halos:",
        *fills,
        "  br label %begin",
        "begin:",
        *lines,
        f"  br label %step{len(plan.calls)}",
        f"step{len(plan.calls)}:",
        "  ret void",
        "}",
    ])  # fmt: skip


def _state_copies(plan: Plan) -> list[str]:
    lines: list[str] = []
    for i, (target, source, nbytes) in enumerate(plan.state_copies):
        lines += [
            f"  %to{i} = getelementptr i8, ptr %state, i64 {target}",
            f"  %from{i} = getelementptr i8, ptr %state, i64 {source}",
            f"  call void @copy(ptr %to{i}, ptr %from{i}, i64 {-(-nbytes // 8) * 8})",
        ]
    return lines


def _run(plan: Plan, names: Sequence[str]) -> list[str]:
    """`c_run`, which uses static memory, whose halos and state are initialized once."""
    memory = Memory.of(plan)
    reset = ["  %r0 = call i32 @c_reset(ptr null)"] if plan.state else []
    state = [f"  %state = getelementptr i8, ptr %arena, i64 {memory.state_offset}"] if plan.state else []
    arguments = ["%arena", *(["%state"] if plan.state else []), *names]
    return [
        f"define i32 @{RUN}({_typed(names)}) nounwind {{",
        f"  %arena = call ptr @at(ptr @{MEMORY})",
        f"  %begun.at = getelementptr i8, ptr %arena, i64 {memory.begun_offset}",
        "  %begun = load i64, ptr %begun.at",
        "  %fresh = icmp eq i64 %begun, 0",
        *state,
        "  br i1 %fresh, label %first, label %run",
        "first:",
        *reset,
        "  br label %run",
        "run:",
        f"  %r = call i32 @checked({_typed(arguments)}, i1 %fresh)",
        "  %ok = icmp eq i32 %r, 0",
        "  %done = zext i1 %ok to i64",
        "  %either = or i64 %begun, %done",
        "  store i64 %either, ptr %begun.at",
        "  ret i32 %r",
        "}",
    ]


def state_begins_at(plan: Plan) -> int:
    """The offset of the state's initial bytes from the start of the weights."""
    return _aligned(len(plan.weights))


def _reset(plan: Plan) -> list[str]:
    if any(plan.state):
        fill = [
            f"  %weights = call ptr @at(ptr @{WEIGHTS})",
            f"  %first = getelementptr i8, ptr %weights, i64 {state_begins_at(plan)}",
            f"  call void @copy(ptr %kept, ptr %first, i64 {len(plan.state)})",
        ]
    else:
        fill = [f"  call void @fill(ptr %kept, i64 {len(plan.state) // 64}, i8 0)"]
    return [
        f"define i32 @{RESET}(ptr %state) nounwind {{",
        f"  %memory = call ptr @at(ptr @{MEMORY})",
        f"  %own = getelementptr i8, ptr %memory, i64 {Memory.of(plan).state_offset}",
        "  %none = icmp eq ptr %state, null",
        "  %kept = select i1 %none, ptr %own, ptr %state",
        "  %place = ptrtoint ptr %kept to i64",
        f"  %low = and i64 %place, {ALIGNMENT - 1}",
        "  %is.odd = icmp ne i64 %low, 0",
        "  br i1 %is.odd, label %odd, label %aligned",
        "odd:",
        "  ret i32 2",
        "aligned:",
        *fill,
        "  ret i32 0",
        "}",
    ]


def _check_processor(features: Features, flag: int) -> str:
    """The function `fit`: whether this processor has the code's features. The result is kept, as `cpuid` traps in
    virtual machines."""
    query = _fit_x86(features) if features.arch == "x86_64" else _fit_aarch64(features)
    return "\n".join([
        *query,
        "define internal i1 @fit() nounwind {",
        f"  %memory = call ptr @at(ptr @{MEMORY})",
        f"  %fit.at = getelementptr i8, ptr %memory, i64 {flag}",
        "  %known = load atomic i64, ptr %fit.at monotonic, align 8",
        "  %fit = icmp ne i64 %known, 0",
        "  br i1 %fit, label %yes, label %ask",
        "ask:",
        "  %has = call i1 @has()",
        "  br i1 %has, label %note, label %no",
        "note:",
        "  store atomic i64 1, ptr %fit.at monotonic, align 8",
        "  ret i1 1",
        "yes:",
        "  ret i1 1",
        "no:",
        "  ret i1 0",
        "}",
    ])  # fmt: skip


def _fit_x86(features: Features) -> list[str]:
    bits = [_X86[name] for name in features.features if name in _X86]
    saved = 0xE6 if "avx512f" in features else 0x6 if "avx" in features else 0  # registers that the system must save
    bits += [_OSXSAVE] if saved else []
    masks: dict[tuple[int, int, int], int] = {}
    for *place, bit in bits:
        leaf, subleaf, register = place
        masks[leaf, subleaf, register] = masks.get((leaf, subleaf, register), 0) | 1 << bit
    # leaf 0 of a range tells its last one; beyond it processors answer with that one's bits
    last = {leaf & 0x80000000: leaf for leaf, *_ in sorted(masks)}
    rows = [(top, 0, 0, "uge", -1, leaf) for top, leaf in last.items()]
    rows += [(*place, "eq", mask, mask) for place, mask in sorted(masks.items())]
    lines = [
        "declare void @cpuid(i32, i32, ptr)",
        "declare i32 @xgetbv0()",
        "define internal i1 @has() nounwind {",
        "  %out = alloca [4 x i32], align 16",
        "  br label %ask0",
    ]
    for i, (leaf, subleaf, register, comparison, mask, value) in enumerate(rows):
        lines += [
            f"ask{i}:",
            f"  call void @cpuid(i32 {leaf}, i32 {subleaf}, ptr %out)",
            f"  %r{i} = getelementptr i32, ptr %out, i64 {register}",
            f"  %v{i} = load i32, ptr %r{i}",
            f"  %m{i} = and i32 %v{i}, {mask}",
            f"  %ok{i} = icmp {comparison} i32 %m{i}, {value}",
            f"  br i1 %ok{i}, label %ask{i + 1}, label %no",
        ]
    lines += [f"ask{len(rows)}:"]
    if saved:
        lines += ["  %xcr = call i32 @xgetbv0()", f"  %kept = and i32 %xcr, {saved}"]
        lines += [f"  %os = icmp eq i32 %kept, {saved}", "  br i1 %os, label %yes, label %no", "yes:"]
    return [*lines, "  ret i1 1", "no:", "  ret i1 0", "}"]


def _fit_aarch64(features: Features) -> list[str]:
    tests = [_AARCH64[name] for name in features.features if name in _AARCH64]
    registers = sorted({register for register, *_ in tests})
    lines = ["declare i64 @llvm.read_volatile_register.i64(metadata)"] if tests else []
    lines += [f'!{i} = !{{!"{register}"}}' for i, register in enumerate(registers)]
    lines += ["define internal i1 @has() nounwind {", "  br label %ask0"]
    for i, (register, bit, least) in enumerate(tests):
        lines += [
            f"ask{i}:",
            f"  %r{i} = call i64 @llvm.read_volatile_register.i64(metadata !{registers.index(register)})",
            f"  %s{i} = shl i64 %r{i}, {60 - bit}",
            f"  %v{i} = ashr i64 %s{i}, 60",
            f"  %ok{i} = icmp sge i64 %v{i}, {least}",
            f"  br i1 %ok{i}, label %ask{i + 1}, label %no",
        ]
    return [*lines, f"ask{len(tests)}:", "  ret i1 1", *(["no:", "  ret i1 0"] if tests else []), "}"]
