"""Products of f32 whose operands tensor cores cut to TF32: which are, from which memory, and that they are right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.kernel.arithmetic import to_tf32
from ingot.ir.node import Graph, Input, Node, const
from ingot.ir.types import TensorType, bf16, f32
from ingot.schedule.gpu.contraction.tiling import ProductShape
from ingot.schedule.gpu.machine import A40
from ingot.schedule.gpu.machine import H100 as MACHINE
from ingot.targets.cuda.triton import print_kernel
from tests.conformance.checked import planned, run_checked
from tests.conformance.targets import H100

NONE, ONE = ((0, 0), (0, 0)), (1, 1)


def _inputs(*shapes: tuple[int, ...]) -> list[Node]:
    return [Input(n, TensorType(f32, s))() for n, s in zip("abc", shapes, strict=False)]


def _kernels(graph: Graph, target: str = H100) -> list[tuple[str, bool, bool]]:
    """Of each kernel of a graph that agrees with the interpreter: its name, whether its products are of TF32, and
    whether its operands are copied in boxes."""
    rng = np.random.default_rng(0)
    data = [rng.normal(size=x.shape).astype(np.float32) for x in graph.inputs]
    (got,), (want,) = run_checked(graph, data, target), interpret(graph, data)
    assert np.abs(got - want).max() <= 2e-5 * np.abs(want).max()
    found: list[tuple[str, bool, bool]] = []
    for kernel in planned(graph, target)[1].values():
        text = print_kernel(kernel).text
        assert not ('"tf32"' in text and '"ieee"' in text)
        name = kernel.name.rstrip("_0123456789")
        found.append((name, '"tf32"' in text, any(b.matrix for b in kernel.params)))
    return found


def _dot(a: Node, b: Node, axis: int, tf32: bool | None = True) -> Graph:
    return Graph((a, b), (ops.DotGeneral(((), ()), ((1,), (axis,)), tf32=tf32)(a, b),))


@pytest.mark.parametrize(("rows", "axis", "kernels"), [
    (600, 1, [("product", True, True)]),  # B's terms are contiguous
    (600, 0, [("product", True, False)]),
    (1040, 0, [("columns", False, False), ("product", True, True)]),  # rows enough that copying B pays
    (37, 1, [("product", True, False)]),
])  # fmt: skip
def test_terms_are_contiguous_where_it_pays(rows: int, axis: int, kernels: Sequence[tuple[str, bool, bool]]) -> None:
    a, b = _inputs((rows, 144), (80, 144) if axis else (144, 80))
    assert _kernels(_dot(a, b, axis)) == kernels


def test_copies_of_b_stand_behind_the_sums_of_parts() -> None:
    a, b = _inputs((1040, 4000), (4000, 24))
    names = [name for name, *_ in _kernels(_dot(a, b, 0))]
    assert names == ["columns", "product", "sums"]


def test_a_constant_is_packed_with_contiguous_terms() -> None:
    (a,) = _inputs((600, 144))
    b = const(np.random.default_rng(1).normal(size=(144, 80)).astype(np.float32))
    graph = Graph((a,), (ops.Relu()(ops.DotGeneral(((), ()), ((1,), (0,)), tf32=True)(a, b)),))
    assert _kernels(graph) == [("product", True, True)]


@pytest.mark.parametrize("tf32", [None, False])
def test_others_are_not_cut(tf32: bool | None) -> None:
    a, b = _inputs((64, 144), (144, 80))
    assert _kernels(_dot(a, b, 0, tf32)) == [("product", False, False)]


@pytest.mark.parametrize(("x", "w", "groups", "kernels"), [
    ((2, 13, 14, 40), (24, 40, 3, 3), 1, [("product", True, False)]),
    ((8, 13, 14, 8), (24, 8, 3, 3), 1, [("columns", False, False), ("product", True, False)]),
    ((2, 9, 9, 64), (32, 64, 1, 1), 1, [("product", True, False)]),
    ((2, 13, 14, 3), (24, 3, 7, 7), 1, [("product", True, False)]),
    ((2, 9, 10, 32), (48, 16, 3, 3), 2, [("product", True, False)]),
    ((2, 9, 10, 32), (32, 1, 3, 3), 32, [("depthwise", False, False)]),
])  # fmt: skip
def test_convolutions(
    x: tuple[int, ...], w: tuple[int, ...], groups: int, kernels: Sequence[tuple[str, bool, bool]]
) -> None:
    a, b = _inputs(x, w)
    op = ops.Convolution(ONE, NONE, ONE, ONE, "NHWC", "OIHW", "NHWC", groups, tf32=True)
    graph = Graph((a, b), (op(a, b),))
    if groups == 32:  # its kernel multiplies all bits
        graph = Graph((a, b), (replace(op, tf32=None)(a, b),))
    assert _kernels(graph) == kernels


def test_the_gradient_of_a_kernel() -> None:
    a, b = _inputs((3, 17, 15, 16), (3, 15, 13, 8))
    assert _kernels(Graph((a, b), (ops.KernelGradient((3, 3), ONE, ONE, tf32=True)(a, b),))) == [
        ("product", True, False)
    ]


@pytest.mark.parametrize(
    ("a_axis", "b_axis", "by_registers"), [(0, 0, True), (1, 0, True), (0, 1, True), (1, 1, False)]
)
def test_strided_terms_are_read_by_registers(a_axis: int, b_axis: int, by_registers: bool) -> None:
    """By single warps: a warp group's four would read shared memory, to which numbers are copied one by one."""
    a, b = _inputs((288, 90) if a_axis else (90, 288), (70, 90) if b_axis else (90, 70))
    graph = Graph((a, b), (ops.DotGeneral(((), ()), ((a_axis,), (b_axis,)), tf32=True)(a, b),))
    assert _kernels(graph) == [("product", True, False)]
    (kernel,) = planned(graph, H100)[1].values()
    assert (dict(kernel.hints)["warps"] == 2) is by_registers


