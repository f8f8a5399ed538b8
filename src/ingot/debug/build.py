"""Compile a graph with everything kept that debugging needs: the graph after each pass, kernels, what each step is."""

from __future__ import annotations

from dataclasses import dataclass

from ingot.ir.kernel import Kernel
from ingot.ir.kernel.show import show_kernel
from ingot.ir.node import Graph
from ingot.link import Launch
from ingot.pipeline import Trace, build_program
from ingot.runtime.executor import CompiledModel
from ingot.runtime.pool import thread_count
from ingot.runtime.program import Program
from ingot.support.errors import InputError
from ingot.support.native import HostFeatures
from ingot.targets.cpu.llvm import print_module
from ingot.targets.cpu.workers import host_features, submit


@dataclass(frozen=True)
class Build:
    """A compiled graph and how it came to be."""

    graph: Graph
    program: Program
    trace: Trace
    isa: HostFeatures
    threads: int
    fast_math: bool = False
    precision: str = "float32"

    @property
    def launches(self) -> list[Launch]:
        return self.trace.launches

    def model(self) -> CompiledModel:
        return CompiledModel(self.program, threads=self.threads)

    def after(self, stage: str) -> Graph:
        """The graph after a pass, or "model" for the imported one. Raises InputError that lists the passes."""
        graphs = {"model": self.graph} | {name: graph for name, _, graph in self.trace.stages}
        if stage not in graphs:
            raise InputError("--after", expected=f"one of {', '.join(graphs)}", got=repr(stage))
        return graphs[stage]

    def kernel(self, name: str) -> Kernel:
        """A kernel by its name or number in the plan. Raises InputError that lists the names."""
        for kernel in self.trace.kernels:
            if name in (kernel.name, kernel.name.rpartition("_")[2]):
                return kernel
        names = ", ".join(kernel.name for kernel in self.trace.kernels)
        raise InputError("--kernel", expected=f"one of {names}", got=repr(name))

    def source(self, kernel: Kernel, form: str = "ir") -> str:
        """A kernel as text: "ir" (Ingot's kernel IR), "llvm" or "asm"."""
        if form == "ir":
            return show_kernel(kernel)
        text = print_module([kernel], self.isa)
        return text if form == "llvm" else submit(text, self.isa, assembly=True).result().decode()


def build(
    graph: Graph, *, threads: int | None = None, fast_math: bool = False, precision: str = "float32"
) -> Build:
    """Compile `graph` for this machine, without the cache. Raises what compiling raises."""
    isa, trace = host_features(), Trace()
    count = thread_count(threads)
    program = build_program(graph, isa, count, fast_math=fast_math, precision=precision, trace=trace)
    return Build(graph, program, trace, isa, count, fast_math, precision)
