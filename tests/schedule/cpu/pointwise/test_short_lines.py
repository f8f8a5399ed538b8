"""Pointwise work on short lines, whole vectors across several of them, against the interpreter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.kernel.show import show_kernel
from ingot.ir.layout import Layout
from ingot.ir.node import Graph
from ingot.ir.types import DType, bf16, f16, f32, f64, i8, i64, u8
from ingot.ops import Tanh
from ingot.ops import build as op
from ingot.schedule.cpu.machine import AVX2, AVX512
from ingot.schedule.cpu.pointwise.lower import lower_pointwise
from tests.schedule.compiled import MACHINES, check, inputs_like, slow

on_machines = pytest.mark.parametrize(
    "machine", [*MACHINES, replace(AVX2, vector_bits=128)], ids=lambda m: f"{m.vector_bits}"
)


def values(*shape: int) -> np.ndarray:
    x = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
    if x.size > 3:
        x.reshape(-1)[[0, x.size // 2, -1]] = np.nan, np.inf, -np.inf
    return x


@pytest.mark.sampled(5)
@on_machines
@pytest.mark.parametrize("memory", [False, True], ids=["caches", "memory"])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 17, 33, 63, 65])
def test_lines(size: int, memory: bool, machine) -> None:
    """Whole groups of lines and a rest, fewer lines than lanes, none; a row, a row of one, a scalar; two results."""
    machine = replace(machine, l3=64) if memory else machine
    for rows in (0, 5, 16, 67):
        xs = [values(rows, size), values(size), values(1, size), values(rows, size)]
        a, b, c, d = ins = inputs_like(xs)
        scaled = op.add(op.mul(a, op.apply(Tanh(), b)), c)
        outs = (op.sub(scaled, d), op.compare("GT", op.mul(scaled, 2.0), b))
        check(Graph(tuple(ins), outs), xs, machine=machine)


@on_machines
def test_any_number_of_lines(machine) -> None:
    """Symbolic, joined of several dimensions, and what tells lines apart, which is done in another way."""
    for shape in ((40, 3), (2, 9, 7, 3)):
        xs = [values(*shape), values(3), values(*shape[:-1], 1)]
        ins = inputs_like(xs, {0: (symbol("n"), *shape[1:]), 2: (symbol("n"), *shape[1:-1], 1)})
        check(Graph(tuple(ins[:2]), (op.div(ins[0], ins[1]),)), xs[:2], machine=machine)
        check(Graph(tuple(ins), (op.div(op.add(ins[0], ins[2]), ins[1]),)), xs, machine=machine)


@on_machines
@pytest.mark.parametrize("dtype", [bf16, f16, f64, u8, i8, i64], ids=str)
def test_other_elements(dtype: DType, machine) -> None:
    """A picture of bytes that is scaled and shifted by channel, and what is no byte."""
    x = (np.arange(70 * 3).reshape(70, 3) % 120).astype(dtype.numpy)
    a, b = ins = inputs_like([x, values(3)])
    graph = Graph(tuple(ins), (op.mul(op.sub(op.mul(op.cast(a, f32), 1 / 255), b), b),))
    check(graph, [x, values(3)], machine=machine)
    check(Graph((a,), (op.add(a, op.cast(op.arange(3), dtype)),)), [x], machine=machine)


def test_vectors_cross_lines() -> None:
    """Three loads and three stores for 16 lines, none of them of a part."""
    a, b = inputs_like([values(64, 3), values(3)])
    ins = tuple(Layout.contiguous(n.shape) for n in (a, b))
    (step,) = lower_pointwise(Graph((a, b), (op.add(a, b),)), ins, ins[:1], replace(AVX512, masks=False)).steps
    text = show_kernel(step.kernel)
    assert text.count(":16]") == 6


@on_machines
def test_a_value_for_each_line(machine) -> None:
    """A vector along the lines is spread to the box as one across them is, but tells lines apart."""
    xs = [values(40, 3), values(40), values(3)]
    a, b, c = ins = inputs_like(xs)
    box = a.type.shape
    row_value, column_value = ops.BroadcastInDim(box, (0,))(b), ops.BroadcastInDim(box, (1,))(c)
    check(Graph(tuple(ins), (op.add(op.mul(a, row_value), column_value),)), xs, machine=machine)
    check(Graph((b,), (op.mul(row_value, 2.0),)), xs[1:2], machine=machine)


@pytest.mark.sampled(3)
@on_machines
@pytest.mark.parametrize("memory", [False, True], ids=["caches", "memory"])
@pytest.mark.parametrize("dtype", [f32, u8, *slow(f16, f64)], ids=str)
def test_lines_across_operands(dtype: DType, memory: bool, machine) -> None:
    """Few columns that become rows and back, inside a batch as well, with what tells lines or columns apart."""
    machine = replace(machine, l3=64) if memory else machine
    for *batch, size in ((300, 3), (2, 267, 3), (64, 17), (130, 31), (1000, 8), (16, 3), (7, 3), (0, 5)):
        x = (np.arange(np.prod(batch) * size) % 251).astype(dtype.numpy).reshape(*batch, size)
        for y in (x, np.ascontiguousarray(np.swapaxes(x, -1, -2))):
            row, column = np.arange(y.shape[-1]).astype(dtype.numpy), np.ones((y.shape[-2], 1), dtype.numpy)
            a, b, c = ins = inputs_like([y, row, column])
            order = (*range(len(batch) - 1), len(batch), len(batch) - 1)
            check(Graph((a,), (op.transpose(a, order),)), [y], machine=machine)
            transposed = op.transpose(op.add(op.mul(a, b), c), order)
            check(Graph(tuple(ins), (transposed,)), [y, row, column], machine=machine)


def test_transposes_of_few_columns_gather_nothing() -> None:
    for shape in ((4096, 3), (3, 4096), (4096, 17), (17, 4096)):
        (a,) = inputs_like([np.zeros(shape, np.float32)])
        graph = Graph((a,), (op.transpose(a, (1, 0)),))
        lay = [tuple(Layout.contiguous(n.shape) for n in nodes) for nodes in (graph.inputs, graph.outputs)]
        (step,) = lower_pointwise(graph, lay[0], lay[1], AVX512).steps
        assert "[ramp" not in show_kernel(step.kernel)
