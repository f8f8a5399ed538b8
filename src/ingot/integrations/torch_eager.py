"""Ops that Ingot lacks run in eager PyTorch, between programs of the rest: torch.compile's option fallback="eager".

a = mm(x, w); b = lacking(a); c = relu(b)   ->   program 0: mm, eager 1: lacking, program 2: relu
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from operator import getitem
from threading import Lock
from typing import Any

import torch
from torch import fx
from torch.fx.passes.split_module import split_module
from torch.utils import _pytree as pytree

from ingot.support.errors import InputError, UnsupportedOp, UnsupportedOpError

_log = logging.getLogger(__name__)
_reports: list[list[str]] = []  # of all threads, as PyTorch runs the backward pass of a GPU in one of its own

Run = Callable[[list[Any]], Any]
Make = Callable[[fx.GraphModule, Sequence[Any], frozenset[int]], Run]


class UnsupportedNodesError(UnsupportedOpError):
    """UnsupportedOpError of a traced graph. nodes: the names of the nodes, in the order of `ops`."""

    def __init__(self, ops: Sequence[UnsupportedOp], nodes: Sequence[str]) -> None:
        super().__init__(ops)
        self.nodes = tuple(nodes)


class WithFallback:
    """A functional graph as one program; if Ingot lacks some of its ops, as programs that alternate with these ops in
    eager PyTorch. It is called with a list of the graph's inputs."""

    _boxed_call = True  # AOTAutograd's name for functions of one list

    def __init__(
        self, graph: fx.GraphModule, example_inputs: Sequence[Any], fixed: frozenset[int], make: Make, lock: Lock
    ) -> None:
        """make: compiles a graph, which it may change. fixed: positions of the inputs that may be constants. lock: of
        the graph's fake tensors."""
        self._graph, self._fixed, self._make, self._lock = deepcopy(graph), fixed, make, lock
        self._run = make(graph, example_inputs, fixed)

    def __call__(self, args: list[Any]) -> Any:
        run = self._run
        try:
            return run(args)
        except UnsupportedNodesError as error:
            with self._lock:  # unless another thread's call has split it
                if self._run is run:
                    self._run = self._split(error)
        return self._run(args)

    def _split(self, error: UnsupportedNodesError) -> Run:
        reasons = dict(zip(error.nodes, map(str, error.ops), strict=True))
        levels = _levels(self._graph.graph, reasons)
        for node in self._graph.graph.nodes:
            if "val" in node.meta:
                node.meta["example_value"] = node.meta[
                    "val"
                ]  # a part gets the sizes that its tensors' shapes are made of
        module = split_module(self._graph, self._graph, lambda n: levels[n.name])
        inputs = [n.name for n in self._graph.graph.nodes if n.op == "placeholder"]
        fixed = frozenset(inputs[i] for i in self._fixed)
        parts = [(name, part) for name, part in module.named_children() if isinstance(part, fx.GraphModule)]
        eager = 0
        for name, part in parts:
            if name.startswith("submod_"):
                is_eager = int(name.removeprefix("submod_")) % 2 == 1
                eager += is_eager
                program = _Eager(part, reasons) if is_eager else _Compiled(part, fixed, self._make, self._lock)
                setattr(module, name, program)
        _log.warning(
            "%s\nfallback: %d parts run in eager PyTorch, between %d programs", error, eager, len(parts) - eager
        )
        return lambda args: module(*args)


def _levels(graph: fx.Graph, refused: Collection[str]) -> dict[str, int]:
    """The number of each node's part: even for programs, odd for eager parts. A node only reads nodes of the same or
    lower numbers, and nodes that write inputs are in the last part."""
    levels: dict[str, int] = {}
    writes: list[str] = []
    for node in graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        value = node.meta.get("val")
        is_size = isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)
        of_eager = node.target is getitem and levels.get(node.args[0].name, 0) % 2 == 1
        is_eager = node.name in refused or is_size or of_eager
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            writes.append(node.name)
        level = max((levels.get(n.name, 0) for n in node.all_input_nodes), default=0)
        levels[node.name] = level if level % 2 == is_eager else level + 1
    last = max(levels.values(), default=0)
    return levels | dict.fromkeys(writes, last + 1 - last % 2)


