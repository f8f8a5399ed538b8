"""From a fused graph to a Program: storage, kernels, weights and the plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Protocol

import numpy as np

from ingot.ir.array import Array
from ingot.ir.dims import DimLike, estimate, is_found, span_of
from ingot.ir.kernel import Expr as KernelExpr
from ingot.ir.kernel import Kernel
from ingot.ir.layout import Layout
from ingot.ir.node import Const, Graph, Input, Node, Project, elements_of
from ingot.ops import Concat, Pad
from ingot.ops.core.base import Category, category
from ingot.ops.group import Group, Recomputed, label
from ingot.plan.beside import Beside, Join, Waiting, sizes_suffice
from ingot.plan.control import launch_control
from ingot.plan.exact import ExactDims
from ingot.plan.in_place import Pairs
from ingot.plan.sizes import FoundSizes, expression
from ingot.plan.storage import Arena, Storage, assign
from ingot.runtime import placement
from ingot.runtime import program as rt
from ingot.schedule.choice import Site
from ingot.schedule.index import dim_of
from ingot.schedule.lowered import Arg, Lowered, Pack
from ingot.support import progress
from ingot.support.dataclass import dataclass
from ingot.support.errors import CompileError
from ingot.support.files import release
from ingot.support.limits import in_time
from ingot.support.native import Code

ALIGN = 64
_PIECE = 16 << 20  # bytes of a constant that are copied before what was read leaves memory
Fill = Callable[[Array, Pack | None, np.ndarray], None]
Lower = Callable[[Group, tuple[Layout, ...], tuple[Layout, ...], tuple[bool, ...]], Lowered]


class Assembler(Protocol):
    """Makes a target's code of kernels while the next ones are being lowered."""

    def add(self, kernel: Kernel) -> None:
        """Begin with a kernel; its name is the symbol that `finish` has."""
        ...

    def finish(self) -> Code:
        """Code of all kernels, and what runs them. Raises CompileError."""
        ...


@dataclass(frozen=True)
class Launch:
    """Steps first..last-1 of a program run group `node`.

    Operands and results are (buffer id, layout in it); an operand that is a constant is None. site: what the schedule
    decided for the group, if anything.
    """

    node: Node
    first: int
    last: int
    inputs: tuple[tuple[int, Layout] | None, ...]
    outputs: tuple[tuple[int, Layout], ...]
    site: Site | None = None

    @property
    def updates(self) -> bool:
        """Whether the result lies over the operand of which it replaces some elements."""
        return isinstance(self.node.op, Group) and self.node.op.kind == "scatter" and self.outputs[0] in self.inputs


