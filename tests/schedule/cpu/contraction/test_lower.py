"""Contraction groups: operands as views in memory, against the interpreter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.dims import symbol
from ingot.ir.node import Graph, const
from ingot.passes.core.layout import explicit_padding
from ingot.schedule.block import Block
from ingot.schedule.cpu.contraction.macro_kernel import MacroKernel, emit_macro_kernel
from tests.schedule.compiled import MACHINES, check, inputs_like


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_rows_of_a_transposed_operand(dynamic: bool, machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """x[b, s, k] seen as [s, b, k]: its rows are joined as they lie, results go where they belong."""
    rows: list[int] = []

    def spy(top, chunk, c, *rest):
        rows.append(len(c.rows))
        return emit_macro_kernel(top, chunk, c, *rest)

    monkeypatch.setattr("ingot.schedule.cpu.contraction.blocked.emit_macro_kernel", spy)
    rng = np.random.default_rng(0)
    weights = const(rng.standard_normal((20, 33)).astype(np.float32))
    shapes = {0: (symbol("b"), symbol("s"), 20)} if dynamic else None
    for batch, steps in ((1, 9), (3, 14)):
        xs = [rng.standard_normal((batch, steps, 20)).astype(np.float32)]
        ins = inputs_like(xs, shapes)
        transposed = ops.Transpose((1, 0, 2))(ins[0])
        graph = Graph(tuple(ins), (ops.DotGeneral(((), ()), ((2,), (0,)))(transposed, weights),))
        check(graph, xs, machine=machine)
    assert rows == [1, 1]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
def test_residuals_are_prefetched_during_the_products(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What only the epilogue reads, result by result: not the operands, nor a bias."""
    fetched: list[set[str]] = []

    def spy(top, chunk, *rest):
        chunks = emit_macro_kernel(top, chunk, *rest)
        *_, fetch, _ = rest
        block = Block()
        if fetch is not None:
            fetch(block, (k.integer(0), k.integer(0)), 16)
        fetched.append({s.buffer.name for s in block.stmts if isinstance(s, k.Prefetch)})
        return chunks

    monkeypatch.setattr("ingot.schedule.cpu.contraction.blocked.emit_macro_kernel", spy)
    rng = np.random.default_rng(0)
    weights = const(rng.standard_normal((33, 33)).astype(np.float32))
    for rows in (1, 21):
        xs = [rng.standard_normal(s).astype(np.float32) for s in ((rows, 33), (33,), (rows, 33))]
        x, bias, residual = inputs_like(xs)
        product = ops.DotGeneral(((), ()), ((1,), (0,)))(x, weights)
        value = ops.Add()(product, ops.BroadcastInDim((rows, 33), (1,))(bias))
        check(Graph((x, bias), (value,)), xs[:2], machine=machine)
        check(Graph((x, bias, residual), (ops.Add()(value, residual),)), xs, machine=machine)
    assert [len(names) for names in fetched] == [0, 1, 0, 1]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize(
    ("size", "window", "dilation", "stride"),
    [((9, 40), 3, 6, 1), ((12, 12), 3, 40, 1), ((7, 30), 5, 4, 2), ((7, 7), 3, 1, 1)],
)
def test_window_iterations_that_read_only_padding_are_skipped(
    size: tuple[int, int], window: int, dilation: int, stride: int, machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_clamped: list[bool] = []
    nonzero_range = MacroKernel._nonzero_range

    def spy(nest, block, tile, axis, extent):
        low, high = nonzero_range(nest, block, tile, axis, extent)
        is_clamped.append(not isinstance(low, k.Lit))
        return low, high

    monkeypatch.setattr(MacroKernel, "_nonzero_range", spy)
    padding = dilation * (window // 2)
    op = ops.Convolution(
        (stride, stride), ((padding, padding),) * 2, (1, 1), (dilation, dilation), "NHWC", "HWIO", "NHWC"
    )
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal((2, *size, 8)).astype(np.float32)]
    weights = const(rng.standard_normal((window, window, 8, 20)).astype(np.float32))
    (x,) = inputs_like(xs)
    graph = explicit_padding(Graph((x,), (op(x, weights),)))
    check(graph, xs, machine=replace(machine, winograd=False))
    assert any(is_clamped)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize("columns", [3, 24])
def test_a_constant_from_a_place_of_the_run(columns: int, machine) -> None:
    """A part of a table that begins where the run says: it cannot be packed before."""
    rng, n = np.random.default_rng(0), symbol("n")
    table = const(rng.standard_normal((100, columns)).astype(np.float32))
    part = ops.Slice((n, 0), (n + 40, columns), (1, 1))(table)
    for rows in (3, 7):
        xs = [rng.standard_normal((rows, 40)).astype(np.float32)]
        (x,) = inputs_like(xs, {0: (n, 40)})
        product = ops.DotGeneral(((), ()), ((1,), (0,)))(x, part)
        check(Graph((x,), (product,), bounds=(("n", 1, 60),)), xs, machine=machine)


def test_constants_repeated_to_sizes_of_run_time() -> None:
    """They are read where they lie: packed, they would need those sizes."""
    steps, n = const(np.arange(5, dtype=np.float32)), symbol("n")
    xs = [np.ones((3, 5), np.float32), np.ones((2, 7), np.float32)]
    x, y = inputs_like(xs, {0: (n, 5), 1: (2, symbol("m"))})
    product = ops.DotGeneral(contract=((1,), (0,)))
    columns = product(x, ops.BroadcastInDim((5, n), (0,))(steps))
    rows = product(y, ops.BroadcastInDim((symbol("m"), 5), (1,))(steps))
    check(Graph((x, y), (columns, rows)), xs)
