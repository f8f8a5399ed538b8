"""Find what is responsible for two results that are apart: the import, a pass and the rule in it, a kernel, memory,
threads, or the framework that Ingot is compared with.

    reference -- import --> graph -- pass 1 --> graph -- pass 2 --> ... --> groups -- kernels --> result

Each arrow is checked in turn with the interpreter on the same inputs; the first that changes the result is to blame,
and within it the first op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from ingot.debug.build import Build
from ingot.debug.comparison.exact import Judge
from ingot.debug.comparison.onnx_runtime import Definitions, session, with_all_values
from ingot.debug.comparison.reference import Reference
from ingot.debug.comparison.tolerance import Agreement, agree, worst
from ingot.debug.feeds import Feeds
from ingot.debug.source import Source
from ingot.debug.stepper import find_fault
from ingot.ir.dims import likely_sizes
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node
from ingot.ir.rewrite import fueled
from ingot.ops.group import label
from ingot.pipeline.build import size_hints
from ingot.pipeline.target import Options, Pass, target_of
from ingot.runtime.executor import CompiledModel
from ingot.support import progress
from ingot.support.dataclass import dataclass
from ingot.support.errors import IngotError

Stage = Literal["import", "framework", "pass", "kernel", "memory", "threads", "program", "unknown"]


@dataclass(frozen=True)
class Blame:
    """Who is responsible. `name`: the pass, the kernels, or the saved program. `op`, `where`: the first op that
    differs, and its place."""

    stage: Stage
    name: str
    op: str
    where: str
    text: str
    rule: str = ""

    def __str__(self) -> str:
        who = {"import": "the import", "framework": self.name}
        who |= {"pass": f"pass {self.name}", "kernel": f"kernel {self.name}", "program": self.name}
        head = who.get(self.stage, self.stage) + (f", rule {self.rule}" if self.rule else "")
        op = f": {self.op}" if self.op else ""
        return f"{head}{op}{f' at {self.where}' if self.where else ''}: {self.text}"


def find_blame(
    source: Source, build: Build, feeds: Feeds, reference: Reference | None, tolerance: float | None = None
) -> Blame:
    """Who made the compiled model's result on `feeds` differ from the reference's, or without one the interpreter's."""
    arrays = list(feeds.values())
    progress.report("interpret")
    meaning = interpret(build.graph, arrays)
    judge = Judge(build.graph, arrays, tolerance)
    if reference is not None:
        progress.report(f"check the import against {reference.name}")
        difference = judge.worst(meaning, reference.run(feeds))
        if not difference.ok:
            blame = _blame_import(source, feeds, difference, reference.name, tolerance)
            if blame.stage == "import" or judge.worst(_run(build.model(), arrays), meaning).ok:
                return blame
    blame = _blame_passes(build, arrays, meaning, judge, tolerance)
    if blame is not None:
        return blame
    fault = find_fault(build, arrays, tolerance)
    if fault is not None:
        kernels = ", ".join(fault.kernels)
        stage: Stage = "kernel" if fault.what == "kernel" else "memory"
        return Blame(stage, kernels, label(fault.launch.node).partition(" @ ")[0], fault.launch.node.loc, str(fault))
    return _blame_threads(build, arrays, meaning, judge)


def _worst(got: Sequence[np.ndarray], expected: Sequence[np.ndarray], tolerance: float | None) -> Agreement:
    return worst([agree(np.asarray(a), b, tolerance) for a, b in zip(got, expected, strict=True)])


def _blame_import(source: Source, feeds: Feeds, difference: Agreement, other: str, tolerance: float | None) -> Blame:
    """For ONNX: make every value an output, in Ingot's interpreter and in ONNX Runtime; the first that differs. Where
    Ingot has what ONNX defines, and the other has not, it is the other's fault."""
    unknown = Blame("import", "import", "", str(source.path), str(difference))
    if source.kind != "onnx":
        return unknown
    import onnx  # an extra, installed where the model could be read

    from ingot.frontends.onnx import import_onnx

    model = with_all_values(onnx.load(source.path))
    feeds_and_weights = {**feeds, **source.weights}
    try:
        expected = session(model.SerializeToString())(feeds_and_weights)
        graph = import_onnx(model, dynamic=source.dynamic, weights=source.weights)
        arrays = [feeds[n.op.label] for n in graph.inputs if isinstance(n.op, Input)]
        got = interpret(graph, arrays)
    except IngotError as error:  # some values cannot be outputs, sequences for one: say so, the mismatch stands
        return replace(unknown, text=f"{difference}; which op cannot be told: {error}")
    names = [o.name for o in model.graph.output]
    ours, theirs = dict(zip(names, got, strict=True)), dict(zip(names, expected, strict=True))
    judge = Judge(graph, arrays, tolerance)
    for i, (name, a) in enumerate(ours.items()):
        agreement = judge.difference(i, a, theirs[name])
        if agreement.ok:
            continue
        node, defined = Definitions(model, feeds_and_weights).culprit(name, ours, theirs, tolerance)
        exact = judge.exact.judge(i, a, theirs[name], tolerance) == "ours"
        text = f"value {name!r}: {agreement}{'; Ingot has what its graph gives in float64' if exact else ''}"
        stage, who = ("framework", other) if exact and defined else ("import", "import")
        return Blame(stage, who, node.op_type, node.name or node.output[0], text)
    return unknown


