"""Compile a graph with everything kept that debugging needs: the graph after each pass, kernels, what each step is."""

from __future__ import annotations

from ingot.ir.kernel import Kernel
from ingot.ir.kernel.show import show_kernel
from ingot.ir.node import Graph
from ingot.passes.core.rewrites.rewrite import Rewrite
from ingot.pipeline.build import Trace, build_program
from ingot.pipeline.target import features_of, target_of
from ingot.plan.link import Launch
from ingot.runtime.cpu.pool import thread_count
from ingot.runtime.executor import CompiledModel
from ingot.runtime.program import Program
from ingot.support.dataclass import dataclass
from ingot.support.errors import InputError
from ingot.support.native import Features


@dataclass(frozen=True)
class Build:
    """A compiled graph and how it came to be."""

    graph: Graph
    program: Program
    trace: Trace
    features: Features
    threads: int
    fast_math: bool = False
    precision: str = "float32"
    activations: str = "float32"

    @property
    def launches(self) -> list[Launch]:
        return self.trace.launches

    def model(self, device_memory: int | None = None) -> CompiledModel:
        return CompiledModel(self.program, threads=self.threads, device_memory=device_memory)

    def graph_after(self, stage: str) -> Graph:
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
        """A kernel as text: "ir" (Ingot's kernel IR), or a form that the target has. Raises InputError with a list."""
        target = target_of(self.features)
        if form == "ir":
            return show_kernel(kernel)
        if form not in target.forms:
            raise InputError("a kernel's text", expected=f"one of ir, {', '.join(target.forms)}", got=form)
        return target.source(kernel, self.features, form)


def build(
    graph: Graph,
    *,
    threads: int | None = None,
    fast_math: bool = False,
    precision: str = "float32",
    activations: str = "float32",
    target: str = "native",
    rewrites: tuple[Rewrite, ...] | None = None,
) -> Build:
    """Compile `graph` without the cache. rewrites: see `build_program`. Raises what compiling raises."""
    features, trace = features_of(target), Trace()
    count = thread_count(threads)
    program = build_program(
        graph, features, count, fast_math=fast_math, precision=precision, activations=activations, rewrites=rewrites,
        trace=trace,
    )  # fmt: skip
    return Build(graph, program, trace, features, count, fast_math, precision, activations)
