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

# a module of test ops may be loaded beside the catalog
OPS = [c for c in Op.REGISTRY.values() if c not in (Const, Input, Project) and c.__module__.startswith("ingot.ops")]
IDS = [cls.name for cls in OPS]


def types_of(arrays: tuple[np.ndarray, ...]) -> tuple[TensorType, ...]:
    return tuple(TensorType(dtype_of(a), a.shape) for a in arrays)


def assert_same(got: np.ndarray, want: np.ndarray, message: str) -> None:
    """Equal values, NaN equal to NaN (numpy's own check does not know ml_dtypes' NaN)."""
    wide = [a.astype(np.float64) if dtype_of(a).is_float else a for a in (np.asarray(got), np.asarray(want))]
    np.testing.assert_array_equal(*wide, err_msg=message)


def assert_near(got: np.ndarray, want: np.ndarray, message: str) -> None:
    """Equal but for the order of sums."""
    np.testing.assert_allclose(*(a.astype(np.float64) for a in (got, want)), rtol=1e-5, atol=1e-5, err_msg=message)


def as_tuple(value: object) -> tuple:
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize("cls", OPS, ids=IDS)
def test_has_samples(cls: type[Op]) -> None:
    assert any(True for _ in cls.samples())


@pytest.mark.parametrize("cls", OPS, ids=IDS)
def test_type_rule_is_the_references_type(cls: type[Op]) -> None:
    for op, inputs in cls.samples():
        kept = [x.copy() for x in inputs]
        got = as_tuple(op.reference(*inputs))
        assert types_of(got) == as_tuple(op.infer(*types_of(inputs))), op
        same = all(a.tobytes() == b.tobytes() for a, b in zip(kept, inputs, strict=True))
        assert same, f"{op} wrote into its operand"


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
def test_lowering_is_the_reference(cls: type[Op]) -> None:
    for op, inputs in cls.samples():
        graph = graph_of(op, inputs)
        simple = lowered(graph)
        if simple.outputs == graph.outputs:
            continue
        verify(simple)
        for got, want in zip(interpret(simple, inputs), as_tuple(op.reference(*inputs)), strict=True):
            assert got.dtype == want.dtype and got.shape == want.shape, op
            assert_close(got, want, str(op))


@pytest.mark.parametrize("cls", OPS, ids=IDS)
def test_text_round_trip(cls: type[Op]) -> None:
    for op, inputs in cls.samples():
        graph = graph_of(op, inputs)
        text = show(graph)
        again = parse(text)
        assert show(again) == text
        assert again.outputs[0].types == graph.outputs[0].types


@pytest.mark.parametrize("cls", [c for c in OPS if issubclass(c, ops.Elementwise)], ids=lambda c: c.name)
def test_scalar_rule_is_the_reference(cls: type[ops.Elementwise]) -> None:
    for op, inputs in cls.samples():
        assert isinstance(op, ops.Elementwise)
        names = [f"x{i}" for i in range(len(inputs))]
        expr = op.scalar(*(k.var(n, dtype_of(x)) for n, x in zip(names, inputs, strict=True)))
        got = evaluate(expr, dict(zip(names, inputs, strict=True)))
        want = np.asarray(op.reference(*inputs))
        assert got.dtype == want.dtype, op
        got = np.broadcast_to(got, want.shape)
        if not op.exact or not dtype_of(want).is_float:
            assert_same(got, want, str(op))
        elif want.dtype.itemsize >= 4:
            # ulp bounds are in test_math; sin, cos and tan of f64 have a domain
            inside = np.abs(inputs[0].astype(np.float64)) <= 2.0**51 if want.dtype == np.float64 else np.True_
            keep = np.broadcast_to(inside | ~np.isfinite(inputs[0]), want.shape)
            eps = np.finfo(want.dtype).eps
            atol = np.full(want.shape, np.finfo(want.dtype).tiny, np.float64)
            if isinstance(op, ops.Gelu):  # its left tail is next to nothing beside the operand
                atol += 4 * eps * np.abs(np.nan_to_num(inputs[0].astype(np.float64)))
            close = np.isclose(got[keep], want[keep], rtol=8 * eps, atol=atol[keep], equal_nan=True)
            assert close.all(), (op, got[keep][~close], want[keep][~close])
        else:
            wide = [a.astype(np.float64) for a in (got, want)]
            eps = float(np.spacing(want.dtype.type(1)))
            # half of the least number is a tie in f32, which is next to it in f64
            atol = float(ml_dtypes.finfo(want.dtype).smallest_subnormal) if isinstance(op, ops.Gelu) else 1e-30
            np.testing.assert_allclose(*wide, rtol=1.01 * eps, atol=atol, err_msg=str(op))


