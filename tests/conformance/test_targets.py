"""Every op x every sample x every target: what the program computes is the reference, within the op's bound.

With sizes made symbolic, kernels take them as arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ingot import ops
from ingot.ir.node import Op
from tests.conformance.bounds import check
from tests.conformance.extra import extra
from tests.conformance.samples import OPS, STATIC_ONLY, Sample, static, symbolic
from tests.conformance.targets import LONG, QUICK, TARGETS, Runner

MORE = [c for c in OPS if any(True for _ in extra(c))]
OPEN = [c for c in OPS if c not in STATIC_ONLY and c.name not in LONG]


def some(samples: Sequence[Sample], limit: int | None) -> Sequence[Sample]:
    return samples if limit is None else samples[:: max(1, len(samples) // limit)]


def conform(name: str, samples: Sequence[Sample], folder: Path) -> None:
    """Run all samples; a failure names those that are wrong."""
    wrong: list[str] = []
    for s, got in zip(samples, TARGETS[name].run(samples, folder), strict=True):
        want = s.origin.reference(*s.inputs)
        for g, w in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
            try:
                check(s.origin, s.inputs, g, np.asarray(w), str(s))
            except AssertionError as e:
                wrong.append(str(e))
    assert not wrong, f"{len(wrong)} of {len(samples)}:\n" + "\n".join(wrong)


def supported_samples(name: str, samples: Sequence[Sample]) -> list[Sample]:
    result = [s for s in samples if TARGETS[name].supports(s)]
    if samples and not result:
        pytest.skip(f"no sample is small enough or of types that {name} has")
    return result


def quick(target: Runner, cls: type[Op]) -> int:
    limit = target.quick[cls.name not in QUICK]
    return min(1, limit) if cls.name in LONG else limit


def cases(classes: Sequence[type[Op]] = OPS, *, fast: bool, symbolic: bool = False) -> list[object]:
    results: list[object] = []
    for name, target in TARGETS.items():
        for cls in classes:
            why = target.why_not(cls)
            if (not fast or quick(target, cls)) and not (symbolic and target.fixed):
                mark = pytest.mark.skipif(bool(why), reason=why)
                results.append(pytest.param(name, cls, id=f"{name}-{cls.name}", marks=mark))
    return results


@pytest.mark.parametrize(("name", "cls"), cases(fast=True))
def test_static(name: str, cls: type[Op], tmp_path: Path) -> None:
    conform(name, some(supported_samples(name, static(cls)), quick(TARGETS[name], cls)), tmp_path)


@pytest.mark.parametrize(("name", "cls"), cases(OPEN, fast=True, symbolic=True))
def test_dynamic(name: str, cls: type[Op], tmp_path: Path) -> None:
    samples = symbolic(cls.samples())
    assert samples, "no size of any sample can be symbolic"
    conform(name, some(supported_samples(name, samples), 2 if cls.name in QUICK else 1), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "cls"), cases(fast=False))
def test_every_sample(name: str, cls: type[Op], tmp_path: Path) -> None:
    target = TARGETS[name]
    conform(name, some(supported_samples(name, static(cls)), target.slow), tmp_path)
    if not target.fixed:
        conform(name, some(supported_samples(name, symbolic(cls.samples())), target.slow), tmp_path)


@pytest.mark.parametrize("cls", [pytest.param(c, id=c.name) for c in MORE if not issubclass(c, ops.Elementwise)])
def test_more(cls: type[Op], tmp_path: Path) -> None:
    conform("cpu", [Sample.static(op, inputs) for op, inputs in extra(cls)], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "cls"), cases(MORE, fast=False))
def test_more_of_every_op(name: str, cls: type[Op], tmp_path: Path) -> None:
    if TARGETS[name].slow is not None:
        pytest.skip("samples in numbers are for targets that run many at once")
    conform(name, [Sample.static(op, inputs) for op, inputs in extra(cls)], tmp_path)
    conform(name, symbolic(extra(cls)), tmp_path)
