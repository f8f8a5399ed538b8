"""Every op x every sample x the CPU: what the compiled program computes is the reference, within the op's bound.

Samples of one op are one program. With sizes made symbolic, kernels take them as arguments.
"""

from __future__ import annotations

import numpy as np
import pytest

from ingot import ops
from ingot.ir.node import Const, Input, Op, Project
from tests.conformance.bounds import check
from tests.conformance.extra import extra
from tests.conformance.native import ISAS, Sample, dynamic, run_samples

# sources without operands, and ops that hold graphs of static shapes, have nothing to make symbolic
STATIC_ONLY = (ops.Iota, ops.DimValue, ops.While, ops.Case, ops.RandomBits, ops.RandomKey)
# a group is what the pipeline makes, not what it takes
OPS = [
    c for c in Op.REGISTRY.values()
    if c not in (Const, Input, Project, ops.Group) and c.__module__.startswith("ingot.ops")
]  # fmt: skip
EVERY = [pytest.param(c, id=c.name) for c in OPS]
MORE = [pytest.param(c, id=c.name) for c in OPS if any(True for _ in extra(c))]


def conform(samples: list[Sample], isa: str = "native") -> None:
    """Run all samples as one program; a failure names those that are wrong."""
    wrong: list[str] = []
    for s, got in zip(samples, run_samples(samples, ISAS[isa]), strict=True):
        want = s.origin.reference(*s.inputs)
        for g, w in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
            try:
                check(s.origin, s.inputs, g, np.asarray(w), str(s))
            except AssertionError as e:
                wrong.append(str(e))
    assert not wrong, f"{len(wrong)} of {len(samples)}:\n" + "\n".join(wrong)


def static(cls: type[Op]) -> list[Sample]:
    return [Sample.static(op, inputs) for op, inputs in cls.samples()]


def symbolic(samples: list[tuple[Op, tuple[np.ndarray, ...]]]) -> list[Sample]:
    return [s for op, inputs in samples if (s := dynamic(op, inputs)) is not None]


@pytest.mark.parametrize("cls", EVERY)
def test_static(cls: type[Op]) -> None:
    samples = static(cls)
    conform(samples[:: max(1, len(samples) // 12)])


@pytest.mark.parametrize("cls", EVERY)
def test_dynamic(cls: type[Op]) -> None:
    if cls in STATIC_ONLY:
        return
    samples = symbolic(list(cls.samples()))
    assert samples, "no size of any sample can be symbolic"
    conform(samples[:: max(1, len(samples) // 4)])


@pytest.mark.slow
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("cls", EVERY)
def test_every_sample(cls: type[Op], isa: str) -> None:
    conform(static(cls), isa)
    conform(symbolic(list(cls.samples())), isa)


@pytest.mark.parametrize("cls", [p for p in MORE if not issubclass(p.values[0], ops.Elementwise)])  # type: ignore[arg-type]
def test_more(cls: type[Op]) -> None:
    conform([Sample.static(op, inputs) for op, inputs in extra(cls)])


@pytest.mark.slow
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("cls", MORE)
def test_more_of_every_op(cls: type[Op], isa: str) -> None:
    conform([Sample.static(op, inputs) for op, inputs in extra(cls)], isa)
    conform(symbolic(list(extra(cls))), isa)
