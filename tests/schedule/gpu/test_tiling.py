"""The model of tilings: what measured sweeps on an H100 say should come out of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ingot.ir.dims import symbol
from ingot.ir.types import f8e4m3fn, f16, f32, i8
from ingot.pipeline.cuda import TARGET
from ingot.schedule.gpu.contraction.tiling import ProductShape
from ingot.schedule.gpu.machine import A40, H100


@pytest.mark.parametrize(("sizes", "tile", "parts"), [
    ((4096, 4096, 4096), (128, 256), 1),
    ((6304, 768, 3072), (128, 128), 1),
    ((6304, 2304, 768), (128, 128), 1),
    ((100352, 256, 64), (128, 128), 1),
    ((512, 2048, 8192), (128, 128), 2),
    ((512, 2048, 2048), (64, 128), 1),
    ((197, 768, 768), (64, 32), 1),
    ((512, 768, 768), (64, 64), 1),
    ((128, 3072, 768), (64, 64), 1),
    ((5, 3, 7), (16, 16), 1),
])  # fmt: skip
def test_tiles_and_parts(sizes: tuple[int, int, int], tile: tuple[int, int], parts: int) -> None:
    best = ProductShape(*sizes, 1, f16).candidates(H100)[0]
    assert ((best.rows, best.columns), best.parts) == (tile, parts)


@pytest.mark.parametrize(("sizes", "tile", "parts", "persistent"), [
    ((6304, 1536, 384), (128, 128), 1, 2),
    ((25088, 512, 128), (128, 128), 1, 2),
    ((6304, 384, 1536), (64, 192), 1, 0),
    ((4096, 768, 768), (64, 192), 1, 0),
    ((6272, 1024, 512), (192, 256), 1, 0),
    ((1024, 256, 6272), (64, 128), 4, 0),
    ((1024, 512, 6272), (64, 64), 1, 0),
])  # fmt: skip
def test_tiles_of_operands_in_boxes(
    sizes: tuple[int, int, int], tile: tuple[int, int], parts: int, persistent: int
) -> None:
    """What a sweep on an H200 found to be the fastest, or within 3% of it."""
    shape = ProductShape(*sizes, 1, f16, allows_boxes=True)
    best = shape.candidates(H100)[0]
    assert ((best.rows, best.columns), best.parts, best.persistent) == (tile, parts, persistent)
    assert all(shape.admits(t, H100) for t in shape.candidates(H100)[:50])


def test_sums_of_runs_of_8_bit_floats_have_registers_of_their_own() -> None:
    """Half as large tiles as of other types, and no turn longer than a run; integers have none."""
    shape = ProductShape(4096, 4096, 4096, 1, f8e4m3fn, allows_boxes=True)
    first = shape.candidates(H100)[0]
    assert (first.rows, first.columns, first.warps, first.depth) == (128, 128, 8, 128)
    assert all(shape.admits(t, H100) for t in shape.candidates(H100))
    best_i8 = ProductShape(4096, 4096, 4096, 1, i8, allows_boxes=True).candidates(H100)[0]
    assert (best_i8.rows, best_i8.columns, best_i8.depth) == (128, 256, 128)
    assert not shape.admits(replace(first, columns=256), H100) and not shape.admits(replace(first, depth=256), H100)


def test_what_many_functions_follow_is_cut_smaller() -> None:
    def tile(functions: int) -> int:
        t = ProductShape(196, 480, 80, 1, f16, costly_ops=functions).candidates(H100)[0]
        return t.rows * t.columns

    assert tile(2) < tile(0)


def test_a_short_reduction_takes_no_more_memory_than_it_has_turns() -> None:
    stages = [ProductShape(4096, 64, length, 1, f16).candidates(H100)[0].stages for length in (64, 128, 1024)]
    assert stages[0] == 2 and stages == sorted(stages) and stages[-1] >= 4


@pytest.mark.parametrize("dtype", [f16, f32, i8])
@pytest.mark.parametrize("machine", [H100, A40])
def test_turns_under_way_fit_into_shared_memory(dtype, machine) -> None:
    for m, n, length in ((8192, 8192, 8192), (128, 768, 3072), (1, 4096, 4096), (17, 31, 40)):
        t = ProductShape(m, n, length, 1, dtype, is_k_contiguous=True).candidates(machine)[0]
        nbytes = (t.rows + t.columns) * t.depth * dtype.nbytes * t.stages
        assert t.rows == 1 or nbytes <= machine.shared_bytes


def test_sizes_that_are_not_known_are_not_cut_into_parts() -> None:
    assert ProductShape(symbol("n"), 64, 8192, 1, f16).candidates(H100)[0].parts == 1


def test_a_single_row_takes_columns_whose_terms_lie_side_by_side() -> None:
    best = ProductShape(1, 4096, 4096, 1, f16, is_k_contiguous=True).candidates(H100)[0]
    assert (best.columns, best.depth, best.parts) == (4, 1024, 1)


def test_a_program_for_several_gpus_takes_the_shared_memory_of_the_least() -> None:
    machine = TARGET.machine(TARGET.features("sm_90a,sm_89"), 1, {})
    assert (machine.capability, machine.shared_bytes) == (90, 99 << 10)
