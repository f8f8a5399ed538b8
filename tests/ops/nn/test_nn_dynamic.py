"""MODEL ops with symbolic sizes in attributes, and lowerings on symbolic shapes."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.dims import symbol
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Op
from ingot.support.errors import ShapeError
from tests.ops.nn.check import Dynamic, check, close, operands, run

RNG = np.random.default_rng(0)
H, W = symbol("h"), symbol("w")
SPATIAL: Dynamic = {0: {2: "h", 3: "w"}}


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def assert_symbolic_matches_static(symbolic: Op, static: Op, *inputs: np.ndarray, dynamic: Dynamic) -> None:
    """The symbolic op and its lowering give the results of the op with static sizes."""
    nodes = operands(inputs, dynamic)
    low = symbolic.lower(*nodes)
    assert low is not None
    lowered = low if isinstance(low, tuple) else low.results
    node = symbolic(*nodes)
    assert tuple(n.type for n in lowered) == node.types
    want = run(static, *inputs)
    for results in (node.results, lowered):
        for g, w in zip(interpret(Graph(nodes, results), inputs), want, strict=True):
            close(g, w, w.dtype)


@pytest.mark.parametrize("coordinates", ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize(mode: str, coordinates: str) -> None:
    x = normal(1, 2, 5, 7)
    for nearest in ("floor", "round_prefer_ceil"):
        symbolic = ops.Resize((H * 2, W * 3), (2, 3), mode, coordinates, nearest)
        assert_symbolic_matches_static(
            symbolic, ops.Resize((10, 21), (2, 3), mode, coordinates, nearest), x, dynamic=SPATIAL
        )
    scales = (2.0, 1.5)
    symbolic = ops.Resize((H * 2, W * 3 // 2), (2, 3), mode, coordinates, scales=scales)
    assert_symbolic_matches_static(
        symbolic, ops.Resize((10, 10), (2, 3), mode, coordinates, scales=scales), x, dynamic=SPATIAL
    )


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_resize_antialias(mode: str) -> None:
    x = normal(1, 2, 9, 8)
    scales = (0.5, 0.25)
    for exclude in (False, True):
        options = {"exclude_outside": exclude, "antialias": True, "scales": scales}
        symbolic = ops.Resize((H // 2, W // 4), (2, 3), mode, **options)  # type: ignore[arg-type]
        assert_symbolic_matches_static(symbolic, ops.Resize((4, 2), (2, 3), mode, **options), x, dynamic=SPATIAL)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="antialias"):
        ops.Resize((H // 2, 2), (2, 3), mode, antialias=True)(*operands((x,), SPATIAL))


def test_adaptive_pool_to_a_symbolic_size() -> None:
    x = normal(1, 2, 12, 8)
    for cls in (ops.AdaptiveAvgPool, ops.AdaptiveMaxPool):
        assert_symbolic_matches_static(cls((H // 4, W)), cls((3, 8)), x, dynamic=SPATIAL)
        assert_symbolic_matches_static(cls((H // 5, 3)), cls((2, 3)), x, dynamic=SPATIAL)


@pytest.mark.parametrize("ceil", [False, True])
def test_pool_with_indices(ceil: bool) -> None:
    op = ops.MaxPoolIndices((3, 2), (2, 2), ((1, 1), (0, 0)), (1, 1), ceil)
    for shape in ((1, 2, 8, 9), (2, 1, 5, 4)):
        check(op, normal(*shape), dynamic=SPATIAL)


def test_selection() -> None:
    n = symbol("n")
    x = normal(3, 9)
    assert_symbolic_matches_static(ops.TopK(n // 2, 1), ops.TopK(4, 1), x, dynamic={0: {1: "n"}})
    indices, values = np.asarray([[0, 2, -1], [9, -3, 1]]), np.asarray([0, 1], np.float32)
    assert_symbolic_matches_static(ops.OneHot(2, n), ops.OneHot(2, 3), indices, values, dynamic={0: {1: "n"}})
    points = np.asarray([[-1, -2], [0, 8]])
    check(ops.GatherND(), x, points, dynamic={0: {0: "r", 1: "c"}, 1: {0: "p"}})
    check(ops.ScatterND("add"), x, points, normal(2), dynamic={0: {0: "r", 1: "c"}, 1: {0: "p"}, 2: {0: "p"}})
    axis_indices = RNG.integers(-9, 9, (3, 4))
    check(ops.GatherElements(1), x, axis_indices, dynamic={0: {0: "r", 1: "c"}, 1: {0: "r", 1: "k"}})
    check(
        ops.ScatterElements(1),
        x,
        np.asarray([[1], [2], [-1]]),
        normal(3, 1),
        dynamic={0: {0: "r", 1: "c"}, 1: {0: "r"}, 2: {0: "r"}},
    )


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_pad_by_a_symbolic_amount(mode: str) -> None:
    x = normal(2, 5)
    n = symbol("n")
    assert_symbolic_matches_static(
        ops.PadMode((0, n - 1), (0, 3), mode), ops.PadMode((0, 4), (0, 3), mode), x, dynamic={0: {1: "n"}}
    )


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_with_lengths(kind: str) -> None:
    gates, states = {"LSTM": (4, 2), "GRU": (3, 1), "RNN": (1, 1)}[kind]
    op = getattr(ops, kind)(4, "bidirectional", has_lengths=True)
    inputs = (
        normal(6, 3, 2),
        normal(2, gates * 4, 2),
        normal(2, gates * 4, 4),
        normal(2, gates * 8),
        *(normal(2, 3, 4) for _ in range(states)),
        np.asarray([6, 2, 0]),
    )
    batch = {i: {1: "b"} for i in range(4, 4 + states)}
    check(op, *inputs, dynamic={0: {0: "s", 1: "b"}, **batch, 4 + states: {0: "b"}})


def test_groups_of_rows() -> None:
    x, w = normal(9, 4), normal(3, 4, 5)
    check(ops.GroupedMatMul(), x, w, np.asarray([2, 2, 8]), dynamic={0: {0: "n"}})


def test_errors_name_what_was_expected() -> None:
    x, w = operands((normal(1, 3, 8, 8), normal(4, 2, 3, 3)))
    with pytest.raises(ShapeError, match=r"conv: expected a kernel \[O, 3 / 1"):
        ops.Conv((1, 1), ((0, 0), (0, 0)), (1, 1))(x, w)
    with pytest.raises(ShapeError, match="matmul: expected dimension 3"):
        ops.MatMul()(x, w)
    with pytest.raises(ShapeError, match="exceeds the padded"):
        ops.Conv((1, 1), ((0, 0), (0, 0)), (5, 5))(operands((normal(1, 2, 8, 8),))[0], w)
    with pytest.raises(ShapeError, match="einsum"):
        ops.Einsum("ij,jk->ik")(x, w)
