"""Storage of values: slices of concats, insides of padded buffers, and copies if there is no place for them."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Node, const
from ingot.ir.types import i32, static_shape, u8
from ingot.ops.group import Group
from ingot.passes.fusion.fuse import fuse
from ingot.pipeline.build import build_program
from ingot.plan.storage import Storage, assign
from ingot.runtime.executor import CompiledModel
from ingot.targets.cpu.workers import host_features
from tests.passes.check import arg, graph

RNG = np.random.default_rng(0)


def weight(*shape: int) -> Node:
    return const(RNG.normal(size=shape).astype(np.float32))


def product(x: Node, columns: int) -> Node:
    k = x.shape[-1]
    assert isinstance(k, int)
    return ops.DotGeneral(((), ()), ((x.type.rank - 1,), (0,)))(x, weight(k, columns))


def stored(*outputs: Node) -> tuple[Storage, Graph]:
    storage = assign(fuse(graph(*outputs)))
    return storage, storage.graph


def only(g: Graph, op: type) -> Node:
    (node,) = (n for n in g.nodes() if isinstance(n.op, op))
    return node


def copies(g: Graph) -> int:
    return sum(isinstance(n.op, Group) and len(n.op.body.nodes()) == 1 for n in g.nodes())


def test_operands_of_a_concat_are_stored_in_it() -> None:
    a, b = product(arg("x", 5, 8), 16), product(arg("y", 5, 8), 24)
    storage, g = stored(product(ops.Concat(1)(a, b), 4))
    concat = only(g, ops.Concat)
    first, second = (storage.places[i] for i in concat.inputs)
    assert first.owner is concat and second.owner is concat
    assert (first.layout.offset, second.layout.offset) == (0, 16)
    assert first.layout.strides == (40, 1) and copies(g) == 0


def test_a_padded_value_is_stored_inside_its_halo() -> None:
    x = ops.Exp()(product(arg("x", 5, 8), 16))
    padded = ops.Pad((1, 0), (1, 0), (0, 0))(x, ops.scalar(0.0, x.dtype))
    storage, g = stored(ops.DotGeneral(((), ()), ((1,), (0,)))(padded, weight(16, 4)))
    halo = only(g, ops.Pad)
    inner = storage.places[halo.inputs[0]]
    assert inner.owner is halo and inner.layout.offset == 16 and list(storage.halos) == [halo]


def test_one_value_twice_in_a_concat_is_copied_once() -> None:
    a = product(arg("x", 5, 8), 16)
    storage, g = stored(product(ops.Concat(1)(a, a), 4))
    concat = only(g, ops.Concat)
    assert copies(g) == 1
    assert {storage.places[i].layout.offset for i in concat.inputs} == {0, 16}


def test_many_copies_of_an_input() -> None:
    """The number of copies is not limited by the size of the graph."""
    x = arg("x", 5, 8)
    _, g = stored(product(ops.Concat(1)(*(product(x, 8),) * 6), 4))
    assert copies(g) == 5


def test_an_output_keeps_a_buffer_of_its_own() -> None:
    a = product(arg("x", 5, 8), 16)
    storage, g = stored(product(ops.Concat(1)(a, product(a, 8)), 4), a)
    assert all(storage.places[o].owner is o and storage.places[o].layout.is_contiguous for o in g.outputs)


def test_values_of_one_owner_do_not_overlap() -> None:
    a, b, c = (product(arg(n, 3, 8), 8) for n in "abc")
    inner = ops.Concat(0)(a, b)
    storage, g = stored(product(ops.Concat(1)(inner, ops.Concat(0)(c, a)), 4))
    marks_of: dict[Node, np.ndarray] = {}
    for n in g.nodes():
        if not isinstance(n.op, Group):
            continue
        place = storage.places[n]
        marks = marks_of.setdefault(place.owner, np.zeros(static_shape(place.owner.shape), int).reshape(-1))
        (height, width), (row_stride, column_stride) = map(static_shape, (n.shape, place.layout.strides))
        (offset,) = static_shape((place.layout.offset,))
        indices = offset + np.arange(height)[:, None] * row_stride + np.arange(width) * column_stride
        marks[indices.reshape(-1)] += 1
    assert all((m <= 1).all() for m in marks_of.values())


@pytest.mark.parametrize("fills", [(7, 7), (7, 0), (0, 255)])
def test_halos_of_any_byte(fills: tuple[int, int]) -> None:
    """Nested and adjacent pads with equal or different bytes, at alternating batch sizes."""
    x = arg("x", symbol("n"), 6, 6, 16, dtype=u8)
    w = const(np.random.default_rng(1).integers(-9, 9, (16, 8, 3, 3)).astype(np.int8))
    conv = ops.Convolution((1, 1), ((0, 0),) * 2, (1, 1), (1, 1), "NHWC", "IOHW", "NHWC", dtype=i32)

    def padded(v: Node, by: int, fill: int) -> Node:
        return ops.pad(v, (0, by, by, 0), (0, by, by, 0), const(np.uint8(fill)))

    y = padded(padded(ops.xor(x, ops.full(x.shape, 1, u8)), 1, fills[0]), 2, fills[1])
    z = padded(ops.xor(x, ops.full(x.shape, 2, u8)), 3, fills[1])
    concatenated = ops.concat((y, z), 0)
    g = graph(conv(concatenated, w))
    model = CompiledModel(build_program(g, host_features(), 2), threads=2)
    for n in (1, 3, 2, 1):
        batch = np.random.default_rng(n).integers(0, 256, (n, 6, 6, 16)).astype(np.uint8)
        np.testing.assert_array_equal(model(batch), interpret(g, [batch])[0])
