"""The constants of a program in one blob, as its kernels read them."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import field

import numpy as np

from ingot.ir.array import Array
from ingot.schedule.lowered import Pack
from ingot.support.cache import current_draft
from ingot.support.dataclass import dataclass
from ingot.support.files import release

ALIGN_BYTES = 64
_COPY_BYTES = 16 << 20  # of a constant that are copied before their pages of the model file are released
_THREADS = min(8, os.cpu_count() or 1)  # that fill a blob; a deferred constant of each is in memory
_DRAFT_BYTES = 32 << 20  # of a blob, from which on its own file pays
Fill = Callable[[Array, Pack | None, np.ndarray], None]


@dataclass
class Weights:
    """Constants, each once, at aligned offsets in one blob; repacked if a kernel reads them in packed form."""

    sources: list[tuple[slice, Array, Pack | None]] = field(default_factory=list)
    size: int = 0

    def add(self, constant: Array, pack: Pack | None) -> tuple[int, int]:
        """Reserve space for a constant; its offset in the blob and size in bytes."""
        nbytes = pack.nbytes if pack else constant.nbytes
        offset = self.size
        self.sources.append((slice(offset, offset + nbytes), constant, pack))
        self.size += -(-max(nbytes, 1) // ALIGN_BYTES) * ALIGN_BYTES
        return offset, nbytes

    def blob(self, fill: Fill) -> np.ndarray:
        """The filled blob, in the file of the cache's entry that is being made, or in memory."""
        draft = current_draft() if self.size >= _DRAFT_BYTES else None
        mapped = None if draft is None else draft.write(self.size, self._pieces(fill))
        if mapped is not None:
            return mapped
        raw = np.empty(self.size + ALIGN_BYTES, np.uint8)  # in huge pages, which `np.zeros` does not ask for
        start = -raw.ctypes.data % ALIGN_BYTES
        blob = raw[start : start + self.size]
        ends = [*(span.start for span, _, _ in self.sources[1:]), self.size]

        def write(source: tuple[slice, Array, Pack | None], end: int) -> None:
            span, constant, pack = source
            blob[span.start : end].fill(0)
            fill(constant, pack, blob[span])

        with ThreadPoolExecutor(_THREADS) as pool:  # numpy's copies leave the interpreter to other threads
            list(pool.map(write, self.sources, ends))
        return blob

    def _pieces(self, fill: Fill) -> Iterator[tuple[int, np.ndarray]]:
        """The constants, each with its offset, of which the next few are filled meanwhile."""

        def write(source: tuple[slice, Array, Pack | None]) -> tuple[int, np.ndarray]:
            span, constant, pack = source
            piece = np.zeros(span.stop - span.start, np.uint8)
            fill(constant, pack, piece)
            return span.start, piece

        pending = deque[Future[tuple[int, np.ndarray]]]()
        with ThreadPoolExecutor(_THREADS) as pool:
            for source in self.sources:
                pending.append(pool.submit(write, source))
                if len(pending) > _THREADS:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()


def fill(constant: Array, pack: Pack | None, out: np.ndarray) -> None:
    """Write a constant's bytes to `out`, repacked if `pack` is given. Pages of the model file are released on the way,
    so that no weight is in memory twice."""
    if pack and pack.write_rows and constant.makes_rows:
        pack.write_rows(constant.rows, out.view(pack.dtype.numpy))
        return
    value = constant.value
    if pack:
        pack.write(value, out.view(pack.dtype.numpy))
    else:
        rows = np.atleast_1d(value)
        copy = out.view(value.dtype).reshape(rows.shape)
        step = max(1, _COPY_BYTES // max(1, rows[:1].nbytes))
        for i in range(0, len(rows), step):
            copy[i : i + step] = rows[i : i + step]
            release(rows[i : i + step])
    release(value)
