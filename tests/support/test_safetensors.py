"""Safetensors files: what is written is read; what is damaged is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ingot.support import safetensors
from ingot.support.errors import ImportModelError

KINDS = [
    *(np.dtype(c) for c in "fdeqihbQIHB?"),
    *(np.dtype(getattr(ml_dtypes, name)) for name in safetensors._NON_NUMPY.values()),
]


def test_each_type_there_and_back(tmp_path: Path) -> None:
    arrays = {k.name: np.arange(6).reshape(2, 3).astype(k) for k in KINDS} | {"none": np.zeros((0, 4), np.float32)}
    safetensors.write(tmp_path / "w", arrays)
    results = safetensors.read(tmp_path / "w")
    assert list(results) == list(arrays)
    for name, array in arrays.items():
        assert results[name].dtype == array.dtype and not results[name].flags.writeable
        np.testing.assert_array_equal(results[name].astype(np.float64), array.astype(np.float64))


def _entry(start: int = 0, end: int = 8, shape: object = (2,), dtype: object = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def _file(header: object, nbytes: int = 16) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(nbytes)


REFUSED = {
    "an empty file": (b"", "not a safetensors file"),
    "a length beyond the end": ((1 << 60).to_bytes(8, "little") + b"{}", "not a safetensors file"),
    "a long header": ((20 << 20).to_bytes(8, "little") + bytes(21 << 20), "a header of at most"),
    "no JSON": (_file(b"{]"), "not a readable"),
    "no object": (_file([]), "no object"),
    "no UTF-8": (_file(b'{"\xff": 1}'), "not a readable"),
    "arrays in arrays without end": (_file(b"[" * 100_000), "not a readable"),
    "an entry that is a list": (_file({"w": []}), "'w' without a dtype"),
    "an unknown type": (_file({"w": _entry(dtype="F4")}), "'w' of type F4, expected one of F64"),
    "no shape": (_file({"w": _entry(shape=None)}), "whole numbers"),
    "a negative size": (_file({"w": _entry(shape=[-2])}), "whole numbers"),
    "a size that is a truth": (_file({"w": _entry(0, 4, shape=[True])}), "whole numbers"),
    "a size beyond 64 bits": (_file({"w": _entry(0, 0, shape=[0, 1 << 64])}), "whole numbers"),
    "very many dimensions": (_file({"w": _entry(0, 4, shape=[1] * 1000)}), "whole numbers"),
    "bytes beyond the end": (_file({"w": _entry(8, 24, [4])}), "'w' at bytes 8 to 24 of 16"),
    "an end before the start": (_file({"w": _entry(8, 0)}), "'w' at bytes 8 to 0"),
    "bytes of another shape": (_file({"w": _entry(0, 8, [3])}), r"'w' with 8 bytes for F32\[3\]"),
    "a product beyond 64 bits": (_file({"w": _entry(0, 8, [1 << 40, 1 << 40])}), "'w' with 8 bytes"),
    "two in one place": (_file({"v": _entry(), "w": _entry(4, 12)}), "'v' and 'w' in one place"),
    "a name twice": (_file(b'{"w": {"dtype": "F32"}, "w": {"dtype": "F32"}}'), "'w' twice"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, tmp_path: Path) -> None:
    data, match = REFUSED[case]
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(ImportModelError, match=match) as error:
        safetensors.read(tmp_path / "model.safetensors")
    assert "model.safetensors" in str(error.value)


def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ImportModelError, match="pipe"):
        safetensors.read(tmp_path / "pipe")
