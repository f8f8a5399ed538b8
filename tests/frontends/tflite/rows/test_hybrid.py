"""Weights that are levels, numbers that are not: against LiteRT's reference kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.frontends.tflite.builder import feed, interpreted, one_op, reference

W = (0.013, 0)
S2 = {"padding": 0, "stride_w": 2, "stride_h": 2}


def w8(*shape: int) -> np.ndarray:
    return np.maximum(feed(shape, np.int8, 3), -127)


def per_channel(n: int, axis: int) -> tuple[Any, ...]:
    return (np.random.default_rng(n).uniform(0.002, 0.03, n).tolist(), [0] * n, axis)


CASES: list[tuple[Any, ...]] = [
    *(
        ("FULLY_CONNECTED", [((6, 30),), (w8(20, 30), q), feed((20,))], "FullyConnected", {"asymmetric": a})
        for q in (W, per_channel(20, 0))
        for a in (False, True)
    ),
    ("FULLY_CONNECTED", [((6, 30),), (w8(20, 30), W), None], "FullyConnected", {"activation": 1}),
    ("CONV_2D", [((2, 7, 6, 4),), (w8(5, 3, 2, 4), per_channel(5, 0)), feed((5,))], "Conv2D", S2),
    ("CONV_2D", [((2, 7, 6, 4),), (w8(5, 3, 2, 4), W), feed((5,))], "Conv2D", S2),
    *(
        (
            "TRANSPOSE_CONV",
            [(np.array([2, 14, 12, 5], np.int32),), (w8(5, 3, 2, 4), q), ((2, 7, 6, 4),)],
            "TransposeConv",
            S2,
        )
        for q in (W, per_channel(5, 0))
    ),
    (
        "DEPTHWISE_CONV_2D",
        [((2, 7, 6, 4),), (w8(1, 3, 2, 4), per_channel(4, 3)), feed((4,))],
        "DepthwiseConv2D",
        S2 | {"depth_multiplier": 1},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{c[3]}")
def test_rounding_is_that_of_the_reference_kernels(case: tuple[Any, ...]):
    name, operands, options, values = case
    model = one_op(name, operands, [((1,),)], options, **values)
    x = feed(operands[2 if name == "TRANSPOSE_CONV" else 0][0], seed=5)
    x[0] = 0  # nothing to take a scale from
    np.testing.assert_allclose(interpreted(model, [x])[0], reference(model, [x])[0], rtol=1e-5, atol=1e-5)
