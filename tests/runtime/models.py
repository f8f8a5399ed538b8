"""Small programs of hand-written kernels for the runtime's tests."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from ingot.runtime.cpu.device import Loaded
from ingot.runtime.cpu.memory import aligned_bytes
from ingot.runtime.executable import LoadedProgram
from ingot.runtime.executor import CompiledModel
from ingot.runtime.program import Buffer, Program, State, Step, Symbol, TensorSpec
from ingot.support.native import Features
from ingot.targets.cpu.assemble import assemble
from ingot.targets.cpu.workers import host_features

CHUNK = 256


def environment() -> dict[str, str]:
    """For a subprocess that imports ingot and these tests."""
    root = Path(__file__).parents[2]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}


def loaded(model: CompiledModel) -> Loaded:
    """A model's program on this machine's CPU."""
    executable = model._executable
    assert isinstance(executable, LoadedProgram) and isinstance(executable._loaded, Loaded)
    return executable._loaded


def address(i: int) -> str:
    """IR that sets %p{i} to buffer i's address."""
    return f"""
  %a{i} = getelementptr i64, ptr %args, i64 {2 * i}
  %b{i} = load i64, ptr %a{i}
  %c{i} = getelementptr ptr, ptr %bases, i64 %b{i}
  %d{i} = load ptr, ptr %c{i}
  %e{i} = getelementptr i64, ptr %args, i64 {2 * i + 1}
  %f{i} = load i64, ptr %e{i}
  %p{i} = getelementptr i8, ptr %d{i}, i64 %f{i}"""


def pointwise(name: str, buffers: int, body: str) -> str:
    """A kernel over f32 elements [chunk * 256, min(n, chunk * 256 + 256)); `body` computes %r from %x0, %x1, ..."""
    loads = "".join(
        f"""
  %q{i} = getelementptr float, ptr %p{i}, i64 %i
  %x{i} = load float, ptr %q{i}"""
        for i in range(buffers - 1)
    )
    last = buffers - 1
    return f"""
define void @{name}(ptr %bases, ptr %args, i64 %chunk, ptr %scratch) nounwind {{
entry:{"".join(address(i) for i in range(buffers))}
  %n.at = getelementptr i64, ptr %args, i64 {2 * buffers}
  %n = load i64, ptr %n.at
  %start = mul i64 %chunk, {CHUNK}
  %full = add i64 %start, {CHUNK}
  %short = icmp ult i64 %n, %full
  %stop = select i1 %short, i64 %n, i64 %full
  br label %loop
loop:
  %i = phi i64 [ %start, %entry ], [ %i.next, %more ]
  %end = icmp uge i64 %i, %stop
  br i1 %end, label %over, label %more
more:{loads}
  {body}
  %q{last} = getelementptr float, ptr %p{last}, i64 %i
  store float %r, ptr %q{last}
  %i.next = add i64 %i, 1
  br label %loop
over:
  ret void
}}
"""


# Via this thread's scratch, so that a thread using another's is found out.
SCRATCH = pointwise(
    "through_scratch",
    2,
    """%t = fadd float %x0, 1.0
  store volatile float %t, ptr %scratch
  %r = load volatile float, ptr %scratch""",
)
KERNELS = (
    pointwise("add", 3, "%r = fadd float %x0, %x1"),
    pointwise("double", 2, "%r = fmul float %x0, 2.0"),
    pointwise("copy", 2, "%r = fadd float %x0, 0.0"),
    pointwise("increment", 2, "%r = fadd float %x0, 1.0"),
    SCRATCH,
)
EMPTY = "define void @nothing(ptr %b, ptr %a, i64 %c, ptr %s) nounwind {\n  ret void\n}\n"


@cache
def code():
    return assemble([*KERNELS, EMPTY])


def made_for(features: Features) -> Program:
    """`static` as another machine's."""
    program = static()
    return replace(program, code={"cpu": replace(program.code["cpu"], features=features)})


def isa() -> Features:
    return host_features()