class _Eager(torch.nn.Module):
    """A part that PyTorch runs."""

    def __init__(self, part: fx.GraphModule, reasons: Mapping[str, str]) -> None:
        super().__init__()
        names = [n.name for n in part.graph.nodes if n.op not in ("placeholder", "output")]
        self.part = part
        self.text = ", ".join(reasons.get(name, name) for name in names if name in reasons) or ", ".join(names)

    def forward(self, *args: Any) -> Any:
        begin = time.perf_counter()
        result = self.part(*args)
        for report in _reports:
            report.append(f"in eager PyTorch, {1e6 * (time.perf_counter() - begin):.0f} us: {self.text}")
        return result


class _Compiled(torch.nn.Module):
    """A part that is a program, or is split again if it cannot be one."""

    def __init__(self, part: fx.GraphModule, fixed: Collection[str], make: Make, lock: Lock) -> None:
        super().__init__()
        placeholders = [n for n in part.graph.nodes if n.op == "placeholder"]
        (end,) = (n for n in part.graph.nodes if n.op == "output")
        self._is_single = not isinstance(end.args[0], tuple | list)
        if self._is_single:
            end.args = ((end.args[0],),)
        positions = frozenset(i for i, n in enumerate(placeholders) if n.name in fixed)
        self._run = WithFallback(part, [n.meta.get("val") for n in placeholders], positions, make, lock)

    def forward(self, *args: Any) -> Any:
        results = self._run([*args])
        return results[0] if self._is_single else results


@contextmanager
def reported() -> Iterator[list[str]]:
    """Collect the explanations of programs and eager parts that run inside the block."""
    report: list[str] = []
    _reports.append(report)
    try:
        yield report
    finally:
        _reports[:] = [other for other in _reports if other is not report]


def is_reporting() -> bool:
    """Whether someone asks which programs run."""
    return bool(_reports)


def report_program(run: Any, args: Sequence[Any]) -> None:
    """Add the explanation of a program to the report, if there is one."""
    if _reports:
        text = str(run.explain(*args)) if hasattr(run, "explain") else "a program"
        for report in _reports:
            report.append(text)


def has_fallback(options: Mapping[str, Any]) -> bool:
    """Whether torch.compile's options request the fallback. Raises InputError for an unknown value."""
    fallback = options.get("fallback")
    if fallback not in (None, "eager"):
        raise InputError("fallback", expected="'eager', or None for an error", got=repr(fallback))
    return fallback is not None


def explain(model: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """Call a result of `torch.compile(..., backend="ingot")`, and report what ran, in order: the steps of each program
    with their times (`CompiledModel.explain`), and the ops in eager PyTorch between them. If the results need
    gradients, the backward pass is run and reported as well; no `.grad` is changed."""
    _differentiate(model(*args, **kwargs))  # compiles what is not compiled yet
    with reported() as report:
        _differentiate(model(*args, **kwargs))
    return "\n\n".join(report)


def _differentiate(results: Any) -> None:
    """Run the backward pass of the sum of all results that need gradients."""
    roots = [t for t in pytree.tree_leaves(results) if isinstance(t, torch.Tensor) and t.requires_grad]
    nodes = [root.grad_fn for root in roots if root.grad_fn is not None]
    leaves: list[torch.Tensor] = []
    visited = set(nodes)
    while nodes:
        node: Any = nodes.pop()
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        following = {f for f, _ in node.next_functions if f is not None} - visited
        visited |= following
        nodes += following
    if leaves:
        torch.autograd.grad(roots, leaves, [torch.ones_like(root) for root in roots], allow_unused=True)
