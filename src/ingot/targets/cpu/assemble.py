"""Modules of LLVM IR text -> one linked blob of machine code, for the host or a named machine."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

from ingot.support import progress
from ingot.support.native import Code, Features
from ingot.targets.cpu.driver import driver_ir
from ingot.targets.cpu.link import link
from ingot.targets.cpu.workers import host_features, submit

_drivers: dict[Features, Future[bytes]] = {}


def _driver(features: Features) -> Future[bytes]:
    known = _drivers.get(features)
    if known is None or (known.done() and known.exception()):
        known = _drivers[features] = submit(driver_ir(features.arch), features)
    return known


class Assembly:
    """One blob in the making: modules are compiled from the moment they are added. They may call each other."""

    def __init__(self, features: Features) -> None:
        self.features = features
        self._objects = [_driver(features)]

    def add(self, text: str) -> None:
        """Begin to compile a module of LLVM IR text."""
        self.include(submit(text, self.features))

    def include(self, compiled: Future[bytes]) -> None:
        """Add what `submit` was asked for elsewhere."""
        self._objects.append(compiled)

    def finish(self) -> Code:
        """Wait for all modules, and link them and the driver.

        Raises CompileError for malformed IR, undefined or doubly defined symbols and mutable globals.
        """
        objects: list[bytes] = []
        for compiled in self._objects:
            progress.report("machine code", len(objects), len(self._objects))
            objects.append(compiled.result())
        return link(objects, self.features)


def assemble(texts: Sequence[str], features: Features | None = None) -> Code:
    """Compile modules of LLVM IR text, by default for this machine. Raises CompileError as `Assembly.finish` does."""
    assembly = Assembly(features or host_features())
    for text in texts:
        assembly.add(text)
    return assembly.finish()
