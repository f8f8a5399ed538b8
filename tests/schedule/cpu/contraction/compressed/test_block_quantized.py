"""Products with weights of 4 and 8 bits against the interpreter: in registers for one row, widened for several."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import DimLike, symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import DType, TensorType, bf16, f32, i4, i8, i64, u4, u8
from ingot.schedule.cpu.machine import NEON, Machine
from tests.schedule.compiled import MACHINES, NATIVE, check, compile_graph, run

# NEON's schedules (vectors of 4, no masks) run on any machine
TARGETS = [*MACHINES, replace(NEON, threads=2)]


def product(
    m: DimLike, n: int, blocks: int, block: int, dtype: DType = u4, zeros: str = "blocks", scale: float = 1
) -> Graph:
    """relu(x[m, k] . w[n, k] + bias), as `passes/core/block_quantized.py` leaves it."""
    rng = np.random.default_rng(n + blocks * block)
    low = 0 if dtype.kind == "u" else -(1 << (dtype.bits - 1))
    shape = (n, blocks, block) if blocks > 1 else (n, block)
    one = (*shape[:-1], 1)

    def levels(shape: tuple[int, ...]) -> Node:
        return const(rng.integers(low, low + (1 << dtype.bits), shape).astype(dtype.numpy))

    zero = {
        "blocks": lambda: levels(one),
        "one": lambda: levels(()),
        "floats": lambda: const((rng.random(one) * 8).astype(np.float32)),
    }[zeros]()
    w = ops.Dequantize()(levels(shape), zero, const((rng.random(one) * scale).astype(np.float32)))
    x = Input("x", TensorType(f32, (m, blocks * block)))()
    sides = ((1, 2), (1, 2)) if blocks > 1 else ((1,), (1,))
    y = ops.DotGeneral(contract=sides)(ops.reshape(x, (m, *shape[1:])), w)
    return Graph((x,), (ops.maximum(ops.add(y, const(rng.standard_normal(n).astype(np.float32))), 0),))


def rows(m: int, k: int) -> np.ndarray:
    return np.random.default_rng(m * k).standard_normal((m, k)).astype(np.float32)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("machine", TARGETS, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize(
    ("n", "blocks", "block", "dtype"),
    [(1, 3, 16, u4), (37, 2, 32, i8), (100, 5, 20, i4), (33, 1, 77, u4), (33, 3, 21, u8), (260, 4, 256, i4)],
)
def test_rows(n: int, blocks: int, block: int, dtype: DType, machine: Machine) -> None:
    """One row, several, and as many as come, which one kernel computes either way."""
    for m in (1, 29):
        check(product(m, n, blocks, block, dtype), [rows(m, blocks * block)], machine=machine)
    model = product(symbol("m"), n, blocks, block, dtype)
    for m in (1, 2, 50):
        check(model, [rows(m, blocks * block)], machine=machine)


@pytest.mark.parametrize("machine", TARGETS, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize("zeros", ["one", "floats"])
@pytest.mark.parametrize("dtype", [u4, i8])
def test_zeros(zeros: str, dtype: DType, machine: Machine) -> None:
    for m in (1, 9):
        check(product(m, 70, 3, 32, dtype, zeros), [rows(m, 96)], machine=machine)
        check(product(m, 70, 1, 40, dtype, zeros), [rows(m, 40)], machine=machine)


def test_special_values() -> None:
    """NaN and infinities in x, scales of zero."""
    for m in (1, 4):
        x = rows(m, 96)
        x[0, 5], x[-1, 40] = np.inf, np.nan
        check(product(m, 70, 3, 32), [x])
        x[-1, 40] = -np.inf
        check(product(m, 70, 3, 32), [x])
        check(product(m, 70, 3, 32, scale=0), [rows(m, 96)])
        check(product(m, 70, 3, 32, scale=0), [x])


def test_no_rows() -> None:
    model = replace(product(symbol("m"), 70, 3, 32), bounds=(("m", 0, None),))
    check(model, [rows(0, 96)])


def test_long_reductions() -> None:
    """Of which a part at a time is widened, also for a scale of all."""
    for blocks, block in ((86, 128), (1, 11008), (172, 64)):
        for m in (2, 40):
            check(product(m, 100, blocks, block), [rows(m, blocks * block)], rtol=1e-5)


def test_weights_stay_small() -> None:
    m = compile_graph(product(1, 512, 16, 32), NATIVE)
    assert m.program.weights.nbytes < 512 * 512 * 0.7 + 512 * 16 + 4096


# levels of 2 to 8 bits; scales and minima of one factor, or of one for each block and one for blocks of blocks
FORMS = [
    (70, (2, 8, 32), u4, ops.DequantizeBlocks(bits=4, factors=2), True),  # Q4_K
    (70, (2, 8, 32), u8, ops.DequantizeBlocks(bits=5, factors=2), True),  # Q5_K
    (100, (2, 16, 16), i8, ops.DequantizeBlocks(bits=6, factors=2), False),  # Q6_K
    (64, (6, 32), u4, ops.DequantizeBlocks(8, 4), False),  # Q4_0
    (40, (6, 32), i8, ops.DequantizeBlocks(), False),  # Q8_0
    (37, (3, 32), u8, ops.DequantizeBlocks(bits=5), True),  # Q5_1
    (130, (2, 2, 20), u8, ops.DequantizeBlocks(1, 3), True),  # words that are not full
    (33, (50,), u8, ops.DequantizeBlocks(1, 6), True),  # one block
    (5, (2, 256), u4, ops.DequantizeBlocks(1, 2), False),  # TQ2_0
]


def weights(n: int, shape: tuple[int, ...], dtype: DType, form: ops.DequantizeBlocks, has_minimum: bool) -> Node:
    rng = np.random.default_rng(n)
    low = -(1 << (form.bits - 1)) if dtype.kind == "i" else 0
    levels = rng.integers(low, low + (1 << form.bits), (n, *shape)).astype(dtype.numpy)
    factors: list[Node] = []
    for _ in range(1 + has_minimum):
        if form.factors == 2:
            factors.append(const(rng.integers(0, 64, (n, *shape[:2], 1)).astype(np.uint8)))
        unit = (n, shape[0], *(1,) * (len(shape) - 1)) if len(shape) > 1 else (n, 1)
        factors.append(const(rng.normal(size=unit).astype(np.float16)))
    return form(const(levels), *factors)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("machine", TARGETS, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize("case", FORMS, ids=lambda c: f"{c[3].bits} bits {c[1]}")
def test_block_formats(case: tuple[int, tuple[int, ...], DType, ops.DequantizeBlocks, bool], machine: Machine) -> None:
    w, shape = weights(*case), case[1]
    sides = tuple(range(1, len(shape) + 1))
    for size in (1, 9, symbol("m")):
        x = Input("x", TensorType(f32, (size, *shape)))()
        graph = Graph((x,), (ops.DotGeneral(contract=(sides, sides))(x, w),))
        for m in (1, 2, 20) if size not in (1, 9) else (size,):
            data = np.random.default_rng(0).standard_normal((m, *shape)).astype(np.float32)
            check(graph, [data], machine=machine)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("machine", TARGETS, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize("case", FORMS, ids=lambda c: f"{c[3].bits} bits {c[1]}")
def test_pairs_of_bfloat16(
    case: tuple[int, tuple[int, ...], DType, ops.DequantizeBlocks, bool], machine: Machine
) -> None:
    """Many rows read weights rounded to bfloat16, few rows the weights themselves."""
    exact, shape = weights(*case), case[1]
    w = replace(case[3], dtype=bf16)(*exact.inputs)
    sides = tuple(range(1, len(shape) + 1))
    product = ops.DotGeneral(contract=(sides, sides), dtype=f32)
    for size, counts in ((21, [21]), (symbol("m"), [9, 40]), (3, [3])):
        x = Input("x", TensorType(bf16, (size, *shape)))()
        for m in counts:
            data = np.random.default_rng(m).standard_normal((m, *shape)).astype(bf16.numpy)
            got = run(Graph((x,), (product(x, w),)), [data], machine)[0]
            want = interpret(Graph((x,), (product(x, w if m > 8 else exact),)), [data])[0]
            assert np.abs(got - want).max() < 4e-6 * np.abs(want).max()


@pytest.mark.parametrize("machine", TARGETS, ids=lambda m: f"{m.vector_bits}")
@pytest.mark.parametrize("case", FORMS, ids=lambda c: f"{c[3].bits} bits {c[1]}")
def test_lookups_share_the_words_of_products(
    case: tuple[int, tuple[int, ...], DType, ops.DequantizeBlocks, bool], machine: Machine
) -> None:
    """Rows are exactly what is dequantized, with pointwise ops behind them; a table is in memory once."""
    w, n, k = weights(*case), case[0], int(np.prod(case[1]))
    ids = Input("ids", TensorType(i64, (symbol("b"), 3)))()
    rows = ops.mul(ops.reshape(ops.EmbeddingLookup()(w, ids), (*ids.shape, k)), 3.0)
    lookup = Graph((ids,), (rows,))
    at = np.array([[0, n - 1, -1], [n + 5, n // 2, -n - 2]])
    check(lookup, [at], 0, machine)
    x, sides = Input("x", TensorType(f32, (1, *case[1])))(), tuple(range(1, len(case[1]) + 1))
    shared_graph = Graph((x, ids), (ops.DotGeneral(contract=(sides, sides))(x, w), rows))
    sizes = [compile_graph(g, machine).program.weights.nbytes for g in (lookup, shared_graph)]
    assert sizes[0] == sizes[1] > 0
