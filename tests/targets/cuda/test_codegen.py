"""What becomes of Triton's PTX before ptxas has it."""

from __future__ import annotations

import re
import sys

import pytest

from ingot.targets.cuda.codegen import compile_kernel, split_packed_halves
from ingot.targets.cuda.triton import Source


def test_kernels_of_one_name_and_length_are_compiled_each(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(sys, "dont_write_bytecode", False)

    def cubin(buffer: str, value: int) -> bytes:
        text = f"@triton.jit\ndef copied({buffer}):\n    tl.store({buffer}, {value})\n"
        return compile_kernel(Source("copied", text, ((buffer, "*i32", 16, True),)), "sm_90a").cubin

    assert cubin("in2", 5) != cubin("in2", 7)
    assert cubin("in3", 5)


def test_two_integers_at_once_are_made_one_by_one() -> None:
    ptx = (
        "\tmov.b32 \t%r41, 10;\n\tadd.s16x2 \t%r42, %r40, %r41;\n\tmin.u16x2 %r1, %r2, %r3;\n\tadd.s16 %rs1, %rs2, 3;\n"
    )
    split = split_packed_halves(ptx)
    assert "16x2" not in split
    assert split.startswith("\tmov.b32 \t%r41, 10;\n") and split.endswith("\tadd.s16 %rs1, %rs2, 3;\n")
    assert re.findall(r"mov\.b32 (?:\{%[a-d], %[a-d]\}, )?%r\d+", split) == [
        "mov.b32 {%a, %b}, %r40", "mov.b32 {%c, %d}, %r41", "mov.b32 %r42",
        "mov.b32 {%a, %b}, %r2", "mov.b32 {%c, %d}, %r3", "mov.b32 %r1",
    ]  # fmt: skip
    assert split.count("add.s16 %") == 3 and split.count("min.u16 %") == 2
