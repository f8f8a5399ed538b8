"""The assembler of cubins: compiles a program's kernels for one or more architectures."""

from __future__ import annotations

from dataclasses import replace

from ingot.ir.kernel import Kernel
from ingot.support import progress
from ingot.support.cubins import KernelCode, pack
from ingot.support.errors import CompileError, KernelError
from ingot.support.native import Code, Features
from ingot.targets.cuda.codegen import capability
from ingot.targets.cuda.objects import compiled
from ingot.targets.cuda.triton import EXACT_FUNCTIONS, Functions, Source, print_kernel
from ingot.targets.objects import Object, store

Compiled = dict[str, Object]  # a kernel's records by architecture


class CubinAssembler:
    """Begins to compile kernels when they are added; kernels of equal text are compiled once."""

    def __init__(
        self, features: Features, functions: Functions = EXACT_FUNCTIONS, shared_bytes: int | None = None
    ) -> None:
        """functions: those that kernels call, by name and type. shared_bytes: of shared memory that a program may have;
        None: any number."""
        self._features, self._functions, self._shared_bytes = features, functions, shared_bytes
        self._archs = (features.arch, *features.features)
        self._compiled: dict[Source, Compiled] = {}
        self._kernels: dict[str, Compiled] = {}

    def add(self, kernel: Kernel) -> None:
        self.include(self.begin(kernel))

    def begin(self, kernel: Kernel) -> tuple[str, Compiled]:
        # drop the numeric suffix of the name, so that equal layers have equal texts
        source = print_kernel(replace(kernel, name=kernel.name.rstrip("_0123456789")), self._functions)
        if source not in self._compiled:
            self._compiled[source] = {arch: compiled(source, arch) for arch in self._archs}
        return kernel.name, self._compiled[source]

    def include(self, part: tuple[str, Compiled]) -> None:
        name, objects = part
        self._kernels[name] = objects

    def finish(self) -> Code:
        """Wait for all kernels. Raises KernelError for one that Triton refuses, hangs on or crashes on, or that needs
        more shared memory than there is."""
        records: dict[str, dict[str, KernelCode]] = {arch: {} for arch in self._archs}
        for number, (name, objects) in enumerate(self._kernels.items()):
            progress.report("machine code", number, len(self._kernels))
            for arch, part in objects.items():
                try:
                    code = KernelCode.of_record(part.code.result())
                except CompileError as e:
                    raise KernelError(f"{e} for {arch}", name) from e
                if self._shared_bytes is not None and code.shared_bytes > self._shared_bytes:
                    got = f"kernel {code.name}: {code.shared_bytes} bytes of shared memory for {arch}"
                    raise KernelError(f"{got}, which has {self._shared_bytes}", name)
                records[arch][name] = code
        store(part for objects in self._kernels.values() for part in objects.values())
        return pack(self._features, records)


__all__ = ["CubinAssembler", "capability"]
