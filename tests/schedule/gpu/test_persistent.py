"""Products whose programs compute one tile after another."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.interp import interpret
from ingot.ir.kernel import For
from ingot.ir.kernel.show import show_kernel
from ingot.ir.node import Graph, Input
from ingot.ir.types import TensorType, f16, f32
from ingot.schedule.choice import Site, Tiling, read_choice
from ingot.schedule.gpu.contraction import product
from ingot.schedule.gpu.contraction.tiling import ProductShape
from ingot.schedule.gpu.machine import A100, H100, MI300
from ingot.targets.cuda.triton import print_kernel
from tests.conformance.checked import planned, run_checked
from tests.conformance.targets import H100 as TARGET
from tests.conftest import Golden


@pytest.mark.parametrize("terms", [16, 72])
@pytest.mark.parametrize(("tiling", "shape", "programs"), [
    (Tiling(64, 64, 16, 4, 2, boxes=1, persistent=1), (1000, 640), 132),  # 160 tiles
    (Tiling(64, 32, 16, 4, 2, boxes=1, persistent=2), (1000, 640), 264),  # 320 tiles
    (Tiling(64, 96, 16, 4, 2, boxes=1, persistent=1), (520, 200), 27),  # fewer tiles than multiprocessors
])  # fmt: skip
def test_every_tile_is_computed_once(
    tiling: Tiling, shape: tuple[int, int], programs: int, terms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """terms: of one turn, which is no loop, and of several."""
    rng = np.random.default_rng(0)
    m, n = shape
    arrays = [rng.normal(size=s).astype(np.float16) for s in ((m, terms), (terms, n), (n,), (m, n))]
    x, y, bias, residual = (Input(f"in{i}", TensorType(f16, a.shape))() for i, a in enumerate(arrays))
    z = ops.add(ops.DotGeneral(((), ()), ((1,), (0,)), dtype=f32)(x, y), ops.cast(bias, f32))
    graph = Graph((x, y, bias, residual), (ops.cast(ops.add(z, ops.cast(residual, f32)), f16),))

    def chosen(site: Site, machine: object, kind: type[Tiling]) -> Tiling:
        return tiling if site.admits(tiling) else pytest.fail(f"{tiling} is not admitted")

    monkeypatch.setattr(product, "decided", chosen)
    (got,), (want,) = run_checked(graph, arrays, TARGET), interpret(graph, arrays)
    np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=2e-3, atol=5e-2)
    program, kernels = planned(graph, TARGET)
    (kernel,) = kernels.values()
    assert program.steps[0].chunks == programs
    assert [s.flatten for s in kernel.body if isinstance(s, For)] == [True]
    assert "flatten=True" in print_kernel(kernel).text


@pytest.mark.parametrize(("name", "shape", "tiling"), [
    ("persistent", (1000, 640, 128), Tiling(64, 64, 64, 4, 3, boxes=1, persistent=1)),
    ("uneven", (1000, 640, 128), Tiling(128, 192, 64, 8, 4, boxes=1)),
    ("sums", (520, 384, 1280), Tiling(128, 128, 64, 8, 4, 3, boxes=1)),
])  # fmt: skip
def test_golden(
    name: str, shape: tuple[int, int, int], tiling: Tiling, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel IR and the text of a layer with a bias; `sums` has a kernel that adds parts."""
    m, n, terms = shape
    x, w, bias = (Input(s, TensorType(f16, d))() for s, d in (("x", (m, terms)), ("w", (n, terms)), ("bias", (n,))))
    z = ops.add(ops.DotGeneral(((), ()), ((1,), (1,)), dtype=f32)(x, w), ops.cast(bias, f32))
    monkeypatch.setattr(product, "decided", lambda site, machine, kind: tiling)
    _, kernels = planned(Graph((x, w, bias), (ops.cast(z, f16),)), TARGET)
    golden(name, "\n".join(f"{show_kernel(kernel)}\n{print_kernel(kernel).text}" for kernel in kernels.values()))


def test_where_they_can_be() -> None:
    shape = ProductShape(6304, 1536, 384, 1, f16, allows_boxes=True)
    tiling = Tiling(128, 128, 64, 4, 3, boxes=1, persistent=2)
    assert shape.admits(tiling, H100)
    assert not shape.admits(tiling, A100) and not shape.admits(tiling, MI300)
    assert not shape.admits(Tiling(128, 128, 64, 4, 3, persistent=1), H100)
    assert not shape.admits(Tiling(128, 128, 64, 4, 3, boxes=1, persistent=3), H100)


def test_choices_that_were_written_before_there_were_any() -> None:
    tiling = Tiling(128, 128, 64, 8, 4, boxes=1)
    record = tiling.record()
    del record["persistent"]
    assert read_choice(record) == tiling
    assert read_choice({**record, "persistent": 2}) == Tiling(128, 128, 64, 8, 4, boxes=1, persistent=2)
    del record["stages"]
    assert read_choice(record) is None
