"""Code in memory: a blob is copied into fresh pages, which are then made executable and read-only."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Mapping

from ingot.runtime.cpu.memory import Region
from ingot.support import flags
from ingot.support.errors import ArtifactError, IngotError
from ingot.support.log import Log
from ingot.support.native import Code

_log = Log("ingot.runtime")
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

SYSCALL_ADDRESS: int = ctypes.cast(_libc.syscall, ctypes.c_void_p).value or 0


class CodeImage:
    """An executable copy of a code object; never writable and executable at once.

    mprotect makes the pages executable; Linux then also synchronizes AArch64's instruction cache.
    """

    def __init__(self, code: Code) -> None:
        """Raises IngotError where the system forbids executable memory (hardened kernels, SELinux execmem)."""
        size = -(-max(len(code.blob), 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._region = Region(size)
        self.symbols: Mapping[str, int] = code.symbols
        ctypes.memmove(self._region.address, code.blob, len(code.blob))
        if _libc.mprotect(self._region.address, size, mmap.PROT_READ | mmap.PROT_EXEC) != 0:
            raise IngotError(
                "compiled code cannot be mapped",
                expected="permission for executable memory",
                got=os.strerror(ctypes.get_errno()),
                fix="allow it for this process (SELinux: execmem)",
            )
        if flags.perf_map():
            _write_perf_map(self._region.address, len(code.blob), self.symbols)

    def address(self, symbol: str) -> int:
        """The address of a function. Raises ArtifactError if the code has none of this name."""
        if symbol not in self.symbols:
            raise ArtifactError("a program's code lacks a function", expected=symbol, fix="save the model again")
        return self._region.address + self.symbols[symbol]


def _write_perf_map(address: int, size: int, symbols: Mapping[str, int]) -> None:
    """Add functions to the file in which perf looks up JIT-compiled code: a line "START SIZE NAME" each, in
    hexadecimal. https://github.com/torvalds/linux/blob/master/tools/perf/Documentation/jit-interface.txt"""
    offsets = sorted((offset, name) for name, offset in symbols.items())
    ends = [offset for offset, _ in offsets[1:]] + [size]
    lines = [
        f"{address + start:x} {end - start:x} {name}\n"
        for (start, name), end in zip(offsets, ends, strict=True)
        if end > start
    ]
    flags_of_file = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        file = os.open(f"/tmp/perf-{os.getpid()}.map", flags_of_file, 0o600)
    except OSError as error:
        _log.warning("perf: cannot write the map: %s", error)
        return
    with os.fdopen(file, "w") as out:
        out.writelines(lines)
