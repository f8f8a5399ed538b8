"""The places of a bound program's buffers: in the arena, the weights, the halos, an argument or a result."""

from __future__ import annotations

from ingot.runtime.bind import Binding, Layout
from ingot.runtime.cuda.order import Access
from ingot.runtime.expr import Expr, evaluate, span
from ingot.runtime.program import Program, table_offsets

WORD_BYTES = 8  # of a size
_HALOS = 2  # the index of the first geometry's buffers among the places


def first_argument(layout: Layout) -> int:
    """The index of the first argument among the places."""
    return _HALOS + len(layout.images)


class Resolver:
    """Maps a program's buffers to (index into the places, byte offset)."""

    def __init__(self, program: Program, binding: Binding) -> None:
        self._buffers = {b.id: b for b in program.buffers}
        self._binding, self._first = binding, first_argument(binding.layout)
        self._arguments, self._inputs, self._state = len(program.arguments), len(program.inputs), len(program.state)
        # after the arena: the run-time sizes, and a table that a GPU does not read
        self.sizes = -(-binding.layout.plain_bytes // WORD_BYTES) * WORD_BYTES
        self._table, last = self.sizes + WORD_BYTES * len(program.sizes), len(program.steps) - 1
        entries = table_offsets(program.steps)(last, 2 + len(program.steps[last].dims)) if program.sizes else 0
        self.nbytes = self._table + WORD_BYTES * entries if program.sizes else binding.layout.plain_bytes

    def buffer(self, identity: int, offset: Expr) -> tuple[int, int]:
        byte_offset = evaluate(offset, self._binding.values)
        buffer = self._buffers[identity]
        while buffer.alias is not None:
            parent, shift = buffer.alias
            byte_offset += evaluate(shift, self._binding.values)
            buffer = self._buffers[parent]
        match buffer.kind:
            case "arena":
                layout = self._binding.layout
                byte_offset += layout.offsets[buffer.id]
                number = layout.geometry.get(buffer.id)
                return (0, byte_offset) if number is None else (_HALOS + number, byte_offset - layout.images[number][1])
            case "weight":
                return 1, byte_offset + buffer.offset
            case "input":
                return self._first + buffer.index, byte_offset
            case "size":
                return 0, byte_offset + self.sizes + WORD_BYTES * buffer.index
            case "table":
                return 0, byte_offset + self._table
        return self._first + self._arguments + buffer.index, byte_offset

    def access(self, identity: int, offset: Expr, writes: bool) -> Access:
        """An access to the whole buffer, although a kernel's argument may point inside of it."""
        memory, byte_offset = self.buffer(identity, offset)
        start = byte_offset - evaluate(offset, self._binding.values)
        # the new state may be written over the old one
        result = memory - self._first - self._arguments
        memory = self._first + self._inputs + result if 0 <= result < self._state else memory
        return Access(memory, start, start + span(self._buffers[identity].nbytes, self._binding.spans)[1], writes)
