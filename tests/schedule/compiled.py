"""Graphs compiled as the pipeline compiles them, from fusion on, beside the interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from ingot.ir.dims import Dim
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, Op
from ingot.ir.types import TensorType, dtype_of
from ingot.passes.bodies import in_bodies
from ingot.passes.fusion.fuse import fuse
from ingot.pipeline.cpu import KernelAssembler
from ingot.plan.link import Lower, link
from ingot.runtime.executor import CompiledModel
from ingot.schedule.cpu.lower import lower
from ingot.schedule.cpu.machine import AVX2, Machine, machine_of
from ingot.targets.cpu.workers import host_features

HOST = host_features()
NATIVE = machine_of(HOST.arch, HOST.features, 2)
# the schedules of a narrow machine run on any x86 that has its vectors
MACHINES = [NATIVE] + ([replace(AVX2, threads=2)] if "avx512f" in HOST.features else [])


def slow(*values: object) -> list[object]:
    """Values of a parameter that only the slow set takes."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


def fuse_all(graph: Graph) -> Graph:
    """Fusion, in the graphs of control flow too."""
    return in_bodies(fuse(graph), fuse_all)


def lowering(machine: Machine) -> Lower:
    return partial(lower, machine=machine)


def compile_graph(graph: Graph, machine: Machine = NATIVE, threads: int = 2) -> CompiledModel:
    program = link(fuse_all(graph), lowering(machine), KernelAssembler(HOST), stages={}, meta={})
    program.check()
    return CompiledModel(program, threads=threads)


def run(graph: Graph, xs: Sequence[np.ndarray], machine: Machine = NATIVE) -> tuple[np.ndarray, ...]:
    result = compile_graph(graph, machine)(*xs)
    return tuple(map(np.asarray, result if isinstance(result, tuple) else (result,)))


def inputs_like(xs: Sequence[np.ndarray], symbols: Mapping[int, Sequence[int | Dim]] | None = None) -> list[Node]:
    """Graph inputs of the types of `xs`; `symbols`: other shapes, by position."""
    shapes = [tuple((symbols or {}).get(i, x.shape)) for i, x in enumerate(xs)]
    return [Input(f"x{i}", TensorType(dtype_of(x), s))() for i, (x, s) in enumerate(zip(xs, shapes, strict=True))]


def op_graph(op: Op, xs: Sequence[np.ndarray], symbols: Mapping[int, Sequence[int | Dim]] | None = None) -> Graph:
    ins = inputs_like(xs, symbols)
    return Graph(tuple(ins), op(*ins).results)


def check(graph: Graph, xs: Sequence[np.ndarray], rtol: float = 4e-6, machine: Machine = NATIVE) -> None:
    """The compiled graph gives what the interpreter gives: NaN and infinities alike, the rest within `rtol` of the
    largest."""
    for got, want in zip(run(graph, xs, machine), interpret(graph, xs), strict=True):
        assert got.shape == want.shape and got.dtype == want.dtype
        if want.dtype == bool or np.issubdtype(want.dtype, np.integer):
            np.testing.assert_array_equal(got, want)
            continue
        g, w = got.astype(np.float64), want.astype(np.float64)
        finite = np.isfinite(w)
        np.testing.assert_array_equal(np.isnan(g), np.isnan(w))
        np.testing.assert_array_equal(np.where(finite, 0, g), np.where(finite, 0, w))
        scale = np.abs(w[finite]).max(initial=1e-30)
        assert np.abs(g[finite] - w[finite]).max(initial=0) <= rtol * scale
