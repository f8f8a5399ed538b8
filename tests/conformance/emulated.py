"""Programs for other processors, run by qemu's user mode: one thread, in a memory image laid out here."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest

from ingot.ir.node import Graph
from ingot.pipeline.build import build_program
from ingot.runtime.bind import Binding, binding_shapes
from ingot.runtime.dtypes import numpy_dtype
from ingot.runtime.expr import evaluate
from ingot.runtime.program import Buffer, Program, table_offsets
from ingot.support.native import Features

_BASE = 0x20_0000_0000  # where the image is mapped, far from the stack
_PAGE = 4096
_SLICE = 1 << 62  # ticks: a run is never interrupted
# of a long vector, what is not written must not be read: it is filled with ones
RISCV = "rv64,v=true,vext_spec=v1.0,vlen={},rvv_ta_all_1s=true,rvv_ma_all_1s=true"


def missing(arch: str) -> str:
    """Why programs for `arch` cannot be run here; "" if they can."""
    tools = (f"qemu-{arch}", f"{arch}-linux-gnu-gcc")
    return next((f"no {tool}" for tool in tools if shutil.which(tool) is None), "")


@cache
def _loader(arch: str) -> Path:
    loader = Path(mkdtemp(prefix="ingot-loader-")) / "loader"
    source = Path(__file__).with_suffix(".c")
    command = [f"{arch}-linux-gnu-gcc", "-static", "-O1", "-Wall", "-Werror", str(source), "-o", str(loader)]
    subprocess.run(command, check=True, timeout=120)
    return loader


def run_emulated(
    graph: Graph, arrays: Sequence[np.ndarray], folder: Path, features: Features, cpu: str
) -> list[np.ndarray]:
    """What a graph's program computes on qemu's `cpu`."""
    return call(build_program(graph, features, 1), arrays, folder, cpu)


def call(program: Program, arrays: Sequence[np.ndarray], folder: Path, cpu: str) -> list[np.ndarray]:
    """The outputs of one call. Raises AssertionError where the process dies, such as of an unknown instruction."""
    image = _Image(program, arrays)
    data, output_path = folder / "image", folder / "image.after"
    data.write_bytes(image.content)
    arch = program.features.arch
    words = [f"qemu-{arch}", "-cpu", cpu, str(_loader(arch)), hex(_BASE), hex(image.entry), hex(image.context)]
    process = subprocess.run([*words, str(data), str(output_path)], capture_output=True, timeout=300, check=False)
    if b"decode_save_opc" in process.stderr:
        pytest.skip("qemu before 8.0 fails an assertion at conversions that truncate")
    assert process.returncode == 0, f"exit code {process.returncode}: {process.stderr[-1000:].decode()}"
    return image.outputs(output_path.read_bytes())


class _Image:
    """code | weights | tables | inputs and outputs | arena | scratch, at fixed addresses (`targets/cpu/driver.py`)."""

    def __init__(self, program: Program, arrays: Sequence[np.ndarray]) -> None:
        inputs = [np.asarray(x, order="C") for x in arrays]
        self.program, self.binding = program, Binding(program, binding_shapes(program, inputs))
        self._content = bytearray()
        code = program.code["cpu"]
        base = self._add(code.blob, _PAGE)
        weights = self._add(program.weights.tobytes())
        arguments = [self._add(x.tobytes()) for x in inputs]
        arguments += [self._add(s.initial.tobytes()) for s in program.state]
        sizes = [s.initial.nbytes for s in program.state] + [nbytes for *_, nbytes in self.binding.results]
        results = [self._add(bytes(size)) for size in sizes]
        for i, s in enumerate(program.state):
            if not s.copy_reason:
                results[i] = arguments[len(inputs) + i]
        self._outputs = results[len(program.state) :]
        self._sizes = self._add(np.full(len(program.sizes), -(1 << 63), np.int64).tobytes())
        arena = bytearray(self.binding.layout.nbytes)
        for offset, nbytes, byte in self.binding.layout.fills:
            arena[offset : offset + nbytes] = bytes([byte]) * nbytes
        bases = [self._add(arena), weights, *arguments, *results, self._sizes]
        records, starts = self._table(lambda name: base + code.symbols[name], len(bases))
        table = self._add(b"")
        records[1 : 4 * len(program.steps) : 4] = table + 8 * np.array(starts, np.int64)
        assert self._add(records.tobytes()) == table
        scratch = self._add(bytes(program.scratch_bytes))
        context = np.zeros(17, np.int64)
        context[1] = self._add(np.array([*bases, table], np.int64).tobytes())
        context[2:6] = table, len(program.steps), scratch, program.scratch_bytes
        context[9] = _SLICE
        self.context = self._add(context.tobytes())
        self.entry = base + code.symbols["ingot_run"]

    @property
    def content(self) -> bytes:
        return bytes(self._content)

    def _add(self, data: bytes | bytearray, align: int = 64) -> int:
        self._content += bytes(-len(self._content) % align)
        at = _BASE + len(self._content)
        self._content += data
        return at

    def _table(self, kernel_address: object, table_base: int) -> tuple[np.ndarray, list[int]]:
        assert callable(kernel_address)
        program, binding = self.program, self.binding
        by_id = {b.id: b for b in program.buffers}

        def locate(buffer: Buffer) -> tuple[int, int]:
            if buffer.alias is not None:
                base, at = locate(by_id[buffer.alias[0]])
                return base, at + evaluate(buffer.alias[1], binding.values)
            match buffer.kind:
                case "arena":
                    return 0, binding.layout.offsets[buffer.id]
                case "weight":
                    return 1, buffer.offset
                case "input":
                    return 2 + buffer.index, 0
                case "output":
                    return 2 + len(program.arguments) + buffer.index, 0
                case "size":
                    return table_base - 1, 8 * buffer.index
                case "table":
                    return table_base, 0

        records: list[int] = []
        entries: list[int] = []
        place = table_offsets(program.steps)
        starts = [place(i, 2) - 2 * len(step.args) for i, step in enumerate(program.steps)]
        for step, dims, counts in zip(program.steps, binding.dims, binding.counts, strict=True):
            is_kernel = step.target is None
            ends = counts if step.target is None else (step.target, -1 if step.args else -2)
            records += [kernel_address(step.kernel) if is_kernel else 0, 0, *ends]
            for identity, offset in step.args:
                base, at = locate(by_id[identity])
                entries += [base, at + evaluate(offset, binding.values)]
            entries += dims
        return np.array([*records, *entries], np.int64), starts

    def outputs(self, content: bytes) -> list[np.ndarray]:
        program = self.program
        self.binding.sizes[:] = np.frombuffer(content, np.int64, len(program.sizes), self._sizes - _BASE)
        results: list[np.ndarray] = []
        for spec, at, (shape, _, _), actual in zip(
            program.outputs, self._outputs, self.binding.results, self.binding.actual_shapes(), strict=True
        ):
            dtype = numpy_dtype(spec.dtype)
            array = np.frombuffer(content, dtype, int(np.prod(shape)), at - _BASE).reshape(shape)
            results.append(array[tuple(map(slice, actual))])
        return results
