"""Every op on its samples, an operand's dimension split over simulated devices: as on one."""

from __future__ import annotations

import numpy as np
import pytest

from ingot.ir.interp import interpret
from ingot.ir.node import Const, Graph, Input, Op, Project
from ingot.ir.types import TensorType, dtype_of
from ingot.ops import Sharding
from ingot.ops.core.collective import Collective
from ingot.transform.shard.graph import shard
from ingot.transform.shard.mesh import mesh_of
from ingot.transform.shard.simulate import simulate

OPS = [
    c
    for c in Op.REGISTRY.values()
    if c not in (Const, Input, Project, Sharding)
    and c.__module__.startswith("ingot.ops")
    and not issubclass(c, Collective)
]
DEVICES, MAX_ELEMENTS = (2, 4, 3, 5, 7), 5000
WIDE = {"f16": 4e-3, "bf16": 3e-2, "f32": 2e-5, "f64": 1e-10}


def check(cls: type[Op], samples: int, splits: int) -> int:
    """How many splits of operands gave the results of one device. splits: of a sample, at most."""
    done = 0
    for number, (op, arrays) in enumerate(cls.samples()):
        if number >= samples:
            break
        if sum(a.size for a in arrays) > MAX_ELEMENTS:
            continue
        inputs = tuple(Input(f"x{i}", TensorType(dtype_of(a), a.shape))() for i, a in enumerate(arrays))
        graph = Graph(inputs, op(*inputs).results)
        want = None
        sizes = [(i, d, size) for i, a in enumerate(arrays) for d, size in enumerate(a.shape)]
        places = [(i, d, n) for i, d, size in sizes for n in DEVICES if size and size % n == 0]
        for i, d, n in places[:splits]:
            want = interpret(graph, arrays) if want is None else want
            sharded = shard(graph, mesh_of({"a": n}), {f"x{i}": ("a", d)})
            got = simulate(sharded, arrays)
            for a, b in zip(got, want, strict=True):
                compare(a, b, f"{op} with dimension {d} of operand {i} over {n} devices")
            done += 1
    return done


def compare(got: np.ndarray, want: np.ndarray, message: str) -> None:
    dtype = dtype_of(want)
    assert (got.dtype, got.shape) == (want.dtype, want.shape), message
    if not dtype.is_float:
        np.testing.assert_array_equal(got, want, err_msg=message)
        return
    a, b = (x.astype(np.float64) for x in (got, want))
    finite = np.abs(b[np.isfinite(b)])
    tolerance = WIDE.get(dtype.name, 0.3)
    np.testing.assert_allclose(
        a, b, rtol=tolerance, atol=tolerance * max(finite.max(initial=0), 1e-30), err_msg=message
    )


@pytest.mark.parametrize("cls", OPS, ids=lambda cls: cls.name)
def test_first_samples(cls: type[Op]) -> None:
    check(cls, 3, 3)


@pytest.mark.slow
@pytest.mark.parametrize("cls", OPS, ids=lambda cls: cls.name)
def test_all_samples(cls: type[Op]) -> None:
    check(cls, 100, 100)


def test_splits_are_tried() -> None:
    """Most ops have samples that can be split."""
    assert sum(check(cls, 2, 1) > 0 for cls in OPS[:60]) > 40
