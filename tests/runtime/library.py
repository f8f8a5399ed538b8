"""`libingot` from Python, by ctypes: for tests."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest

from ingot.runtime.dtypes import numpy_dtype
from ingot.runtime.libingot import FOLDER

GCC = shutil.which("gcc")
WARNINGS = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror")
needs_gcc = pytest.mark.skipif(GCC is None, reason="no gcc")


class Tensor(ctypes.Structure):
    """`ingot_tensor`."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("nbytes", ctypes.c_size_t),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
        ("rank", ctypes.c_int),
    )


class Spec(ctypes.Structure):
    """`ingot_spec`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
        ("itemsize", ctypes.c_size_t),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
        ("rank", ctypes.c_int),
    )


@cache
def library() -> ctypes.CDLL:
    path = Path(mkdtemp()) / "libingot.so"
    command = [str(GCC), *WARNINGS, "-O1", "-shared", "-fPIC", str(FOLDER / "libingot.c"), "-o", str(path), "-lpthread"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[:4000]
    loaded = ctypes.CDLL(str(path))
    loaded.ingot_error.restype = ctypes.c_char_p
    return loaded


class LibraryError(Exception):
    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(f"{code}: {library().ingot_error().decode()}")


def check(code: int) -> None:
    if code:
        raise LibraryError(code)


class Session:
    """A model that `libingot` loaded, and a session of it."""

    def __init__(self, path: Path, threads: int = 1) -> None:
        self._model, self._session = ctypes.c_void_p(), ctypes.c_void_p()
        check(library().ingot_open(str(path).encode(), ctypes.byref(self._model)))
        check(library().ingot_session_open(self._model, threads, ctypes.byref(self._session)))
        self.inputs, self.outputs, self.states = (
            [self._spec(kind, i) for i in range(getattr(library(), f"ingot_{kind}_count")(self._model))]
            for kind in ("input", "output", "state")
        )

    def _spec(self, kind: str, index: int) -> tuple[str, str, tuple[int, ...]]:
        spec = Spec()
        check(getattr(library(), f"ingot_{kind}")(self._model, index, ctypes.byref(spec)))
        return spec.name.decode(), spec.dtype.decode(), tuple(spec.dims[: spec.rank])

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        contiguous = [np.asarray(a, order="C") for a in arrays]
        inputs, outputs = (Tensor * (len(contiguous) or 1))(), (Tensor * (len(self.outputs) or 1))()
        for tensor, array in zip(inputs, contiguous, strict=False):
            tensor.data, tensor.nbytes, tensor.rank = array.ctypes.data, array.nbytes, array.ndim
            tensor.dims = (ctypes.c_int64 * max(array.ndim, 1))(*array.shape)
        check(library().ingot_run(self._session, inputs, outputs))
        results: list[np.ndarray] = []
        for tensor, (_, dtype, _) in zip(outputs, self.outputs, strict=False):
            data = ctypes.string_at(tensor.data, tensor.nbytes)
            results.append(np.frombuffer(data, numpy_dtype(dtype)).reshape(tuple(tensor.dims[: tensor.rank])))
        return results

    def read_state(self, index: int) -> np.ndarray:
        _, dtype, shape = self.states[index]
        value = np.zeros(shape, numpy_dtype(dtype))
        check(library().ingot_state_read(self._session, index, ctypes.c_void_p(value.ctypes.data), value.nbytes))
        return value

    def close(self) -> None:
        library().ingot_session_close(self._session)
        library().ingot_close(self._model)
