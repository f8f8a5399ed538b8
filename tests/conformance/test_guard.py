"""No kernel reads or writes outside of its buffers: conformance samples under guard pages, at other sizes, too."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from ingot.ir.dims import substitute, symbol, symbols_of
from ingot.ir.node import Op
from ingot.ir.types import TensorType, dtype_of
from ingot.pipeline.build import build_program
from ingot.runtime.executor import CompiledModel
from ingot.runtime.program import Program
from ingot.support.errors import IngotError
from tests.conformance.bounds import check
from tests.conformance.samples import OPS, Sample, cast, combine, static, symbolic
from tests.conformance.targets import HOST, THREADS
from tests.conformance.test_targets import OPEN, QUICK, conform, some
from tests.guard import Case, End, check_all, failures
from tests.runtime import models


def _shifted(step: int, argument: int, nbytes: int) -> Case:
    """A program that reads or writes one of its buffers so far from its place."""
    program = models.static(1008)  # of 4032 bytes, a multiple of what kernels may assume of the arena
    at = program.steps[step]
    args = tuple((b, nbytes if i == argument else offset) for i, (b, offset) in enumerate(at.args))
    steps = tuple(dataclasses.replace(at, args=args) if s is at else s for s in program.steps)
    wrong = dataclasses.replace(program, steps=steps)
    x = np.ones(1008, np.float32)
    return lambda: np.testing.assert_array_equal(CompiledModel(wrong, threads=1)(x), (x + np.arange(1008)) * 8)


@pytest.mark.parametrize(("end", "nbytes"), [("first", -64), ("last", 64)])
def test_a_stray_access_to_any_buffer_is_named(end: End, nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To an input, a weight, the arena and a result."""
    monkeypatch.setattr(Program, "check_extents", lambda *_: None)  # which would refuse such a plan
    places = [(0, 0), (0, 1), (0, 2), (1, 0), (3, 1)]
    cases: dict[str, Case] = {f"{step} {i}": _shifted(step, i, nbytes) for step, i in places}
    cases |= {"right": _shifted(0, 0, 0), "wrong": lambda: [][0]}
    result = failures(cases, [end])
    assert result.pop(f"wrong ({end})").startswith("IndexError: list index out of range (test_guard.py:")
    assert result == {f"{step} {i} ({end})": "signal SIGSEGV" for step, i in places}


def _conform(cls: type[Op], samples: Sequence[Sample], folder: Path) -> dict[str, Case]:
    """All samples as one program."""
    return {f"{cls.name}, {len(samples)} samples": partial(conform, "cpu", samples, folder)} if samples else {}


def _at(sample: Sample, sizes: dict[str, int]) -> None:
    """Run the sample's program on values of these sizes: an error, or what the reference gives."""
    combined = combine([sample])
    names = {s for t in sample.types for d in t.shape for s in symbols_of(d)}
    graph = dataclasses.replace(combined.graph, bounds=tuple((name, 0, None) for name in sorted(names)))
    try:
        model = CompiledModel(build_program(graph, HOST, THREADS), threads=THREADS)
        shapes = [tuple(substitute(d, sizes) for d in t.shape) for t in sample.types]
        inputs = tuple(np.resize(x, shape) for x, shape in zip(sample.inputs, shapes, strict=True))
        got = model(*(cast(x, n.dtype) for x, n in zip(inputs, graph.inputs, strict=True)))
    except IngotError:
        return
    op = sample.op.substitute(sizes)
    try:
        want = op.reference(*inputs)
    except (IndexError, ValueError, IngotError):  # of values that are none for these sizes
        return
    results = got if isinstance(got, tuple) else (got,)
    if not _has_these_sizes(op, inputs, results):
        return
    for g, w, t in zip(results, want if isinstance(want, tuple) else (want,), combined.dtypes, strict=True):
        if t.bits > 16:  # products of more elements than a sample has overflow narrow floats
            check(op, inputs, cast(np.asarray(g), t), np.asarray(w), f"{sample} at {sizes}")


def _has_these_sizes(op: Op, inputs: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> bool:
    """Whether the type rule gives the results' shapes for fixed sizes, too. It does not for a window that is larger
    than what it moves over, as an open size is taken to hold one: there, only memory is checked."""
    try:
        types = op.infer(*(TensorType(dtype_of(x), x.shape) for x in inputs))
    except IngotError:
        return False
    return [t.shape for t in (types if isinstance(types, tuple) else (types,))] == [np.shape(r) for r in results]


def _other_sizes(samples: Sequence[Sample]) -> dict[str, Case]:
    """Each sample with all its symbols 0, 1 and odd."""
    cases: dict[str, Case] = {}
    for s in samples:
        names = sorted({name for t in s.types for d in t.shape for name in symbols_of(d)})
        for size in (0, 1, 13):
            cases[f"{s} at {size}"] = partial(_at, s, dict.fromkeys(names, size))
    return cases


def _with_own_dimension(sample: Sample) -> Iterator[Sample]:
    """The sample with one dimension of one operand a symbol of its own, where the type rule accepts that."""
    for i, t in enumerate(sample.types):
        for axis, d in enumerate(t.shape):
            other = t.with_shape((*t.shape[:axis], symbol("own"), *t.shape[axis + 1 :]))
            types = (*sample.types[:i], other, *sample.types[i + 1 :])
            others = {s for j, o in enumerate(types) for e in o.shape for s in symbols_of(e)} - {"own"}
            try:
                sample.op.infer(*types)
            except IngotError:
                continue
            if symbols_of(d) <= others:
                yield dataclasses.replace(sample, types=types)


def _mismatched(samples: Sequence[Sample]) -> dict[str, Case]:
    """Operands whose sizes differ where others agree, by more and by less."""
    cases: dict[str, Case] = {}
    for s in samples:
        sizes = {
            str(d): n for t, x in zip(s.types, s.inputs, strict=True) for d, n in zip(t.shape, x.shape, strict=True)
        }
        for variant in _with_own_dimension(s) if len(s.inputs) > 1 else ():
            for size in (0, 1, 2, 64, 5000):
                cases[f"{variant} at {size}"] = partial(_at, variant, {**sizes, "own": size})
    return cases


@pytest.mark.slow
@pytest.mark.parametrize("cls", [pytest.param(c, id=c.name) for c in OPS])
def test_samples(cls: type[Op], tmp_path: Path) -> None:
    check_all(_conform(cls, static(cls), tmp_path) | _conform(cls, symbolic(cls.samples()), tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("cls", [pytest.param(c, id=c.name) for c in OPEN])
def test_other_sizes(cls: type[Op]) -> None:
    samples = symbolic(cls.samples())
    check_all(_other_sizes(samples) | _mismatched(samples))


@pytest.mark.parametrize("name", sorted(QUICK))
def test_quick(name: str, tmp_path: Path) -> None:
    cls = Op.REGISTRY[name]
    samples = some(symbolic(cls.samples()), 2) if cls in OPEN else []
    check_all(_conform(cls, some(static(cls), 4), tmp_path) | _other_sizes(samples) | _mismatched(samples))
