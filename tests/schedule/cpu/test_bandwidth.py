"""Groups that memory bounds, against the interpreter: transposes, stores past the caches, reductions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.kernel import Kernel, integer
from ingot.ir.kernel.show import show_kernel
from ingot.ir.layout import Layout
from ingot.ir.node import Graph, Node, const
from ingot.ir.types import DType, bf16, boolean, f16, f32, f64, i8, i64
from ingot.ops import Gelu, Tanh
from ingot.ops import build as op
from ingot.ops.nn.activation import Softplus
from ingot.ops.nn.image.pad_mode import PadMode
from ingot.ops.nn.softmax import Softmax
from ingot.schedule.collapse_dims import collapse_dims
from ingot.schedule.cpu.machine import AVX512
from ingot.schedule.cpu.pointwise.lower import lower_pointwise
from ingot.schedule.cpu.rows.lower import lower_rows
from tests.schedule.compiled import MACHINES, NATIVE, check, inputs_like, slow

on_machines = pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{m.vector_bits}")


def values(*shape: int, dtype: str = "f4") -> np.ndarray:
    array = np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)
    if array.size > 3 and array.dtype.kind == "f":
        array.reshape(-1)[[0, array.size // 2, -1]] = np.nan, np.inf, -np.inf
    return array


def lowered(graph: Graph, machine) -> list[Kernel]:
    ins = tuple(Layout.contiguous(n.shape) for n in graph.inputs)
    outs = tuple(Layout.contiguous(n.shape) for n in graph.outputs)
    return [s.kernel for s in lower_pointwise(graph, ins, outs, machine).steps]


@on_machines
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((48, 32), (1, 0)),
        ((37, 53), (1, 0)),
        ((3, 49, 40), (0, 2, 1)),
        ((2, 20, 3, 33), (0, 2, 3, 1)),
        ((2, 16, 5, 16), (3, 2, 1, 0)),
        ((0, 33), (1, 0)),
    ],
)
def test_transposes(shape: tuple[int, ...], order: tuple[int, ...], dynamic: bool, machine) -> None:
    for x in (values(*shape), values(*shape, dtype="f8"), np.arange(np.prod(shape)).reshape(shape).astype("u1")):
        xs = [x]
        ins = inputs_like(xs, {0: (symbol("n"), *shape[1:])} if dynamic and shape[0] else None)
        check(Graph(tuple(ins), (op.transpose(ins[0], order),)), xs, machine=machine)


@pytest.mark.sampled(3)
@on_machines
@pytest.mark.parametrize("dtype", [bf16, f16, i8, boolean, f32], ids=str)
@pytest.mark.parametrize("shape", [(64, 128), (96, 32), (70, 530), (520, 513), (1, 64)])
def test_blocks_of_narrow_elements(shape: tuple[int, int], dtype: DType, machine) -> None:
    """Vectors of the narrowest elements where blocks of them fit; also beside wider ones, and past the caches."""
    with np.errstate(invalid="ignore", over="ignore"):
        x, y = values(*shape).astype(dtype.numpy), values(*shape)
    a, b = ins = inputs_like([x, y])
    transposed = op.transpose(a, (1, 0))
    for small in (machine, replace(machine, l3=64)):
        check(Graph((a,), (transposed,)), [x], machine=small)
        if shape[0] < 500:
            check(
                Graph(tuple(ins), (op.add(op.cast(transposed, f32), op.transpose(b, (1, 0))),)), [x, y], machine=small
            )


@on_machines
@pytest.mark.parametrize("dtype", [f16, i8], ids=str)
def test_blocks_of_narrow_elements_past_the_caches(dtype: DType, machine) -> None:
    """Strips of blocks through scratch, two results of different widths; strips that edges cut off."""
    x = np.arange(300 * 130).reshape(300, 130).astype(dtype.numpy)
    for symbols in (None, {0: (symbol("n"), 130)}):
        (a,) = inputs_like([x], symbols)
        transposed = op.transpose(a, (1, 0))
        check(Graph((a,), (op.cast(transposed, f32), transposed)), [x], machine=replace(machine, l3=64))
    (a,) = inputs_like([x])
    (kernel,) = lowered(Graph((a,), (op.transpose(a, (1, 0)),)), replace(machine, l3=64))
    assert kernel.scratch_bytes > 0


@on_machines
@pytest.mark.parametrize("order", [(1, 0), (0, 2, 1, 3), (0, 3, 1, 2), (0, 2, 3, 1), (1, 2, 3, 0), (3, 2, 1, 0)])
def test_copies_past_the_caches(order: tuple[int, ...], machine) -> None:
    """The order of memory, strips of blocks and requests ahead, which only large results have."""
    small = replace(machine, l3=64)
    for shape in ((37, 53), (48, 64)) if len(order) == 2 else ((2, 19, 3, 33), (3, 32, 16, 5), (1, 40, 1, 48)):
        x = values(*shape)
        for dynamic in (False, True):
            (a,) = ins = inputs_like([x], {0: (symbol("n"), *shape[1:])} if dynamic else None)
            check(Graph(tuple(ins), (op.transpose(op.mul(a, 2.0), order),)), [x], machine=small)


@on_machines
@pytest.mark.parametrize("dims", [(0,), (1,), (0, 1)])
def test_turned_by_90_degrees(dims: tuple[int, ...], machine) -> None:
    """Blocks whose rows are read backwards, from the caches and from memory; edges that cut blocks off."""
    for x in (values(64, 48), values(37, 53), np.arange(70 * 131).reshape(70, 131).astype("i1")):
        for small in (machine, replace(machine, l1=512, l3=256)):
            (a,) = inputs_like([x])
            b = op.flip(a, dims)
            check(Graph((a,), (op.transpose(b, (1, 0)),)), [x], machine=small)
    a = inputs_like([values(64, 48)])[0]
    (kernel,) = lowered(Graph((a,), (op.transpose(op.flip(a, dims), (1, 0)),)), machine)
    assert "[ramp" not in show_kernel(kernel)


def test_neighbouring_dimensions_are_joined() -> None:
    """Also below a transpose; not where a value is wanted in both orders."""
    x = inputs_like([values(4, 6, 5, 8)])[0]

    def concatenated(*outputs: Node) -> tuple[tuple[object, ...], ...] | None:
        outs = tuple(Layout.contiguous(n.shape) for n in outputs)
        results = collapse_dims(Graph((x,), outputs), (Layout.contiguous(x.shape),), outs)
        return None if results is None else tuple(n.shape for n in results[0].outputs)

    assert concatenated(op.mul(x, 2.0)) == ((960,),)
    assert concatenated(op.add(op.transpose(op.mul(x, x), (0, 2, 3, 1)), 1.0)) == ((4, 40, 6),)
    assert concatenated(op.transpose(x, (1, 2, 3, 0))) == ((240, 4),)
    assert concatenated(op.transpose(x, (0, 2, 1, 3))) is None
    row = const(np.ones(6, np.float32))
    image = (op.broadcast_to(row, (4, 5, 8, 6)), op.BroadcastInDim((4, 6, 5, 8), (1,))(row))
    assert concatenated(op.add(op.transpose(x, (0, 2, 3, 1)), image[0])) == ((4, 40, 6),)
    assert concatenated(op.add(x, image[1])) == ((4, 6, 40),)
    assert (
        concatenated(op.add(op.sub(x, op.BroadcastInDim(x.shape, (2,))(const(np.ones(5, np.float32)))), image[1]))
        is None
    )
    square = inputs_like([values(2, 2, 7)])[0]
    both_orders = (op.mul(square, 2.0), op.transpose(op.mul(square, 2.0), (1, 0, 2)))
    lay = Layout.contiguous(square.shape)
    assert collapse_dims(Graph((square,), both_orders), (lay,), (lay, lay)) is None


@on_machines
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("where", [(0,), (1,), (2,), (1, 2), (0, 3), ()])
def test_what_is_broadcast_keeps_its_dimensions(where: tuple[int, ...], dynamic: bool, machine) -> None:
    """Read as it lies and through a transpose, also with dimensions of size 1."""
    x, y = values(3, 5, 7, 6), values(*((3, 5, 7, 6)[d] for d in where))
    z = y.reshape([n if d in where else 1 for d, n in enumerate(x.shape)])
    ins = inputs_like([x, y, z], {0: (symbol("n"), *x.shape[1:])} if dynamic and 0 not in where else None)
    b = op.BroadcastInDim(ins[0].shape, where)(op.mul(ins[1], ins[1]))
    result = op.add(op.mul(ins[0], b), op.broadcast_to(ins[2], ins[0].shape))
    check(Graph(tuple(ins), (result,)), [x, y, z], machine=machine)
    check(Graph(tuple(ins), (op.transpose(result, (0, 2, 3, 1)),)), [x, y, z], machine=machine)


@on_machines
def test_transposed_operands_beside_others(machine) -> None:
    """f(a^T, b, row, c^T): two operands are turned, one is read as it lies, one is a row."""
    xs = [values(50, 36), values(36, 50), values(50), values(50, 36)]
    a, b, row, c = ins = inputs_like(xs)
    t = op.mul(op.add(op.transpose(a, (1, 0)), b), row)
    graph = Graph(tuple(ins), (op.add(op.apply(Tanh(), t), op.transpose(c, (1, 0))), op.cast(t, bf16)))
    (step,) = lowered(graph, machine)
    assert "shuffle" in show_kernel(step)
    check(graph, xs, machine=machine)


@on_machines
def test_an_operand_read_twice_is_not_turned(machine) -> None:
    xs = [values(40, 65)]
    (x,) = ins = inputs_like(xs)
    t = op.transpose(x, (1, 0))
    graph = Graph(tuple(ins), (op.add(op.slice_axis(t, 0, 0, 64), op.slice_axis(t, 0, 1, 65)),))
    check(graph, xs, machine=machine)


@on_machines
@pytest.mark.parametrize("n", [1, 15, 64, 1000])
def test_results_past_the_caches(n: int, machine) -> None:
    """Whatever the results' addresses: numpy's arrays start at any multiple of 16 bytes."""
    machine = replace(machine, l3=0)
    xs = [values(n, 33), values(n, 33)]
    a, b = ins = inputs_like(xs)
    graph = Graph(tuple(ins), (op.add(a, b), op.cast(op.mul(a, 2.0), bf16)))
    (kernel,) = lowered(graph, machine)
    assert "stream out0" in show_kernel(kernel)
    check(graph, xs, machine=machine)
    rows = Graph((a,), (op.sub(a, op.reduce_max(a, 1, keepdims=True)),))
    check(rows, xs[:1], machine=machine)


@pytest.mark.sampled(5)
@on_machines
@pytest.mark.parametrize("kind", ["sum", "max", "prod"])
@pytest.mark.parametrize("dims", [(0,), (1,), (2,), (0, 1, 2)])
@pytest.mark.parametrize("dtype", ["f4", "f2", "i4"])
def test_long_reductions(kind: str, dims: tuple[int, ...], dtype: str, machine) -> None:
    """Cut in parts where rows are few, several sums at a time where they are long, wide where they are outer."""
    for shape in ((4, 640, 80), (2, 37, 1003), (1, 1, 131072), (96, 1024, 1), (131071, 1, 1)):
        x = (np.random.default_rng(1).random(shape) * 0.1 + 0.99).astype(dtype)
        xs = [x]
        (a,) = ins = inputs_like(xs)
        result = op.add(op.reduce(kind, a, dims), 1 if dtype == "i4" else 0.5)
        check(Graph(tuple(ins), (result,)), xs, machine=machine, rtol=2e-3 if dtype == "f2" else 2e-5)
        if dtype == "f4" and kind == "max":
            x.reshape(-1)[x.size // 3] = np.nan
            check(Graph(tuple(ins), (result, op.reduce_min(a, dims))), xs, machine=machine)


@on_machines
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("kind", ["max", "min"])
def test_arg_reductions(kind: str, last: bool, machine) -> None:
    """Ties, NaN and infinities, on rows shorter and longer than a vector, of all remainders."""
    rng = np.random.default_rng(2)
    for n in (1, 5, 16, 17, 129, 1000):
        x = rng.integers(0, 4, (40, n)).astype(np.float32)
        x[1], x[2, n // 2 :], x[3] = np.nan, np.nan, -np.inf
        x[4, rng.integers(0, n, 3)] = np.nan
        x[5], x[6, -1] = np.inf, np.inf
        for xs in ([x], [np.nan_to_num(x, posinf=9, neginf=-9).astype(np.int64)]):
            (a,) = ins = inputs_like(xs)
            graph = Graph(tuple(ins), (op.arg_reduce(kind, a, 1, last=last), op.arg_reduce(kind, a, 0, last=last)))
            check(graph, xs, machine=machine)


@pytest.mark.sampled(3)
@on_machines
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("kind", ["max", "min"])
def test_arg_reductions_of_types_and_values(kind: str, last: bool, machine) -> None:
    """Narrow floats, integers and booleans, with their lowest and highest values; operands that are computed; lengths
    that are not known."""
    rng = np.random.default_rng(3)
    x = rng.integers(0, 3, (7, 131, 20)).astype(np.float32)
    x[0], x[1, :, 3], x[2, 5, 4], x[3, 100:, :7] = -np.inf, np.inf, np.nan, np.nan
    odd = [x.astype(t) for t in ("f2", bf16.numpy, "f8")]
    odd += [np.where(x > 1, np.iinfo(t).max, np.iinfo(t).min).astype(t) for t in ("u1", "i1", "u4", "i8")]
    for y in (*odd, x > 1, np.full((3, 40, 17), np.iinfo("i4").min, "i4"), np.ones((2, 19, 33), "u1")):
        (a,) = ins = inputs_like([y])
        check(Graph(tuple(ins), tuple(op.arg_reduce(kind, a, d, last=last) for d in range(3))), [y], machine=machine)
    (a,) = ins = inputs_like([x], {0: (symbol("n"), symbol("m"), 20)})
    both_of = (op.arg_reduce(kind, op.mul(a, 3.0), 1, last=last), op.reduce(kind, a, 1))
    check(Graph(tuple(ins), (*both_of, op.arg_reduce(kind, a, 2, last=last))), [x], machine=machine)


@on_machines
@pytest.mark.parametrize("last", [True, *slow(False)])
def test_long_arg_reductions(last: bool, machine) -> None:
    """Cut in parts: the first or the last of the parts with the best value counts."""
    for shape, axis in (((1, 65536), 1), ((2, 49152), 1), ((131072,), 0), ((65536, 3), 0), ((1, 50257), 1)):
        x = np.random.default_rng(4).integers(0, 9, shape).astype(np.float32)
        lows, nans = np.full_like(x, -np.inf), x.copy()
        nans.reshape(-1)[[x.size // 3, x.size // 2, x.size - 7]] = np.nan
        for y in (x, lows, nans, x.astype("i4")):
            (a,) = ins = inputs_like([y])
            reduction = op.arg_reduce("max", op.sub(a, op.reduce_min(a, axis, keepdims=True)), axis, last=last)
            least = op.add(op.arg_reduce("min", a, axis, last=last), 1)
            outputs = (op.arg_reduce("max", a, axis, last=last), least, op.cast(op.reduce_max(a, axis), i64))
            check(Graph(tuple(ins), outputs), [y], machine=machine)
            if y is not lows:
                check(Graph(tuple(ins), (reduction,)), [y], machine=machine)


@pytest.mark.sampled(3)
@on_machines
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", ["sum", *slow("max", "prod", "min")])
def test_cumulative_along_and_across_vectors(kind: str, reverse: bool, machine) -> None:
    for shape in ((3, 8), (2, 3, 61), (5, 1000), (1, 7), (40, 33), (4, 64, 128), (0, 9), (9, 0)):
        x = (np.random.default_rng(5).random(shape) * 0.2 + 0.9).astype(np.float32)
        if x.size > 100:
            x[-1, ..., x.shape[-1] // 2], x[0, ..., 3] = np.nan, np.inf
        for y in (x, x.astype("f8"), x.astype("f2"), (np.nan_to_num(x, posinf=2) * 9).astype("i4")):
            for axis in range(y.ndim):
                for exclusive in (False, True):
                    (a,) = ins = inputs_like([y])
                    graph = Graph(tuple(ins), (op.cumulative(kind, a, axis, reverse, exclusive),))
                    check(graph, [y], machine=machine, rtol=1e-3 if y.dtype == np.float16 else 4e-6)
    (a,) = ins = inputs_like([x := np.ones((3, 70), "i8")], {0: (symbol("n"), symbol("m"))})
    check(Graph(tuple(ins), (op.cumulative(kind, a, 1, reverse),)), [x], machine=machine)


@on_machines
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
def test_cumulative_lines_from_memory(dtype: str, machine) -> None:
    """Lines in whole pieces and cut ones, inside a batch and with dimensions behind, to and fro."""
    for shape, axis in (((9, 5000), 0), ((3, 7, 2100), 1), ((3, 4, 1500), 0), ((0, 5000), 0), ((2, 5000), 0)):
        x = (np.random.default_rng(1).standard_normal(shape) * 9).astype(dtype)
        for kind, reverse, exclusive in (("sum", False, False), ("max", True, True), ("sum", True, False)):
            (a,) = ins = inputs_like([x])
            graph = Graph(tuple(ins), (op.cumulative(kind, a, axis, reverse, exclusive),))
            check(graph, [x], machine=replace(machine, l3=64))


def _repeated(x: Node, times: int) -> Node:
    wide = op.broadcast_to(op.expand_dims(x, -1), (*x.shape, times))
    return op.reshape(wide, (*x.shape[:-1], x.shape[-1] * times))


@pytest.mark.sampled(3)
@on_machines
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", ["f4", *slow("u1", "f8", "bool")])
def test_interleaved_and_strided_vectors(dtype: str, dynamic: bool, machine) -> None:
    """Elements repeated, of two operands in turns, of images' channels, every other one, backwards."""
    for n in (32, 48, 19, 3, 0):
        v = values(5, n) if dtype[0] == "f" else np.arange(5 * n).reshape(5, n) % 5
        xs = [v.astype(dtype), v[::-1].astype(dtype)]
        a, b = ins = inputs_like(xs, {i: (symbol("m"), n) for i in range(2)} if dynamic else None)
        zipped = op.reshape(op.stack((a, b), -1), (*a.shape[:-1], 2 * n))
        for y in (*(_repeated(a, r) for r in (2, 3, 4)), zipped, _repeated(_repeated(a, 2), 2)):
            check(Graph(tuple(ins), (y, op.reduce_max(op.flip(y, 1), 1))), xs, machine=machine)
        for y in (op.slice_axis(a, 1, 0, n, 2), op.slice_axis(b, 1, 1, n, 2), op.flip(a, 1), op.flip(b, (0, 1))):
            check(Graph(tuple(ins), (y, op.transpose(y))), xs, machine=machine)
            check(Graph(tuple(ins), (op.slice_axis(op.flip(y, 1), 1, None, None, 2),)), xs, machine=machine)
    for c, r in ((8, 2), (32, 4), (9, 3)):
        v = (np.arange(2 * c * 5 * 32).reshape(2, c, 5, 32) % 251).astype(dtype)
        (x,) = ins = inputs_like([v])
        parts = op.transpose(op.reshape(x, (2, c // r // r, r, r, 5, 32)), (0, 1, 4, 2, 5, 3))
        y = op.reshape(parts, (2, c // r // r, 5 * r, 32 * r))
        check(Graph(tuple(ins), (y, op.reduce_min(y, (2, 3)), op.transpose(y, (0, 2, 3, 1)))), [v], machine=machine)


@on_machines
def test_repeated_elements_are_no_columns_of_blocks(machine) -> None:
    """Pixels repeated along the dimension that is then turned: neighbours are no constant step apart."""
    for shape in ((2, 32, 16), (3, 17, 33)):
        (a,) = ins = inputs_like([x := values(*shape)])
        check(Graph(tuple(ins), (op.transpose(_repeated(a, 2), (0, 2, 1)),)), [x], machine=machine)


@on_machines
def test_columns_of_rows_from_memory_are_asked_for(machine) -> None:
    small = replace(machine, l3=64)
    for shape, dims in (((700, 64), (0,)), ((3, 37, 80), (1,)), ((3, 5, 7, 33), (1, 2))):
        (a,) = ins = inputs_like([x := values(*shape)])
        graph = Graph(tuple(ins), (op.reduce_max(a, dims), op.reduce_sum(op.mul(a, a), dims)))
        check(graph, [x], machine=small)
        lays = [tuple(Layout.contiguous(n.shape) for n in nodes) for nodes in (graph.inputs, graph.outputs)]
        assert any("prefetch" in show_kernel(s.kernel) for s in lower_rows(graph, lays[0], lays[1], small).steps)


@on_machines
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_short_rows(dynamic: bool, machine) -> None:
    """No longer than a vector, as many as fill a few and some more; results are used, and stored, as rows."""
    for shape, axes in (((37, 7), (1,)), ((53, 16), (1,)), ((5, 3, 1, 3), (2, 3)), ((16, 1), (1,)), ((0, 5), (1,))):
        for x in (values(*shape), values(*shape, dtype="f8"), (np.arange(np.prod(shape)) % 11).reshape(shape)):
            ins = inputs_like([x], {0: (symbol("n"), *shape[1:])} if dynamic and shape[0] else None)
            (a,) = ins
            outputs = (op.reduce_max(a, axes), op.add(op.reduce_sum(op.mul(a, a), axes), 1), op.reduce_min(a, axes))
            check(Graph(tuple(ins), outputs), [x], machine=machine)
            if len(axes) == 1:
                places = [op.arg_reduce(kind, a, 1, last=last) for kind in ("max", "min") for last in (False, True)]
                check(Graph(tuple(ins), (*places, op.reduce_max(a, 1))), [x], machine=machine)


@on_machines
@pytest.mark.parametrize("shape", [(7,), (3, 5), (0,), (2, 40, 3)])
@pytest.mark.parametrize("cols", [16, 33, 1, 2000])
def test_rows_of_a_table_from_memory_are_asked_for(shape: tuple[int, ...], cols: int, machine) -> None:
    """By the indices of the rows after them; indices out of range are those of the nearest row."""
    machine = replace(machine, l3=0)
    rng = np.random.default_rng(cols)
    xs = [values(50, cols), rng.integers(-60, 60, shape), values(*shape, cols)]
    table, at, other = ins = inputs_like(xs)
    looked_up = ops.Gather((len(shape),), (0,), (), (), (0,), len(shape), (1, cols))(table, at)
    graph = Graph(tuple(ins), (op.add(looked_up, other),))
    check(graph, xs, machine=machine)
    check(Graph((table, at), (looked_up,)), xs[:2], machine=machine)
    if cols == 2000 and shape == (7,):
        assert show_kernel(lowered(graph, machine)[0]).count("prefetch") >= 2


@pytest.mark.sampled(7)
@on_machines
@pytest.mark.parametrize("dtype", [f32, bf16, i64], ids=str)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_values_stacked_behind_each_other(count: int, dtype: DType, machine) -> None:
    """Also computed ones, an empty stack, and beside what is read at the stack's own places."""
    small = replace(machine, l3=64)
    for shape in ((37,), (3, 64), (2, 5, 33), (4, 0), (64, 1)):
        xs = [np.arange(np.prod(shape)).reshape(shape).astype(dtype.numpy) + i for i in range(count)]
        stacked_values = np.ones((*shape, count)).astype(dtype.numpy)
        ins = inputs_like([*xs, stacked_values])
        stacked = op.stack([op.mul(a, a) if i == 1 else a for i, a in enumerate(ins[:-1])], len(shape))
        for target_machine in (machine, small):
            check(Graph(tuple(ins[:-1]), (stacked,)), xs, machine=target_machine)
            check(Graph(tuple(ins), (op.add(stacked, ins[-1]),)), [*xs, stacked_values], machine=target_machine)
    xs = [values(9, 33), values(9, 33)]
    a, b = inputs_like(xs, {i: (symbol("n"), 33) for i in range(2)})
    check(Graph((a, b), (op.stack([a, b], 2),)), xs, machine=machine)


def test_stacks_are_interleaved() -> None:
    a, b = inputs_like([values(16, 64), values(16, 64)])
    text = show_kernel(lowered(Graph((a, b), (op.stack([a, b], 2),)), AVX512)[0])
    assert "shuffle" in text and "if" not in text


@pytest.mark.sampled(3)
@on_machines
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", [f32, bf16], ids=str)
@pytest.mark.parametrize("cols", [5, 131, 1031, 4099, 33_001])
def test_lines_that_start_off_a_vector(cols: int, dtype: DType, dynamic: bool, machine) -> None:
    """Whole vectors of memory are written, in front of them as many elements as it takes to get there."""
    small = replace(machine, l3=64)
    for rows in (1, 7) if dynamic else (0, 7):
        x, row = values(rows, cols).astype(dtype.numpy), values(cols).astype(dtype.numpy)
        shapes = {0: (symbol("n"), symbol("m")), 1: (symbol("m"),)} if dynamic else None
        a, b = ins = inputs_like([x, row], shapes)
        sliced = op.slice_axis(op.mul(a, b), 1, 1)
        check(Graph(tuple(ins), (op.add(a, b), op.cast(a, f32))), [x, row], machine=small)
        check(Graph(tuple(ins), (sliced,)), [x, row], machine=small)
        for result in (Softmax(axis=1).lower(a), op.sub(a, op.mean(a, 1, keepdims=True))):
            check(Graph((a,), (result,)), [x], machine=small, rtol=4e-6 if dtype == f32 else 1e-2)


@on_machines
@pytest.mark.parametrize("dtype", [f32, bf16, f16], ids=str)
@pytest.mark.parametrize("n", [5, 64, 1031, *slow(4096, 33_001)])
def test_several_vectors_at_once(n: int, dtype: DType, machine) -> None:
    """Chains of many operations; what is left behind vectors of 64 elements, and in front of them past the caches."""
    with np.errstate(over="ignore"):
        xs = [(values(n) * np.exp2(np.arange(n) % 280 - 140)).astype(dtype.numpy), values(n).astype(dtype.numpy)]
    for size, target_machine in ((n, machine), (symbol("n"), replace(machine, l3=64))):
        a, b = ins = inputs_like(xs, {0: (size,), 1: (size,)})
        for result in (Gelu()(b), Softplus().lower(a), op.atan2(a, b), op.mul(ops.Exp()(b), a)):
            check(Graph(tuple(ins), (result,)), xs, machine=target_machine, rtol=4e-6 if dtype == f32 else 1e-2)


def test_many_operations_take_several_vectors_at_once() -> None:
    (x,) = inputs_like([values(4096)])
    for result, lanes in ((ops.Exp()(x), 64), (op.cast(ops.Exp()(op.cast(x, f64)), f32), 32), (op.mul(x, 2.0), 16)):
        assert f":{lanes}] =" in show_kernel(lowered(Graph((x,), (result,)), AVX512)[0])


def test_whole_vectors_are_streamed() -> None:
    """A row of odd length has elements in front and behind that are stored in another way; one of 4096 has none."""
    for cols, stores in ((4096, 1), (4097, 3)):
        a, b = inputs_like([values(4, cols), values(cols)])
        text = show_kernel(lowered(Graph((a, b), (op.add(a, b),)), replace(AVX512, l3=64))[0])
        assert text.count("stream out0") == stores and text.count("if %tail") == 3 * (stores - 1)


@on_machines
def test_rows_from_memory_ask_for_the_next(machine) -> None:
    small = replace(machine, l3=64)
    for x in (values(5, 2051), values(3, 2, 1024), values(70, 33)):
        (a,) = ins = inputs_like([x])
        axis = x.ndim - 1
        graph = Graph(tuple(ins), (Softmax(axis=axis).lower(a), op.sub(a, op.mean(a, axis, keepdims=True))))
        check(graph, [x], machine=small)
    lay = Layout.contiguous(a.shape)
    (step,) = lower_rows(Graph((a,), (op.sub(a, op.mean(a, 1, keepdims=True)),)), (lay,), (lay,), small).steps
    assert "prefetch" in show_kernel(step.kernel)


def test_a_reduction_over_everything_feeds_all_threads() -> None:
    a = inputs_like([values(1 << 20)])[0]
    lay = Layout.contiguous(a.shape)
    low = lower_rows(Graph((a,), (op.mean(a),)), (lay,), (Layout.contiguous(()),), NATIVE)
    assert [s.kernel.chunks for s in low.steps] == [integer(4 * NATIVE.threads), integer(1)]


@pytest.mark.sampled(5)
@on_machines
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("sizes", [(3, 5, 1), (16, 32), (0, 4), (17, 16), (3, 61, 2), (1, 33, 0, 40)])
def test_concats(sizes: tuple[int, ...], axis: int, machine) -> None:
    """Of inputs, and of values that are computed on the way, read by what follows in the same kernel."""
    xs = [values(*(n if d == axis else 19 for d in range(3))) for n in sizes]
    ins = inputs_like(xs)
    concatenated = op.concat([op.mul(ins[0], 2.0), *ins[1:]], axis)
    transposed = op.add(op.transpose(concatenated, (0, 2, 1)), 1.0)
    check(Graph(tuple(ins), (op.concat(ins, axis),)), xs, machine=machine)
    check(Graph(tuple(ins), (concatenated, transposed, op.reduce_max(concatenated, 2))), xs, machine=machine)
    if axis != 0:
        symbols = {i: (symbol("n"), *x.shape[1:]) for i, x in enumerate(xs)}
    else:
        symbols = {i: (symbol(f"n{i}"), 19, 19) for i, x in enumerate(xs) if len(x)}
    dynamic = inputs_like(xs, symbols)
    check(Graph(tuple(dynamic), (op.apply(Tanh(), op.concat(dynamic, axis)),)), xs, machine=machine)


@on_machines
@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_images_padded_from_their_own_elements(mode: str, machine) -> None:
    """Lines longer and shorter than vectors, pads on one side, as long as lines and longer; symbolic lines."""
    for shape, low, high in (
        ((2, 3, 9, 41), (0, 0, 1, 1), (0, 0, 1, 1)), ((2, 5, 64), (0, 0, 3), (0, 2, 0)), ((3, 70), (0, 69), (2, 69)),
        ((2, 1, 20), (0, 0, 19), (0, 0, 1)), ((3, 7), (2, 20), (1, 9)), ((2, 40), (0, -3), (1, 5)),
        ((0, 40), (0, 2), (0, 1)),
    ):  # fmt: skip
        x = values(*shape)
        (a,) = inputs_like([x])
        padded = PadMode(low, high, mode).lower(a)
        check(Graph((a,), (padded,)), [x], machine=machine)
        check(Graph((a,), (op.add(Tanh()(padded), 1.0),)), [x], machine=machine)
    x = values(3, 45)
    (a,) = inputs_like([x], {0: (3, symbol("n"))})
    check(Graph((a,), (PadMode((1, 2), (0, 1), mode).lower(a),)), [x], machine=machine)


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_padded_images_are_read_without_gathers(mode: str) -> None:
    """Each of the image's lines by one place of its own, edges by loads and shuffles."""
    (a,) = inputs_like([values(3, 40, 50)])
    (kernel,) = lowered(Graph((a,), (PadMode((0, 3, 3), (0, 3, 3), mode).lower(a),)), NATIVE)
    printed = show_kernel(kernel)
    assert "[ramp" not in printed and "if" not in printed.split(" in 0..46:")[1].split("for")[0]


@pytest.mark.parametrize(
    ("old", "new"), [((17, 4), (2, 34)), ((9, 8), (3, 24)), ((30, 2), (6, 10)), ((2, 33, 4), (6, 44))]
)
def test_lines_that_start_inside_a_short_part(old: tuple[int, ...], new: tuple[int, ...]) -> None:
    """A reshape whose lines are no whole number of the short parts that a vector would interleave."""
    x = np.arange(np.prod(old), dtype=np.float32).reshape(old)
    (a,) = inputs_like([x])
    check(Graph((a,), (ops.Reshape(new)(a), ops.mul(ops.Reshape(new)(ops.mul(a, 3.0)), 2.0))), [x])


def test_a_row_that_waits_is_read_in_another_order() -> None:
    """What a pass keeps for later ones, in a result that is transposed to the same shape."""
    x = np.random.default_rng(0).standard_normal((23, 16, 16)).astype(np.float32)
    (a,) = inputs_like([x])
    centred = ops.sub(a, ops.BroadcastInDim(a.type.shape, ())(ops.Reduce("min", (0, 1, 2))(a)))
    scaled = ops.add(centred, ops.BroadcastInDim(a.type.shape, ())(ops.Reduce("sum", (0, 1, 2))(centred)))
    check(Graph((a,), (ops.Transpose((0, 2, 1))(scaled),)), [x])
    rows = ops.sub(centred, ops.BroadcastInDim(a.type.shape, (0,))(ops.Reduce("max", (1, 2))(centred)))
    check(Graph((a,), (ops.Transpose((0, 2, 1))(rows),)), [x])