def static(n: int = 1000, steps: int = 3) -> Program:
    """y = (x + w) doubled `steps` times, w = 0, 1, 2, ..."""
    weights = aligned_bytes(4 * n)
    weights.view(np.float32)[:] = np.arange(n, dtype=np.float32)
    chunks = -(-n // CHUNK)
    buffers = [
        Buffer(0, "input", 4 * n, index=0),
        Buffer(1, "weight", 4 * n, offset=0),
        Buffer(2, "output", 4 * n, index=0),
    ]
    buffers += [Buffer(3 + i, "arena", 4 * n, first_step=i, last_step=i + 1) for i in range(steps)]
    plan = [Step("add", ((0, 0), (1, 0), (3, 0)), (n,), chunks, "add w")]
    for i in range(steps):
        target = 2 if i == steps - 1 else 4 + i
        plan.append(Step("double", ((3 + i, 0), (target, 0)), (n,), chunks, f"double {i}"))
    spec = TensorSpec("x", "f32", (n,))
    return Program(
        symbols=(),
        inputs=(spec,),
        outputs=(TensorSpec("y", "f32", (n,)),),
        buffers=tuple(buffers),
        steps=tuple(plan),
        code={"cpu": code()},
        weights=weights,
        scratch_bytes=64,
        stages={"model": "x + w", "kernel": "".join(KERNELS)},
        meta={"producer": "test"},
    )


def dynamic(steps: int = 2) -> Program:
    """y = x + z, z of x's length, then `steps` times + 1 through scratch; also returns x doubled."""
    nbytes = ("n", 4, "*")
    chunks = ("n", CHUNK - 1, "+", CHUNK, "//")
    buffers = [
        Buffer(0, "input", nbytes, index=0),
        Buffer(1, "input", nbytes, index=1),
        Buffer(2, "output", nbytes, index=0),
        Buffer(3, "output", nbytes, index=1),
    ]
    buffers += [Buffer(4 + i, "arena", nbytes, first_step=i, last_step=i + 1) for i in range(steps)]
    plan = [Step("add", ((0, 0), (1, 0), (4, 0)), (("n",),), chunks, "add")]
    for i in range(steps):
        target = 2 if i == steps - 1 else 5 + i
        plan.append(Step("through_scratch", ((4 + i, 0), (target, 0)), (("n",),), chunks, f"plus {i}"))
    plan.append(Step("double", ((0, 0), (3, 0)), (("n",),), chunks, "double"))
    return Program(
        symbols=(Symbol("n", 0, 1 << 20),),
        inputs=(TensorSpec("x", "f32", (("n",),)), TensorSpec("z", "f32", (("n",),))),
        outputs=(TensorSpec("y", "f32", (("n",),)), TensorSpec("d", "f32", (("n",),))),
        buffers=tuple(buffers),
        steps=tuple(plan),
        code={"cpu": code()},
        weights=np.zeros(0, np.uint8),
        scratch_bytes=64,
    )


def counting(chunks: int, rounds: int, steps: int) -> Program:
    """y = x + steps, counted up in place: a chunk that runs twice or never shows."""
    n = CHUNK * chunks * rounds
    buffers = (
        Buffer(0, "input", 4 * n, index=0),
        Buffer(1, "output", 4 * n, index=0),
        Buffer(2, "arena", 4 * n, first_step=0, last_step=steps + 1),
    )
    increment = Step("increment", ((2, 0), (2, 0)), (n,), chunks, "increment", rounds)
    return Program(
        symbols=(),
        inputs=(TensorSpec("x", "f32", (n,)),),
        outputs=(TensorSpec("y", "f32", (n,)),),
        buffers=buffers,
        steps=(
            Step("copy", ((0, 0), (2, 0)), (n,), chunks * rounds, "in"),
            *(increment,) * steps,
            Step("copy", ((2, 0), (1, 0)), (n,), chunks * rounds, "out"),
        ),
        code={"cpu": code()},
        weights=np.zeros(0, np.uint8),
    )


def circling(chunks: int, rounds: int) -> Program:
    """`counting` that never ends: from the last step it goes back to the second."""
    program = counting(chunks, rounds, 2)
    return replace(program, steps=(*program.steps, Step("", (), (), 1, "again", target=1)))


def summing(n: int = 1000, in_place: bool = False) -> Program:
    """y = 2 * (s + x), and s + x is the next call's s; s begins as 0, 1, 2, ..."""
    chunks = -(-n // CHUNK)
    buffers = [Buffer(2 * o + i, "output" if o else "input", 4 * n, index=i) for o in range(2) for i in range(2)]
    if in_place:
        buffers[2] = replace(buffers[1], id=2)
    specs = [TensorSpec(name, "f32", (n,)) for name in ("x", "sum", "y")]
    first = np.arange(n, dtype=np.float32).view(np.uint8)
    return Program(
        symbols=(),
        inputs=(specs[0],),
        outputs=(specs[2],),
        buffers=tuple(buffers),
        steps=(
            Step("add", ((0, 0), (1, 0), (2, 0)), (n,), chunks),
            Step("double", ((2, 0), (3, 0)), (n,), chunks),
        ),
        code={"cpu": code()},
        weights=np.zeros(0, np.uint8),
        state=(State(specs[1], first, "" if in_place else "as asked"),),
    )
