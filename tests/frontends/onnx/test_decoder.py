"""Language models of 4 bits as onnxruntime-genai exports them: their ops, and a small one, beside ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from ingot.frontends.onnx import import_onnx
from ingot.ir.node import Graph
from ingot.ir.types import f32
from ingot.passes.core.block_quantized import is_product_of_levels
from ingot.pipeline.build import build_program, optimize
from ingot.pipeline.cpu import cpu_passes
from ingot.runtime.executor import CompiledModel
from ingot.targets.cpu.workers import host_features
from tests.frontends.onnx.decoder import Decoder

FLOAT, MS = TensorProto.FLOAT, "com.microsoft"
RNG = np.random.default_rng(5)
OPSETS = [helper.make_opsetid("", 21), helper.make_opsetid(MS, 1)]


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def levels(dtype: Any, *shape: int) -> np.ndarray:
    dtype = np.dtype(dtype)
    low, high = {"uint4": (0, 16), "int4": (-8, 8), "int8": (-128, 128)}.get(dtype.name, (0, 256))
    return RNG.integers(low, high, shape).astype(dtype)


def one_op(
    op: str, domain: str, input_types: Mapping[str, Sequence[int | str]], constants: Mapping[str, np.ndarray],
    inputs: Sequence[str], shape: Sequence[int | str], **attributes: Any,
) -> onnx.ModelProto:  # fmt: skip
    """A model of one op on f32 inputs (i64 ones where their names begin with "at") and constants."""
    kind = {n: TensorProto.INT64 if n.startswith("at") else FLOAT for n in input_types}
    graph = helper.make_graph(
        [helper.make_node(op, list(inputs), ["y"], domain=domain, **attributes)],
        "g",
        [helper.make_tensor_value_info(n, kind[n], s) for n, s in input_types.items()],
        [helper.make_tensor_value_info("y", FLOAT, shape)],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=10)


def runtime(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # of which one rounds x to 8 bits
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def compiled(graph: Graph) -> CompiledModel:
    return CompiledModel(build_program(graph, host_features(), 2), threads=2)


def agree(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], tolerance: float = 1e-5) -> Graph:
    graph = import_onnx(model)
    want = np.asarray(runtime(model).run(None, dict(feeds))[0])
    got = np.asarray(compiled(graph)(*feeds.values()))
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * np.abs(want).max())
    return graph


def products_of_levels(graph: Graph) -> int:
    new = optimize(graph, tuple(p for p in cpu_passes() if p[0] in ("lower", "quantized")))
    return sum(is_product_of_levels(n, (f32,)) for n in new.nodes())


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize(
    ("bits", "block", "k", "zeros", "bias"),
    [
        (4, 32, 96, "", 0),
        (4, 16, 90, "levels", 1),
        (4, 128, 256, "floats", 0),
        (8, 32, 64, "", 1),
        (8, 64, 100, "levels", 0),
        (2, 32, 90, "levels", 0),
    ],
)
def test_matmul_nbits(rows: int, bits: int, block: int, k: int, zeros: str, bias: int) -> None:
    n, blocks = 37, -(-k // block)
    constants = {
        "q": levels(np.uint8, n, blocks, block * bits // 8),
        "s": np.abs(normal(n, blocks)),
        "z": levels(np.uint8, n, -(-blocks * bits // 8)) if zeros == "levels" else np.abs(normal(n, blocks)) * 5,
        "b": normal(n),
    }
    names = ["x", "q", "s", "z" if zeros else "", "", "b" if bias else ""]
    used = {name: a for name, a in constants.items() if name in names}
    model = one_op(
        "MatMulNBits", MS, {"x": [2, rows, k]}, used, names, [2, rows, n], K=k, N=n, bits=bits, block_size=block
    )
    graph = agree(model, {"x": normal(2, rows, k)})
    assert products_of_levels(graph) == 1


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4, np.int8])
def test_dequantized_by_blocks(dtype: Any) -> None:
    """DequantizeLinear of [K, N] in blocks of K, in front of a MatMul."""
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=0, block_size=32),
            helper.make_node("MatMul", ["x", "w"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", FLOAT, ["m", 96])],
        [helper.make_tensor_value_info("y", FLOAT, ["m", 21])],
        [
            numpy_helper.from_array(levels(dtype, 96, 21), "q"),
            numpy_helper.from_array(np.abs(normal(3, 21)), "s"),
            numpy_helper.from_array(levels(dtype, 3, 21), "z"),
        ],
    )
    model = helper.make_model(graph, opset_imports=OPSETS, ir_version=10)
    for rows in (1, 7):
        imported = agree(model, {"x": normal(rows, 96)})
    assert products_of_levels(imported) == 1


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4, np.uint8])
@pytest.mark.parametrize("zeros", [False, True])
def test_gather_block_quantized(dtype: Any, zeros: bool) -> None:
    packed = dtype == np.uint8
    constants = {
        "q": levels(dtype, 11, 24 if packed else 48),
        "s": np.abs(normal(11, 3)),
        "z": levels(dtype, 11, 2 if packed else 3),
    }
    names = ["q", "at", "s", *(["z"] if zeros else [])]
    attributes_ = {"bits": 4} if packed else {}
    used = {name: a for name, a in constants.items() if name in names}
    model = one_op(
        "GatherBlockQuantized",
        MS,
        {"at": [2, 3]},
        used,
        names,
        [2, 3, 48],
        block_size=16,
        quantize_axis=1,
        **attributes_,
    )
    agree(model, {"at": RNG.integers(0, 11, (2, 3))})


# attention with caches


def attention(
    batch: int,
    groups: int,
    *,
    has_joint_qkv: bool = False,
    positions: bool = False,
    bias: bool = False,
    **attributes: Any,
) -> onnx.ModelProto:
    """GroupQueryAttention of 4 heads of 16, its lengths from a mask as the model builder writes them."""
    heads, width, has_rotary = 4, 16, attributes.get("do_rotary", 0)
    value = helper.make_tensor_value_info
    cache = [batch, groups, "past", width]
    rows = [("k", groups), ("v", groups)]
    data = [value("q", FLOAT, [batch, "s", (heads + 2 * groups if has_joint_qkv else heads) * width])]
    data += [value(n, FLOAT, [batch, "s", g * width]) for n, g in rows if not has_joint_qkv]
    data += [value("pk", FLOAT, cache), value("pv", FLOAT, cache), value("mask", TensorProto.INT64, [batch, "total"])]
    data += [value("at", TensorProto.INT64, [batch, "s"])] if positions else []
    data += [value("bias", FLOAT, [1, heads, "s", "total"])] if bias else []
    angles = RNG.random((64, 8)).astype(np.float32) * 6
    ones = {"one": np.array(1, np.int64), "ones": np.array([1], np.int64)}
    constants = {**ones, "cos": np.cos(angles), "sin": np.sin(angles)}
    names = ["q", *(["", ""] if has_joint_qkv else ["k", "v"]), "pk", "pv", "last", "total_length"]
    names += [*(["cos", "sin"] if has_rotary else ["", ""]), "at" if positions else "", "bias" if bias else ""]
    nodes = [
        helper.make_node("ReduceSum", ["mask", "ones"], ["sum"], keepdims=0),
        helper.make_node("Sub", ["sum", "one"], ["less"]),
        helper.make_node("Cast", ["less"], ["last"], to=TensorProto.INT32),
        helper.make_node("Shape", ["mask"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["size"]),
        helper.make_node("Cast", ["size"], ["total_length"], to=TensorProto.INT32),
    ]
    kinds = {"num_heads": heads, "kv_num_heads": groups, **attributes}
    nodes.append(helper.make_node("GroupQueryAttention", names, ["y", "nk", "nv"], domain=MS, **kinds))
    infos = [value("y", FLOAT, [batch, "s", heads * width])]
    infos += [value(n, FLOAT, [batch, groups, "present", width]) for n in ("nk", "nv")]
    graph = helper.make_graph(nodes, "g", data, infos, [numpy_helper.from_array(a, n) for n, a in constants.items()])
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=10)


CALLS = {  # rows, keys in the cache, in all, and of each sequence
    "prompt": (7, 0, 7, None),
    "token": (1, 9, 10, None),
    "token in a larger cache": (1, 20, 10, None),
    "prompt in a larger cache": (7, 16, 7, None),
    "tokens": (3, 9, 12, None),
    "sequences of several lengths": (1, 9, 10, (10, 8)),
    "prompts of several lengths": (7, 0, 7, (7, 4)),
}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"batch": 1, "groups": 2},
    "joint qkv": {"batch": 2, "groups": 2, "has_joint_qkv": True, "do_rotary": 1},
    "window": {"batch": 2, "groups": 1, "do_rotary": 1, "rotary_interleaved": 1, "local_window_size": 5},
    "positions": {
        "batch": 2,
        "groups": 4,
        "has_joint_qkv": True,
        "positions": True,
        "do_rotary": 1,
        "softcap": 3.0,
    },
    "bias": {"batch": 1, "groups": 2, "bias": True, "local_window_size": 4},
}


@pytest.mark.parametrize("kind", KINDS)
def test_group_query_attention(kind: str) -> None:
    batch, groups = KINDS[kind]["batch"], KINDS[kind]["groups"]
    model = attention(**KINDS[kind])
    session = runtime(model)
    program = compiled(import_onnx(model, dynamic={"past": (0, 64)}))
    for rows, past, total, lengths in CALLS.values():
        if (lengths and batch != len(lengths)) or (batch > 1 and rows > 1 and past and total > rows):
            continue  # ONNX Runtime continues one sequence at a time
        ends = lengths or (total,) * batch
        shapes = {"mask": (batch, total), "bias": (1, 4, rows, total), "pk": (batch, groups, past, 16)}
        shapes["pv"] = shapes["pk"]
        feeds: dict[str, np.ndarray] = {}
        for i in session.get_inputs():
            width = i.shape[-1] if isinstance(i.shape[-1], int) else 1
            feeds[i.name] = normal(*shapes.get(i.name, (batch, rows, width)))
        feeds["mask"] = (np.arange(total) < np.array(ends)[:, None]).astype(np.int64)
        if "at" in feeds:
            feeds["at"] = np.tile(np.arange(total - rows, total), (batch, 1))
        y, *caches = (np.asarray(a) for a in program(*feeds.values()))
        want, *stored = map(np.asarray, session.run(None, feeds))
        for b, end in enumerate(ends):
            length = min(rows, end)
            np.testing.assert_allclose(y[b, :length], want[b, :length], rtol=1e-4, atol=1e-5)
            for got, expected in zip(caches, stored, strict=True):
                assert got.shape == expected.shape
                np.testing.assert_allclose(got[b, :, :end], expected[b, :, :end], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("has_joint_qkv", [True, False])
def test_a_small_language_model(has_joint_qkv: bool) -> None:
    """A prompt and three tokens behind it, each of what the last call gave."""
    decoder = Decoder(has_joint_qkv=has_joint_qkv, zeros=has_joint_qkv)
    model = decoder.model()
    graph = import_onnx(model, dynamic={"past": (0, 64)})
    assert products_of_levels(graph) == (5 if has_joint_qkv else 7) * decoder.layers + 1
    session, program = runtime(model), compiled(graph)
    caches = [np.zeros((1, decoder.groups, 0, decoder.width), np.float32)] * (2 * decoder.layers)
    total = 0
    for ids in ([3, 17, 42, 8, 11], [7], [49], [0]):
        total += len(ids)
        feeds = [np.array([ids]), np.ones((1, total), np.int64), *caches]
        names = [i.name for i in session.get_inputs()]
        want = [np.asarray(a) for a in session.run(None, dict(zip(names, feeds, strict=True)))]
        got = [np.asarray(a) for a in program(*feeds)]
        for a, b in zip(got, want, strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * np.abs(b).max())
        caches = got[1:]
