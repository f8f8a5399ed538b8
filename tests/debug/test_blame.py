"""Sabotage each stage of a compile; the comparison must name it, the op and the place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from ingot import ops
from ingot.debug import blame
from ingot.debug.blame import find_blame
from ingot.debug.build import Build, build
from ingot.debug.comparison import onnx_runtime
from ingot.debug.comparison import reference as references
from ingot.debug.comparison.compare import compare
from ingot.debug.comparison.reference import reference
from ingot.debug.feeds import index_limits, random_feeds
from ingot.debug.source import Source, open_source, read_graph
from ingot.debug.stepper import find_fault
from ingot.frontends.onnx import walk
from ingot.ir.node import Graph, Input, Node
from ingot.ir.rewrite import Rule, rewrite, rules
from ingot.pipeline import cpu
from ingot.pipeline.target import Pass
from ingot.support.errors import CompileError
from tests.debug.models import classifier, residual, save

SIZES = [{"batch": 2}]


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return open_source(save(classifier(), tmp_path / "m.onnx"))


@pytest.fixture
def built(source: Source) -> Build:
    return build(read_graph(source), threads=2)


def feeds_of(b: Build) -> dict[str, np.ndarray]:
    return random_feeds(b.program, SIZES[0], index_limits(b.graph))


def test_a_right_model_agrees_with_both_references(source: Source):
    pytest.importorskip("onnxruntime")
    comparison = compare(source, threads=2)
    assert comparison.ok and comparison.blame is None
    assert len({c.reference for c in comparison.checks}) == 2
    assert sorted({c.sizes["batch"] for c in comparison.checks}) == [1, 2, 3]


def test_no_group_is_at_fault_in_a_right_model(built: Build):
    assert find_fault(built, list(feeds_of(built).values())) is None


def _replace(op: type, new: Callable[[Node], Node]) -> Pass:
    def run(graph: Graph) -> Graph:
        return rewrite(graph, rules(Rule("max-is-min", op, lambda n: new(n))))

    return run


def _pipeline_with(monkeypatch: pytest.MonkeyPatch, after: str, name: str, run: Pass) -> None:
    original = cpu.cpu_passes

    def changed(*options: object) -> tuple[tuple[str, Pass], ...]:
        changes: list[tuple[str, Pass]] = []
        for step in original(*options):  # type: ignore[arg-type]
            changes += [step, (name, run)] if step[0] == after else [step]
        return tuple(changes)

    monkeypatch.setattr(cpu, "cpu_passes", changed)


def test_a_wrong_rewrite_is_named_with_its_rule_op_and_place(source: Source, monkeypatch: pytest.MonkeyPatch):
    def sabotage(n: Node) -> Node:
        return ops.Min()(*n.inputs, loc=n.loc) if n.loc == "relu" else n

    _pipeline_with(monkeypatch, "lower", "sabotage", _replace(ops.Max, sabotage))
    comparison = compare(source, threads=2, sizes=SIZES)
    assert not comparison.ok and comparison.blame is not None
    assert (comparison.blame.stage, comparison.blame.name, comparison.blame.rule) == ("pass", "sabotage", "max-is-min")
    assert (comparison.blame.op, comparison.blame.where) == ("maximum", "relu")


def test_a_wrong_pass_without_rules_is_named_with_its_op(source: Source, monkeypatch: pytest.MonkeyPatch):
    def negate_divisions(graph: Graph) -> Graph:
        memo: dict[Node, Node] = {}
        for n in graph.nodes():
            new = n if isinstance(n.op, Input) else n.with_inputs([memo[i] for i in n.inputs])
            memo[n] = ops.Neg()(new) if isinstance(n.op, ops.Div) else new
        return replace(graph, outputs=tuple(memo[o] for o in graph.outputs))

    _pipeline_with(monkeypatch, "simplify", "negate", negate_divisions)
    comparison = compare(source, threads=2, sizes=SIZES)
    assert comparison.blame is not None
    assert (comparison.blame.stage, comparison.blame.name) == ("pass", "negate")
    assert (comparison.blame.op, comparison.blame.where) == ("divide", "softmax")


def test_a_wrong_import_is_named_with_its_onnx_node(source: Source, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("onnxruntime")
    original = walk.find_row

    def find(domain: str, name: str, version: int):
        return original(domain, "Sigmoid" if name == "Relu" else name, version)

    monkeypatch.setattr(walk, "find_row", find)
    comparison = compare(source, threads=2, sizes=SIZES)
    assert comparison.blame is not None
    assert (comparison.blame.stage, comparison.blame.op, comparison.blame.where) == ("import", "Relu", "relu")


def test_an_inexact_framework_is_named_with_its_onnx_node(source: Source, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("onnxruntime")

    def inexact(model: str | bytes) -> onnx_runtime.Run:
        changed = onnx.load_from_string(model) if isinstance(model, bytes) else onnx.load(model)
        node = next(n for n in changed.graph.node if n.name == "relu")
        node.op_type = "LeakyRelu"
        return onnx_runtime.session(changed.SerializeToString())

    for user in (blame, references):
        monkeypatch.setattr(user, "session", inexact)
    comparison = compare(source, threads=2, sizes=SIZES)
    assert not comparison.ok and comparison.blame is not None
    assert (comparison.blame.stage, comparison.blame.op, comparison.blame.where) == ("framework", "Relu", "relu")
    assert comparison.blame.name.startswith("ONNX Runtime")


def _step_of(b: Build, place: str) -> int:
    return next(launch.first for launch in b.launches if launch.node.loc == place)


def test_a_wrong_kernel_is_named(source: Source, built: Build):
    at = _step_of(built, "relu")
    steps = list(built.program.steps)
    steps[at] = replace(steps[at], chunks=0)  # it leaves what memory held before
    broken = replace(built, program=replace(built.program, steps=tuple(steps)))
    result = find_blame(source, broken, feeds_of(built), reference(source))
    assert (result.stage, result.name, result.where) == ("kernel", steps[at].kernel, "relu")


def test_memory_that_is_taken_too_early_is_named_with_its_reader(tmp_path: Path):
    """A plan in which a value ends its life when it is written: the next result takes its place."""
    b = build(read_graph(open_source(save(residual(), tmp_path / "r.onnx"))), threads=2)
    writer = next(launch for launch in b.launches if launch.node.loc == "a")
    buffer = writer.outputs[0][0]
    buffers = tuple(replace(m, last_step=m.first_step) if m.id == buffer else m for m in b.program.buffers)
    broken = replace(b, program=replace(b.program, buffers=buffers))
    fault = find_fault(broken, list(random_feeds(b.program, {"batch": 3}).values()))
    assert fault is not None
    # its direct reader computes on what it overwrites, the one after it finds something else
    assert fault.launch.node.loc in ("second", "sum")
    assert fault.what == ("memory" if fault.launch.node.loc == "sum" else "kernel")


def test_a_program_of_another_model_is_named(source: Source, tmp_path: Path):
    model = onnx.load(source.path)
    weight = max(model.graph.initializer, key=lambda t: len(t.raw_data))
    weight.CopyFrom(onnx.numpy_helper.from_array(-onnx.numpy_helper.to_array(weight), weight.name))
    program = tmp_path / "other.ingot"
    build(read_graph(open_source(save(model, tmp_path / "other.onnx")))).model().save(program)
    result = compare(source, program=program, sizes=SIZES).blame
    assert result is not None and result.stage == "program" and result.name == str(program)


def test_a_compile_error_is_not_swallowed(source: Source, monkeypatch: pytest.MonkeyPatch):
    def fail(graph: Graph) -> Graph:
        raise CompileError("no kernel")

    _pipeline_with(monkeypatch, "fuse", "fail", fail)
    with pytest.raises(CompileError, match="no kernel"):
        compare(source)