VIEWS = tuple(cls for cls in OPS if issubclass(cls, View))


@pytest.mark.parametrize("cls", VIEWS, ids=lambda c: c.name)
def test_a_view_reads_where_its_index_map_says(cls: type[ops.CoreOp]) -> None:
    for op, (x, *fill) in cls.samples():
        assert isinstance(op, View)
        want = np.asarray(op.reference(x, *fill))
        places = op.index_map(x.shape, want.shape)
        assert sorted(d for p in places for d in p.axes) == list(range(x.ndim))
        index, inside, at = np.indices(want.shape), np.full(want.shape, True), dict[int, np.ndarray]()
        for p in places:
            run = tuple(x.shape[d] for d in p.axes)
            number = np.full(want.shape, p.offset) + sum(index[axis] * step for axis, step in p.terms)
            read, rest = np.divmod(number, p.spacing)
            inside &= (rest == 0) & (read >= 0) & (read < np.prod(run))
            if x.size:
                at |= dict(zip(p.axes, np.unravel_index(np.where(inside, read, 0), run), strict=True))
        assert inside.all() or fill, op
        some = x if x.size else np.zeros((1,) * x.ndim, x.dtype)
        got = some[tuple(at[d] for d in range(x.ndim))] if at else np.broadcast_to(some.reshape(-1)[0], want.shape)
        assert_same(np.where(inside, got, fill[0]).astype(x.dtype) if fill else got, want, str(op))


@pytest.mark.parametrize("cls", OPS, ids=IDS)
def test_permuted_operands_give_the_permuted_result(cls: type[Op]) -> None:
    for op, inputs in cls.samples():
        if not isinstance(op, ops.CoreOp) or not inputs:
            continue
        rank = inputs[0].ndim
        perm = tuple(np.random.default_rng(rank).permutation(rank).tolist())
        found = op.permuted(perm, *types_of(inputs))
        if found is None:
            continue
        new, result_perm = found
        moved = [x.transpose(perm) if x.ndim == rank else x for x in inputs]
        want = np.asarray(op.reference(*inputs)).transpose(result_perm)
        assert_same(np.asarray(new.reference(*moved)), want, f"{op} {perm}")


@pytest.mark.parametrize("cls", OPS, ids=IDS)
def test_cropped_operands_give_the_cropped_result(cls: type[Op]) -> None:
    rng = np.random.default_rng(0)
    for op, inputs in cls.samples():
        result = as_tuple(op.infer(*types_of(inputs)))[0]
        for _ in range(8):
            ends = [tuple(sorted(rng.integers(0, d, 2, endpoint=True).tolist())) for d in result.shape]
            box = tuple((0, d) if rng.random() < 0.5 else end for end, d in zip(ends, result.shape, strict=True))
            found = op.cropped(box, *types_of(inputs))
            if found is None:
                continue
            new, reads = found
            parts = [x[(..., *(slice(*at) for at in b))] for x, b in zip(inputs, reads, strict=True) if b is not None]
            want = np.asarray(op.reference(*inputs))[(..., *(slice(*at) for at in box))]
            got = np.asarray(new.reference(*parts))
            assert got.shape == want.shape, f"{op} {box}"
            if isinstance(op, ops.DotGeneral | ops.Convolution | ops.Attention | ops.Reduce):
                assert_near(got, want, f"{op} {box}")
            else:
                assert_same(got, want, f"{op} {box}")


@pytest.mark.parametrize("cls", OPS, ids=IDS)
def test_yielding_gives_the_permuted_result(cls: type[Op]) -> None:
    for op, inputs in cls.samples():
        result = as_tuple(op.infer(*types_of(inputs)))[0]
        perm = tuple(np.random.default_rng(result.rank).permutation(result.rank).tolist())
        new = op.yielding(perm) if isinstance(op, ops.CoreOp) else None
        if new is not None:
            assert_same(
                np.asarray(new.reference(*inputs)), np.asarray(op.reference(*inputs)).transpose(perm), f"{op} {perm}"
            )
