"""Every op on its samples: the type rule, the lowering, the scalar rule, the layout hooks and the text form agree with
the reference."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ingot import ops
from ingot.ir import kernel as k
from ingot.ir.interp import interpret
from ingot.ir.node import Const, Graph, Input, Node, Op, Project
from ingot.ir.parse import parse
from ingot.ir.show import show
from ingot.ir.types import TensorType, dtype_of
from ingot.ir.verify import verify
from ingot.ops.core.shape import View
from tests.ops.evaluate import evaluate

# other tests may register ops of their own
NO_SAMPLES = (Const, Input, Project, ops.Custom, ops.HostCall)  # the last two mean what users say
OPS = [c for c in Op.REGISTRY.values() if c not in NO_SAMPLES and c.__module__.startswith("ingot.ops")]
IDS = [cls.name for cls in OPS]


def types_of(arrays: tuple[np.ndarray, ...]) -> tuple[TensorType, ...]:
    return tuple(TensorType(dtype_of(a), a.shape) for a in arrays)


def assert_equal(got: np.ndarray, want: np.ndarray, message: str) -> None:
    """Equal values, NaN equal to NaN (numpy does not recognize NaN of ml_dtypes)."""
    wide = [a.astype(np.float64) if dtype_of(a).is_float else a for a in (np.asarray(got), np.asarray(want))]
    np.testing.assert_array_equal(*wide, err_msg=message)


def assert_near(got: np.ndarray, want: np.ndarray, message: str) -> None:
    """Equal up to the order of sums."""
    np.testing.assert_allclose(*(a.astype(np.float64) for a in (got, want)), rtol=1e-5, atol=1e-5, err_msg=message)


def as_tuple(value: object) -> tuple:
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize("cls", OPS, ids=IDS)
def test_has_samples(cls: type[Op]) -> None:
    assert any(True for _ in cls.samples())


@pytest.mark.parametrize("cls", OPS, ids=IDS)
def test_inferred_type_matches_reference(cls: type[Op]) -> None:
    for op, inputs in cls.samples():
        originals = [x.copy() for x in inputs]
        got = as_tuple(op.reference(*inputs))
        assert types_of(got) == as_tuple(op.infer(*types_of(inputs))), op
        unchanged = all(a.tobytes() == b.tobytes() for a, b in zip(originals, inputs, strict=True))
        assert unchanged, f"{op} wrote into its operand"


def graph_of(op: Op, inputs: tuple[np.ndarray, ...]) -> Graph:
    arguments = tuple(Input(f"x{i}", t)() for i, t in enumerate(types_of(inputs)))
    return Graph(arguments, op(*arguments).results)


def lowered(graph: Graph) -> Graph:
    """`graph` in ops that do not lower any further."""
    memo: dict[Node, Node | tuple[Node, ...]] = {}
    for node in graph.nodes():
        memo[node] = _lower(node, [memo[i] for i in node.inputs])
    return Graph(graph.inputs, tuple(_one(memo[n]) for n in graph.outputs))


def _one(value: Node | tuple[Node, ...]) -> Node:
    assert isinstance(value, Node)
    return value


def _lower(node: Node, images: list[Node | tuple[Node, ...]]) -> Node | tuple[Node, ...]:
    if isinstance(node.op, Project):
        (image,) = images
        results: tuple[Node, ...] = image.results if isinstance(image, Node) else image
        return results[node.op.index]
    operands = [_one(v) for v in images]
    simpler = node.op.lower(*operands)
    if simpler is None:
        return node.with_inputs(operands)
    outputs = simpler if isinstance(simpler, tuple) else (simpler,)
    first, *others = lowered(Graph((), outputs)).outputs
    return (first, *others) if others else first


def assert_close(got: np.ndarray, want: np.ndarray, message: str) -> None:
    if not dtype_of(want).is_float:
        np.testing.assert_array_equal(got, want, err_msg=message)
        return
    tolerance = {8: 1e-10, 4: 2e-5, 2: 2e-2}[want.dtype.itemsize]
    a, b = got.astype(np.float64), want.astype(np.float64)
    finite = b[np.isfinite(b)]
    scale = min(float(np.abs(finite).max(initial=1.0)), 1e3)
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale, err_msg=message)


@pytest.mark.parametrize("cls", OPS, ids=IDS)
def test_lowering_matches_reference(cls: type[Op]) -> None:
    for op, inputs in cls.samples():
        graph = graph_of(op, inputs)
        lowered_graph = lowered(graph)
        if lowered_graph.outputs == graph.outputs:
            continue
        verify(lowered_graph)
        for got, want in zip(interpret(lowered_graph, inputs), as_tuple(op.reference(*inputs)), strict=True):
            assert got.dtype == want.dtype and got.shape == want.shape, op
            assert_close(got, want, str(op))


@pytest.mark.parametrize("cls", OPS, ids=IDS)
def test_text_round_trip(cls: type[Op]) -> None:
    for op, inputs in cls.samples():
        graph = graph_of(op, inputs)
        text = show(graph)
        reparsed = parse(text)
        assert show(reparsed) == text
        assert reparsed.outputs[0].types == graph.outputs[0].types


@pytest.mark.parametrize("cls", [c for c in OPS if issubclass(c, ops.Elementwise)], ids=lambda c: c.name)
def test_scalar_rule_matches_reference(cls: type[ops.Elementwise]) -> None:
    for op, inputs in cls.samples():
        assert isinstance(op, ops.Elementwise)
        names = [f"x{i}" for i in range(len(inputs))]
        expr = op.scalar(*(k.var(n, dtype_of(x)) for n, x in zip(names, inputs, strict=True)))
        got = evaluate(expr, dict(zip(names, inputs, strict=True)))
        want = np.asarray(op.reference(*inputs))
        assert got.dtype == want.dtype, op
        got = np.broadcast_to(got, want.shape)
        if not op.exact or not dtype_of(want).is_float:
            assert_equal(got, want, str(op))
        elif want.dtype.itemsize >= 4:
            # ulp bounds are in test_math; sin, cos and tan of f64 have a limited domain
            in_domain = np.abs(inputs[0].astype(np.float64)) <= 2.0**51 if want.dtype == np.float64 else np.True_
            is_compared = np.broadcast_to(in_domain | ~np.isfinite(inputs[0]), want.shape)
            eps = np.finfo(want.dtype).eps
            atol = np.full(want.shape, np.finfo(want.dtype).tiny, np.float64)
            if isinstance(op, ops.Gelu):  # its left tail is negligible relative to the operand
                atol += 4 * eps * np.abs(np.nan_to_num(inputs[0].astype(np.float64)))
            close = np.isclose(
                got[is_compared], want[is_compared], rtol=8 * eps, atol=atol[is_compared], equal_nan=True
            )
            assert close.all(), (op, got[is_compared][~close], want[is_compared][~close])
        else:
            wide = [a.astype(np.float64) for a in (got, want)]
            eps = float(np.spacing(want.dtype.type(1)))
            # half of the smallest number is a tie in f32, but not in f64
            atol = float(ml_dtypes.finfo(want.dtype).smallest_subnormal) if isinstance(op, ops.Gelu) else 1e-30
            np.testing.assert_allclose(*wide, rtol=1.01 * eps, atol=atol, err_msg=str(op))


VIEWS = tuple(cls for cls in OPS if issubclass(cls, View))


@pytest.mark.parametrize("cls", VIEWS, ids=lambda c: c.name)
def test_index_map_matches_reference(cls: type[ops.CoreOp]) -> None:
    for op, (x, *fill) in cls.samples():
        assert isinstance(op, View)
        want = np.asarray(op.reference(x, *fill))
        places = op.index_map(x.shape, want.shape)
        assert sorted(d for p in places for d in p.axes) == list(range(x.ndim))
        index, in_bounds, source_index = np.indices(want.shape), np.full(want.shape, True), dict[int, np.ndarray]()
        for p in places:
            sizes = tuple(x.shape[d] for d in p.axes)
            number = np.full(want.shape, p.offset) + sum(index[axis] * step for axis, step in p.terms)
            position, remainder = np.divmod(number, p.spacing)
            in_bounds &= (remainder == 0) & (position >= 0) & (position < np.prod(sizes))
            if x.size:
                source_index |= dict(
                    zip(p.axes, np.unravel_index(np.where(in_bounds, position, 0), sizes), strict=True)
                )
        assert in_bounds.all() or fill, op
        nonempty_x = x if x.size else np.zeros((1,) * x.ndim, x.dtype)
        got = (
            nonempty_x[tuple(source_index[d] for d in range(x.ndim))]
            if source_index
            else np.broadcast_to(nonempty_x.reshape(-1)[0], want.shape)
        )
        assert_equal(np.where(in_bounds, got, fill[0]).astype(x.dtype) if fill else got, want, str(op))


@pytest.mark.parametrize("cls", OPS, ids=IDS)
def test_permuted_matches_reference(cls: type[Op]) -> None:
    for op, inputs in cls.samples():
        if not isinstance(op, ops.CoreOp) or not inputs:
            continue
        rank = inputs[0].ndim
        perm = tuple(np.random.default_rng(rank).permutation(rank).tolist())
        result = op.permuted(perm, *types_of(inputs))
        if result is None:
            continue
        new, result_perm = result
        permuted = [x.transpose(perm) if x.ndim == rank else x for x in inputs]
        want = np.asarray(op.reference(*inputs)).transpose(result_perm)
        assert_equal(np.asarray(new.reference(*permuted)), want, f"{op} {perm}")


@pytest.mark.parametrize("cls", OPS, ids=IDS)
def test_cropped_matches_reference(cls: type[Op]) -> None:
    rng = np.random.default_rng(0)
    for op, inputs in cls.samples():
        result = as_tuple(op.infer(*types_of(inputs)))[0]
        for _ in range(8):
            ranges = [tuple(sorted(rng.integers(0, d, 2, endpoint=True).tolist())) for d in result.shape]
            box = tuple((0, d) if rng.random() < 0.5 else end for end, d in zip(ranges, result.shape, strict=True))
            cropped = op.cropped(box, *types_of(inputs))
            if cropped is None:
                continue
            new, reads = cropped
            parts = [x[(..., *(slice(*at) for at in b))] for x, b in zip(inputs, reads, strict=True) if b is not None]
            want = np.asarray(op.reference(*inputs))[(..., *(slice(*at) for at in box))]
            got = np.asarray(new.reference(*parts))
            assert got.shape == want.shape, f"{op} {box}"
            if isinstance(op, ops.DotGeneral | ops.Convolution | ops.Attention | ops.Reduce):
                assert_near(got, want, f"{op} {box}")
            else:
                assert_equal(got, want, f"{op} {box}")


@pytest.mark.parametrize("cls", OPS, ids=IDS)
def test_yielding_matches_reference(cls: type[Op]) -> None:
    for op, inputs in cls.samples():
        result = as_tuple(op.infer(*types_of(inputs)))[0]
        perm = tuple(np.random.default_rng(result.rank).permutation(result.rank).tolist())
        new = op.absorb_transpose(perm) if isinstance(op, ops.CoreOp) else None
        if new is not None:
            assert_equal(
                np.asarray(new.reference(*inputs)), np.asarray(op.reference(*inputs)).transpose(perm), f"{op} {perm}"
            )
