"""What goes from one engine's process to the other."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np

from ingot.bench.engines import read_arrays, write_arrays


def test_arrays_of_all_types_come_as_they_went(tmp_path: Path) -> None:
    arrays = {
        "x:y": np.arange(6, dtype=np.float32).reshape(2, 3),
        "half": np.array([[1.5]], np.float16),
        "brain": np.arange(4).astype(ml_dtypes.bfloat16),
        "flags": np.array(True),
        "eighth": np.zeros((0, 3), ml_dtypes.float8_e4m3fn),
        "pair": np.array([1 + 2j], np.complex64),
    }
    write_arrays(tmp_path / "a.npz", arrays)
    results = read_arrays(tmp_path / "a.npz")
    assert [*results] == [*arrays]
    for name, array in arrays.items():
        assert (results[name].dtype, results[name].shape) == (array.dtype, array.shape)
        assert results[name].tobytes() == array.tobytes()
