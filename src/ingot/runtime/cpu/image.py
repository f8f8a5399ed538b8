"""Code in memory: a blob is copied into fresh pages, which are then made executable and read-only."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Mapping

from ingot.runtime.cpu.memory import Region
from ingot.support.errors import ArtifactError, IngotError
from ingot.support.native import Code

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

SYSCALL_ADDRESS: int = ctypes.cast(_libc.syscall, ctypes.c_void_p).value or 0


class CodeImage:
    """An executable copy of a code object; never writable and executable at once.

    The pages turn executable by mprotect, on which Linux also synchronizes AArch64's instruction cache.
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

    def address(self, symbol: str) -> int:
        """Raises ArtifactError for one that the code does not have."""
        if symbol not in self.symbols:
            raise ArtifactError("a program's code lacks a function", expected=symbol, fix="save the model again")
        return self._region.address + self.symbols[symbol]
