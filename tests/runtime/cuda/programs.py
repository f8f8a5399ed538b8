"""Programs of a few steps, and what their kernels do, for a driver that is not there."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np

from ingot.runtime.expr import Expr
from ingot.runtime.program import Buffer, Collective, Program, Size, State, Step, Symbol, TensorSpec
from ingot.support.cubins import KernelCode, pack
from ingot.support.native import Code, Features

H100 = Features("sm_90a", ("sm_80",), target="cuda")


def doubled(values: list[int]) -> None:
    source, target, count = values
    for i in range(count):
        ctypes.c_float.from_address(target + 4 * i).value = 2 * ctypes.c_float.from_address(source + 4 * i).value


def added(values: list[int]) -> None:
    """y = x + w"""
    x, w, y, count = values
    for i in range(count):
        result = ctypes.c_float.from_address(x + 4 * i).value + ctypes.c_float.from_address(w + 4 * i).value
        ctypes.c_float.from_address(y + 4 * i).value = result


def less(values: list[int]) -> None:
    """flag = x[0] < 100"""
    source, flag = values
    ctypes.c_uint8.from_address(flag).value = ctypes.c_float.from_address(source).value < 100


def positive(values: list[int]) -> None:
    """size = how many of x are > 0"""
    source, size, count = values
    result = sum(ctypes.c_float.from_address(source + 4 * i).value > 0 for i in range(count))
    ctypes.c_int64.from_address(size).value = result


def checked(values: list[int]) -> None:
    """fine = size < 7"""
    size, table, fine = values
    ctypes.c_uint8.from_address(fine).value = ctypes.c_int64.from_address(size).value < 7
    ctypes.c_int64.from_address(table).value = -1  # nobody reads it


def doubled_matrix(values: list[int]) -> None:
    """As `doubled`, of a matrix: its map, and two sizes and two strides that are not read, come before the target."""
    doubled([values[0], *values[5:]])


KERNELS = {
    "double": doubled,
    "add": added,
    "less": less,
    "positive": positive,
    "sizes": checked,
    "matrix": doubled_matrix,
}


def code() -> Code:
    kernels = {name: KernelCode(name, b"cubin", 128, 0, 3, (1,), awaits=name == "double") for name in KERNELS}
    return pack(H100, {"sm_90a": kernels, "sm_80": kernels})


def program(steps: tuple[Step, ...], buffers: tuple[Buffer, ...]) -> Program:
    n = ("n",)
    steps = tuple(replace(s, device="cuda") for s in steps)
    buffers = tuple(replace(b, device="cuda") for b in buffers)
    result = Program(
        symbols=(Symbol("n"),), inputs=(TensorSpec("x", "f32", (n,)),), outputs=(TensorSpec("y", "f32", (n,)),),
        buffers=buffers, steps=steps, code={"cuda": code()}, weights=np.zeros(64, np.uint8),
    )  # fmt: skip
    result.check()
    return result


NBYTES = ("n", 4, "*")
BOTH = [True, True]  # argument and result lie on the GPU
X, Y = Buffer(0, "input", NBYTES), Buffer(1, "output", NBYTES)


def twice() -> Program:
    temp = Buffer(2, "arena", NBYTES, 0, 1)
    dims, chunks = (("n",),), ("n",)
    steps = (
        Step("double", ((0, 0), (2, 0)), dims, chunks, "first"),
        Step("double", ((2, 0), (1, 0)), dims, chunks, "second"),
    )
    return program(steps, (X, Y, temp))


HALO = 0.7470588088035583  # whose bytes are all alike


def twice_of_halo() -> Program:
    """y = 2 h of a halo that no step writes."""
    halo = Buffer(2, "arena", NBYTES, 0, 0, halo="h", fill=0x3F)
    return program((Step("double", ((2, 0), (1, 0)), (("n",),), ("n",), "only"),), (X, Y, halo))


def branches() -> Program:
    """y = 2 (2 x), and beside it the same of x, which nobody reads."""
    temps = Buffer(2, "arena", NBYTES, 0, 3), Buffer(3, "arena", NBYTES, 1, 3), Buffer(4, "arena", NBYTES, 3, 3)
    dims, chunks = (("n",),), ("n",)
    ways = ((0, 2), (0, 3), (2, 1), (3, 4))
    steps = tuple(Step("double", ((a, 0), (b, 0)), dims, chunks, f"{a} to {b}") for a, b in ways)
    return program(steps, (X, Y, *temps))


def until_100() -> Program:
    """while x[0] < 100: x = 2 x, in the result's memory."""
    flag = Buffer(2, "arena", 1, 0, 4)
    dims, chunks = (("n",),), ("n",)
    steps = (
        Step("double", ((0, 0), (1, 0)), dims, chunks, "start"),
        Step("less", ((1, 0), (2, 0)), (), 1, "condition"),
        Step("", ((2, 0),), label="jump", target=5),
        Step("double", ((1, 0), (1, 0)), dims, chunks, "body"),
        Step("", (), label="jump", target=1),
    )
    return program(steps, (X, Y, flag))


