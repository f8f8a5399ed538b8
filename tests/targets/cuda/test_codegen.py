"""What becomes of Triton's PTX before ptxas has it."""

from __future__ import annotations

import re

from ingot.targets.cuda.codegen import split_packed_halves


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
