"""Code in memory, as others see it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ingot.runtime.cpu.image import CodeImage
from ingot.support.native import Code, Features


def test_perf_is_told_the_names_of_functions(monkeypatch: pytest.MonkeyPatch):
    path = Path(f"/tmp/perf-{os.getpid()}.map")
    path.unlink(missing_ok=True)
    code = Code(Features("x86_64"), bytes(100), {"first": 0, "second": 32, "alias": 32, "third": 80})
    CodeImage(code)
    assert not path.exists()
    monkeypatch.setenv("INGOT_PERF_MAP", "1")
    try:
        image = CodeImage(code)
        rows = [line.split() for line in path.read_text().splitlines()]
        named = {name: (int(start, 16), int(size, 16)) for start, size, name in rows}
        assert named["first"] == (image.address("first"), 32) and named["third"] == (image.address("third"), 20)
        assert named["second"] == (image.address("second"), 48) and len(named) == 3
        path.unlink()
        path.symlink_to("/tmp/elsewhere")  # another user may have put it there
        CodeImage(code)
        assert not Path("/tmp/elsewhere").exists()
    finally:
        path.unlink(missing_ok=True)
