"""Every op on its samples: the type rule agrees with the reference; layout hooks give the same values."""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.node import Const, Input, Op, Project
from ingot.ir.types import TensorType, dtype_of

OPS = [cls for cls in Op.REGISTRY.values() if cls not in (Const, Input, Project)]
IDS = [cls.name for cls in OPS]


def types_of(arrays: tuple[np.ndarray, ...]) -> tuple[TensorType, ...]:
    return tuple(TensorType(dtype_of(a), a.shape) for a in arrays)


def assert_same(got: np.ndarray, want: np.ndarray, message: str) -> None:
    """Equal values, NaN equal to NaN (numpy's own check does not know ml_dtypes' NaN)."""
    wide = [a.astype(np.float64) if dtype_of(a).is_float else a for a in (np.asarray(got), np.asarray(want))]
    np.testing.assert_array_equal(*wide, err_msg=message)


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


@pytest.mark.parametrize("cls", OPS, ids=IDS)
def test_permuted_operands_give_the_permuted_result(cls: type[Op]) -> None:
    for op, inputs in cls.samples():
        if not isinstance(op, ops.CoreOp) or not inputs:
            continue
        rank = inputs[0].ndim
        perm = tuple(np.random.default_rng(rank).permutation(rank).tolist())
        found = op.permuted(perm)
        if found is None:
            continue
        new, result_perm = found
        moved = [x.transpose(perm) if x.ndim == rank else x for x in inputs]
        want = np.asarray(op.reference(*inputs)).transpose(result_perm)
        assert_same(new.reference(*moved), want, f"{op} {perm}")


@pytest.mark.parametrize("cls", OPS, ids=IDS)
def test_yielding_gives_the_permuted_result(cls: type[Op]) -> None:
    for op, inputs in cls.samples():
        result = as_tuple(op.infer(*types_of(inputs)))[0]
        perm = tuple(np.random.default_rng(result.rank).permutation(result.rank).tolist())
        new = op.yielding(perm) if isinstance(op, ops.CoreOp) else None
        if new is not None:
            assert_same(new.reference(*inputs), np.asarray(op.reference(*inputs)).transpose(perm), f"{op} {perm}")
