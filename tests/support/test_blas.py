"""NumPy's threads are as many as asked for, and as many as before behind it."""

from __future__ import annotations

import numpy as np
import pytest

from ingot.support import blas


def test_no_more_than_asked_for() -> None:
    functions = blas._functions()
    if functions is None:
        pytest.skip("NumPy has no OpenBLAS of its own")
    threads, put = functions
    before = threads()
    put(2)
    try:
        with blas.blas_threads(1):
            assert threads() == 1
        assert threads() == 2
        with blas.blas_threads(8):
            assert threads() == 2  # never more than there were
        with pytest.raises(ZeroDivisionError), blas.blas_threads(1):
            _ = 1 // 0
        assert threads() == 2
    finally:
        put(before)


def test_other_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "_functions", lambda: None)
    with blas.blas_threads(1):
        assert np.eye(3) @ np.ones(3) == pytest.approx(np.ones(3))
