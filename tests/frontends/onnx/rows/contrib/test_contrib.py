"""com.microsoft ops against ONNX Runtime."""

from __future__ import annotations

from typing import Any

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
CASES: dict[str, tuple[str, dict[str, Any], list[np.ndarray | None], int]] = {
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
    "trilu": ("Trilu", {"upper": 0}, [f32(3, 4, 5), np.array(1)], 1),
    "pad": ("Pad", {}, [f32(3, 4), np.array([1, 0, 2, 1]), np.array([0.5], np.float32)], 1),
    "expand_dims": ("ExpandDims", {}, [f32(3, 4), np.array(-1, np.int32)], 1),
    "gather_nd": ("GatherND", {}, [f32(3, 4, 5), np.array([[0, 1], [2, 3]])], 1),
    "grid_sample": ("GridSample", {"mode": "bicubic"}, [f32(2, 3, 5, 6), f32(2, 4, 4, 2)], 1),
    "distances": ("CDist", {"metric": "euclidean"}, [f32(3, 4), f32(5, 4)], 1),
    "fused_gemm": (
        "FusedGemm",
        {"activation": "HardSigmoid", "activation_alpha": 0.2, "activation_beta": 0.4, "alpha": 0.5, "transB": 1},
        [f32(3, 4), f32(5, 4), f32(5)],
        1,
    ),
    **{
        f"head_sink_{name}": (
            "GroupQueryAttention",
            {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1, **attributes},
            [
                *(f32(2, new, 16 * h) for h in (4, 2, 2)),
                *(f32(2, 2, past, 16) for _ in range(2)),
                np.full(2, new + past - 1, np.int32),
                np.array(new + past, np.int32),
                *table(16, 8),
                *([None, None, f32(4)] if name == "given" else []),
            ],
            3,
        )
        for name, new, past, attributes in (
            ("given", 5, 0, {"softcap": 2.0}),
            ("smooth", 5, 0, {"smooth_softmax": 1}),
            ("smooth_token", 1, 6, {"smooth_softmax": 1, "local_window_size": 3}),
        )
    },
    "max_pool_last": (
        "NhwcMaxPool",
        {"kernel_shape": [2, 3], "pads": [1, 0, 0, 1], "strides": [2, 1]},
        [RNG.integers(0, 256, (2, 5, 6, 3)).astype(np.uint8)],
        1,
    ),
    "linear_attention": (
        "LinearAttention",
        {"q_num_heads": 4, "kv_num_heads": 2, "update_rule": "gated_delta"},
        [
            f32(2, 5, 32),
            *(f32(2, 5, 16) / 4 for _ in range(2)),
            f32(2, 2, 8, 8),
            -abs(f32(2, 5, 2)),
            abs(f32(2, 5, 2)) / 4,
        ],
        2,
    ),
    "causal_convolution": (
        "CausalConvWithState",
        {"activation": "silu"},
        [f32(2, 6, 5), f32(6, 1, 4), f32(6), f32(2, 6, 3)],
        2,
    ),
    **{
        f"matmul_4_bit_floats_{kind}": (
            "MatMulBnb4",
            {"quant_type": kind, "block_size": 16, "K": 13, "N": 5},
            [f32(3, 13), RNG.integers(0, 256, 33).astype(np.uint8), abs(f32(5))],
            1,
        )
        for kind in (0, 1)
    },
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

CONSTANT = {
    "MatMulNBits": {"x1", "x2", "x3"},
    "MatMulBnb4": {"x1", "x2"},
    "Trilu": {"x1"},
    "Pad": {"x1"},
    "ExpandDims": {"x1"},
    "GroupQueryAttention": {"x6"},
}


@pytest.mark.parametrize("name", CASES)
def test_against_onnxruntime(name: str) -> None:
    op, attributes, arrays, results = CASES[name]
    names = ["" if a is None else f"x{i}" for i, a in enumerate(arrays)]
    inputs = {n: a for n, a in zip(names, arrays, strict=True) if a is not None}
    constant = CONSTANT.get(op, set())
    outputs = [f"y{i}" for i in range(results)]
    graph = helper.make_graph(
        [helper.make_node(op, names, outputs, domain="com.microsoft", **attributes)],
        "g",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in inputs.items()
            if n not in constant
        ],
        [helper.make_empty_tensor_value_info(o) for o in outputs],
        [onnx.numpy_helper.from_array(inputs[n], n) for n in sorted(constant & set(inputs))],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {n: a for n, a in inputs.items() if n not in constant}
    want = session.run(None, feeds)
    got = interpret(import_onnx(model), list(feeds.values()))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def one_node(
    op: str, input_arrays: dict[str, np.ndarray], results: int, constant: set[str], **attributes: Any
) -> list[Any]:
    """The interpreter's results of a com.microsoft op."""
    outputs = [f"y{i}" for i in range(results)]
    graph = helper.make_graph(
        [helper.make_node(op, list(input_arrays), outputs, domain="com.microsoft", **attributes)],
        "g",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in input_arrays.items()
            if n not in constant
        ],
        [helper.make_empty_tensor_value_info(o) for o in outputs],
        [onnx.numpy_helper.from_array(input_arrays[n], n) for n in sorted(constant)],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return list(interpret(import_onnx(model), [a for n, a in input_arrays.items() if n not in constant]))


@pytest.mark.parametrize("name", ["silu", "swiglu"])
@pytest.mark.parametrize("normalized", [0, 1])
@pytest.mark.parametrize("bits", [0, 4, 8])
def test_mixtures_of_experts(name: str, normalized: int, bits: int) -> None:
    """5 tokens through 2 of 4 experts; weights in floats, or in levels with a scale for each row (8) or block (4)."""
    experts, size, width = 4, 32, 64
    outer = 2 * width if name == "swiglu" else width

    def weight(rows: int, inputs: int) -> list[np.ndarray]:
        if not bits:
            return [f32(experts, rows, inputs) * np.float32(0.2)]
        shape = (experts, rows) if bits == 8 else (experts, rows, inputs // 16)
        levels = RNG.integers(0, 256, (experts, rows, inputs * bits // 8)).astype(np.uint8)
        return [levels, (abs(f32(*shape)) + 0.1) * np.float32(0.4 / 2**bits)]

    arrays = [f32(5, size), f32(5, experts), *weight(outer, size), f32(experts, outer), *weight(size, width)]
    arrays.append(f32(experts, size))
    attributes: dict[str, Any] = {"k": 2, "activation_type": name, "normalize_routing_weights": normalized}
    if bits:
        attributes |= {"expert_weight_bits": bits} | ({"block_size": 16} if bits == 4 else {})
    if name == "swiglu":
        attributes |= {"swiglu_fusion": 1, "activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 2.0}
    names = [f"x{i}" for i in range(len(arrays))]
    node = helper.make_node("QMoE" if bits else "MoE", names, ["y"], domain="com.microsoft", **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, a.shape)
            for n, a in zip(names[:2], arrays[:2], strict=True)
        ],
        [helper.make_empty_tensor_value_info("y")],
        [onnx.numpy_helper.from_array(a, n) for n, a in zip(names[2:], arrays[2:], strict=True)],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    want = session.run(None, dict(zip(names[:2], arrays[:2], strict=True)))[0]
    np.testing.assert_allclose(interpret(import_onnx(model), arrays[:2])[0], want, rtol=1e-4, atol=1e-4)


def test_ops_that_onnxruntime_has_on_gpus_only() -> None:
    """What its optimizer writes for diffusion models, against numpy."""
    x, gamma, beta, skip, bias = f32(2, 3, 4, 8), f32(8), f32(8), f32(2, 3, 4, 8), f32(8)
    data = {"x": x, "gamma": gamma, "beta": beta, "skip": skip, "bias": bias}
    got, total = one_node("SkipGroupNorm", data, 2, set(), groups=4, activation=1, epsilon=1e-3)
    np.testing.assert_allclose(total, x + skip + bias, rtol=1e-5, atol=1e-6)
    parts = (x + skip + bias).reshape(2, 12, 4, 2)
    centred = parts - parts.mean((1, 3), keepdims=True)
    normal = (centred / np.sqrt(parts.var((1, 3), keepdims=True) + 1e-3)).reshape(x.shape) * gamma + beta
    np.testing.assert_allclose(got, normal / (1 + np.exp(-normal)), rtol=1e-3, atol=1e-4)
    (plain,) = one_node("BiasSplitGelu", {"x": f32(2, 3, 6) * 0 + 1, "b": np.zeros(6, np.float32)}, 1, set())
    np.testing.assert_allclose(plain, np.full((2, 3, 3), 0.841345), rtol=1e-5)
    image, weight = f32(1, 5, 6, 3), f32(4, 3, 3, 3)
    (y,) = one_node("NhwcConv", {"x": image, "w": weight}, 1, set(), pads=[1, 1, 1, 1])
    patch = np.einsum("hwc,mhwc->m", image[0, 1:4, 2:5], weight)
    np.testing.assert_allclose(y[0, 2, 3], patch, rtol=1e-4, atol=1e-5)
    packed = f32(2, 5, 4, 3, 8)
    separate = {n: packed[:, :, :, i].reshape(2, 5, 32) for i, n in enumerate("qkv")}
    (expected,) = one_node("MultiHeadAttention", {"qkv": packed}, 1, set(), num_heads=4)
    np.testing.assert_allclose(expected, one_node("MultiHeadAttention", separate, 1, set(), num_heads=4)[0], atol=1e-6)


@pytest.mark.parametrize("per_column", [False, True])
def test_dynamically_quantized_lstm(per_column: bool) -> None:
    """x at each call, and the state before each step, are rounded to levels as ONNX Runtime does."""
    count, size, hidden = 2, 5, 6
    shape = (count, 4 * hidden) if per_column else (count,)

    def matrix(rows: int) -> np.ndarray:
        return RNG.integers(-127, 127, (count, rows, 4 * hidden)).astype(np.int8)

    scales = [(abs(RNG.standard_normal(shape)) * 0.003 + 0.003).astype(np.float32) for _ in range(2)]
    arrays = {
        "x": f32(7, 2, size),
        "w": matrix(size),
        "r": matrix(hidden),
        "b": f32(count, 8 * hidden) * np.float32(0.1),
    }
    tables = {"ws": scales[0], "wz": np.zeros(shape, np.int8), "rs": scales[1], "rz": np.zeros(shape, np.int8)}
    names = [*arrays, "", "", "", "", *tables]
    node = helper.make_node(
        "DynamicQuantizeLSTM", names, ["y"], domain="com.microsoft", hidden_size=hidden, direction="bidirectional"
    )
    constants = [onnx.numpy_helper.from_array(a, n) for n, a in (arrays | tables).items() if n != "x"]
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, arrays["x"].shape)]
    graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info("y")], constants)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1  # each thread would round the states of its rows apart
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (got,) = interpret(import_onnx(model), [arrays["x"]])
    np.testing.assert_allclose(got, session.run(None, {"x": arrays["x"]})[0], atol=2e-6)
