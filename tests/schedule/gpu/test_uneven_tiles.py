"""Tiles of which a side is no power of two: a program computes pieces that are, and shares the copies of operands."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input
from ingot.ir.types import TensorType, f16, f32
from ingot.schedule.choice import Site, Tiling
from ingot.schedule.gpu.blocks import pieces_of
from ingot.schedule.gpu.contraction import product
from ingot.schedule.gpu.contraction.tiling import ProductShape
from ingot.schedule.gpu.machine import A100, B200, H100, MI300
from ingot.targets.cuda.triton import print_kernel
from tests.conformance.checked import planned, run_checked
from tests.conformance.targets import H100 as TARGET


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("rows", "columns", "parts"), [
    (128, 192, 1), (192, 128, 1), (192, 192, 3), (128, 96, 2), (192, 64, 2),
])  # fmt: skip
@pytest.mark.parametrize("shape", [(520, 392, 200), (576, 384, 192)])
@pytest.mark.parametrize("axes", [((1,), (0,)), ((0,), (0,)), ((1,), (1,))])
def test_pieces_are_right(
    rows: int, columns: int, parts: int, shape: tuple[int, int, int], axes: tuple[tuple[int], tuple[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """With a bias, a residual and two results; sizes that are whole tiles and such that are not."""
    rng = np.random.default_rng(0)
    m, n, terms = shape
    shapes = (m, terms) if axes[0] == (1,) else (terms, m), (n, terms) if axes[1] == (1,) else (terms, n), (n,), (m, n)
    data = [rng.normal(size=s).astype(np.float16) for s in shapes]
    x, y, bias, residual = (Input(f"in{i}", TensorType(f16, s))() for i, s in enumerate(shapes))
    z = ops.add(ops.DotGeneral(((), ()), axes, dtype=f32)(x, y), ops.cast(bias, f32))
    graph = Graph((x, y, bias, residual), (ops.cast(z, f16), ops.cast(ops.add(z, ops.cast(residual, f32)), f16)))
    choice = Tiling(rows, columns, 16, 8, 2, parts, boxes=1)

    def chosen(site: Site, machine: object, kind: type[Tiling]) -> Tiling:
        return choice if site.admits(choice) else pytest.fail(f"{choice} is not admitted")

    monkeypatch.setattr(product, "decided", chosen)
    for got, want in zip(run_checked(graph, data, TARGET), interpret(graph, data), strict=True):
        np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=2e-3, atol=5e-2)
    kernel = next(iter(planned(graph, TARGET)[1].values()))
    pieces = len(pieces_of(rows)), len(pieces_of(columns))
    assert sum(b.matrix is not None for b in kernel.params) == sum(pieces)
    assert print_kernel(kernel).text.count("tl.dot(") == pieces[0] * pieces[1]


@pytest.mark.parametrize("waves", [0, 1])
def test_parts_of_large_tiles_are_added_by_a_kernel_of_their_own(waves: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """waves: of tiles in front of them that are not split. 19 parts are more than are read at once."""
    rng = np.random.default_rng(0)
    shape, choice = (900, 904, 192), Tiling(64, 96, 16, 4, 2, 3, boxes=1, waves=1)
    if not waves:
        shape, choice = (150, 520, 1300), Tiling(128, 64, 16, 8, 2, 19)
    m, n, terms = shape
    data = [rng.normal(size=s).astype(np.float16) for s in ((m, terms), (terms, n), (n,))]
    x, y, bias = (Input(f"in{i}", TensorType(f16, a.shape))() for i, a in enumerate(data))
    z = ops.add(ops.DotGeneral(((), ()), ((1,), (0,)), dtype=f32)(x, y), ops.cast(bias, f32))
    graph = Graph((x, y, bias), (ops.cast(ops.Relu()(z), f16),))

    def chosen(site: Site, machine: object, kind: type[Tiling]) -> Tiling:
        return choice if site.admits(choice) else pytest.fail(f"{choice} is not admitted")

    monkeypatch.setattr(product, "decided", chosen)
    (got,), (want,) = run_checked(graph, data, TARGET), interpret(graph, data)
    np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=2e-3, atol=5e-2)
    program, kernels = planned(graph, TARGET)
    tiles = -(-m // choice.rows) * -(-n // choice.columns)
    assert program.steps[0].chunks == 132 * waves + (tiles - 132 * waves) * choice.parts
    assert len(program.steps) == len(kernels) == 2
    if not waves:  # where no kernel starts early, the last program of a tile does it
        assert len(planned(graph, "cuda:sm_80")[0].steps) == 1


def test_they_are_of_operands_in_boxes_and_of_hopper() -> None:
    tiling = Tiling(128, 192, 64, 8, 4, boxes=1)
    shape = ProductShape(6304, 768, 3072, 1, f16, allows_boxes=True)
    assert shape.admits(tiling, H100)
    assert not any(shape.admits(tiling, machine) for machine in (A100, B200, MI300))
    assert not shape.admits(Tiling(128, 192, 64, 8, 4), H100)  # by pointers
    assert not shape.admits(Tiling(96, 128, 64, 8, 4, boxes=1), H100)  # 32 rows are too few for an instruction
    assert not shape.admits(Tiling(128, 160, 64, 8, 4, boxes=1), H100)
    assert not shape.admits(Tiling(384, 128, 64, 8, 4, boxes=1), H100)
    assert not shape.admits(Tiling(256, 192, 64, 4, 3, boxes=1), H100)  # more than registers hold


def test_pieces() -> None:
    assert [pieces_of(n) for n in (128, 192, 96)] == [(128,), (128, 64), (64, 32)]
