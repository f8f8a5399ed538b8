"""ONNX's node test suite: compiled as its models are written, and interpreted.

What is refused is listed in unsupported_cases.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

pytest.importorskip("onnx")
sys.path.insert(0, str(Path(__file__).parent))

from backend_cases import Case, cases, run_interpreted, run_written
from unsupported_cases import DIFFERENT, OF_THE_HOST, REFUSED

from ingot.support.errors import IngotError

LEAST_PASSING = 1_850
PARTS = 8


def _failures(names: Iterable[str], run: Callable[[Case], None]) -> dict[str, str]:
    failures: dict[str, str] = {}
    for name in names:
        try:
            run(cases()[name])
        except (AssertionError, IngotError) as e:
            failures[name] = f"{type(e).__name__}: {str(e).strip()[:300]}"
    return failures


def _supported() -> list[str]:
    return [n for n in sorted(cases()) if n not in REFUSED and n not in DIFFERENT]


def _report(failures: dict[str, str]) -> str:
    return f"{len(failures)} cases failed:\n" + "\n".join(f"{n}: {e}" for n, e in failures.items())


def test_every_seventh_case() -> None:
    failures = _failures([n for n in _supported()[::7] if not OF_THE_HOST.search(n)], run_interpreted)
    assert not failures, _report(failures)


def test_some_cases_as_written() -> None:
    failures = _failures(_supported()[3::31], run_written)
    assert not failures, _report(failures)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_every_case_as_written(part: int) -> None:
    assert len(_supported()) >= LEAST_PASSING  # the installed onnx package may have others than this list knows
    failures = _failures(_supported()[part::PARTS], run_written)
    assert not failures, _report(failures)


@pytest.mark.slow
def test_the_others_are_refused_or_differ() -> None:
    for name in (n for n in sorted(cases()) if n in REFUSED):
        with pytest.raises(IngotError):
            run_written(cases()[name])
    for name in (n for n in sorted(cases()) if n in DIFFERENT):
        with pytest.raises(AssertionError):
            run_written(cases()[name])
