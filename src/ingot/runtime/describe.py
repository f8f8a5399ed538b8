"""Text tables of a program, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ingot.runtime.bind import Binding
from ingot.runtime.cuda.flow import (
    ELSE_VERSION,
    WHILE_VERSION,
    Branch,
    Flow,
    Item,
    Loop,
    SizeRead,
    fits,
    flow,
    nested_items,
    pieces,
    sized,
    unrolled,
)  # fmt: skip
from ingot.runtime.expr import show, span
from ingot.runtime.program import Buffer, Program


def plan(program: Program, instance: Binding | None) -> str:
    """Inputs, outputs, steps and buffers; sizes as numbers where `instance` gives the symbols their values."""
    lines = [f"input  {spec}" for spec in program.inputs]
    lines += [f"output {spec}" for spec in program.outputs]
    lines += [f"state  {s.spec}, {f'copied: {s.copy_reason}' if s.copy_reason else 'in place'}" for s in program.state]
    lines += [
        f"symbol {s.name} in [{'any' if s.lo is None else s.lo}, {'any' if s.hi is None else s.hi}]"
        + (f" = {instance.values[s.name]}" if instance else "")
        for s in program.symbols
    ]
    lines += [f"size   {s.name} in [{s.lo}, {show(s.bound)}]" for s in program.sizes]
    kernels = len({step.kernel for step in program.steps})
    arena = f", arena {instance.layout.nbytes} bytes" if instance else ""
    lines.append(
        f"{len(program.steps)} steps, {kernels} kernels, code {program.code_bytes} bytes, "
        f"weights {program.weights.nbytes} bytes{arena}"
    )
    lines += graphs(program)
    lines.append("")
    lines += _table(["step", "kernel", "chunks", "buffers", "dims", "label"], _steps(program, instance))
    lines.append("")
    lines += _table(["buffer", "kind", "bytes", "steps", "place", "name"], _buffers(program, instance))
    return "\n".join(lines)


def graphs(program: Program) -> list[str]:
    """Of a program for GPUs: the CUDA graphs of its steps, and the steps after which the host waits for a value."""
    if not program.is_on_gpu:
        return []
    items, depends = flow(program), sized(program)
    names = {b.id: program.sizes[b.index].name for b in program.buffers if b.kind == "size"}
    notes = [
        (item.at, f"  the loop that step {item.at} leaves makes {show(item.trip_count)} turns")
        for item in nested_items(items)
        if isinstance(item, Loop) and item.trip_count is not None
    ]

    def fits_one_graph(item: Item) -> bool:
        return fits(item, ELSE_VERSION, depends)

    def count(items: Flow) -> int:
        """The number of graphs, where the host interprets the flow between them."""
        total = 0
        for piece in pieces(items, fits_one_graph):
            match piece:
                case Loop():
                    notes.append((piece.at, f"  {_HOSTED.format(at=piece.at, what='loop')}"))
                    total += count(piece.condition) + count(piece.body)
                case Branch():
                    notes.append((piece.at, f"  {_HOSTED.format(at=piece.at, what='branch')}"))
                    total += count(piece.then) + count(piece.otherwise)
                case SizeRead():
                    read = [names[i] for i, _ in program.steps[piece.at - 1].args if i in names]
                    notes.append((piece.at, f"  the host waits at step {piece.at} for {', '.join(read)}"))
                case _:
                    notes.extend(_conditional_notes(piece))
                    total += 1
        return total

    total = count(unrolled(items, lambda loop: None if loop.trip_count is None else 1))
    return [f"{total} CUDA graph{'s' if total != 1 else ''}", *(line for _, line in sorted(notes))]


_HOSTED = "the host waits at step {at} for the flag of a {what}, inside which there are sizes that it reads"


def _conditional_notes(items: Flow) -> Iterator[tuple[int, str]]:
    """Notes on the loops and branches inside a graph."""
    for item in nested_items(items):
        if isinstance(item, Loop):
            yield item.at, f"  the loop that step {item.at} leaves is a WHILE node{_older(WHILE_VERSION)}"
        elif isinstance(item, Branch):
            min_version = ELSE_VERSION if item.otherwise else WHILE_VERSION
            yield item.at, f"  the branch at step {item.at} is an IF node{_older(min_version)}"


def _older(min_version: int) -> str:
    version = f"{min_version // 1000}.{min_version % 1000 // 10}"
    return f"; with a driver older than CUDA {version} there are several graphs, and the host reads its flag"


def times(program: Program, seconds: Sequence[float]) -> str:
    """Steps with their times, the slowest first."""
    total = sum(seconds) or 1.0
    rows = [
        [f"{t * 1e6:.1f}", f"{t / total:.1%}", str(number), step.kernel, step.label]
        for number, (step, t) in enumerate(zip(program.steps, seconds, strict=True))
    ]
    rows.sort(key=lambda row: -float(row[0]))
    table = _table(["us", "share", "step", "kernel", "label"], rows)
    return "\n".join([f"{sum(seconds) * 1e3:.3f} ms in kernels on {program.device}", *graphs(program), "", *table])


_SECTIONS = {"f": "forward", "b": "backward", "o": "optimizer"}


def training(program: Program, seconds: Sequence[float], sections: str) -> str:
    """Of a training step: its three sections with their steps, the slowest first, and the buffers that the forward pass
    fills for the others, the largest first. sections: a letter for each step."""
    total = sum(seconds) or 1.0
    lines = [f"{total * 1e3:.3f} ms, memory: {program.meta.get('memory', 'no limit')}"]
    for letter, name in _SECTIONS.items():
        steps = [i for i, s in enumerate(sections) if s == letter]
        section_seconds = sum(seconds[i] for i in steps)
        lines += ["", f"{name}: {section_seconds * 1e3:.3f} ms, {section_seconds / total:.1%}, {len(steps)} steps"]
        rows = [
            [f"{seconds[i] * 1e6:.1f}", f"{seconds[i] / total:.1%}", str(i), program.steps[i].label]
            for i in sorted(steps, key=lambda i: -seconds[i])
        ]
        lines += _table(["us", "share", "step", "label"], rows)
    arena = (b for b in program.buffers if b.kind == "arena" and b.alias is None)
    saved_buffers = [b for b in arena if sections[b.first_step] == "f" and sections[b.last_step] != "f"]
    sizes = {b.id: b.nbytes if isinstance(b.nbytes, int) else 0 for b in saved_buffers}
    saved_buffers.sort(key=lambda b: -sizes[b.id])
    lines += ["", f"kept from the forward pass: {len(saved_buffers)} values, {sum(sizes.values()):,} bytes"]
    saved_rows = [
        [
            show(b.nbytes),
            f"{b.first_step}-{b.last_step}",
            f"{sum(seconds[b.first_step : b.last_step]) / total:.0%}",
            program.steps[b.first_step].label,
            program.steps[b.last_step].label,
        ]
        for b in saved_buffers
    ]
    lines += _table(["bytes", "steps", "of the time", "made by", "last read by"], saved_rows)
    return "\n".join(lines)


def _steps(program: Program, instance: Binding | None) -> list[list[str]]:
    return [
        [
            str(number),
            step.kernel,
            str(instance.chunks[number]) if instance else show(step.chunks),
            " ".join(f"{identity}+{show(at)}" if at != 0 else str(identity) for identity, at in step.args),
            " ".join(str(span(dim, instance.spans)[1]) if instance else show(dim) for dim in step.dims),
            step.label,
        ]
        for number, step in enumerate(program.steps)
    ]


def _buffers(program: Program, instance: Binding | None) -> list[list[str]]:
    return [
        [
            str(buffer.id),
            buffer.kind + (f" halo of {buffer.fill}:{buffer.halo}" if buffer.halo else ""),
            str(span(buffer.nbytes, instance.spans)[1]) if instance else show(buffer.nbytes),
            f"{buffer.first_step}-{buffer.last_step}" if buffer.kind == "arena" else "",
            _place(buffer, instance),
            buffer.name,
        ]
        for buffer in program.buffers
    ]


def _place(buffer: Buffer, instance: Binding | None) -> str:
    if buffer.alias is not None:
        return f"in {buffer.alias[0]} at {show(buffer.alias[1])}"
    if buffer.kind == "weight":
        return str(buffer.offset)
    if buffer.kind == "arena":
        return str(instance.layout.offsets[buffer.id]) if instance else ""
    return f"#{buffer.index}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)
    ]
