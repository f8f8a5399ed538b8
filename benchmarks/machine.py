"""What this machine can do, measured with kernel IR: multiply-add peak and streaming reads.

python benchmarks/machine.py
"""

from __future__ import annotations

import ctypes
import mmap
import statistics
import time
from collections.abc import Sequence

import numpy as np

from ingot.ir import kernel as k
from ingot.ir.kernel import Buffer, Kernel
from ingot.ir.types import f32
from ingot.runtime.cpu.memory import aligned_bytes
from ingot.schedule.block import Block
from ingot.schedule.cpu.machine import Machine, machine_of
from ingot.schedule.index import add, integer, mul
from ingot.targets.cpu.assemble import assemble
from ingot.targets.cpu.printer.llvm import print_module
from ingot.targets.cpu.workers import host_features

_SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)


def host_machine(threads: int = 1) -> Machine:
    features = host_features()
    return machine_of(features.arch, features.features, threads)


class Loaded:
    """One kernel in executable memory with its arguments bound: call it with a chunk number."""

    def __init__(self, kernel: Kernel, arrays: Sequence[np.ndarray], dims: Sequence[int] = ()) -> None:
        code = assemble([print_module([kernel], host_features())])
        self._memory = mmap.mmap(-1, len(code.blob), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self._memory.write(code.blob)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._function = _SIGNATURE(start + code.symbols[kernel.name])
        n = len(arrays)
        self._arrays = list(arrays)
        self._bases = (ctypes.c_void_p * n)(*[a.ctypes.data for a in arrays])
        self._args = (ctypes.c_int64 * (2 * n + len(dims)))(*[v for i in range(n) for v in (i, 0)], *dims)
        self._scratch = aligned_bytes(kernel.scratch_bytes + 64)

    def __call__(self, chunk: int = 0) -> None:
        self._function(self._bases, self._args, chunk, self._scratch.ctypes.data)


def floats(n: int) -> np.ndarray:
    """Zeros at a 64-byte boundary."""
    return aligned_bytes(4 * n).view(np.float32)


WIDTH = 24


def peak_kernel(machine: Machine, turns: int) -> Kernel:
    """Independent multiply-adds on registers: more per turn than two units of five cycles' latency hold."""
    lanes, width = machine.lanes(f32), WIDTH
    x, y = Buffer("x", f32), Buffer("y", f32, writable=True)
    top = Block()
    acc = top.alloc("acc", f32, width, lanes=lanes)
    factor = top.let(k.load(x, integer(0), lanes))
    top.loop("i", 0, width, 1, lambda b, i: b.store(acc, i, k.load(x, mul(i, integer(lanes)), lanes)), unroll=True)

    def turn(b: Block, _: k.Expr) -> None:
        b.loop("i", 0, width, 1, lambda c, i: c.store(acc, i, k.fma(factor, factor, k.load(acc, i))), unroll=True)

    top.loop("t", 0, turns, 1, turn)
    top.loop("i", 0, width, 1, lambda b, i: b.store(y, mul(i, integer(lanes)), k.load(acc, i)), unroll=True)
    return Kernel("peak", (x, y), (), k.var("chunk"), integer(1), top.body)


def stream_kernel(machine: Machine) -> Kernel:
    """Sum of n floats: reads only."""
    lanes, width = machine.lanes(f32), 8
    x, y, n = Buffer("x", f32), Buffer("y", f32, writable=True), k.var("n")
    top = Block()
    acc = top.alloc("acc", f32, width, lanes=lanes)
    top.loop("i", 0, width, 1, lambda b, i: b.store(acc, i, k.lit(0.0, f32, lanes)), unroll=True)

    def turn(b: Block, at: k.Expr) -> None:
        def one(c: Block, i: k.Expr) -> None:
            c.store(acc, i, k.add(k.load(acc, i), k.load(x, add(at, mul(i, integer(lanes))), lanes)))

        b.loop("i", 0, width, 1, one, unroll=True)

    top.loop("t", integer(0), n, width * lanes, turn)
    top.loop("i", 0, width, 1, lambda b, i: b.store(y, mul(i, integer(lanes)), k.load(acc, i)), unroll=True)
    return Kernel("stream", (x, y), (n,), k.var("chunk"), integer(1), top.body)


class PeakProbe:
    """The core's multiply-add rate right now: call it beside what is measured, frequencies move."""

    turns = 100000

    def __init__(self) -> None:
        machine = host_machine()
        self._flops = 2 * WIDTH * machine.lanes(f32) * self.turns
        self._run = Loaded(peak_kernel(machine, self.turns), [floats(512), floats(512)])

    def __call__(self) -> float:
        """GFLOP/s, f32, by the processor time it got."""
        start = time.process_time()
        self._run()
        return self._flops / (time.process_time() - start) / 1e9


def stream(nbytes: int) -> float:
    """GB/s of one core reading `nbytes` again and again."""
    n = nbytes // 4
    x = floats(n)
    x[:] = 1  # pages that were never written are all the same one
    run = Loaded(stream_kernel(host_machine()), [x, floats(256)], [n])
    turns = max(1, (256 << 20) // nbytes)
    rates = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(turns):
            run()
        rates.append(nbytes * turns / (time.perf_counter() - start) / 1e9)
    return statistics.median(rates)


def main() -> None:
    probe = PeakProbe()
    print(f"multiply-add peak, one core: {statistics.median(probe() for _ in range(50)):.0f} GFLOP/s f32")
    for size in (32 << 10, 512 << 10, 8 << 20, 256 << 20):
        print(f"reading {size >> 10} KiB again and again: {stream(size):.0f} GB/s")


if __name__ == "__main__":
    main()
