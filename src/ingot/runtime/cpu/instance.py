"""A program bound to input shapes for the CPU's driver: its context, step records and argument tables.

program + (8, 128) -> s0 = 8: arena 3.1 MB, 42 step records, output (8, 1000)
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingot.runtime.bind import Binding, Layout, Shape
from ingot.runtime.cpu.host_functions import bound
from ingot.runtime.cpu.image import CodeImage
from ingot.runtime.expr import evaluate
from ingot.runtime.program import Buffer, Program, Step, table_offsets
from ingot.runtime.ranks.process_group import ProcessGroup
from ingot.support.errors import IngotError

_ARENA, _WEIGHTS, _TENSORS = 0, 1, 2
_STOP = 13  # the context's word that stops the run: no further chunks
_kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)


class Instance(Binding):
    """A binding, ready to run: the context and tables that the driver reads.

    Serves one run at a time. The slots of arguments and results in `bases` are written before each run.
    error: the exception that ended the run, which `check` raises.
    """

    def __init__(
        self, program: Program, shapes: Sequence[Shape], image: CodeImage, group: ProcessGroup | None = None
    ) -> None:
        """shapes: the shapes and values that `bind_symbols` takes. group: runs the program's collectives, if any."""
        super().__init__(program, shapes)
        locate = _Locator(program, self.values, self.layout)
        args: list[int] = []
        for step, dims in zip(program.steps, self.dims, strict=True):
            for identity, offset in step.args:
                base, place = locate(identity)
                args += (base, place + evaluate(offset, self.values))
            args += dims
        count = len(program.steps)
        self._table = np.zeros(4 * count + len(args), np.int64)
        try:
            self._table[4 * count :] = args
        except OverflowError as e:
            raise IngotError("a size", expected="one of 64 bits", got=max(args, key=abs)) from e
        place = table_offsets(program.steps)
        starts = [place(i, 2) - 2 * len(step.args) for i, step in enumerate(program.steps)]
        self.records = self._table[: 4 * count].reshape(-1, 4)
        self._group = group
        self.error: BaseException | None = None
        self._exchanges: list[Any] = []  # ctypes functions, kept alive here: the records have their addresses
        for record, step, start, counts in zip(self.records, program.steps, starts, self.counts, strict=True):
            record[1] = self._table.ctypes.data + 8 * start
            if step.collective is not None:
                self._exchanges.append(_kernel(self._exchange_at(step, start)))
                record[0], record[2:] = ctypes.cast(self._exchanges[-1], ctypes.c_void_p).value or 0, counts
            elif step.host is not None:
                self._exchanges.append(_kernel(self._host_call_at(step, start)))
                record[0], record[2:] = ctypes.cast(self._exchanges[-1], ctypes.c_void_p).value or 0, counts
            elif step.target is None:
                record[0], record[2:] = image.address(step.kernel), counts
            else:
                record[2:] = step.target, -1 if step.args else -2
        tensors = _TENSORS + len(program.arguments) + len(program.results)
        self._images = tensors + 2
        self._bases = np.zeros(self._images + len(self.layout.images), np.int64)
        self._context = np.zeros(17, np.int64)
        self._context[1] = self._bases.ctypes.data
        self._context[2] = self._table.ctypes.data
        self._context[3] = count
        self._bases[tensors : self._images] = self.sizes.ctypes.data, self._table.ctypes.data
        self.bases = self._bases.data
        self.address: int = self._context.ctypes.data
        self.last_used = 0

    def attach(
        self, *, pool: int, arena: int, images: Sequence[int], weights: int, scratch: int, stride: int, ticks: int
    ) -> None:
        """Set the context's words that outlive a run: addresses, and the ticks of a time slice. images: the address for
        each geometry of the layout."""
        self._context[0] = pool
        self._context[4] = scratch
        self._context[5] = stride
        self._context[9] = ticks
        self._bases[_ARENA] = arena
        self._bases[_WEIGHTS] = weights
        self._bases[self._images :] = images

    def _exchange_at(self, step: Step, start: int) -> Callable[[int, int, int, int], None]:
        """The kernel of a collective. start: the index of its arguments in the table. An exception ends the run."""
        collective = step.collective
        assert collective is not None and self._group is not None
        group = self._group

        def exchange(_bases: int, _args: int, _chunk: int, _scratch: int) -> None:
            if self.error is not None:
                return  # the run has failed, and the other ranks know
            try:
                source, source_at, target, target_at, count = self._table[start : start + 5].tolist()
                addresses = self._bases[source] + source_at, self._bases[target] + target_at
                group.exchange_at(collective, int(addresses[0]), int(addresses[1]), count)
            except BaseException as error:
                self.error = error
                self._context[_STOP] = 1

        return exchange

    def _host_call_at(self, step: Step, start: int) -> Callable[[int, int, int, int], None]:
        """The kernel that calls a function of the host. start: the index of its arguments in the table."""
        assert step.host is not None
        function, count, ranks = bound(step.host), len(step.args), len(step.dims)

        def call(_bases: int, _args: int, _chunk: int, _scratch: int) -> None:
            if self.error is not None:
                return
            try:
                places = self._table[start : start + 2 * count].tolist()
                sizes = self._table[start + 2 * count : start + 2 * count + ranks].tolist()
                addresses = [int(self._bases[b]) + at for b, at in zip(places[::2], places[1::2], strict=True)]
                function(addresses, sizes)
            except BaseException as error:
                self.error = error
                self._context[_STOP] = 1

        return call

    def check(self) -> None:
        """Raise the exception that ended the run, if any."""
        if self.error is not None:
            error, self.error = self.error, None
            self._context[_STOP] = 0
            raise error

    def set_profile(self, readings: NDArray[np.int64] | None) -> None:
        """Have runs write a clock reading before the first and after each step (steps + 1 cells); None: stop it."""
        self._context[6] = 0 if readings is None else readings.ctypes.data


class _Locator:
    """Maps a buffer id to (index into bases, byte offset)."""

    def __init__(self, program: Program, values: Mapping[str, int], layout: Layout) -> None:
        self._by_id = {buffer.id: buffer for buffer in program.buffers}
        self._values = values
        self._layout = layout
        self._outputs = _TENSORS + len(program.arguments)
        self._sizes = self._outputs + len(program.results)
        self._known: dict[int, tuple[int, int]] = {}

    def __call__(self, identity: int) -> tuple[int, int]:
        if identity not in self._known:
            self._known[identity] = self._locate(self._by_id[identity])
        return self._known[identity]

    def _locate(self, buffer: Buffer) -> tuple[int, int]:
        if buffer.alias is not None:
            base, place = self(buffer.alias[0])
            return base, place + evaluate(buffer.alias[1], self._values)
        if buffer.kind == "arena":
            offset, which = self._layout.offsets[buffer.id], self._layout.geometry.get(buffer.id)
            return (
                (_ARENA, offset) if which is None else (self._sizes + 2 + which, offset - self._layout.images[which][1])
            )
        if buffer.kind == "weight":
            return _WEIGHTS, buffer.offset
        if buffer.kind == "size":
            return self._sizes, 8 * buffer.index
        if buffer.kind == "table":
            return self._sizes + 1, 0
        return (_TENSORS if buffer.kind == "input" else self._outputs) + buffer.index, 0
