"""The kernels that measure a GPU, without one: they are well made, print as Triton, and compute what they say."""

from __future__ import annotations

import numpy as np
import pytest

from ingot.debug.gpu_probe import Peak, copy_kernel, peak_kernel
from ingot.ir.kernel.interp import run_kernel
from ingot.ir.kernel.verify import verify_kernel
from ingot.ir.types import DType, bf16, f16, f32, i8
from ingot.schedule.gpu.contraction.operand_types import Multiplied
from ingot.targets.cuda.triton import print_kernel


@pytest.mark.parametrize("dtype", [f16, bf16, i8, f32])
@pytest.mark.parametrize(("tf32", "bf16x6"), [(False, False), (True, False), (False, True)])
def test_products(dtype: DType, tf32: bool, bf16x6: bool) -> None:
    rng = np.random.default_rng(0)
    tf32, bf16x6 = tf32 and dtype == f32, bf16x6 and dtype == f32
    kernel = peak_kernel(Peak(16, 32, 16, 2, 3, 4), Multiplied((dtype, dtype), tf32, bf16x6))
    verify_kernel(kernel, "the probe")
    text = print_kernel(kernel).text
    assert "tl.dot" in text and ('"tf32"' in text) is tf32
    a, b = (rng.integers(-9, 9, s).astype(dtype.numpy) for s in ((16, 16), (16, 32)))
    result = np.zeros(16 * 32, np.int32 if dtype == i8 else np.float32)
    run_kernel(kernel, {"a": a.reshape(-1), "b": b.reshape(-1), "out": result}, {})
    np.testing.assert_array_equal(result.reshape(16, 32), 3 * (a.astype(np.int64) @ b.astype(np.int64)))


def test_copies() -> None:
    kernel = copy_kernel(2)
    verify_kernel(kernel, "the probe")
    x, y = np.arange(8192, dtype=np.float32), np.zeros(8192, np.float32)
    run_kernel(kernel, {"x": x, "y": y}, {})
    np.testing.assert_array_equal(y, x)