def first_of_positive() -> Program:
    """y = 4 x of as many elements as are positive, at most 6."""
    size, table, flag = Buffer(2, "size", 8), Buffer(3, "table", 0), Buffer(4, "arena", 1, 0, 4)
    temp, result = Buffer(5, "arena", NBYTES, 0, 4), ("$p",)
    steps = (
        Step("positive", ((0, 0), (2, 0)), (("n",),), 1, "count"),
        Step("sizes", ((2, 0), (3, 0), (4, 0)), (), 1, "sizes"),
        Step("", ((4, 0),), label="jump", target=5),
        Step("double", ((0, 0), (5, 0)), (result,), result, "first"),
        Step("double", ((5, 0), (1, 0)), (result,), result, "second"),
    )
    base = program((), (X, Y))
    buffers = tuple(replace(b, device="cuda") for b in (X, Y, size, table, flag, temp))
    counting_program = replace(
        base, buffers=buffers, steps=tuple(replace(s, device="cuda") for s in steps),
        sizes=(Size("$p", 0, 6),), outputs=(TensorSpec("y", "f32", (result,)),),
    )  # fmt: skip
    counting_program.check()
    return counting_program


def counting(copied: str) -> Program:
    """The state doubles in each call; y = 2 x."""
    base = twice()
    spec = TensorSpec("s", "f32", (4,))
    state = Buffer(3, "input", 16, index=1)
    new = Buffer(4, "output", 16, index=0) if copied else replace(state, id=4)
    dims, chunks = (4,), 4
    step = Step("double", ((3, 0), (4, 0)), dims, chunks, "state", device="cuda")
    buffers = (X, replace(Y, index=1), base.buffers[2], state, new)
    buffers = tuple(replace(b, device="cuda") for b in buffers)
    first = np.arange(1, 5, dtype=np.float32).view(np.uint8)
    result = replace(base, buffers=buffers, steps=(*base.steps, step), state=(State(spec, first, copied),))
    result.check()
    return result


def nested_loops(trip_count: Expr) -> Program:
    """y = 2 x; for i in range(turns): for j in range(2): y = 2 y"""
    flag = Buffer(2, "arena", 1, 0, 8)
    dims, chunks = (("n",),), ("n",)
    double = Step("double", ((1, 0), (1, 0)), dims, chunks, "body")
    steps = (
        Step("double", ((0, 0), (1, 0)), dims, chunks, "start"),
        Step("less", ((1, 0), (2, 0)), (), 1, "outer condition"),
        Step("", ((2, 0),), (trip_count,), label="jump", target=8),
        Step("less", ((1, 0), (2, 0)), (), 1, "inner condition"),
        Step("", ((2, 0),), (2,), label="jump", target=7),
        double,
        Step("", (), label="jump", target=3),
        Step("", (), label="jump", target=1),
    )
    return program(steps, (X, Y, flag))


def branching() -> Program:
    """if x[0] < 100: y = 2 x; while y[0] < 100: y = 2 y; if y[1] < 100: y = 2 y
    else: y = 4 x"""
    first, flag, second = (Buffer(n, "arena", 1, 0, 11) for n in (2, 3, 4))
    dims, chunks = (("n",),), ("n",)
    double = Step("double", ((1, 0), (1, 0)), dims, chunks, "double")
    start = Step("double", ((0, 0), (1, 0)), dims, chunks, "start")
    steps = (
        Step("less", ((0, 0), (2, 0)), label="choice"),
        Step("", ((2, 0),), label="jump", target=10),
        start,
        Step("less", ((1, 0), (3, 0)), label="condition"),
        Step("", ((3, 0),), label="jump", target=7),
        double,
        Step("", (), label="jump", target=3),
        Step("less", ((1, 4), (4, 0)), label="inner choice"),
        Step("", ((4, 0),), label="jump", target=10),
        double,
        start,
        double,
    )
    steps = (*steps[:10], Step("", (), label="jump", target=13), *steps[10:])
    steps = (*steps[:1], replace(steps[1], target=11), *steps[2:])
    return program(steps, (X, Y, first, flag, second))


def summed(*groups: tuple[int, ...]) -> Program:
    """y = the sum over the GPUs of 2 x, and then 2 of that; beside it another sum, which nobody reads."""
    temps = tuple(Buffer(i, "arena", NBYTES, 0, 4) for i in (2, 3, 4))
    dims, chunks = (("n",),), ("n",)
    reduced = Collective("all_reduce", groups, "f32", "sum")
    steps = (
        Step("double", ((0, 0), (2, 0)), dims, chunks, "first"),
        Step("all_reduce", ((2, 0), (3, 0)), dims, label="sum", collective=reduced),
        Step("all_reduce", ((2, 0), (4, 0)), dims, label="other sum", collective=reduced),
        Step("double", ((3, 0), (1, 0)), dims, chunks, "second"),
    )
    return program(steps, (X, Y, *temps))
