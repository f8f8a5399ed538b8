"""Blocks of statements."""

import pytest

from ingot.ir import kernel as k
from ingot.ir.types import i64
from ingot.schedule.block import Block
from ingot.support.errors import LimitError
from ingot.support.limits import Limits, limited


def test_a_block_without_end_ends_in_time() -> None:
    """A schedule that unrolls by a number of the file: what it emits is within the time of the compilation."""
    block, x = Block(), k.var("x")
    with limited(Limits(seconds=0.05)), pytest.raises(LimitError, match="compiling takes too long"):
        for _ in range(1 << 24):
            x = block.let(k.add(x, k.lit(1, i64)))