def test_many_parts_and_persistent_programs() -> None:
    a, b = _inputs((40, 9000), (24, 9000))
    names = [name for name, *_ in _kernels(_dot(a, b, 1))]
    assert names in (["product"], ["product", "sums"])
    tiling = ProductShape(100352, 64, 64, 1, f32, allows_boxes=True, tf32=True).candidates(MACHINE)[0]
    assert tiling.persistent and tiling.depth == 32


def test_gpus_without_such_products() -> None:
    a, b = _inputs((1040, 144), (144, 80))
    (kernel,) = planned(_dot(a, b, 0), "cuda:sm_80")[1].values()  # reads registers: nothing is copied
    assert dict(kernel.hints)["warps"] >= 4
    a, b = _inputs((64, 144), (80, 144))
    assert _kernels(_dot(a, b, 1), "cuda:sm_80") == [("product", True, False)]
    (kernel,) = planned(_dot(a, b, 1), "hip:gfx942")[1].values()
    assert "tf32" not in print_kernel(kernel).text


@pytest.mark.parametrize("machine", [MACHINE, A40])
@pytest.mark.parametrize("sizes", [(8192, 8192, 8192), (100352, 64, 576), (128, 768, 3072), (17, 31, 40)])
def test_tiles_take_the_shared_memory_of_f32_at_half_the_rate(machine, sizes: tuple[int, int, int]) -> None:
    for allows_boxes in (False, machine.has_box_copies):
        shape = ProductShape(*sizes, 1, f32, allows_boxes=allows_boxes, tf32=True)
        assert all(shape.admits(t, machine) for t in shape.candidates(machine)[:20])
        best = shape.candidates(machine)[0]
        assert best.stages * (best.rows + best.columns) * best.depth * 4 <= machine.shared_bytes
    narrow = ProductShape(*sizes, 1, bf16).candidates(machine)[0]
    assert best.depth <= narrow.depth


def test_operands_are_cut_toward_zero() -> None:
    x = np.array([1 + 2**-10, 1 + 2**-11, -1 - 2**-11, 1 + 2**-10 + 2**-11, np.inf, -np.inf, np.nan, 3.4e38, 0, 1e-40])
    cut = to_tf32(x.astype(np.float32))
    assert cut[:4].tolist() == [1 + 2**-10, 1, -1, 1 + 2**-10] and np.isnan(cut[6])
    assert cut[4] == np.inf and cut[5] == -np.inf and np.isfinite(cut[7]) and cut[8] == 0
    signaling = np.array([0x7F800001], np.uint32).view(np.float32)
    assert np.isnan(to_tf32(signaling)).all()


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, 3.4e38])
def test_special_values(special: float) -> None:
    rng = np.random.default_rng(0)
    data = [rng.normal(size=s).astype(np.float32) for s in ((33, 70), (40, 70))]
    data[0][5, 7] = special
    a, b = _inputs((33, 70), (40, 70))
    graph = _dot(a, b, 1)
    (got,), (want,) = run_checked(graph, data, H100), interpret(graph, data)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


def test_empty_products() -> None:
    for m, depth, n in ((0, 5, 7), (5, 0, 7), (5, 7, 0)):
        a, b = _inputs((m, depth), (n, depth))
        (got,) = run_checked(_dot(a, b, 1), [np.ones((m, depth), np.float32), np.ones((n, depth), np.float32)], H100)
        assert got.shape == (m, n) and not got.any()
