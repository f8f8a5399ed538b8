"""From a fused graph to a Program: storage, kernels, weights and the plan."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice, takewhile
from typing import Protocol

from ingot.ir.array import Array
from ingot.ir.dims import DimLike, default_bounds, estimate, is_computed
from ingot.ir.kernel import Kernel
from ingot.ir.layout import Layout
from ingot.ir.node import Const, Graph, Input, Node, Project, size_elements
from ingot.ops import Concat, Pad
from ingot.ops.group import Group, Recomputed, label
from ingot.plan.control import is_control, launch_control
from ingot.plan.early_reads import EarlyReads
from ingot.plan.exact import ExactDims
from ingot.plan.in_place import Pairs
from ingot.plan.joint_launch import MAX_FOLLOWING, Join, PendingGroup, PendingGroups, operands_exist
from ingot.plan.serial_launch import Chain, SerialLaunch
from ingot.plan.sizes import RuntimeSizes, expression, kernel_dim
from ingot.plan.storage import Storage, assign
from ingot.plan.weights import Fill, Weights, fill
from ingot.runtime import program as rt
from ingot.schedule.choice import Site
from ingot.schedule.lowered import Arg, Lowered, Pack
from ingot.support import progress
from ingot.support.dataclass import dataclass
from ingot.support.errors import CompileError
from ingot.support.limits import check_time
from ingot.support.native import Code

Lower = Callable[[Group, tuple[Layout, ...], tuple[Layout, ...], tuple[bool, ...]], Lowered]


class Assembler(Protocol):
    """Compiles kernels to a target's code while further ones are being lowered."""

    def add(self, kernel: Kernel) -> None:
        """Start compiling a kernel. Its name is its symbol in the code."""
        ...

    def finish(self) -> Code:
        """The code of all kernels, and what runs them. Raises CompileError."""
        ...


@dataclass(frozen=True)
class Launch:
    """Steps first..last-1 of a program run group `node`.

    inputs, outputs: buffer number and layout of each operand and result; None for a constant operand. site: the
    schedule's decision about the group, if any.
    """

    node: Node
    first: int
    last: int
    inputs: tuple[tuple[int, Layout] | None, ...]
    outputs: tuple[tuple[int, Layout], ...]
    site: Site | None = None

    @property
    def updates(self) -> bool:
        """Whether the result is written over the operand that the group updates."""
        return isinstance(self.node.op, Group) and self.node.op.kind == "scatter" and self.outputs[0] in self.inputs


@dataclass
class _Memory:
    """One buffer of the plan while lifetimes are being collected. first, last: the steps that use it."""

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

    def to_buffer(self, number: int, device: str) -> rt.Buffer:
        nbytes, first = expression(self.nbytes), self.first or 0
        return rt.Buffer(
            number, self.kind, nbytes, first, self.last, self.offset, self.index, self.halo, self.fill,
            name=self.name, device=device,
        )  # fmt: skip