def _blame_passes(
    build: Build, arrays: Sequence[np.ndarray], meaning: Sequence[np.ndarray], judge: Judge, tolerance: float | None
) -> Blame | None:
    before, options = build.graph, Options(build.threads, build.fast_math, build.precision, build.activations)
    for name, run in target_of(build.features).passes(build.features, options):
        progress.report(f"check pass {name}")
        after = build.graph_after(name)
        difference = judge.worst(interpret(after, arrays), meaning)
        if not difference.ok:
            return _blame_pass(build, name, run, before, arrays, meaning, tolerance, difference)
        before = after
    return None


def _blame_pass(
    build: Build,
    name: str,
    run: Pass,
    before: Graph,
    arrays: Sequence[np.ndarray],
    meaning: Sequence[np.ndarray],
    tolerance: float | None,
    difference: Agreement,
) -> Blame:
    """Within a pass: the first node whose prefix of the graph the pass breaks, and the rewrite rule that does it."""

    def breaks(graph: Graph, limit: int | None = None) -> tuple[bool, str, int]:
        with likely_sizes(size_hints(build.graph)), fueled(limit) as tank:
            changed = run(graph)
        expected = meaning if graph is before else interpret(graph, arrays)
        return not _worst(interpret(changed, arrays), expected, tolerance).ok, tank.last, tank.used

    rule = ""
    _, _, used = breaks(before)
    if used:
        first = _first(range(1, used + 1), lambda n: breaks(before, n)[0])
        rule = breaks(before, first)[1] if first is not None and breaks(before, first)[0] else ""
    nodes = [n for n in before.nodes() if not n.is_leaf and len(n.types) == 1]
    at = _first(range(len(nodes)), lambda i: breaks(_prefix(before, nodes[: i + 1]))[0])
    node = None if at is None else nodes[at]
    op, where = ("", "") if node is None else (node.op.name, node.loc)
    return Blame("pass", name, op, where, str(difference), rule)


def _prefix(graph: Graph, nodes: Sequence[Node]) -> Graph:
    """The graph that gives all of `nodes`: one that holds a broken node stays broken as it grows."""
    return replace(graph, outputs=tuple(nodes), output_names=())


def _first(places: range, bad: Callable[[int], bool]) -> int | None:
    """The first bad place, by bisection: exact where all later ones are bad too; None if the one it ends at is fine."""
    low, high = 0, len(places) - 1
    while low < high:
        middle = (low + high) // 2
        if bad(places[middle]):
            high = middle
        else:
            low = middle + 1
    return places[low] if places and bad(places[low]) else None


def _blame_threads(build: Build, arrays: Sequence[np.ndarray], meaning: Sequence[np.ndarray], judge: Judge) -> Blame:
    """Every group is right on its own: run the whole program with one thread, then repeatedly with all of them."""
    serial = judge.worst(_run(CompiledModel(build.program, threads=1), arrays), meaning)
    if not serial.ok:
        return Blame("unknown", "", "", "", f"the whole program on one thread differs, though no step does: {serial}")
    parallel_model = build.model()
    for _ in range(20):
        difference = judge.worst(_run(parallel_model, arrays), meaning)
        if not difference.ok:
            return Blame("threads", "", "", "", f"right on one thread, wrong on {build.threads}: {difference}")
    return Blame("unknown", "", "", "", "the difference did not come back")


def _run(model: CompiledModel, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    results = model(*arrays)
    return [np.asarray(o) for o in (results if isinstance(results, tuple) else (results,))]
