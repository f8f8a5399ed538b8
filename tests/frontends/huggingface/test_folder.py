"""Folders of Hugging Face: floats, quantized layers, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ingot import ops
from ingot.frontends.huggingface import Folder, FolderWeights
from ingot.ir.interp import interpret
from ingot.ir.node import Graph, Input
from ingot.ir.types import TensorType, f32, i64
from ingot.pipeline.build import build_program
from ingot.runtime.executor import CompiledModel
from ingot.support import safetensors
from ingot.support.errors import ImportModelError
from ingot.targets.cpu.workers import host_features

RNG = np.random.default_rng(0)


def write(
    folder: Path, files: Mapping[str, Mapping[str, np.ndarray]], config: object = None, index: object = None
) -> Path:
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"} if config is None else config))
    for name, arrays in files.items():
        safetensors.write(folder / name, arrays)
    if index is not None:
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def weights(
    folder: Path, arrays: Mapping[str, np.ndarray], quantization: Mapping[str, Any] | None = None
) -> FolderWeights:
    config = {"model_type": "llama"} | ({"quantization_config": quantization} if quantization else {})
    return FolderWeights(Folder(write(folder, {"model.safetensors": arrays}, config)))


def agree(w: FolderWeights, name: str, expected: np.ndarray) -> None:
    """Shape, matrix and rows."""
    ids = Input("ids", TensorType(i64, (2,)))()
    assert name in w and name in w.names and w.shape(name) == expected.shape
    assert w.matrix(name) is w.matrix(name) and w.rows(name, ids) is w.rows(name, ids)
    at = np.array([len(expected) - 1, 0])
    matrix, rows = interpret(Graph((ids,), (ops.reshape(w.matrix(name), expected.shape), w.rows(name, ids))), [at])
    np.testing.assert_array_equal(matrix, expected)
    np.testing.assert_array_equal(rows, expected[at])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_floats(dtype: str, tmp_path: Path) -> None:
    kind = getattr(ml_dtypes, dtype, None) or np.dtype(dtype)
    x = RNG.normal(size=(4, 6)).astype(kind)
    w = weights(tmp_path, {"w": x, "ids": np.zeros(3, np.int64)})
    agree(w, "w", x.astype(np.float32))
    (vector,) = interpret(Graph((), (w.vector("w"),)), [])
    np.testing.assert_array_equal(vector, x.astype(np.float32))
    with pytest.raises(ImportModelError, match="tensor 'ids': expected floats, got int64"):
        w.matrix("ids")
    with pytest.raises(ImportModelError, match="no tensor 'wx'"):
        w.matrix("wx")


def test_shards(tmp_path: Path) -> None:
    a, b = (np.full((2, 2), v, np.float32) for v in (1, 2))
    index = {"metadata": {}, "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    folder = write(tmp_path, {"model-1.safetensors": {"a": a}, "model-2.safetensors": {"b": b}}, index=index)
    results = Folder(folder).tensors
    assert set(results) == {"a", "b"} and results["b"][0, 0] == 2 and not results["a"].flags.owndata


def test_one_file_of_another_name(tmp_path: Path) -> None:
    assert list(Folder(write(tmp_path, {"adapter.safetensors": {"a": np.ones(2, np.float32)}})).tensors) == ["a"]


ONE = {"a": np.ones(2, np.float32)}
S1, S2 = "1.safetensors", "2.safetensors"
REFUSED = {
    "no weights": ({}, None, None, "got no safetensors"),
    "files without an index": ({S1: ONE, S2: ONE}, None, None, r"got \['1.safetensors', '2.safetensors'\]"),
    "a config that is a list": ({S1: ONE}, [], None, "config.json: expected an object, got list"),
    "no map": ({S1: ONE}, None, {}, "a weight_map from names to files"),
    "a map of numbers": ({S1: ONE}, None, {"weight_map": {"a": 1}}, "a weight_map from names to files"),
    "a file above": ({S1: ONE}, None, {"weight_map": {"a": "../1.safetensors"}}, "got '../1.safetensors'"),
    "a file elsewhere": ({S1: ONE}, None, {"weight_map": {"a": "/etc/passwd"}}, "a file in this folder"),
    "the folder": ({S1: ONE}, None, {"weight_map": {"a": ".."}}, "a file in this folder"),
    "a file not there": ({S1: ONE}, None, {"weight_map": {"a": S2}}, "No such file"),
    "a tensor not there": ({S1: ONE}, None, {"weight_map": {"a": S1, "b": S1, "c": S1}}, "'b' in 1.* and 1 more"),
    "a tensor in two": ({S1: ONE, S2: ONE}, None, {"weight_map": {"a": S1, "b": S2}}, "'a' in 1.* and 2"),
    "a tensor elsewhere": (
        {S1: ONE, S2: {"b": ONE["a"]}},
        None,
        {"weight_map": {"a": S2, "b": S2, "c": S1}},
        "it in 1",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, tmp_path: Path) -> None:
    files, config, index, match = REFUSED[case]
    with pytest.raises(ImportModelError, match=match):
        Folder(write(tmp_path, files, config, index))


@pytest.mark.parametrize("text", [b"{", b"[" * 100_000, b"\xff\xfe\xfd", b'{"a": 1, "a": 2}', b" " * (5 << 20)])
def test_damaged_configs(text: bytes, tmp_path: Path) -> None:
    write(tmp_path, {S1: ONE})
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(ImportModelError, match=r"config\.json"):
        Folder(tmp_path)


# --- quantized layers


def packed(values: np.ndarray, bits: int, order: tuple[int, ...] | None = None) -> np.ndarray:
    """Integers of each line in int32, one by one. order: which of them a field of `bits` bits holds."""
    count = 32 // bits
    packed_words = np.zeros((len(values), values.shape[1] // count), np.uint32)
    for row in range(packed_words.shape[0]):
        for word in range(packed_words.shape[1]):
            for field in range(count):
                column = word * count + (order[field] if order else field)
                packed_words[row, word] |= np.uint32(int(values[row, column]) << bits * field)
    return packed_words.view(np.int32)


OUT, IN, GROUP = 8, 64, 32


def _random(bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    q = RNG.integers(0, 1 << bits, (IN, OUT))
    zeros = RNG.integers(1, 1 << bits, (IN // GROUP, OUT))
    return q, zeros, RNG.uniform(0.01, 0.1, (IN // GROUP, OUT)).astype(np.float16)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("layout", ["v1", "v2", "one zero", "groups in their order", "groups in another order"])
def test_gptq(bits: int, layout: str, tmp_path: Path) -> None:
    q, zeros, scales = _random(bits)
    if bits == 2:
        q, zeros, scales = (np.tile(a, (1, 2)) for a in (q, zeros, scales))  # 16 fields a word
    if layout == "one zero":
        zeros[:] = 1 << bits - 1
    index = np.arange(IN) // GROUP
    if layout == "groups in another order":
        index = RNG.permutation(index)
    added = 0 if layout == "v2" else 1
    arrays = {
        "l.qweight": np.ascontiguousarray(packed(q.T, bits).T),
        "l.qzeros": packed(zeros - added, bits),
        "l.scales": scales,
        "norm.weight": np.ones(4, np.float32),
    }
    if "order" in layout:
        arrays["l.g_idx"] = index.astype(np.int32)
    config = {"quant_method": "gptq", "bits": bits, "group_size": GROUP}
    w = weights(tmp_path, arrays, config | ({"checkpoint_format": "gptq_v2"} if layout == "v2" else {}))
    assert set(w.names) == {"l.weight", "norm.weight"}
    expected = (q.astype(np.float32) - zeros[index]) * scales.astype(np.float32)[index]
    agree(w, "l.weight", np.ascontiguousarray(expected.T))


def test_awq(tmp_path: Path) -> None:
    q, zeros, scales = _random(4)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    arrays = {"l.qweight": packed(q, 4, order), "l.qzeros": packed(zeros, 4, order), "l.scales": scales}
    w = weights(tmp_path, arrays, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"})
    expected = (q - zeros.repeat(GROUP, 0)).astype(np.float32) * scales.astype(np.float32).repeat(GROUP, 0)
    agree(w, "l.weight", np.ascontiguousarray(expected.T))


@pytest.mark.parametrize(
    ("scale", "config"),
    [
        ((), {"quant_method": "modelopt"}),
        ((1,), {"quant_method": "compressed-tensors", "format": "float-quantized"}),
        ((40, 1), {"quant_method": "fbgemm_fp8"}),
        ((3, 4), {"quant_method": "fp8", "weight_block_size": [16, 16]}),
        ((3, 3), {"quant_method": "fp8", "weight_block_size": [16, 24]}),  # the last are cut
    ],
)
def test_floats_of_8_bits(scale: tuple[int, ...], config: dict[str, Any], tmp_path: Path) -> None:
    weight = RNG.normal(size=(40, 64)).astype(ml_dtypes.float8_e4m3fn)
    scales = RNG.uniform(0.5, 2, scale).astype(np.float32)
    suffix = "weight_scale_inv" if config["quant_method"] == "fp8" else "weight_scale"
    w = weights(tmp_path, {"l.weight": weight, f"l.{suffix}": scales}, config)
    high, wide = config.get("weight_block_size", (1 if scales.size > 1 else 40, 64))
    tiles = scales.reshape(-(-40 // high), -(-64 // wide))
    expected = weight.astype(np.float32) * tiles.repeat(high, 0)[:40].repeat(wide, 1)[:, :64]
    assert list(w.names) == ["l.weight"]
    agree(w, "l.weight", expected)


Q, Z, S = np.zeros((8, 8), np.int32), np.zeros((2, 1), np.int32), np.ones((2, 8), np.float16)
BAD = {
    "a method": ({}, {"quant_method": "bitsandbytes"}, "among gptq, awq, .* got 'bitsandbytes'"),
    "no method": ({}, {"bits": 4}, "got None"),
    "3 bits": ({}, {"quant_method": "gptq", "bits": 3}, "bits: expected one of 2, 4, 8, got 3"),
    "a truth for bits": ({}, {"quant_method": "gptq", "bits": True}, "got True"),
    "another layout": ({}, {"quant_method": "awq", "bits": 4, "version": "gemv"}, "version: expected one of 'gemm'"),
    "levels": ({}, {"quant_method": "compressed-tensors", "format": "pack-quantized"}, "got 'pack-quantized'"),
    "tiles": ({}, {"quant_method": "fp8", "weight_block_size": [128, 0]}, r"got \[128, 0\]"),
    "no scales": ({"l.qweight": Q, "l.qzeros": Z}, {"quant_method": "gptq", "bits": 4}, "expected l.scales"),
    "zeros": ({"l.qweight": Q, "l.qzeros": Z[:1], "l.scales": S}, {"quant_method": "gptq", "bits": 4}, "got int32"),
    "a vector": ({"l.qweight": Q[0], "l.qzeros": Z, "l.scales": S}, {"quant_method": "gptq", "bits": 4}, "got int32"),
    "scales": (
        {"l.weight": Q.astype(ml_dtypes.float8_e4m3fn), "l.weight_scale": S}, {"quant_method": "fp8"}, "one a row",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_quantized_layers_that_are_refused(case: str, tmp_path: Path) -> None:
    arrays, config, match = BAD[case]
    with pytest.raises(ImportModelError, match=match):
        weights(tmp_path, arrays, config)


COMPILED = {
    "gptq": {"quant_method": "gptq", "bits": 4},
    "awq": {"quant_method": "awq", "bits": 4},
    "fp8": {"quant_method": "fp8", "weight_block_size": [4, 32]},
}


@pytest.mark.parametrize("method", COMPILED)
def test_compiled(method: str, tmp_path: Path) -> None:
    """As the weights in floats give it."""
    if method == "fp8":
        scales = RNG.uniform(0.5, 2, (2, 2)).astype(np.float32)
        arrays = {"l.weight": RNG.normal(size=(OUT, IN)).astype(ml_dtypes.float8_e4m3fn), "l.weight_scale_inv": scales}
    else:
        q, zeros, scales = _random(4)
        stored = np.ascontiguousarray(packed(q.T, 4).T) if method == "gptq" else packed(q, 4)
        arrays = {"l.qweight": stored, "l.qzeros": packed(zeros, 4), "l.scales": scales}
    w = weights(tmp_path, arrays, COMPILED[method])
    (matrix,) = interpret(Graph((), (w.matrix("l.weight"),)), [])
    x, ids = Input("x", TensorType(f32, (1, IN)))(), Input("ids", TensorType(i64, (2,)))()
    graph = Graph((x, ids), (ops.linear(x, w.matrix("l.weight")), w.rows("l.weight", ids)))
    data = RNG.normal(size=(1, IN)).astype(np.float32)
    y, rows = CompiledModel(build_program(graph, host_features(), 1), threads=1)(data, np.array([5, 1]))
    np.testing.assert_allclose(y, data @ matrix.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(rows, matrix[[5, 1]])