class Linker:
    def __init__(
        self, graph: Graph, storage: Storage, lower: Lower, assembler: Assembler, join: Join | None, chain: Chain | None
    ):
        self.graph, self.storage, self.lower, self.assembler = graph, storage, lower, assembler
        self.input_count = len(graph.inputs) - len(graph.state)
        self.pending, self.serial = PendingGroups(join), SerialLaunch(chain)
        self.weights = Weights()
        self.buffers: list[_Memory] = []
        self.buffer_of_value: dict[Node, int] = {}
        self.buffer_of_weight: dict[tuple[Array, str], int] = {}
        self.panels: dict[Array, int] = {}
        self.lowered: dict[object, Lowered] = {}
        self._steps: list[rt.Step] = []  # without the serial launch, which is the next one
        self.launches: list[Launch] = []
        self.scratch = 0
        self.sizes = RuntimeSizes()
        self.exact_dims, self.early_reads = ExactDims(), EarlyReads()
        self.symbols: dict[int, tuple[Kernel, str]] = {}  # an id is valid while its kernel is referenced
        self.depth = 0
        self.under_way: tuple[int, int] | None = None  # source and target of an exchange that nothing waits for yet

    @property
    def steps(self) -> list[rt.Step]:
        """All steps so far: to read them ends the serial launch."""
        if self.serial.kernels:
            kernel, args, name = self.serial.take()
            self.sizes.add_step_dims(len(self._steps), (1, 1))
            self._steps.append(rt.Step(self.symbol(kernel), args, (), 1, name, 1))
        return self._steps

    def _next_step(self) -> int:
        """The number of the step that the next launch begins with; 0 in graphs of control flow, whose launches are not
        recorded and may continue the serial launch."""
        return 0 if self.depth else len(self.steps)

    def link(self) -> None:
        for i, n in enumerate(self.graph.inputs):
            self._add_buffer(n, _Memory("input", n.type.nbytes, index=i, name=str(input_label(n))))
        for i, n in enumerate(self.graph.results):
            if self.storage.places[n].owner is n and n not in self.buffer_of_value:
                self._add_buffer(n, _Memory("output", n.type.nbytes, index=i))
        self._launch_all()
        self.sizes.finish(self)

    def _launch_all(self) -> None:
        """Append the steps of all groups, and a `sizes` step after each with which sizes and their maxima are known."""
        self.sizes.declare(self, self.graph)
        self.buffer_of_value.update((n, self.sizes.buffers[name]) for name, n in self.graph.size_nodes.items())
        missing = {name: {*nodes} for name, nodes in self.graph.size_requirements.items()}
        groups = deque(n for n in self.storage.order if isinstance(n.op, Group))
        self._choose_panels(groups)
        count = len(groups)
        while groups:
            if not self.depth:
                progress.report("schedule", count - len(groups), count)
            check_time("schedule")
            n = groups.popleft()
            self._launch(n, groups)
            missing = {name: nodes.difference(n.results) for name, nodes in missing.items()}
            if known_sizes := [name for name, nodes in missing.items() if not nodes]:
                missing = {name: nodes for name, nodes in missing.items() if nodes}
                self._launch_pending()
                self.sizes.add_sizes_step(self, known_sizes)
        self._launch_pending()

    def _choose_panels(self, groups: Sequence[Node]) -> None:
        """Lower the products with tables before the lookups, which read these from any panels."""
        of_kind = {kind: [n for n in groups if kind_of(n) == kind] for kind in ("embedding_lookup", "contraction")}
        tables = {i.constant for n in of_kind["embedding_lookup"] for i in n.inputs} - {None}
        for n in of_kind["contraction"]:
            if tables.intersection(i.constant for i in n.inputs):
                self._lower(n)

    def _add_buffer(self, owner: Node | None, memory: _Memory) -> int:
        self.buffers.append(memory)
        if owner is not None:
            self.buffer_of_value[owner] = len(self.buffers) - 1
        return len(self.buffers) - 1

    def layout(self, node: Node) -> Layout:
        return Layout.contiguous(node.shape) if node.constant is not None else self.storage.places[node].layout

    def buffer(self, node: Node) -> int:
        """The buffer number of a value, which is allocated on its first use."""
        if node.constant is not None:
            return self._weight(node.constant, None)
        owner = self.storage.places[node].owner
        buffer = self.buffer_of_value.get(owner)
        if buffer is None:
            halo, fill = self.storage.halos.get(owner, (None, 0))
            nbytes = self.storage.places[owner].layout.span * owner.dtype.nbytes
            buffer = self._add_buffer(owner, _Memory("arena", nbytes, halo=halo, fill=fill))
        return buffer

    def _weight(self, constant: Array, pack: Pack | None) -> int:
        if pack and pack.keeps_order and (pack.size, pack.dtype.numpy) == (constant.size, constant.dtype):
            pack = None
        key = (constant, pack.key if pack else "")
        if key not in self.buffer_of_weight:
            offset, nbytes = self.weights.add(constant, pack)
            self.buffers.append(_Memory("weight", nbytes, offset=offset))
            self.buffer_of_weight[key] = len(self.buffers) - 1
        return self.buffer_of_weight[key]

    def _launch(self, node: Node, following: deque[Node]) -> None:
        """Append the steps of one group, or leave it pending so that others can join its launch: the next ones, and
        where it ends, some of those that are `following`."""
        if is_control(node):
            self._launch_pending()
            first = self._next_step()
            ins, outs, _ = self._layouts(node)
            launch_control(self, node, ins, outs)
            self._record_launch(node, first)
            return
        pending = self._pending_group(node)
        is_link = self.depth > 0 and all(self.serial.is_link(s.kernel) for s in pending.lowered.steps)
        if is_link or not self.pending.can_add(pending):
            if not self.depth and not self.graph.size_nodes and self.pending.can_join():
                later = takewhile(lambda n: not is_control(n), islice(following, MAX_FOLLOWING))
                for n in self.pending.add_early([pending, *map(self._pending_group, later)]):
                    following.remove(n)
            self._launch_pending()
        self.pending.groups.append(pending)
        if self.pending.join is None:
            self._launch_pending()

    def _pending_group(self, node: Node) -> PendingGroup:
        key, lowered = self._lower(node)
        return PendingGroup(node, key, lowered, *(self._buffers_used(node, lowered) if self.pending.join else ()))

    def _layouts(self, node: Node) -> tuple[tuple[Layout, ...], tuple[Layout, ...], tuple[bool, ...]]:
        """The layouts of a group's operands and results, and which operands are constants."""
        constant = tuple(i.constant is not None for i in node.inputs)
        return tuple(map(self.layout, node.inputs)), tuple(map(self.layout, node.results)), constant

    def _with_panels(self, node: Node, ins: tuple[Layout, ...]) -> tuple[Layout, ...]:
        """`ins`, where constants have the panels that other kernels read."""
        panels = (0 if i.constant is None else self.panels.get(i.constant, 0) for i in node.inputs)
        return tuple(replace(lay, panel=n) if n else lay for lay, n in zip(ins, panels, strict=True))

    def _buffers_used(self, node: Node, lowered: Lowered) -> tuple[frozenset[int], frozenset[int]]:
        """The buffers that a group's kernels read, and those that they write. An operand that is read only in packed
        form has no buffer."""
        args = [pair for s in lowered.steps for pair in zip(s.kernel.params, s.args, strict=True)]
        buffers = [(b.writable, self.buffer(n)) for b, a in args for n in self._group_value(node, a)]
        return frozenset(b for is_written, b in buffers if not is_written), frozenset(
            b for is_written, b in buffers if is_written
        )

    def _launch_pending(self) -> None:
        """Append the steps of the pending groups."""
        groups, self.pending.groups = self.pending.groups, []
        if not groups:
            return
        lowered = self.pending.join_groups(groups)
        assert lowered is not None
        nodes = [g.node for g in groups]
        operands = {"in": [i for n in nodes for i in n.inputs], "out": [r for n in nodes for r in n.results]}
        packed = [self._weight(self._constant(groups[0].node, p), p) for p in lowered.packs]
        first = self._next_step()
        name = " | ".join(label(g.node) for g in groups)
        enabled = operands_exist(groups) if self.depth else 1
        self.append(lowered, lambda a: self.buffer(operands[a.kind][a.index]), packed, name, enabled)
        for g in groups:
            self._record_launch(g.node, first, g.lowered.site)

    def _record_launch(self, node: Node, first: int, site: Site | None = None) -> None:
        """Record that the steps from `first` on run group `node`."""
        if self.depth:
            return
        ins, outs, constant = self._layouts(node)
        reads = (None if c else (self.buffer(n), lay) for n, lay, c in zip(node.inputs, ins, constant, strict=True))
        writes = ((self.buffer(n), lay) for n, lay in zip(node.results, outs, strict=True))
        self.launches.append(Launch(node, first, len(self.steps), tuple(reads), tuple(writes), site))

    @staticmethod
    def _group_value(node: Node, arg: Arg) -> tuple[Node, ...]:
        values = {"in": node.inputs, "out": node.results}.get(arg.kind)
        return (values[arg.index],) if values else ()

    def append(
        self, lowered: Lowered, buffer_of: Callable[[Arg], int], packed: Sequence[int], name: str, enabled: DimLike = 1
    ) -> None:
        """Append the steps of a lowered group. buffer_of: the buffers of its operands and results. packed: those of its
        packed constants. enabled: 1, or 0 for sizes with which the steps must not run."""
        temps = [self.add_temp(t) for t in lowered.temps]
        zeros = -1
        if lowered.zeros != 0:
            zeros = self._add_buffer(None, _Memory("arena", lowered.zeros, halo="zeros", name="zeros"))

        def resolve(arg: Arg) -> int:
            match arg.kind:
                case "temp":
                    return temps[arg.index]
                case "pack":
                    return packed[arg.index]
                case "zeros":
                    return zeros
                case _:
                    return buffer_of(arg)

        for step in lowered.steps:
            args = tuple((resolve(a), 0) for a in step.args)
            is_link = lowered.zeros == 0 and enabled == 1 and self.serial.is_link(step.kernel)
            number = len(self._steps if is_link and not self.serial.is_full else self.steps)
            for buffer, _ in args:
                self._touch(buffer, number)
            if is_link:
                self.serial.add(step.kernel, args, name)
                continue
            self.scratch = max(self.scratch, step.kernel.scratch_bytes)
            chunks, rounds = kernel_dim(step.kernel.chunks) * enabled, kernel_dim(step.kernel.rounds)
            kernel = self.early_reads.allowed(step.kernel, [self._is_fixed(buffer) for buffer, _ in args])
            kernel, dims = self.exact_dims.of(kernel)
            self.sizes.add_step_dims(number, (chunks, rounds, *dims))
            step_fields = self.symbol(kernel), args, tuple(map(expression, dims)), expression(chunks), name
            self.steps.append(rt.Step(*step_fields, expression(rounds)))

    def _is_fixed(self, number: int) -> bool:
        """Whether no step writes a buffer."""
        b = self.buffers[number]
        return b.kind == "weight" or (b.kind == "input" and b.index < self.input_count)

    def _touch(self, buffer: int, number: int) -> None:
        self.buffers[buffer].touch(number)
        if self.under_way is not None and buffer == self.under_way[1]:
            self._end_exchange(number)

    def _end_exchange(self, number: int) -> None:
        """What step `number` does waits for the last exchange: until then nothing else may take its operand's memory,
        or it would wait, too."""
        if self.under_way is not None:
            self.buffers[self.under_way[0]].touch(number)
            self.under_way = None

    def exchange(self, collective: rt.Collective, source: int, target: int, count: DimLike) -> None:
        """Append an exchange of `count` elements of buffer `source`, whose result is stored in buffer `target`."""
        self._end_exchange(len(self.steps))
        step = rt.Step(collective.kind, (), label=str(collective), collective=collective)
        self._add(step, (source, target), (count,))
        self.under_way = source, target

    def call_host(self, call: rt.HostCall, buffers: Sequence[int], dims: Sequence[DimLike]) -> None:
        """Append a call of a function of the host with contiguous tensors in `buffers`, operands first."""
        self._add(rt.Step("", (), label=f"call of {call.name}", host=call), buffers, dims)

    def _add(self, step: rt.Step, buffers: Sequence[int], dims: Sequence[DimLike]) -> None:
        for buffer in buffers:
            self._touch(buffer, len(self.steps))
        self.sizes.add_step_dims(len(self.steps), (1, 1, *dims))
        self.steps.append(replace(step, args=tuple((b, 0) for b in buffers), dims=tuple(map(expression, dims))))

    def jump(self, flag: int | None = None, target: int = 0, trip_count: DimLike | None = None) -> int:
        """Append a jump, taken if the byte in buffer `flag` is 0 (None: always), and return its number, with which
        `set_target` can set its target. trip_count: of the loop that the jump leaves, if known in advance."""
        number = len(self.steps)
        if flag is not None:
            self.buffers[flag].touch(number)
        args = () if flag is None else ((flag, 0),)
        dims = () if trip_count is None else (expression(trip_count),)
        self.steps.append(rt.Step("", args, dims, label="jump", target=target))
        return number

    def set_target(self, number: int) -> None:
        """Set the target of jump `number` to the next step."""
        self.steps[number] = replace(self.steps[number], target=len(self.steps))

    def inline(self, graph: Graph, buffers: Sequence[int], pairs: Pairs = ()) -> list[tuple[int, Layout]]:
        """Append the steps of a fused graph whose inputs are contiguous in `buffers`; the places of its results.

        pairs: inputs, and the outputs to write over them if possible.
        """
        outer = self.graph, self.storage, self.buffer_of_value
        allowed = (Group, Input, Const, Project, Concat, Pad)
        unfused = sorted({n.op.name for n in graph.nodes() if not isinstance(n.op, allowed)})
        if unfused:
            raise CompileError("a graph of control flow", expected="fused groups", got=", ".join(unfused))
        self.storage = assign(graph, pairs)
        self.graph = self.storage.graph
        self.buffer_of_value = dict(zip(self.graph.inputs, buffers, strict=True))
        self.depth += 1
        self._launch_all()
        results = [(self.buffer(n), self.layout(n)) for n in self.graph.results]
        self.depth -= 1
        self.graph, self.storage, self.buffer_of_value = outer
        return results

    def _lower(self, node: Node) -> tuple[object, Lowered]:
        """The kernels of a group, and the key of their lowering, by which equal groups share them."""
        group = node.op
        assert isinstance(group, Group)
        if isinstance(group, Recomputed):
            group = Group(group.body, group.kind)  # share the kernel of the first run
        if self.storage.updates(node):
            group = replace(group, kind="update")
        ins, outs, constant = self._layouts(node)
        key, shared = (group, ins, outs, constant), self._with_panels(node, ins)
        lowered = self.lowered.get(key)
        if lowered is None or any(p.panel not in (0, shared[p.index].panel) for p in lowered.packs):
            key = (group, shared, outs, constant)
        if key not in self.lowered:
            try:
                self.lowered[key] = self.lower(*key)
            except CompileError as e:
                raise CompileError(f"{e} in the kernel of {label(node)}") from e
        lowered = self.lowered[key]
        self.panels = {self._constant(node, p): p.panel for p in lowered.packs if p.panel} | self.panels
        return key, lowered

    def _constant(self, node: Node, pack: Pack) -> Array:
        op = node.inputs[pack.index].op
        assert isinstance(op, Const)
        return op.array

    def add_scalar(self, kind: rt.BufferKind, index: int) -> int:
        return self._add_buffer(None, _Memory(kind, 8, index=index))

    def add_temp(self, nbytes: DimLike) -> int:
        return self._add_buffer(None, _Memory("arena", nbytes, name="temp"))

    def symbol(self, kernel: Kernel) -> str:
        """The native name of a kernel. Lowering is memoized, so equal layers share the object."""
        entry = self.symbols.get(id(kernel))
        if entry is None:
            entry = self.symbols[id(kernel)] = kernel, f"{kernel.name}_{len(self.symbols)}"
            self.assembler.add(replace(kernel, name=entry[1]))
        return entry[1]


