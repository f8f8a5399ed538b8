"""com.microsoft ops against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from ingot.frontends.onnx import import_onnx
from ingot.ir.interp import interpret

ort = pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(0)


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def table(rows: int, half: int) -> tuple[np.ndarray, np.ndarray]:
    angle = np.arange(rows)[:, None] * 0.1 ** np.arange(half)[None, :]
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


COS, SIN = table(16, 4)
MASK = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)

# op, attributes, inputs (None: absent), number of outputs, which inputs are constants
CASES: dict[str, tuple[str, dict[str, object], list[np.ndarray | None], int]] = {
    "fused_matmul": ("FusedMatMul", {"alpha": 0.5, "transA": 1, "transB": 1}, [f32(2, 5, 3), f32(2, 4, 5)], 1),
    "fused_matmul_batch": ("FusedMatMul", {"transBatchA": 1}, [f32(3, 2, 5), f32(2, 5, 4)], 1),
    "gelu": ("Gelu", {}, [f32(3, 7)], 1),
    "bias_gelu": ("BiasGelu", {}, [f32(3, 7), f32(7)], 1),
    "fast_gelu": ("FastGelu", {}, [f32(3, 7), f32(7)], 1),
    "quick_gelu": ("QuickGelu", {"alpha": 1.5}, [f32(3, 7)], 1),
    "fused_conv": (
        "FusedConv",
        {"activation": "LeakyRelu", "activation_params": [0.1], "pads": [1, 1, 1, 1]},
        [f32(1, 3, 6, 6), f32(4, 3, 3, 3), f32(4)],
        1,
    ),
    "skip_layer_norm": (
        "SkipLayerNormalization",
        {"epsilon": 1e-5},
        [f32(2, 3, 8), f32(2, 3, 8), f32(8), f32(8), f32(8)],
        1,
    ),
    "skip_rms_norm": ("SkipSimplifiedLayerNormalization", {"epsilon": 1e-5}, [f32(2, 3, 8), f32(2, 3, 8), f32(8)], 1),
    "rotary": ("RotaryEmbedding", {}, [f32(2, 3, 16), np.array([[0, 1, 2], [4, 5, 6]]), COS, SIN], 1),
    "rotary_offset": ("RotaryEmbedding", {"interleaved": 1}, [f32(2, 3, 16), np.array([3]), COS, SIN], 1),
    "mha": ("MultiHeadAttention", {"num_heads": 2}, [f32(2, 5, 8), f32(2, 5, 8), f32(2, 5, 8)], 1),
    "mha_bias_mask": (
        "MultiHeadAttention",
        {"num_heads": 2},
        [f32(2, 5, 8), f32(2, 5, 8), f32(2, 5, 8), f32(24), MASK],
        1,
    ),
    "mha_added": (
        "MultiHeadAttention",
        {"num_heads": 2, "scale": 0.3},
        [f32(2, 5, 8), f32(2, 5, 8), f32(2, 5, 8), None, None, f32(2, 2, 5, 5)],
        1,
    ),
    "mha_lengths": (
        "MultiHeadAttention",
        {"num_heads": 2},
        [f32(2, 5, 8), f32(2, 6, 8), f32(2, 6, 8), None, np.array([4, 6], np.int32)],
        1,
    ),
    "mha_seen": (
        "MultiHeadAttention",
        {"num_heads": 2},
        [f32(2, 3, 8), f32(2, 5, 8), f32(2, 5, 8), None, np.stack([MASK, MASK[::-1], MASK], 1)],
        1,
    ),
    "attention_lengths": (
        "Attention",
        {"num_heads": 2},
        [f32(2, 5, 8), f32(8, 24), f32(24), np.array([3, 5], np.int32)],
        1,
    ),
    "attention": ("Attention", {"num_heads": 2}, [f32(2, 5, 8), f32(8, 24), f32(24), MASK], 1),
    "attention_causal": ("Attention", {"num_heads": 2, "unidirectional": 1}, [f32(2, 5, 8), f32(8, 24), f32(24)], 1),
    "matmul_4_bits": (
        "MatMulNBits",
        {"bits": 4, "block_size": 16, "K": 40, "N": 6},
        [f32(3, 40), RNG.integers(0, 256, (6, 3, 8)).astype(np.uint8), abs(f32(6, 3))],
        1,
    ),
    "matmul_4_bits_zeros": (
        "MatMulNBits",
        {"bits": 4, "block_size": 16, "K": 40, "N": 6},
        [
            f32(3, 40),
            RNG.integers(0, 256, (6, 3, 8)).astype(np.uint8),
            abs(f32(6, 3)),
            RNG.integers(0, 256, (6, 2)).astype(np.uint8),
        ],
        1,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_against_onnxruntime(name: str) -> None:
    op, attributes, arrays, results = CASES[name]
    names = ["" if a is None else f"x{i}" for i, a in enumerate(arrays)]
    given = {n: a for n, a in zip(names, arrays, strict=True) if a is not None}
    constant = {"x1", "x2", "x3"} if op == "MatMulNBits" else set()
    outputs = [f"y{i}" for i in range(results)]
    graph = helper.make_graph(
        [helper.make_node(op, names, outputs, domain="com.microsoft", **attributes)],
        "g",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in given.items()
            if n not in constant
        ],
        [helper.make_empty_tensor_value_info(o) for o in outputs],
        [onnx.numpy_helper.from_array(given[n], n) for n in sorted(constant & set(given))],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {n: a for n, a in given.items() if n not in constant}
    want = session.run(None, feeds)
    got = interpret(import_onnx(model), list(feeds.values()))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
