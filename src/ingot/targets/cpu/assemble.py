"""The assembler of CPU code: compiles modules of LLVM IR text and links them to one blob of machine code."""

from __future__ import annotations

from collections.abc import Sequence

from ingot.support import progress
from ingot.support.native import Code, Features
from ingot.targets.cpu.driver import driver_ir
from ingot.targets.cpu.link import link
from ingot.targets.cpu.objects import KERNEL, compiled
from ingot.targets.cpu.workers import host_features
from ingot.targets.objects import Object, store

_drivers: dict[Features, Object] = {}


def _driver(features: Features) -> Object:
    driver = _drivers.get(features)
    if driver is None or (driver.code.done() and driver.code.exception()):
        driver = _drivers[features] = compiled(driver_ir(features.arch), features)
    return driver


class Assembly:
    """Collects modules for one blob. Compilation begins when a module is added. Modules may call each other."""

    def __init__(self, features: Features) -> None:
        self.features = features
        self._objects = [_driver(features)]

    def add(self, text: str) -> None:
        """Begin to compile a module of LLVM IR text."""
        self.include(compiled(text, self.features))

    def include(self, part: Object) -> None:
        """Add an object whose compilation has begun elsewhere."""
        self._objects.append(part)

    def finish(self) -> Code:
        """Wait for all modules, and link them and the driver.

        Raises CompileError for malformed IR, undefined or doubly defined symbols and mutable globals.
        """
        objects: list[bytes] = []
        for part in self._objects:
            progress.report("machine code", len(objects), len(self._objects))
            objects.append(part.code.result())
        code = link(objects, self.features, [{KERNEL: part.name} if part.name else {} for part in self._objects])
        store(self._objects)
        return code


def assemble(texts: Sequence[str], features: Features | None = None) -> Code:
    """Compile modules of LLVM IR text, by default for this machine. Raises CompileError as `Assembly.finish` does."""
    assembly = Assembly(features or host_features())
    for text in texts:
        assembly.add(text)
    return assembly.finish()
