"""ONNX's node test suite through import, and the interpreter or the compiler.

What is refused is listed in unsupported_cases.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

pytest.importorskip("onnx")
sys.path.insert(0, str(Path(__file__).parent))

from backend_cases import Run, cases, run_case, run_compiled
from unsupported_cases import DIFFERENT, UNSUPPORTED

from ingot.ir.interp import interpret
from ingot.support.errors import ImportModelError, IngotError, UnsupportedOpError

REFUSED = {name for names in UNSUPPORTED.values() for name in names}
# what the installed onnx package may lack or have more of than this list knows
LEAST_PASSING = 1_600


def _failures(names: Iterable[str], run: Run = interpret) -> dict[str, str]:
    out: dict[str, str] = {}
    for name in names:
        try:
            run_case(cases()[name], run)
        except (AssertionError, IngotError) as e:
            out[name] = f"{type(e).__name__}: {str(e).strip()[:300]}"
    return out


def _supported() -> list[str]:
    return [n for n in sorted(cases()) if n not in REFUSED and n not in DIFFERENT]


def _report(failures: dict[str, str]) -> str:
    return f"{len(failures)} cases failed:\n" + "\n".join(f"{n}: {e}" for n, e in failures.items())


def test_every_seventh_case() -> None:
    failures = _failures(_supported()[::7])
    assert not failures, _report(failures)


def test_some_cases_compiled() -> None:
    failures = _failures(_supported()[3::31], run_compiled)
    assert not failures, _report(failures)


@pytest.mark.slow
def test_every_compilable_case() -> None:
    names = _supported()
    assert len(names) >= LEAST_PASSING
    failures = _failures(names, run_compiled)
    assert not failures, _report(failures)


@pytest.mark.slow
def test_every_supported_case() -> None:
    names = _supported()
    assert len(names) >= LEAST_PASSING
    failures = _failures(names)
    assert not failures, _report(failures)


@pytest.mark.slow
def test_unsupported_cases_are_refused_by_name() -> None:
    known = [n for n in sorted(REFUSED) if n in cases()]
    for name in known:
        with pytest.raises((UnsupportedOpError, ImportModelError)):
            run_case(cases()[name])
