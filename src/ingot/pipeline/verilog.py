"""Circuits: networks of integers as synthesizable Verilog.

verilog            one multiply-add in a clock cycle
verilog:lanes4     four, where a layer's last dimension is a multiple of it; any number up to 256
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ingot.ir.kernel import Kernel
from ingot.ir.kernel.show import show_kernel
from ingot.passes.fusion.policy import FusionPolicy
from ingot.pipeline.c import SCALAR
from ingot.pipeline.cpu import cpu_passes
from ingot.pipeline.target import NamedPass, Options
from ingot.runtime.dtypes import itemsize, numpy_dtype
from ingot.runtime.expr import evaluate
from ingot.runtime.program import Buffer, Program
from ingot.schedule.choice import Measured
from ingot.schedule.circuit.lower import lower
from ingot.schedule.cpu.machine import Machine
from ingot.support.errors import CompileError, InputError
from ingot.support.files import atomic_write
from ingot.support.native import Features
from ingot.targets.text import TextAssembler
from ingot.targets.verilog.circuit import Circuit, Launch, Memory, print_circuit
from ingot.targets.verilog.nest import Nest, nest_of
from ingot.targets.verilog.ranges import range_of

_MAX_LANES = 256


class VerilogTarget:
    """See `ingot.pipeline.target.Target`. The code is a JSON line for each kernel: the export prints it, as the widths
    of wires depend on the weights."""

    name = "verilog"
    policy = FusionPolicy()
    forms = ("ir",)
    lower = staticmethod(lower)
    merge_launches = None
    chain_kernels = None
    has_fixed_sizes = True
    overlaps_exchanges = False
    has_paged_attention = False

    def features(self, variant: str) -> Features:
        lanes = variant.removeprefix("lanes")
        if variant and not (variant.startswith("lanes") and lanes.isdecimal() and 1 <= int(lanes) <= _MAX_LANES):
            raise InputError(
                "target", expected=f"verilog, or verilog:lanesN up to {_MAX_LANES}", got=f"verilog:{variant}"
            )
        return Features("verilog", (variant,) if variant else (), target="verilog")

    def prepare(self, nodes: int) -> None:
        pass

    def machine(self, features: Features, threads: int, measured: Mapping[str, Measured]) -> Machine:
        return SCALAR

    def passes(self, features: Features, options: Options) -> tuple[NamedPass, ...]:
        return cpu_passes(options, SCALAR)

    def assembler(self, features: Features) -> TextAssembler:
        return TextAssembler(features, lambda kernel: json.dumps(nest_of(kernel).to_json()) + "\n")

    def source(self, kernel: Kernel, features: Features, form: str) -> str:
        return show_kernel(kernel)

    @staticmethod
    def export(program: Program, path: Path, weights: Path | None = None) -> None:
        """Write the circuit, a testbench and the contents of its memories to the folder `path`."""
        if weights is not None:
            raise InputError("weights", expected="none for a circuit: they are in its memories", got=str(weights))
        if path.exists() and not path.is_dir():
            raise InputError("a folder for a circuit", expected="a new folder, or one to write into", got=str(path))
        circuit = _Reader(program).circuit(path.name)
        path.mkdir(exist_ok=True)
        for name, text in circuit.files.items():
            atomic_write(path / name, [text.encode()])
        facts = {"cycles": circuit.cycles, "input": str(program.inputs[0]), "output": str(program.outputs[0])}
        atomic_write(path / "circuit.json", [json.dumps(facts, indent=2).encode(), b"\n"])


class _Reader:
    """A program's steps as launches of nests on memories."""

    def __init__(self, program: Program) -> None:
        names = [s.name for s in (*program.symbols, *program.sizes)]
        borders = len(program.inputs), len(program.outputs), len(program.state)
        if names or borders != (1, 1, 0):
            raise CompileError(
                "a circuit", expected="one input, one output, fixed sizes, no state",
                got=f"{borders[0]} inputs, {borders[1]} outputs, {borders[2]} states, sizes {names}",
            )  # fmt: skip
        if others := [s.label for s in program.steps if s.target is not None or s.collective is not None]:
            raise CompileError("a circuit", expected="kernels in order", got=f"a jump or an exchange: {others[0]}")
        code = program.code["verilog"]
        nests = [Nest.of_json(json.loads(line)) for line in code.blob.decode().splitlines()]
        self.nests = dict(zip(code.symbols, nests, strict=True))
        self.program = program
        self.by_id = {b.id: b for b in program.buffers}
        self.memories: dict[int, int] = {}  # by the root buffer
        self.contents: list[Memory] = []

    def circuit(self, name: str) -> Circuit:
        program = self.program
        lanes = int("".join(program.features.features).removeprefix("lanes") or 1)
        launches: list[Launch] = []
        for step in program.steps:
            nest = self.nests[step.kernel]
            params = [
                self._param(self.by_id[identity], evaluate(offset, {}), dtype)
                for (identity, offset), (_, dtype) in zip(step.args, nest.params, strict=True)
            ]
            launches.append(Launch(nest, params))
        ends: list[tuple[int, int]] = []
        for kind, spec in (("input", program.inputs[0]), ("output", program.outputs[0])):
            buffer = next((b for b in program.buffers if b.kind == kind and b.alias is None), None)
            if buffer is None or buffer.id not in self.memories:
                raise CompileError("a circuit", expected="a network that computes its output from its input")
            ends.append((self.memories[buffer.id], spec.static_size or 0))
        self.contents[ends[0][0]].range = range_of(program.inputs[0].dtype)
        return print_circuit(name, self.contents, launches, ends[0], ends[1], lanes)

    def _param(self, buffer: Buffer, offset: int, dtype: str) -> tuple[int, int] | NDArray[np.int64]:
        while buffer.alias is not None:
            offset += evaluate(buffer.alias[1], {})
            buffer = self.by_id[buffer.alias[0]]
        size = itemsize(dtype)
        if buffer.kind == "weight":
            data = self.program.weights[buffer.offset + offset : buffer.offset + evaluate(buffer.nbytes, {})]
            return data[: len(data) // size * size].copy().view(numpy_dtype(dtype)).astype(np.int64)
        if buffer.id not in self.memories:
            self.memories[buffer.id] = len(self.contents)
            fill = int.from_bytes(bytes([buffer.fill]) * size, "little", signed=not dtype.startswith("u"))
            fill = fill if buffer.halo is not None else 0
            self.contents.append(Memory(evaluate(buffer.nbytes, {}) // size, fill, (fill, fill), size))
        elif self.contents[self.memories[buffer.id]].itemsize != size:
            raise CompileError("a circuit", expected="elements of one size in a buffer", got=f"buffer {buffer.id}")
        return self.memories[buffer.id], offset // size


TARGET = VerilogTarget()