@dataclass
class _Weights:
    """Constants, each once, at aligned offsets of one blob; repacked where a kernel asks for it."""

    sources: list[tuple[slice, Array, Pack | None]] = field(default_factory=list)
    size: int = 0

    def add(self, constant: Array, pack: Pack | None) -> tuple[int, int]:
        """(offset, bytes) in the blob that a constant will have."""
        nbytes = pack.nbytes if pack else constant.nbytes
        offset = self.size
        self.sources.append((slice(offset, offset + nbytes), constant, pack))
        self.size += -(-max(nbytes, 1) // ALIGN) * ALIGN
        return offset, nbytes

    def blob(self, fill: Fill) -> np.ndarray:
        """All constants."""
        raw = np.zeros(self.size + ALIGN, np.uint8)
        start = -raw.ctypes.data % ALIGN
        blob = raw[start : start + self.size]
        for place, constant, pack in self.sources:
            fill(constant, pack, blob[place])
        return blob


def fill(constant: Array, pack: Pack | None, out: np.ndarray) -> None:
    """Write a constant's bytes, repacked if asked, to `out`. What was read of a model file leaves memory on the way, so
    that no weight is there twice.
    """
    value = constant.value
    if pack:
        pack.write(value, out.view(pack.dtype.numpy))
    else:
        rows = np.atleast_1d(value)
        copy = out.view(value.dtype).reshape(rows.shape)
        step = max(1, _PIECE // max(1, rows[:1].nbytes))
        for i in range(0, len(rows), step):
            copy[i : i + step] = rows[i : i + step]
            release(rows[i : i + step])
    release(value)


@dataclass
class _Memory:
    """One buffer of the plan while lifetimes are being collected."""

    kind: rt.BufferKind
    nbytes: DimLike
    index: int = 0
    offset: int = 0
    halo: str | None = None
    fill: int = 0
    name: str = ""
    first: int | None = None
    last: int = 0

    def touch(self, step: int) -> None:
        self.first = step if self.first is None else self.first
        self.last = step

    def placed(self, place: int, device: str) -> rt.Buffer:
        nbytes, first = expression(self.nbytes), self.first or 0
        return rt.Buffer(
            place, self.kind, nbytes, first, self.last, self.offset, self.index, self.halo, self.fill,
            name=self.name, device=device,
        )  # fmt: skip


class _Linker:
    def __init__(self, graph: Graph, storage: Storage, lower: Lower, assembler: Assembler, join: Join | None = None):
        self.graph, self.storage, self.lower, self.assembler = graph, storage, lower, assembler
        self.beside = Beside(join)
        self.weights = _Weights()
        self.buffers: list[_Memory] = []
        self.of_owner: dict[Node, int] = {}
        self.of_weight: dict[tuple[Array, str], int] = {}
        self.lowered: dict[object, Lowered] = {}
        self.steps: list[rt.Step] = []
        self.launches: list[Launch] = []
        self.scratch = 0
        self.found = FoundSizes()
        self.exact = ExactDims()
        self.by_identity: dict[int, tuple[Kernel, str]] = {}  # the kernel too: an id is that of a living object
        self.depth = 0

    def link(self) -> None:
        for i, n in enumerate(self.graph.inputs):
            self._new(n, _Memory("input", n.type.nbytes, index=i, name=str(attribute_label(n))))
        for i, n in enumerate(self.graph.results):
            if self.storage.places[n].owner is n and n not in self.of_owner:
                self._new(n, _Memory("output", n.type.nbytes, index=i))
        self._launch_all()
        self.found.finish(self)

    def _launch_all(self) -> None:
        """The steps of all groups of the graph, and behind those that give sizes the steps of these."""
        self.found.declare(self, self.graph)
        names: dict[Node, list[str]] = {}
        for name, n in self.graph.found.items():
            self.of_owner[n] = self.found.buffers[name]
            names.setdefault(n, []).append(name)
        groups = [n for n in self.storage.order if isinstance(n.op, Group)]
        for i, n in enumerate(groups):
            if not self.depth:
                progress.report("schedule", i, len(groups))
            in_time("schedule")
            self._launch(n)
            if now := [name for r in n.results for name in names.get(r, ())]:
                self._flush()
                self.found.known(self, now)
        self._flush()

    def _new(self, owner: Node | None, memory: _Memory) -> int:
        self.buffers.append(memory)
        if owner is not None:
            self.of_owner[owner] = len(self.buffers) - 1
        return len(self.buffers) - 1

    def layout(self, node: Node) -> Layout:
        return Layout.contiguous(node.shape) if node.constant is not None else self.storage.places[node].layout

    def buffer(self, node: Node) -> int:
        """The buffer id of a value of the graph, made when a step first asks for it."""
        if node.constant is not None:
            return self._weight(node.constant, None)
        owner = self.storage.places[node].owner
        found = self.of_owner.get(owner)
        if found is None:
            halo, fill = self.storage.halos.get(owner, (None, 0))
            nbytes = self.storage.places[owner].layout.span * owner.dtype.nbytes
            found = self._new(owner, _Memory("arena", nbytes, halo=halo, fill=fill))
        return found

    def _weight(self, constant: Array, pack: Pack | None) -> int:
        key = (constant, pack.key if pack else "")
        if key not in self.of_weight:
            offset, nbytes = self.weights.add(constant, pack)
            self.buffers.append(_Memory("weight", nbytes, offset=offset))
            self.of_weight[key] = len(self.buffers) - 1
        return self.of_weight[key]

    def _launch(self, node: Node) -> None:
        """Append the steps of one group, or let it wait for others beside it."""
        group = node.op
        assert isinstance(group, Group)
        ins, outs, constant = self._places(node)
        if any(category(n.op) is Category.CONTROL for n in group.body.nodes()):
            self._flush()
            first = len(self.steps)
            launch_control(self, node, ins, outs)
            self._note(node, first)
            return
        if isinstance(group, Recomputed):
            group = Group(group.body, group.kind)  # of the first time's kernel
        if self.storage.updates(node):
            group = replace(group, kind="update")
        key = (group, ins, outs, constant)
        if key not in self.lowered:
            self.lowered[key] = self._lower(node, group, ins, outs, constant)
        low = self.lowered[key]
        new = Waiting(node, key, low, *(self._sides(node, low) if self.beside.join else ()))
        if not self.beside.takes(new):
            self._flush()
        self.beside.waiting.append(new)
        if self.beside.join is None:
            self._flush()

    def _places(self, node: Node) -> tuple[tuple[Layout, ...], tuple[Layout, ...], tuple[bool, ...]]:
        """Where a group's operands and results lie, and which operands are constants."""
        constant = tuple(i.constant is not None for i in node.inputs)
        return tuple(map(self.layout, node.inputs)), tuple(map(self.layout, node.results)), constant

    def _sides(self, node: Node, low: Lowered) -> tuple[frozenset[int], frozenset[int]]:
        """The buffers that a group's kernels read, and those that they write. Operands that are read in packed form
        only have none of their own."""
        args = [pair for s in low.steps for pair in zip(s.kernel.params, s.args, strict=True)]
        places = [(b.writable, self.buffer(n)) for b, a in args for n in self._operand(node, a)]
        return frozenset(b for written, b in places if not written), frozenset(b for written, b in places if written)

    def _flush(self) -> None:
        """Append the steps of the groups that wait."""
        groups, self.beside.waiting = self.beside.waiting, []
        if not groups:
            return
        low = self.beside.together(groups)
        assert low is not None
        operands = {
            "in": [i for g in groups for i in g.node.inputs],
            "out": [r for g in groups for r in g.node.results],
        }
        packed = [self._weight(self._constant(groups[0].node, p), p) for p in low.packs]
        first = len(self.steps)
        what = " | ".join(label(g.node) for g in groups)
        some = sizes_suffice(groups) if self.depth else 1
        self.append(low, lambda a: self.buffer(operands[a.kind][a.index]), packed, what, some)
        for g in groups:
            self._note(g.node, first, g.low.site)

    def _note(self, node: Node, first: int, site: Site | None = None) -> None:
        """What the steps from `first` on belong to."""
        if self.depth:
            return
        ins, outs, constant = self._places(node)
        reads = (None if c else (self.buffer(n), lay) for n, lay, c in zip(node.inputs, ins, constant, strict=True))
        writes = ((self.buffer(n), lay) for n, lay in zip(node.results, outs, strict=True))
        self.launches.append(Launch(node, first, len(self.steps), tuple(reads), tuple(writes), site))

    @staticmethod
    def _operand(node: Node, arg: Arg) -> tuple[Node, ...]:
        values = {"in": node.inputs, "out": node.results}.get(arg.kind)
        return (values[arg.index],) if values else ()

    def append(
        self, low: Lowered, place: Callable[[Arg], int], packed: Sequence[int], what: str, some: DimLike = 1
    ) -> None:
        """The steps of a lowered group; `place` gives the buffers of its operands and results. some: 0 for sizes that
        it cannot run with."""
        temps = [self.temp(t) for t in low.temps]
        zeros = -1
        if low.zeros != 0:
            self.buffers.append(_Memory("arena", low.zeros, halo="zeros", name="zeros"))
            zeros = len(self.buffers) - 1

        def resolve(arg: Arg) -> int:
            match arg.kind:
                case "temp":
                    return temps[arg.index]
                case "pack":
                    return packed[arg.index]
                case "zeros":
                    return zeros
                case _:
                    return place(arg)

        for step in low.steps:
            number = len(self.steps)
            for arg in step.args:
                self.buffers[resolve(arg)].touch(number)
            self.scratch = max(self.scratch, step.kernel.scratch_bytes)
            chunks, rounds = count(step.kernel.chunks) * some, count(step.kernel.rounds)
            kernel, dims = self.exact.of(step.kernel)
            self.found.note(number, (chunks, rounds, *dims))
            self.steps.append(
                rt.Step(
                    self.symbol(kernel),
                    tuple((resolve(a), 0) for a in step.args),
                    tuple(map(expression, dims)),
                    expression(chunks),
                    what,
                    expression(rounds),
                )
            )

    def jump(self, flag: int | None = None, target: int = 0, turns: DimLike | None = None) -> int:
        """A jump, taken if the byte in buffer `flag` is 0 (None: always); its number, to set the target later. turns:
        of the loop that it leaves, where they are known beforehand."""
        number = len(self.steps)
        if flag is not None:
            self.buffers[flag].touch(number)
        args = () if flag is None else ((flag, 0),)
        dims = () if turns is None else (expression(turns),)
        self.steps.append(rt.Step("", args, dims, label="jump", target=target))
        return number

    def aim(self, number: int) -> None:
        """Let the jump `number` lead to the next step."""
        self.steps[number] = replace(self.steps[number], target=len(self.steps))

    def nested(self, graph: Graph, places: Sequence[int], pairs: Pairs = ()) -> list[tuple[int, Layout]]:
        """The steps of a fused graph whose inputs lie, contiguous, in the buffers `places`; where its outputs are.

        pairs: inputs, and the outputs that are to lie where these lie, if they can.
        """
        outside = self.graph, self.storage, self.of_owner
        known = (Group, Input, Const, Project, Concat, Pad)
        loose = sorted({n.op.name for n in graph.nodes() if not isinstance(n.op, known)})
        if loose:
            raise CompileError("a graph of control flow", expected="fused groups", got=", ".join(loose))
        self.storage = assign(graph, pairs)
        self.graph = self.storage.graph
        self.of_owner = dict(zip(self.graph.inputs, places, strict=True))
        self.depth += 1
        self._launch_all()
        found = [(self.buffer(n), self.layout(n)) for n in self.graph.results]
        self.depth -= 1
        self.graph, self.storage, self.of_owner = outside
        return found

    def _lower(
        self,
        node: Node,
        group: Group,
        ins: tuple[Layout, ...],
        outs: tuple[Layout, ...],
        constant: tuple[bool, ...],
    ) -> Lowered:
        try:
            return self.lower(group, ins, outs, constant)
        except CompileError as e:
            raise CompileError(f"{e} in the kernel of {label(node)}") from e

    def _constant(self, node: Node, pack: Pack) -> Array:
        op = node.inputs[pack.index].op
        assert isinstance(op, Const)
        return op.array

    def memory(self, kind: rt.BufferKind, index: int) -> int:
        return self._new(None, _Memory(kind, 8, index=index))

    def temp(self, nbytes: DimLike) -> int:
        self.buffers.append(_Memory("arena", nbytes, name="temp"))
        return len(self.buffers) - 1

    def symbol(self, kernel: Kernel) -> str:
        """The native name of a kernel. Lowering is memoized, so equal layers share the object."""
        known = self.by_identity.get(id(kernel))
        if known is None:
            known = kernel, f"{kernel.name}_{len(self.by_identity)}"
            self.by_identity[id(kernel)] = known
            self.assembler.add(replace(kernel, name=known[1]))
        return known[1]


def attribute_label(node: Node) -> str:
    op = node.op
    return op.label if isinstance(op, Input) else op.name


def count(e: KernelExpr) -> DimLike:
    """A number that a kernel gives over its dims (chunks, rounds)."""
    found = dim_of(e)
    if found is None:
        raise CompileError("a kernel's number of chunks", expected="arithmetic on its dims", got=repr(e))
    return found


class _NoCode:
    """An assembler for a plan that is not to run."""

    def add(self, kernel: Kernel) -> None:
        pass

    def finish(self) -> Code:
        raise CompileError("a plan without code")


def arena_of(storage: Storage, lower: Lower, join: Join | None = None) -> Arena:
    """What the runtime will need for all intermediate values of a fused graph, those of kernels and loops too, at
    likely sizes (see `runtime.bind.Layout`)."""
    linker = _Linker(storage.graph, storage, lower, _NoCode(), join)
    linker.link()
    regions: dict[str | None, list[placement.Request]] = {}
    for b in linker.buffers:
        if b.kind == "arena":
            regions.setdefault(b.halo, []).append(placement.Request(estimate(b.nbytes), b.first or 0, b.last))
    values = set(linker.of_owner.values())
    temporary = [b for i, b in enumerate(linker.buffers) if b.kind == "arena" and b.halo is None and i not in values]
    steps = [0] * len(linker.steps)
    for b in temporary:
        for step in range(b.first or 0, b.last + 1):
            steps[step] += placement.align(estimate(b.nbytes))
    own = {launch.node: max(steps[launch.first : launch.last], default=0) for launch in linker.launches}
    return Arena(sum(placement.place(requests)[1] for requests in regions.values()), own)


def link(
    graph: Graph,
    lower: Lower,
    assembler: Assembler,
    *,
    device: str = "cpu",
    stages: Mapping[str, str],
    meta: Mapping[str, str],
    launches: list[Launch] | None = None,
    fill: Fill = fill,
    join: Join | None = None,
) -> rt.Program:
    """Lower every group of a fused graph, have the kernels assembled and lay out weights and buffers.

    `launches`, if given, is filled with what each step belongs to, for debugging. `fill`: for one that remembers.
    join: groups whose order does not matter as one launch, if it can be.
    Raises CompileError, naming the group's ops and their place in the model.
    """
    storage = assign(graph, graph.lasting)
    linker = _Linker(storage.graph, storage, lower, assembler, join)
    linker.link()
    if launches is not None:
        launches += linker.launches
    progress.report("weights")
    weights = linker.weights.blob(fill)
    code = assembler.finish()
    bounds = {name: (lo, hi) for name, lo, hi in graph.bounds}
    held = len(graph.state)
    inputs = [_spec(attribute_label(n), n) for n in storage.graph.inputs]
    state = (
        rt.State(replace(spec, name=name), rt.zeros(estimate(old.type.nbytes)), storage.copied.get(old, ""))
        for name, spec, (old, _) in zip(graph.state, inputs[len(inputs) - held :], graph.lasting, strict=True)
    )
    names = storage.graph.output_names or tuple(f"output{i}" for i in range(len(graph.results)))
    return rt.Program(
        symbols=tuple(rt.Symbol(s, *(bounds.get(s) or span_of(s))) for s in graph.symbols() if not is_found(s)),
        sizes=linker.found.specs,
        conditions=tuple(map(expression, graph.conditions)),
        inputs=tuple(inputs[: len(inputs) - held]),
        outputs=tuple(_spec(name, n) for name, n in list(zip(names, storage.graph.results, strict=True))[held:]),
        state=tuple(state),
        buffers=tuple(b.placed(i, device) for i, b in enumerate(linker.buffers)),
        steps=tuple(replace(s, device=device) for s in linker.steps),
        code={device: code},
        weights=weights,
        scratch_bytes=linker.scratch,
        stages=stages,
        meta=meta,
    )


def _spec(name: str, node: Node) -> rt.TensorSpec:
    elements = tuple(map(expression, elements_of(node)))
    return rt.TensorSpec(name, node.dtype.name, tuple(map(expression, node.shape)), elements)