def kind_of(node: Node) -> str:
    return node.op.kind if isinstance(node.op, Group) else ""


def input_label(node: Node) -> str:
    op = node.op
    return op.label if isinstance(op, Input) else op.name


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
    chain: Chain | None = None,
) -> rt.Program:
    """Lower every group of a fused graph, assemble the kernels, and lay out weights and buffers.

    launches: a list to which the group of each range of steps is appended, for debugging. fill: writes a constant into
    the weights; by default `fill`. join: lowers independent groups as one launch, if the target can. chain: makes
    kernels that follow one another one launch.

    Raises CompileError, naming the group's ops and their place in the model.
    """
    storage = assign(graph, graph.state_pairs)
    linker = Linker(storage.graph, storage, lower, assembler, join, chain)
    linker.link()
    if launches is not None:
        launches += linker.launches
    progress.report("weights")
    weights = linker.weights.blob(fill)
    code = assembler.finish()
    bounds = {name: (lo, hi) for name, lo, hi in graph.bounds}
    state_count = len(graph.state)
    inputs = [spec_of(input_label(n), n) for n in storage.graph.inputs]
    state = (
        rt.State(replace(spec, name=name), rt.zeros(estimate(old.type.nbytes)), storage.copy_reasons.get(old, ""))
        for name, spec, (old, _) in zip(
            graph.state, inputs[len(inputs) - state_count :], graph.state_pairs, strict=True
        )
    )
    names = storage.graph.output_names or tuple(f"output{i}" for i in range(len(graph.results)))
    return rt.Program(
        symbols=tuple(
            rt.Symbol(s, *(bounds.get(s) or default_bounds(s))) for s in graph.symbols() if not is_computed(s)
        ),
        sizes=linker.sizes.specs,
        conditions=tuple(map(expression, graph.conditions)),
        inputs=tuple(inputs[: len(inputs) - state_count]),
        outputs=tuple(
            spec_of(name, n) for name, n in list(zip(names, storage.graph.results, strict=True))[state_count:]
        ),
        state=tuple(state),
        buffers=tuple(b.to_buffer(i, device) for i, b in enumerate(linker.buffers)),
        steps=tuple(replace(s, device=device) for s in linker.steps),
        code={device: code},
        weights=weights,
        scratch_bytes=linker.scratch,
        stages=stages,
        meta=meta,
    )


def spec_of(name: str, node: Node) -> rt.TensorSpec:
    """The description of an input or output of a program."""
    elements = tuple(map(expression, size_elements(node)))
    return rt.TensorSpec(name, node.dtype.name, tuple(map(expression, node.shape)), elements)
